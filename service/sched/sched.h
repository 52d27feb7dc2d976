/*
 * sched.h - lanes and operations: everything between a submission slot and its completion.
 *
 *   submit.c    slot -> checked operation at the tail of its lane
 *   lane.c      the operation at the head of a lane has its turn: done at once, dispatched, or
 * waits dispatch.c  a run's turn: places checked, run slot and scratch taken, command pushed
 *   retire.c    the worker is done (or gone): slot and scratch back, completion, the lane goes on
 *   complete.c  completion slots, notifications, operations back to their session
 *   results.c   what a completion has no room for
 *   deadline.c  cancel and timeouts
 *   stream*.c   runs that are not submitted but rung (stream.h)
 *   sched.c     the whole: sessions in and out, the sweep, the loop's hooks
 *
 * Everything here belongs to the loop's thread. Nothing on the way of a run allocates or makes a
 * system call while the other side is awake.
 */
#ifndef ATTND_SERVICE_SCHED_SCHED_H
#define ATTND_SERVICE_SCHED_SCHED_H

#include "service/sched/results.h"
#include "service/service.h"
#include "service/supervise/maps.h"
#include "service/supervise/queue.h"

/* An operation names at most this many places: q, o, lse or k, v. */
#define ATTND_RUN_PLACES 3u

/* A batch or an advance whose turn has not come: copied, because the client reuses the arena. */
struct attnd_deferred {
    struct attnd_staging staging;
    union {
        struct attnd_batch_view batch;
        struct attnd_advance_view advance;
        struct attnd_prefix_view prefix;
    } u;
};

static inline uint64_t attnd_deferred_bytes(const struct attnd_deferred *deferred)
{
    return deferred->staging.words_max * sizeof(int32_t);
}

struct attnd_lane;

struct attnd_sched_op {
    struct attnd_sqe sqe;
    struct attnd_sched_op *next; /* in its lane; in the session's free list */
    struct attnd_lane *lane;
    struct attnd_plan_object *plan; /* it or the other: both NULL: refused on the way in */
    struct attnd_prefix_handle *prefix;
    uint32_t result_words;                           /* reserved for its completion */
    uint32_t answer_words;                           /* put there */
    struct attnd_memory *memories[ATTND_RUN_PLACES]; /* that it names; referenced */
    struct attnd_deferred *deferred;
    uint32_t sent; /* ATTND_COMMAND_HOLD, _PUBLISH: of its plan, to the worker, under way or done */
    uint64_t deadline_ns;     /* 0: none */
    uint32_t run;             /* slot, while dispatched */
    int32_t verdict;          /* -ATTND_E_CANCELLED or -ATTND_E_TIMEOUT asked of a dispatched run */
    struct attnd_fault fault; /* code != 0: what the turn will bring */
};

enum attnd_lane_state {
    ATTND_LANE_IDLE,       /* nothing at the head, or its turn is now */
    ATTND_LANE_WAITING,    /* the head waits for a run slot, scratch or the worker */
    ATTND_LANE_BLOCKED,    /* the head waits for a generation of its plan, or for a mapping */
    ATTND_LANE_DISPATCHED, /* the worker has the head */
    ATTND_LANE_SENT,       /* the worker is told of the head's plan */
};

struct attnd_lane {
    struct attnd_session_lanes *session;
    struct attnd_sched_op *head, *tail;
    struct attnd_lane *next; /* in scheduler->waiting or ->blocked */
    enum attnd_lane_state state;
};

