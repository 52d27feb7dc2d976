/*
 * suite.h - what the programs that measure figures have in common: options, a service, a line for
 * each figure, and records at the end.
 */
#ifndef ATTND_BENCH_SUPPORT_SUITE_H
#define ATTND_BENCH_SUPPORT_SUITE_H

#include "bench/support/record.h"
#include "client/attnd.h"
#include "schemas/attnd.pb-c.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define BENCH_REPLAYS_MAX 8u

struct argp;

struct bench_suite {
    const char *name; /* of the suite: its file and the first part of its figures' names */
    const char *doc;  /* for --help */
    uint64_t rounds;  /* default, then --rounds */
    double seconds;   /* default, then --seconds; 0: the suite has no such option */
    const struct argp *own_options; /* of this suite alone; NULL: none */
    void *own_input;                /* of their parser */

    const char *socket_path; /* NULL: as libattnd finds it */
    const char *attnd_path, *record_directory;
    char isa[32];                               /* of the service */
    const char *replay_path[BENCH_REPLAYS_MAX]; /* --replay, as often as it was given */
    uint32_t replays, replays_max;              /* the second: that the suite takes */
    bool spawn, allow_dirty;
    bool failed, missed; /* missed: a figure is not within its reach */
    bool incomplete;     /* see bench_suite_go_on() */
    struct bench_stamp stamp;
    struct bench_record record[BENCH_RECORDS_MAX];
    size_t records;
};

/** bench_suite_begin() - options, service and stamp; ends the program if one of them fails.
 * @suite: name, doc and defaults are set. */
void bench_suite_begin(struct bench_suite *suite, int argc, char **argv);

/**
 * bench_suite_restart() - another private attnd in place of the one that runs
 * @service: its arguments, NULL-terminated
 * No session of this process may be open. Fails without --spawn: the service is somebody else's.
 * Return: false after bench_suite_fail().
 */
bool bench_suite_restart(struct bench_suite *suite, const char *const *service);

/**
 * bench_suite_figure() - one result
 * @figure: behind the suite's name and a dot
 * @better: "lower" or "higher"
 * @reach:  the value to reach, shown beside it; NAN: there is none
 * @notes:  kept with the record; may be NULL
 */
void bench_suite_figure(struct bench_suite *suite, const char *figure, double value,
                        const char *unit, const char *better, double reach, const char *notes);

/** bench_suite_fail() - a sentence to stderr; the suite will not record. */
void bench_suite_fail(struct bench_suite *suite, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** bench_suite_go_on() - after a failure, where the rest is worth measuring: the records then go
 * to <suite>-incomplete-<device>.json, and the exit status says so. */
void bench_suite_go_on(struct bench_suite *suite);
/** bench_suite_call() - check a call of libattnd. Return: true if @code is not negative. */
bool bench_suite_call(struct bench_suite *suite, const char *call, int code);

/** bench_suite_status() - the service's own account of itself, @reply->status;
 * attnd__reply__free_unpacked(reply, NULL) frees it. Return: NULL after bench_suite_fail(). */
Attnd__Reply *bench_suite_status(struct bench_suite *suite);

/** bench_suite_worker() - the worker's process and how many threads pull tiles, by the service's
 * own account. Return: false after bench_suite_fail(). */
bool bench_suite_worker(struct bench_suite *suite, pid_t *pid, uint32_t *threads);

/** bench_suite_gpu() - records are of this GPU: "NVIDIA H100 80GB HBM3" is h100, others "cuda". */
void bench_suite_gpu(struct bench_suite *suite, const char *name);

/** bench_suite_end() - stop the service, write the records. Return: the exit status: 0; 2 if
 * something failed. A figure out of reach is said, not punished: machines differ. */
int bench_suite_end(struct bench_suite *suite);

/** bench_wait_all() - collect @count completions, all successful, the last into @last (may be
 * NULL). */
bool bench_wait_all(struct bench_suite *suite, struct attnd_session *session, uint32_t count,
                    struct attnd_completion *last);

/** bench_wait_hot() - the next completion, successful, polled for: a thread that sleeps is not hot
 * any more, and one wake-up is longer than the measured time. */
bool bench_wait_hot(struct bench_suite *suite, struct attnd_session *session,
                    struct attnd_completion *completion);

/** bench_p50() - the median of @samples, which it sorts. */
uint64_t bench_p50(uint64_t *samples, size_t count);

#endif
