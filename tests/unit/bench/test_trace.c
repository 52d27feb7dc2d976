/* test_trace.c - both trace formats, and what is refused with which line's number. */
#include "bench/replay/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct replay_trace_options strict = {0};

static int parse(const char *text, const struct replay_trace_options *options,
                 struct replay_trace *trace, struct replay_trace_error *error)
{
    memset(error, 0, sizeof(*error));
    return replay_trace_parse(text, strlen(text), options, trace, error);
}

static void refused_at(const char *text, uint64_t line)
{
    struct replay_trace trace;
    struct replay_trace_error error;

    if (parse(text, &strict, &trace, &error) != -1)
        fail_msg("accepted: %s", text);
    if (error.line != line)
        fail_msg("line %d reported instead of %d: %s", (int)error.line, (int)line, text);
    assert_true(error.text[0] != 0);
}

#define GOOD                                                                                       \
    "{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 3, \"hash_ids\": [7, 9]}\n"
#define HEADER "TIMESTAMP,ContextTokens,GeneratedTokens\n"

static void json_lines_become_requests(void **state)
{
    struct replay_trace trace;
    struct replay_trace_error error;

    (void)state;
    assert_int_equal(parse(GOOD
                           "{\"hash_ids\":[7],\"output_length\":0,\"priority\":{\"a\":[1,null]},"
                           "\"input_length\":512,\"timestamp\":7.5}",
                           &strict, &trace, &error),
                     0);
    assert_int_equal(trace.requests, 2);
    assert_int_equal(trace.request[0].arrival_ns, 0); /* counted from the first */
    assert_int_equal(trace.request[1].arrival_ns, 2500000);
    assert_int_equal(trace.request[0].input_tokens, 600);
    assert_int_equal(trace.request[0].output_tokens, 3);
    assert_int_equal(trace.request[0].blocks, 2);
    assert_int_equal(trace.block_ids[trace.request[0].blocks_offset + 1], 9);
    assert_int_equal(trace.block_ids[trace.request[1].blocks_offset], 7);
    replay_trace_free(&trace);
}

static void csv_lines_become_requests_that_share_nothing(void **state)
{
    struct replay_trace trace;
    struct replay_trace_error error;

    (void)state;
    assert_int_equal(parse("TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                           "2023-12-31 23:59:59.6805900,1025,44\r\n"
                           "2024-01-01 00:00:00.0000000,1024,0\r\n"
                           "2024-03-01 00:00:00,1,1",
                           &strict, &trace, &error),
                     0);
    assert_int_equal(trace.requests, 3);
    assert_int_equal(trace.request[1].arrival_ns, 319410000);
    /* January and a February of 29 days */
    assert_int_equal(trace.request[2].arrival_ns, 319410000 + 60 * 86400 * (uint64_t)1000000000);
    assert_int_equal(trace.request[0].blocks, 3);
    assert_int_equal(trace.block_ids_count, 3 + 2 + 1);
    for (size_t i = 0; i < trace.block_ids_count; i++)
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(trace.block_ids[i], trace.block_ids[j]);
    replay_trace_free(&trace);
}

static void requests_are_ordered_by_arrival_and_keep_their_identity(void **state)
{
    struct replay_trace trace;
    struct replay_trace_error error;

    (void)state;
    assert_int_equal(parse(HEADER "2024-01-01 00:00:02,5,1\n2024-01-01 00:00:01,6,1\n"
                                  "2024-01-01 00:00:02,7,1\n",
                           &strict, &trace, &error),
                     0);
    assert_int_equal(trace.request[0].input_tokens, 6);
    assert_int_equal(trace.request[0].index, 1);
    assert_int_equal(trace.request[1].input_tokens, 5);
    assert_int_equal(trace.request[2].input_tokens, 7);
    replay_trace_free(&trace);
}