struct attnd_session_lanes {
    struct attnd_client *client;
    struct attnd_scheduler *scheduler;
    uint32_t index;   /* in scheduler->open, while open */
    int closing;      /* operations end without a completion */
    int broken;       /* the client's indices are impossible: killed by the next flush */
    int dirty;        /* the next flush has to look at it */
    uint32_t cq_room; /* completion slots known to be free */
    int call_waits;   /* a control call does, until sq.index is at call_tail */
    uint32_t call_tail;
    uint32_t dispatched;     /* runs the worker has */
    uint32_t sent;           /* lanes in ATTND_LANE_SENT */
    uint32_t holds;          /* HOLDs that the worker has, and has not answered */
    uint64_t deferred_bytes; /* of batches that wait for their turn */
    struct attnd_results results;
    struct attnd_prefix_parked *parked; /* matches that wait, in no lane */
    uint32_t parked_count;
    uint64_t parked_bytes;
    uint64_t stall_ns; /* until the completion ring is looked at again; 0: not stalled */
    struct attnd_sched_op *free_ops;
    struct attnd_lane lane[ATTND_LANES_MAX];
    struct attnd_sched_op ops[]; /* [ring_entries] */
};

/* The daemon's half of a run in the run table. */
struct attnd_run_slot {
    struct attnd_sched_op *op; /* NULL: free */
    uint64_t scratch_offset_bytes, scratch_bytes;
    uint32_t generation;
    uint32_t next_free;
};

struct attnd_lane_list {
    struct attnd_lane *head, *tail;
    uint32_t count;
};

struct attnd_scheduler {
    struct attnd_service *service;
    struct attnd_queue *queue;
    const struct attnd_maps *maps;
    struct attnd_prepared_runs *prepared_runs;
    int ready;            /* the worker is RUNNING and nobody is stopping it */
    int commands_pushed;  /* since the last flush */
    uint32_t dirty_count; /* open sessions with dirty set */
    int queue_broken;     /* the worker's indices are impossible: killed by the next flush */
    uint64_t now_ns;      /* of this sweep; 0: not read yet */
    struct attnd_heap scratch;
    uint32_t dispatched;
    uint32_t free_slot;             /* ATTND_NONE: none */
    struct attnd_lane_list waiting; /* strictly first come, first served */
    struct attnd_lane_list blocked;
    struct attnd_session_lanes *open[ATTND_SESSIONS_MAX];
    uint32_t open_count;
    struct attnd_watch *timer, *retire_watch;
    uint64_t timer_ns; /* when it fires; UINT64_MAX: not armed */
    struct attnd_run_slot slots[ATTND_QUEUE_RUNS];
};

static inline const void *attnd_client_arena(const struct attnd_client *client)
{
    return (const char *)client->submission.address + client->arena_offset_bytes;
}

/* What came of an operation's turn. */
enum attnd_turn {
    ATTND_TURN_DONE,    /* complete it, with op->fault */
    ATTND_TURN_WAIT,    /* in line, for what all runs share */
    ATTND_TURN_BLOCKED, /* apart, for something of its own */
    ATTND_TURN_DISPATCHED,
    ATTND_TURN_SENT,  /* it has another turn when the worker has answered */
    ATTND_TURN_PARKED /* it has left the lane, which goes on, and completes by itself */
};

/* ---- sched.c ---- */

int attnd_sched_new(struct attnd_service *service, struct attnd_queue *queue,
                    const struct attnd_maps *maps, struct attnd_scheduler **out);
void attnd_sched_free(struct attnd_scheduler *scheduler);

/** attnd_sched_resume() - the worker is RUNNING with @scratch_bytes of scratch: dispatch again. */
int attnd_sched_resume(struct attnd_scheduler *scheduler, uint64_t scratch_bytes);

/** attnd_sched_pause() - dispatch nothing from now on; runs wait in their lanes. */
void attnd_sched_pause(struct attnd_scheduler *scheduler);

/** attnd_sched_flush() - ring doorbells, notify clients, kill the broken: the end of every entry
 * into the scheduler. Sessions may be gone afterwards. */
void attnd_sched_flush(struct attnd_scheduler *scheduler);

/** attnd_sched_drain() - if the worker has nothing of a closing session any more, it is over: the
 * session is freed and attnd_client_drained() called. */
void attnd_sched_drain(struct attnd_session_lanes *session);

/** attnd_sched_now() - CLOCK_MONOTONIC, read at most once a sweep. */
uint64_t attnd_sched_now(struct attnd_scheduler *scheduler);

