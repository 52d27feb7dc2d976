/*
 * scheduler.h - what all sessions share: the worker's queue, run slots, scratch, the line.
 */
#ifndef ATTND_SERVICE_SCHED_SCHEDULER_H
#define ATTND_SERVICE_SCHED_SCHEDULER_H

#include "schemas/clock.h"
#include "service/sched/events.h"
#include "service/sched/lanes.h"
#include "service/supervise/queue.h"

/* The daemon's half of a run in the run table. */
struct attnd_run_slot {
    struct attnd_sched_op *op; /* NULL: free */
    uint64_t scratch_offset_bytes, scratch_bytes;
    uint32_t next_free;
};

struct attnd_scheduler {
    struct attnd_service *service;
    struct attnd_sched_events events;
    struct attnd_queue *queue;
    const struct attnd_maps *maps;
    struct attnd_prepared_runs *prepared_runs;
    uint32_t dirty_count; /* open sessions with dirty set */
    uint64_t now_ns;      /* of this sweep; 0: not read yet */
    struct attnd_heap scratch;
    uint32_t dispatched;
    uint32_t free_slot;          /* ATTND_NONE: none */
    uint32_t slots_free;         /* how many */
    uint32_t open_busy;          /* open sessions of which the worker has runs */
    uint32_t waiting_count;      /* lanes in the lines of all sessions */
    struct attnd_work line_work; /* more of them may go than had time */
    struct attnd_account line_account;
    uint64_t waited;        /* numbers for lanes that come into one */
    uint32_t blocked_count; /* lanes that are blocked, of all sessions */
    int moved;              /* slots that this sweep took out of rings */
    struct attnd_client_lanes *open[ATTND_SESSIONS_MAX];
    uint32_t open_count;
    struct attnd_planner *planner; /* NULL: nothing was large enough yet */
    int drains;                    /* the service ends: nothing is planned by a thread any more */
    struct attnd_watch *timer;
    uint64_t timer_ns; /* when it fires; UINT64_MAX: not armed */
    struct attnd_run_slot slots[ATTND_QUEUE_RUNS];
};

/** attnd_sched_now() - CLOCK_MONOTONIC, read at most once a piece. */
static inline uint64_t attnd_sched_now(struct attnd_scheduler *scheduler)
{
    if (!scheduler->now_ns)
        scheduler->now_ns = attnd_clock_ns();
    return scheduler->now_ns;
}

/** attnd_sched_works() - the service's, and whose account a session's pieces are. */
static inline struct attnd_works *attnd_sched_works(const struct attnd_client_lanes *session)
{
    return &session->scheduler->service->works;
}

#endif