static void a_bad_json_line_is_refused_with_its_number(void **state)
{
    /* ' stands for " */
    static const char *const bad[] = {
        "\v",
        "{}",
        "[]",
        "nonsense",
        "{'timestamp': 5, 'input_length': 600, 'output_length': 3}",
        "{'timestamp': -5, 'input_length': 600, 'output_length': 3, 'hash_ids': [7, 9]}",
        "{'timestamp': 5, 'input_length': 0, 'output_length': 3, 'hash_ids': []}",
        "{'timestamp': 5, 'input_length': 600, 'output_length': 3, 'hash_ids': [7]}",
        "{'timestamp': 5, 'input_length': 600, 'output_length': 3, 'hash_ids': [7, 9, 1]}",
        "{'timestamp': 5, 'input_length': 600, 'output_length': -3, 'hash_ids': [7, 9]}",
        "{'timestamp': 5, 'input_length': 6e2, 'output_length': 3, 'hash_ids': [7, 9]}",
        "{'timestamp': 5, 'input_length': 0600, 'output_length': 3, 'hash_ids': [7, 9]}",
        "{'timestamp': 5, 'input_length': 600, 'output_length': '3', 'hash_ids': [7, 9]}",
        "{'timestamp': 5, 'input_length': 600, 'output_length': 3, 'hash_ids': [7 9]}",
        "{'timestamp': 5, 'input_length': 600, 'output_length': 3, 'hash_ids': [7, 9,]}",
        "{'timestamp': 5, 'input_length': 600, 'output_length': 3, 'hash_ids': [7, -9]}",
        "{'timestamp': 5, 'timestamp': 5, 'input_length': 9, 'output_length': 3, 'hash_ids': [7]}",
        "{'timestamp': 5, 'input_length': 600, 'output_length': 3, 'hash_ids': [7, 9]} x",
        "{'timestamp': 5, 'input_length': 600, 'output_length': 3, 'hash_ids': [7, 9]",
        "{'timestamp': 5, 'input_length': 600, 'output_length': 3, 'hash_ids': [7, 9]}}",
        "{'timestamp': 5, 'input_length': 600, 'output_length': 3, 'hash_ids': [7, 1e1]}",
        "{'timestamp':5, 'input_length':9, 'output_length':3, 'hash_ids':[9223372036854775808]}",
        "{'timestamp': 5, 'input_length': 600, 'output_length': 3, 'hash_ids': [7, 9.0]}",
        "{'timestamp': 5, 'input_length': 16777217, 'output_length': 3, 'hash_ids': [7, 9]}",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
    };
    char text[1024];

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(text, sizeof(text), GOOD GOOD "%s\n" GOOD, bad[i]);
        for (char *quote = text; (quote = strchr(quote, '\''));)
            *quote = '"';
        refused_at(text, 3);
    }
}

static void blank_lines_between_json_lines_are_counted_and_nothing_else(void **state)
{
    struct replay_trace trace;
    struct replay_trace_error error;

    (void)state;
    assert_int_equal(parse("\n" GOOD "\r\n \t\n" GOOD "\n\n", &strict, &trace, &error), 0);
    assert_int_equal(trace.requests, 2);
    assert_int_equal(trace.bad_lines, 0);
    replay_trace_free(&trace);
    refused_at(GOOD "\n\n" GOOD "x\n", 5);
    refused_at("\n\n", 0); /* no requests in it */
}

/* A line that only opens brackets must not exhaust the stack. */
static void a_line_that_nests_without_end_is_refused(void **state)
{
    enum { DEEP = 1 << 18 };
    char *text = malloc(sizeof(GOOD) + DEEP);

    (void)state;
    assert_non_null(text);
    memcpy(text, GOOD, sizeof(GOOD) - 1);
    memset(text + sizeof(GOOD) - 1, '[', DEEP);
    text[sizeof(GOOD) - 1 + DEEP] = 0;
    refused_at(text, 2);
    free(text);
}

static void a_bad_csv_line_is_refused_with_its_number(void **state)
{
    static const char *const bad[] = {
        "",
        "2024-01-01 00:00:02",
        "2024-01-01 00:00:02,5",
        "2024-01-01 00:00:02,5,",
        "2024-01-01 00:00:02,,1",
        "2024-01-01 00:00:02,5,1,1",
        "2024-01-01 00:00:02,0,1",
        "2024-01-01 00:00:02,-5,1",
        "2024-01-01 00:00:02,5,1 ",
        "2024-01-01 00:00:02.,5,1",
        "2024-13-01 00:00:02,5,1",
        "2024-01-32 00:00:02,5,1",
        "2024-01-01 24:00:02,5,1",
        "2024-01-01T00:00:02,5,1",
        "24-01-01 00:00:02,5,1",
        "2024-01-01 00:00:02,99999999,1",
        "2024-01-01 00:00:02,5,9999999999",
        "\"2024-01-01 00:00:02\",5,1",
        "{\"timestamp\": 5}",
    };
    char text[1024];

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(text, sizeof(text), HEADER "2024-01-01 00:00:01,5,1\n%s\n", bad[i]);
        refused_at(text, 3);
    }
}

static uint64_t skipped_lines[8];
static size_t skipped_count;

static void note_skipped(const struct replay_trace_error *error)
{
    skipped_lines[skipped_count++] = error->line;
}