/* ---- submit.c ---- */

/** attnd_submit_sweep() - consume what the session's ring holds and there is room for.
 * Return: slots consumed. */
int attnd_submit_sweep(struct attnd_session_lanes *session);

/* ---- lane.c ---- */

void attnd_lane_push(struct attnd_lane *lane, struct attnd_sched_op *op);
/** attnd_lane_pop() - take the head off; nothing of it is under way. */
struct attnd_sched_op *attnd_lane_pop(struct attnd_lane *lane);
/** attnd_lane_unlist() - out of the line it stands in, if it does; IDLE then. */
void attnd_lane_unlist(struct attnd_lane *lane);
/** attnd_lane_remove() - take a queued (not dispatched) operation out, wherever it stands. */
void attnd_lane_remove(struct attnd_lane *lane, struct attnd_sched_op *op);
/** attnd_lane_go() - give turns until the lane is empty, waits, or the worker has its head. */
void attnd_lane_go(struct attnd_lane *lane);
/** attnd_lane_retry() - lanes that wait get their turn again, in order, as far as it goes. */
void attnd_lane_retry(struct attnd_scheduler *scheduler);

/* ---- dispatch.c ---- */

/**
 * attnd_dispatch_run() - the turn of an append or a run
 * @in_line: 1: lanes that wait go first; 0: this is the first of them
 */
enum attnd_turn attnd_dispatch_run(struct attnd_sched_op *op, int in_line);
/** attnd_dispatch_fill() - what a command says of a run beside its kind and number. */
void attnd_dispatch_fill(const struct attnd_plan_object *plan, const struct attnd_run *run,
                         struct attnd_command *command);
/** attnd_dispatch_release() - give back what a run held. */
void attnd_dispatch_release(struct attnd_scheduler *scheduler, uint32_t run);

/* ---- places.c ---- */

/** attnd_places_take() - from now on the operation holds the memory that its handles name. */
void attnd_places_take(struct attnd_sched_op *op);
void attnd_places_release(struct attnd_sched_op *op);

/** attnd_places_resolve() - the places a run names, checked, into @run. Return: 0, or the fault's
 * code. */
int attnd_places_resolve(const struct attnd_sched_op *op, struct attnd_run *run,
                         struct attnd_fault *fault);

/** attnd_places_attend() - those of a run of @plan as it is filled, into q, o and lse of @run.
 * @service:  whose pools o and lse may not lie in; NULL: any
 * @memories: q, o, lse; NULL where @sqe names none or one that does not exist */
int attnd_places_attend(const struct attnd_service *service, const struct attnd_plan_object *plan,
                        const struct attnd_sqe_run *sqe, struct attnd_memory *const *memories,
                        struct attnd_run *run, struct attnd_fault *fault);

/* ---- retire.c ---- */

/** attnd_retire_sweep() - take what the worker retired. Return: slots consumed. */
int attnd_retire_sweep(struct attnd_scheduler *scheduler);
/** attnd_retire_lost() - the worker is gone for good: what it had is answered
 * -ATTND_E_WORKER_RESTARTED, and so is what is queued behind. Pauses the scheduler. */
void attnd_retire_lost(struct attnd_scheduler *scheduler);

/* ---- complete.c ---- */

/** attnd_complete() - post op->fault (code 0: success) and free the operation; it is in no lane. */
void attnd_complete(struct attnd_sched_op *op, uint64_t begin_ns, uint64_t end_ns);
/** attnd_session_mark_dirty() - have the next flush look at the session. */
void attnd_session_mark_dirty(struct attnd_session_lanes *session);
/** attnd_session_break() - its indices are impossible: the next flush kills it. */
void attnd_session_break(struct attnd_session_lanes *session);
/** attnd_op_new() - an operation for a slot; its lane is the first until it is put in another. */
struct attnd_sched_op *attnd_op_new(struct attnd_session_lanes *session,
                                    const struct attnd_sqe *sqe);
