/*
 * stall.h - how long the daemon's one thread is away for others.
 */
#ifndef ATTND_BENCH_SUPPORT_STALL_H
#define ATTND_BENCH_SUPPORT_STALL_H

#include "bench/support/suite.h"

struct bench_stall {
    double longest_ms; /* from a question to its answer */
    double share;      /* of the time, in answers of more than 5 ms */
    double
        own_ms; /* the longest that the daemon's thread worked before an answer; NAN: not known */
    /* Of the longest: what that thread waited for a processor, and what the one who asked did. */
    double waited_ms, asker_waited_ms;
};

/** bench_brief_slices() - brief slices for the calling thread, from now on: what is measured is the
 * daemon's thread, and a thread like any other would wait for the scheduler's next tick when it is
 * woken. Children have what others have. */
void bench_brief_slices(void);

/** bench_stall_probe() - asks a trivial call of @session, again and again, for four seconds.
 * Threads: that of bench_brief_slices(). */
struct bench_stall bench_stall_probe(struct bench_suite *suite, struct attnd_session *session);

#endif
