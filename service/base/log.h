/*
 * log.h - one line to standard error. Nothing else of the daemon and the worker prints.
 */
#ifndef ATTND_SERVICE_BASE_LOG_H
#define ATTND_SERVICE_BASE_LOG_H

enum attnd_log_level {
    ATTND_LOG_ERROR = 3,
    ATTND_LOG_WARNING = 4,
    ATTND_LOG_INFO = 6,
    ATTND_LOG_DEBUG = 7
};

/** attnd_log_level() - lines above @level are dropped from now on. */
void attnd_log_level(enum attnd_log_level level);

/** attnd_log() - format and write one line, with level, time and process before it. Lines that come
 * too fast are left out and counted, errors never. Threads: any. */
void attnd_log(enum attnd_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
