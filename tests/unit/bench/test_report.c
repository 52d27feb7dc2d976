/* test_report.c - what a replay shows while it runs, and what it concludes. */
#include "bench/replay/replay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void progress_fits_60_columns_and_names_its_numbers(void **state)
{
    static const char *const labels[] = {"prefixes shared", "nothing shared"};
    static const double elapsed_s[] = {0, 3, 86400};

    (void)state;
    for (size_t i = 0; i < 2; i++)
        for (size_t j = 0; j < 3; j++)
            for (uint64_t done = 0; done <= 1000000; done += 250000) {
                const struct replay_progress progress = {.label = labels[i], .tokens = 1000000};
                char line[REPLAY_PROGRESS_BYTES];

                replay_progress_line(&progress, done, elapsed_s[j], line);
                if (strlen(line) > 60)
                    fail_msg("%zu columns: %s", strlen(line), line);
                assert_non_null(strstr(line, "s so far"));
                assert_non_null(strstr(line, "tokens/s"));
            }
}

static void the_bar_grows_with_the_part_that_is_done(void **state)
{
    const struct replay_progress progress = {.label = "prefixes shared", .tokens = 100};
    char line[REPLAY_PROGRESS_BYTES];

    (void)state;
    replay_progress_line(&progress, 0, 1, line);
    assert_null(strchr(line, '#'));
    replay_progress_line(&progress, 50, 1, line);
    assert_true(strchr(line, '#') && strchr(line, '.'));
    replay_progress_line(&progress, 100, 1, line);
    assert_null(strchr(line, '.'));
}

static void it_is_complete_at_the_end_only(void **state)
{
    const struct replay_progress progress = {.label = "one tree", .tokens = 1000};
    char line[REPLAY_PROGRESS_BYTES];

    (void)state;
    replay_progress_line(&progress, 999, 1, line);
    assert_non_null(strstr(line, " 99 %"));
    replay_progress_line(&progress, 1000, 1, line);
    assert_non_null(strstr(line, "100 %"));
}

static void the_conclusion_says_what_was_saved(void **state)
{
    static struct replay_result shared, apart;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    (void)state;
    assert_non_null(out);
    shared.page_bytes = 1 << 20;
    shared.total.pages_hit = 32;
    shared.total.prompt_tokens = 4000;
    shared.total.prompt_computed = 1000;
    shared.total.kv_bytes_read = 1ull << 30;
    shared.total.kv_bytes_flat = 4ull << 30;
    shared.total.attention_ns = 1500000000;
    shared.total.pages_foreign = 8;
    apart.total.attention_ns = 2000000000;
    apart.total.prompt_computed = 1600;
    apart.cache = REPLAY_CACHE_ENGINE;
    replay_report_conclusion(out, &shared, &apart);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(
        text, "Sharing saved computing 3,000 of 4,000 prompt tokens, and 32.0 MiB of KV memory."));
    assert_non_null(strstr(text, "read 1.00 GiB of KV instead of 4.00 GiB (-75 %)."));
    assert_non_null(strstr(text, "1.50 s, and 2.00 s with caches apart (-25 %)."));
    assert_non_null(strstr(text, "computed 62.5 % of the prompt tokens that caches apart did"));
    assert_non_null(strstr(text, "8.00 MiB\nof KV were read that another engine had computed."));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(progress_fits_60_columns_and_names_its_numbers),
        cmocka_unit_test(the_bar_grows_with_the_part_that_is_done),
        cmocka_unit_test(it_is_complete_at_the_end_only),
        cmocka_unit_test(the_conclusion_says_what_was_saved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
