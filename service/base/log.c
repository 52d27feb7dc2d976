/*
 * log.c - one line, one write(2).
 *
 * Daemon and worker share stderr, so a line leaves in a single write and theirs never mix. Under
 * systemd the level travels as the <N> prefix that journald understands and the journal has its own
 * clock; elsewhere the line begins with date and time (UTC).
 */
#include "service/base/log.h"

#include "schemas/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 1024

/* Lines that a peer can cause are not written faster than this: a burst, and so many a second.
 * Errors are always written. With debug lines on there is no limit. */
#define BURST_LINES 200u
#define LINE_NS 50000000u /* one more every 50 ms */

static enum attnd_log_level level_max = ATTND_LOG_INFO;

static pthread_mutex_t limit_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t limit_ns; /* the lines so far are paid for until then */
static uint32_t left_out;

void attnd_log_level(enum attnd_log_level level)
{
    level_max = level;
}

static const char *level_name(enum attnd_log_level level)
{
    switch (level) {
    case ATTND_LOG_ERROR:
        return "error: ";
    case ATTND_LOG_WARNING:
        return "warning: ";
    case ATTND_LOG_INFO:
        return "";
    case ATTND_LOG_DEBUG:
        return "debug: ";
    }
    return "";
}

/* Returns the length of the prefix. */
static size_t put_prefix(char *line, size_t bytes, enum attnd_log_level level)
{
    int length;

    if (getenv("JOURNAL_STREAM")) {
        length = snprintf(line, bytes, "<%d>%s", (int)level, level_name(level));
    } else {
        struct timespec now;
        struct tm day;
        clock_gettime(CLOCK_REALTIME, &now);
        gmtime_r(&now.tv_sec, &day);
        length = snprintf(line, bytes, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %s[%d] %s",
                          day.tm_year + 1900, day.tm_mon + 1, day.tm_mday, day.tm_hour, day.tm_min,
                          day.tm_sec, now.tv_nsec / 1000000, program_invocation_short_name,
                          (int)getpid(), level_name(level));
    }
    return length < 0 ? 0 : (size_t)length < bytes ? (size_t)length : bytes - 1;
}

/* May a line be written? *@missing: how many were not, before this one. */
static int afford(enum attnd_log_level level, uint32_t *missing)
{
    const uint64_t now_ns = attnd_clock_ns(), burst_ns = (uint64_t)BURST_LINES * LINE_NS;
    int pays = 1;

    pthread_mutex_lock(&limit_lock);
    if (limit_ns < now_ns)
        limit_ns = now_ns;
    if (level > ATTND_LOG_ERROR && level_max < ATTND_LOG_DEBUG) {
        pays = limit_ns + LINE_NS <= now_ns + burst_ns;
        limit_ns += pays ? LINE_NS : 0;
        left_out += !pays;
    }
    *missing = pays ? left_out : 0;
    left_out -= *missing;
    pthread_mutex_unlock(&limit_lock);
    return pays;
}

static void write_line(enum attnd_log_level level, const char *format, va_list arguments)
{
    char line[LINE_BYTES];
    size_t used = put_prefix(line, sizeof(line) - 1, level);
    int length = vsnprintf(line + used, sizeof(line) - 1 - used, format, arguments);
    if (length < 0)
        return;
    used += strlen(line + used);
    line[used++] = '\n';
    /* If stderr is gone there is no place to say so. */
    ssize_t written = write(STDERR_FILENO, line, used);
    (void)written;
}

static void say_left_out(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_line(ATTND_LOG_WARNING, format, arguments);
    va_end(arguments);
}

void attnd_log(enum attnd_log_level level, const char *format, ...)
{
    va_list arguments;
    uint32_t missing;

    if (level > level_max || !afford(level, &missing))
        return;
    if (missing)
        say_left_out("%u lines were left out: more than %u at once, or %u a second", missing,
                     BURST_LINES, 1000000000u / LINE_NS);
    va_start(arguments, format);
    write_line(level, format, arguments);
    va_end(arguments);
}
