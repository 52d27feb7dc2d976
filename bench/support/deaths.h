/*
 * deaths.h - processes that are killed with everything open, and what the service has of them
 * afterwards.
 */
#ifndef ATTND_BENCH_SUPPORT_DEATHS_H
#define ATTND_BENCH_SUPPORT_DEATHS_H

#include "bench/support/suite.h"

/* What the service has of all its sessions. */
struct bench_estate {
    uint64_t descriptors; /* of the daemon */
    uint64_t bytes;       /* host memory, heap, and what is being closed */
    uint64_t objects;     /* sessions, pools, plans, runs, and all that quotas count */
    uint64_t worker_descriptors;
};

/**
 * bench_deaths() - @count processes, eight at a time
 * Each has memories of both kinds, leased pages, a claim and a match that waits, tickets, plans, a
 * prepared run, and runs in flight, and is in the middle of calls when it is killed. Return: false
 * after bench_suite_fail().
 */
bool bench_deaths(struct bench_suite *suite, uint64_t count);

/** bench_estate() - when it has not changed for a while. Return: false after bench_suite_fail(). */
bool bench_estate(struct bench_suite *suite, struct bench_estate *estate);

#endif