/** attnd_op_free() - back to the session without a completion; it is in no lane. */
void attnd_op_free(struct attnd_sched_op *op);

/* ---- deadline.c ---- */

/** attnd_timeout_us() - of an append, a run or a match; 0: none, or another operation. */
static inline uint32_t attnd_timeout_us(const struct attnd_sqe *sqe)
{
    if (sqe->opcode == ATTND_OP_RUN)
        return sqe->u.run.timeout_us;
    if (sqe->opcode == ATTND_OP_PREFIX_MATCH)
        return sqe->u.prefix.timeout_us;
    return sqe->opcode == ATTND_OP_APPEND ? sqe->u.append.timeout_us : 0;
}

/** attnd_deadline_fault() - the fault of an operation whose deadline passed. */
void attnd_deadline_fault(struct attnd_sched_op *op);

/** attnd_deadline_arm() - have the timer fire at @when_ns or earlier. */
void attnd_deadline_arm(struct attnd_scheduler *scheduler, uint64_t when_ns);
/** attnd_deadline_cancel() - end operations of @session that carry @user_data. */
void attnd_deadline_cancel(struct attnd_session_lanes *session, uint64_t user_data);
/** attnd_deadline_stop() - no timer any more. */
void attnd_deadline_stop(struct attnd_scheduler *scheduler);

/* ---- stream_plan.c: the turn of a set or an advance whose plan has prepared runs ---- */

/** attnd_prepared_taken() - another operation has the plan: this one must wait. */
int attnd_prepared_taken(const struct attnd_plan_object *plan);
/** attnd_prepared_stale() - no generation is free, and a HOLD would free one. */
int attnd_prepared_stale(const struct attnd_plan_object *plan);
/** attnd_prepared_must_hold() - would attnd_prepared_hold() return 1? */
int attnd_prepared_must_hold(const struct attnd_scheduler *scheduler,
                             const struct attnd_plan_object *plan);
/** attnd_prepared_hold() - before a plan may change. Return: 1 the turn is ATTND_TURN_SENT, and
 * op->sent says why when it comes again; 0 go on: nobody can ring it. */
int attnd_prepared_hold(struct attnd_sched_op *op);
/** attnd_prepared_was_set() - scratch and extents of the plan's prepared runs again; if there is no
 * scratch the plan is empty and the operation fails. */
void attnd_prepared_was_set(struct attnd_sched_op *op);
/** attnd_prepared_publish() - after it did. Return: 1 ATTND_TURN_SENT; 0 it is done. */
int attnd_prepared_publish(struct attnd_sched_op *op);
/** attnd_prepared_generations() - bit g: launched runs may be reading lengths of generation g. */
uint32_t attnd_prepared_generations(const struct attnd_plan_object *plan);
/** attnd_prepared_forget() - the plan is destroyed; it has no prepared runs. */
void attnd_prepared_forget(struct attnd_plan_object *plan);

/* ---- service/prefix ---- */

/** attnd_prefix_turn() - of an operation on the prefix tree. DONE or PARKED. */
enum attnd_turn attnd_prefix_turn(struct attnd_sched_op *op);

/* ---- planobj.c, beyond service.h ---- */

/** attnd_planobj_set() - fill the plan from an admitted batch; checks leases first.
 * Return: 0; otherwise the plan is empty and @fault says why. */
int attnd_planobj_set(struct attnd_plan_object *object, const struct attnd_batch_view *batch,
                      uint64_t scratch_limit_bytes, struct attnd_fault *fault);
/** attnd_planobj_advance() - new lengths into a free generation (there must be one). */
int attnd_planobj_advance(struct attnd_plan_object *object,
                          const struct attnd_advance_view *advance, struct attnd_fault *fault);
/** attnd_planobj_free_generation() - one that no run uses, or -1. */
int attnd_planobj_free_generation(const struct attnd_plan_object *object);
/** attnd_planobj_check_append() - may the rows be stored where the current lengths put them? */
int attnd_planobj_check_append(const struct attnd_plan_object *object, struct attnd_fault *fault);

#endif