static void bad_lines_are_skipped_on_request(void **state)
{
    static const struct replay_trace_options lenient = {.skip_bad = 1, .skipped = note_skipped};
    struct replay_trace trace;
    struct replay_trace_error error;

    (void)state;
    skipped_count = 0;
    assert_int_equal(parse("garbage\n" GOOD "x\n" GOOD "{", &lenient, &trace, &error), 0);
    assert_int_equal(trace.requests, 2);
    assert_int_equal(trace.bad_lines, 3);
    assert_int_equal(skipped_count, 3);
    assert_int_equal(skipped_lines[0], 1);
    assert_int_equal(skipped_lines[1], 3);
    assert_int_equal(skipped_lines[2], 5);
    replay_trace_free(&trace);
}

static void a_trace_without_requests_is_refused(void **state)
{
    static const struct replay_trace_options lenient = {.skip_bad = 1};
    struct replay_trace trace;
    struct replay_trace_error error;

    (void)state;
    refused_at("", 0);
    refused_at(HEADER, 0);
    assert_int_equal(parse("x\ny\n", &lenient, &trace, &error), -1);
}

static void lines_behind_the_limit_are_not_looked_at(void **state)
{
    static const struct replay_trace_options two = {.limit = 2};
    struct replay_trace trace;
    struct replay_trace_error error;

    (void)state;
    assert_int_equal(parse(GOOD GOOD "garbage", &two, &trace, &error), 0);
    assert_int_equal(trace.requests, 2);
    replay_trace_free(&trace);
}

static void a_line_that_is_too_long_is_refused(void **state)
{
    size_t bytes = REPLAY_LINE_BYTES_MAX + sizeof(GOOD);
    char *text = malloc(bytes + 1);

    (void)state;
    assert_non_null(text);
    memset(text, ' ', bytes);
    memcpy(text, GOOD, sizeof(GOOD) - 2); /* spaces where the line ended */
    text[bytes] = 0;
    refused_at(text, 1);
    free(text);
}

static void every_truncation_is_judged_without_reading_beyond_it(void **state)
{
    (void)state;
    for (size_t bytes = 0; bytes < sizeof(GOOD) - 2; bytes++) {
        struct replay_trace trace;
        struct replay_trace_error error;
        char *exact = malloc(bytes + 1); /* the end is where the sanitizer sees it */

        assert_non_null(exact);
        memcpy(exact, GOOD, bytes);
        assert_int_equal(replay_trace_parse(exact, bytes, &strict, &trace, &error), -1);
        free(exact);
    }
}

static void clipping_keeps_beginnings_and_says_how_many(void **state)
{
    struct replay_trace trace;
    struct replay_trace_error error;

    (void)state;
    assert_int_equal(parse(HEADER "2024-01-01 00:00:00,5000,10\n2024-01-01 00:00:00,100,5000\n"
                                  "2024-01-01 00:00:00,900,100\n2024-01-01 00:00:00,9000,9000\n",
                           &strict, &trace, &error),
                     0);
    replay_trace_clip(&trace, 1000);
    assert_int_equal(trace.clipped, 3);
    assert_int_equal(trace.request[0].input_tokens, 990);
    assert_int_equal(trace.request[0].blocks, 2);
    assert_int_equal(trace.request[0].output_tokens, 10);
    assert_int_equal(trace.request[1].input_tokens, 100);
    assert_int_equal(trace.request[1].output_tokens, 500);
    assert_int_equal(trace.request[2].input_tokens, 900);
    assert_int_equal(trace.request[3].input_tokens, 500);
    assert_int_equal(trace.request[3].output_tokens, 500);
    replay_trace_free(&trace);
}

static void a_missing_file_is_an_error_of_the_file(void **state)
{
    struct replay_trace trace;
    struct replay_trace_error error;

    (void)state;
    assert_int_equal(replay_trace_load("/nonexistent/trace", &strict, &trace, &error), -1);
    assert_int_equal(error.line, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_lines_become_requests),
        cmocka_unit_test(csv_lines_become_requests_that_share_nothing),
        cmocka_unit_test(requests_are_ordered_by_arrival_and_keep_their_identity),
        cmocka_unit_test(a_bad_json_line_is_refused_with_its_number),
        cmocka_unit_test(blank_lines_between_json_lines_are_counted_and_nothing_else),
        cmocka_unit_test(a_line_that_nests_without_end_is_refused),
        cmocka_unit_test(a_bad_csv_line_is_refused_with_its_number),
        cmocka_unit_test(bad_lines_are_skipped_on_request),
        cmocka_unit_test(a_trace_without_requests_is_refused),
        cmocka_unit_test(lines_behind_the_limit_are_not_looked_at),
        cmocka_unit_test(a_line_that_is_too_long_is_refused),
        cmocka_unit_test(every_truncation_is_judged_without_reading_beyond_it),
        cmocka_unit_test(clipping_keeps_beginnings_and_says_how_many),
        cmocka_unit_test(a_missing_file_is_an_error_of_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
