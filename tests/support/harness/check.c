/* check.c - the four ways to be wrong, each as one line that says what was got and what was meant.
 */
#include "tests/support/harness/check.h"

#include "client/attnd.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static void leave(const char *file, int line)
{
    (void)file;
    (void)line;
    _exit(1);
}

void (*check_failed)(const char *file, int line) = leave;

void check_say(const char *file, int line, const char *format, ...)
{
    char text[1024];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s:%d: %s\n", file, line, text);
}

void check_true(int condition, const char *text, const char *file, int line)
{
    if (condition)
        return;
    check_say(file, line, "not true: %s", text);
    check_failed(file, line);
}

void check_equal(int64_t got, int64_t want, const char *text, const char *file, int line)
{
    if (got == want)
        return;
    check_say(file, line, "not equal: %s: got %" PRId64 ", want %" PRId64, text, got, want);
    check_failed(file, line);
}

int64_t check_ok(int64_t code, const char *text, const char *file, int line)
{
    struct attnd_fault fault;
    char sentence[256];

    if (code >= 0)
        return code;
    attnd_last_fault(&fault);
    if (fault.code != code)
        fault = (struct attnd_fault){.code = (int32_t)code};
    check_say(file, line, "%s: %s", text, attnd_fault_string(&fault, sentence, sizeof(sentence)));
    check_failed(file, line);
    return code;
}

void check_error(int64_t code, int error, const char *text, const char *file, int line)
{
    if (code == -error)
        return;
    check_say(file, line, "%s: got %s (%" PRId64 "), want %s", text, attnd_error_name((int)code),
              code, attnd_error_name(error));
    check_failed(file, line);
}
