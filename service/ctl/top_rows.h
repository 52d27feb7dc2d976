/*
 * top_rows.h - two looks at the service, and what happened between them, session by session.
 */
#ifndef ATTND_SERVICE_CTL_TOP_ROWS_H
#define ATTND_SERVICE_CTL_TOP_ROWS_H

#include "schemas/attnd.pb-c.h"

#include <jansson.h>
#include <stdio.h>

#define ATTNCTL_ROWS_MAX 64u
#define ATTNCTL_USERS_MAX 32u

struct attnctl_row {
    uint32_t session, pid, in_flight, dying;
    const char *name; /* the status' */
    double runs_per_s, faults_per_s;
    double loop;             /* of the time of the daemon's thread between the looks */
    double share;            /* of the time that all sessions' runs took between the looks */
    uint64_t p50_ns, p99_ns; /* of submitted runs that ended between the looks; 0: none did */
    uint64_t oldest_us;      /* age of the oldest operation in flight; 0: none is */
    uint64_t pages;          /* leases */
    uint64_t memory_bytes;
};

struct attnctl_user {
    uint32_t uid;
    double loop; /* of its sessions, those that ended included */
};

struct attnctl_top {
    double seconds; /* between the looks */
    const Attnd__Status *now;
    uint32_t count;
    struct attnctl_row rows[ATTNCTL_ROWS_MAX]; /* the largest share first */
    uint32_t users_count;
    struct attnctl_user users[ATTNCTL_USERS_MAX];
};

/**
 * attnctl_top_compare() - fill @top
 * @before: NULL, or of a service that ended since: all that @now tells happened in its uptime
 * @now:    borrowed by @top, as its strings are
 */
void attnctl_top_compare(const Attnd__Status *before, const Attnd__Status *now,
                         struct attnctl_top *top);

/** attnctl_top_print() - a table, in lines of at most 120 columns for usual names. */
void attnctl_top_print(FILE *out, const struct attnctl_top *top);

/** attnctl_top_json() - one object. Return: the caller's; NULL without memory. */
json_t *attnctl_top_json(const struct attnctl_top *top);

#endif
