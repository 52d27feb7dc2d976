/* test_args.c - what every program takes as a number, a size, a fraction and a word. */
#include "service/args/args.h"

#include "schemas/errors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void numbers_are_digits_within_limits(void **state)
{
    (void)state;
    const char *const bad[] = {"",
                               " 1",
                               "1 ",
                               "+1",
                               "-1",
                               "0x10",
                               "1e3",
                               "1.0",
                               "nine",
                               "100",
                               "9",
                               "1K",
                               "18446744073709551616"};
    uint64_t number = 7;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(attnd_number_parse(bad[i], 10, 99, &number), -ATTND_E_INVALID);
    assert_true(number == 7);
    assert_int_equal(attnd_number_parse("10", 10, 99, &number), 0);
    assert_true(number == 10);
    assert_int_equal(attnd_number_parse("0099", 10, 99, &number), 0);
    assert_true(number == 99);
    assert_int_equal(attnd_number_parse("18446744073709551615", 0, UINT64_MAX, &number), 0);
    assert_true(number == UINT64_MAX);
}

static void sizes_have_suffixes(void **state)
{
    (void)state;
    uint64_t bytes;
    const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"512", 512},
                {"64K", 64u << 10},
                {"8m", 8u << 20},
                {"2G", (uint64_t)2 << 30},
                {"16777215T", (uint64_t)16777215 << 40},
                {"18446744073709551615", UINT64_MAX}};
    const char *const bad[] = {"",    "K",   "-1",   "+1", " 1",        "1.5G",
                               "1KB", "1 K", "0x10", "1X", "16777216T", "18446744073709551616"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(attnd_size_parse(good[i].text, &bytes), 0);
        assert_true(bytes == good[i].bytes);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(attnd_size_parse(bad[i], &bytes), -ATTND_E_INVALID);
}

static void fractions_are_finite_and_within_limits(void **state)
{
    (void)state;
    const char *const bad[] = {"", ".5", "-0", "inf", "nan", "1e999", "0x1", "1.5s", "2.01"};
    double number = -1;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(attnd_decimal_parse(bad[i], 0, 2, &number), -ATTND_E_INVALID);
    assert_true(number == -1);
    assert_int_equal(attnd_decimal_parse("0.25", 0, 2, &number), 0);
    assert_true(number == 0.25);
    assert_int_equal(attnd_decimal_parse("20e-1", 0, 2, &number), 0);
    assert_true(number == 2);
}

/* ---- in a parser, in a process of its own: argp ends it at an error ---- */

struct values {
    uint64_t number, size;
    double fraction;
    uint32_t word;
};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    static const char *const words[] = {"red", "green", "blue", NULL};
    struct values *values = state->input;

    switch (key) {
    case 'n':
        values->number = attnd_args_number(state, "number", text, 1, 100);
        return 0;
    case 's':
        values->size = attnd_args_size(state, "size", text);
        return 0;
    case 'f':
        values->fraction = attnd_args_decimal(state, "fraction", text, 0, 1);
        return 0;
    case 'w':
        values->word = attnd_args_word(state, "word", text, words);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void parse(char *option, char *text, struct values *values)
{
    static const struct argp_option options[] = {{NULL, 'n', "N", 0, "", 0},
                                                 {NULL, 's', "N", 0, "", 0},
                                                 {NULL, 'f', "N", 0, "", 0},
                                                 {NULL, 'w', "N", 0, "", 0},
                                                 {0}};
    static const struct argp argp = {options, parse_option, NULL, NULL, NULL, NULL, NULL};
    char name[] = "test_args", *argv[] = {name, option, text, NULL};

    argp_err_exit_status = 64;
    argp_parse(&argp, 3, argv, 0, NULL, values);
}

static void expect_refused(const char *option, const char *text, const char *wanted)
{
    char said[512];
    int ends[2], status;
    size_t bytes = 0;
    ssize_t got;

    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        char option_copy[8], text_copy[64];
        struct values values = {0};

        dup2(ends[1], STDERR_FILENO);
        snprintf(option_copy, sizeof(option_copy), "%s", option);
        snprintf(text_copy, sizeof(text_copy), "%s", text);
        parse(option_copy, text_copy, &values);
        _exit(0);
    }
    close(ends[1]);
    while ((got = read(ends[0], said + bytes, sizeof(said) - 1 - bytes)) > 0)
        bytes += (size_t)got;
    said[bytes] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 64);
    assert_non_null(strstr(said, wanted));
}

static void a_refusal_names_the_option_the_text_and_the_limits(void **state)
{
    (void)state;
    expect_refused("-n", "0", "--number: '0' is not a number in 1..100");
    expect_refused("-n", "ten", "--number: 'ten' is not a number in 1..100");
    expect_refused("-s", "0", "--size: '0' is not a size");
    expect_refused("-s", "9223372036854775808", "is not a size");
    expect_refused("-f", "1.5", "--fraction: '1.5' is not a number in 0..1");
    expect_refused("-w", "pink", "--word: 'pink' is none of: red, green, blue");
}

static void values_reach_the_program(void **state)
{
    (void)state;
    struct values values = {0};
    char n[] = "-n", s[] = "-s", f[] = "-f", w[] = "-w";
    char hundred[] = "100", kilobyte[] = "1K", half[] = "0.5", blue[] = "blue";

    parse(n, hundred, &values);
    parse(s, kilobyte, &values);
    parse(f, half, &values);
    parse(w, blue, &values);
    assert_true(values.number == 100 && values.size == 1024);
    assert_true(values.fraction == 0.5 && values.word == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_digits_within_limits),
        cmocka_unit_test(sizes_have_suffixes),
        cmocka_unit_test(fractions_are_finite_and_within_limits),
        cmocka_unit_test(a_refusal_names_the_option_the_text_and_the_limits),
        cmocka_unit_test(values_reach_the_program),
    };
    return cmocka_run_group_tests_name("args", tests, NULL, NULL);
}
