/* test_log.c - what peers cause is written so fast and not faster; errors always are. */
#include "service/base/log.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static char text[1 << 20];

/* Everything that @write logs, in `text`. Return: lines. */
static unsigned capture(void (*write_lines)(void))
{
    unsigned lines = 0;
    int file = memfd_create("log", MFD_CLOEXEC), before = dup(STDERR_FILENO);
    assert_true(file >= 0 && before >= 0);
    assert_true(dup2(file, STDERR_FILENO) >= 0);
    write_lines();
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    ssize_t bytes = pread(file, text, sizeof(text) - 1, 0);
    close(file);
    assert_true(bytes >= 0);
    text[bytes] = '\0';
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    return lines;
}

static void warn_much(void)
{
    for (int i = 0; i < 100000; i++)
        attnd_log(ATTND_LOG_WARNING, "line %d", i);
}

static void fail_much(void)
{
    for (int i = 0; i < 1000; i++)
        attnd_log(ATTND_LOG_ERROR, "line %d", i);
}

static void a_flood_is_cut_and_counted(void **state)
{
    (void)state;
    attnd_log_level(ATTND_LOG_INFO);
    unsigned first = capture(warn_much);
    assert_in_range(first, 200, 1000); /* a burst, and what the time for the rest allows */
    usleep(100000);                    /* long enough for one more line: the limit is a rate */
    assert_true(capture(warn_much) >= 2);
    assert_non_null(strstr(text, "lines were left out"));
}

static void errors_are_always_written(void **state)
{
    (void)state;
    attnd_log_level(ATTND_LOG_INFO);
    (void)capture(warn_much);
    assert_true(capture(fail_much) >= 1000);
}

static void a_level_that_is_off_writes_nothing(void **state)
{
    (void)state;
    attnd_log_level(ATTND_LOG_ERROR);
    assert_int_equal(capture(warn_much), 0);
}

static void debug_lines_ask_for_everything(void **state)
{
    (void)state;
    attnd_log_level(ATTND_LOG_DEBUG);
    assert_true(capture(fail_much) >= 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flood_is_cut_and_counted),
        cmocka_unit_test(errors_are_always_written),
        cmocka_unit_test(a_level_that_is_off_writes_nothing),
        cmocka_unit_test(debug_lines_ask_for_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
