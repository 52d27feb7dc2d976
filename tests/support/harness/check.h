/*
 * check.h - what a test holds to be true, in any process.
 *
 * cmocka's assertions jump back into the runner, which is wrong in a forked client. These call
 * check_failed, which says what failed and where and then leaves in the way that fits the process:
 * a test program sets it to cmocka's _fail, a forked client exits, and so does a long program.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_CHECK_H
#define ATTND_TESTS_SUPPORT_HARNESS_CHECK_H

#include <stdint.h>

/* Does not return. By default: _exit(1). */
extern void (*check_failed)(const char *file, int line);

/** check_say() - a line on standard error, prefixed by the place. */
void check_say(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void check_true(int condition, const char *text, const char *file, int line);
void check_equal(int64_t got, int64_t want, const char *text, const char *file, int line);
/* A call of client/attnd.h: @code >= 0, or the sentence of attnd_last_fault(). Return: @code. */
int64_t check_ok(int64_t code, const char *text, const char *file, int line);
/* @code is -@error. */
void check_error(int64_t code, int error, const char *text, const char *file, int line);

#define CHECK(condition) check_true(!!(condition), #condition, __FILE__, __LINE__)
#define CHECK_FAIL(text) check_true(0, text, __FILE__, __LINE__)
#define CHECK_EQUAL(got, want)                                                                     \
    check_equal((int64_t)(got), (int64_t)(want), #got " == " #want, __FILE__, __LINE__)
#define CHECK_OK(call) check_ok((call), #call, __FILE__, __LINE__)
#define CHECK_ERROR(call, error) check_error((call), (error), #call, __FILE__, __LINE__)

#endif
