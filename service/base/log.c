/*
 * log.c - one line, one write(2).
 *
 * Daemon and worker share stderr, so a line leaves in a single write and theirs never mix. Under
 * systemd the level travels as the <N> prefix that journald understands and the journal has its own
 * clock; elsewhere the line begins with the time of day.
 */
#include "service/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 1024

static enum attnd_log_level level_max = ATTND_LOG_INFO;

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
        length = snprintf(line, bytes, "%02d:%02d:%02d.%03ldZ %s[%d] %s", day.tm_hour, day.tm_min,
                          day.tm_sec, now.tv_nsec / 1000000, program_invocation_short_name,
                          (int)getpid(), level_name(level));
    }
    return length < 0 ? 0 : (size_t)length < bytes ? (size_t)length : bytes - 1;
}

void attnd_log(enum attnd_log_level level, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list arguments;

    if (level > level_max)
        return;
    size_t used = put_prefix(line, sizeof(line) - 1, level);
    va_start(arguments, format);
    int length = vsnprintf(line + used, sizeof(line) - 1 - used, format, arguments);
    va_end(arguments);
    if (length < 0)
        return;
    used += strlen(line + used);
    line[used++] = '\n';
    /* Nobody to tell if stderr is gone. */
    ssize_t written = write(STDERR_FILENO, line, used);
    (void)written;
}
