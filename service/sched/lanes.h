/*
 * lanes.h - lanes and operations: what the files of sched/ share. Nobody else but tests includes
 * it.
 *
 *   submit.c        slot -> admitted operation at the tail of its lane
 *   admit.c         what an operation carries: copied and checked once, on the way in
 *   planner.c       a thread that fills large plans
 *   line.c          who is next in the line for run slots and scratch
 *   lane.c          the head of a lane takes a step: done at once, dispatched, or it waits
 *   change.c        the step of a set or an advance of a plan
 *   prefix_step.c   the step of an operation on the prefix tree
 *   parked.c        matches that wait, in no lane
 *   claim.c         claims of tickets, of this service and of others; layers that are whole
 *   dispatch.c      a run's step: places checked, run slot and scratch taken, command pushed
 *   retire.c        the worker is done (or gone): slot and scratch back, the lane goes on
 *   complete.c      completion slots, notifications, operations back to their session
 *   results.c       what a completion has no room for
 *   deadline.c      cancel and timeouts; deadlines.c: which is the earliest
 *   close.c         the end of a session, in pieces
 *   flush.c         what happens once at the end of every entry into the scheduler
 *   sched.c         the whole: sessions in and out, the sweep, the loop's hooks
 */
#ifndef ATTND_SERVICE_SCHED_LANES_H
#define ATTND_SERVICE_SCHED_LANES_H

#include "service/admission/admit.h"
#include "service/objects/arrival.h"
#include "service/objects/places.h"
#include "service/objects/quota.h"
#include "service/peers/peers.h"
#include "service/prefix/prefix.h"
#include "service/prepared/prepared.h"
#include "service/sched/planner.h"
#include "service/sched/results.h"
#include "service/sched/sched.h"
#include "service/supervise/queue.h"

/* The data of an operation in the arena, as it was admitted: a private copy, because the client may
 * reuse the arena as soon as the slot is free. */
struct attnd_admitted {
    struct attnd_staging staging;
    union {
        struct attnd_batch_view batch;
        struct attnd_advance_view advance;
        struct attnd_prefix_view prefix;
        struct attnd_merge_view merge;
    } u;
};

static inline uint64_t attnd_admitted_bytes(const struct attnd_admitted *admitted)
{
    return admitted->staging.words_max * sizeof(int32_t);
}

struct attnd_lane;

/* How far a set or an advance is. What can fail is over when it is built, or before. */
enum attnd_change_stage { ATTND_CHANGE_NEW, ATTND_CHANGE_BUILT, ATTND_CHANGE_WRITTEN };

struct attnd_sched_op {
    struct attnd_sqe sqe;
    struct attnd_sched_op *next;     /* in its lane; in the session's free list */
    struct attnd_sched_op *previous; /* in its lane */
    struct attnd_lane *lane;
    struct attnd_plan_object *plan;     /* it or the other; both NULL: refused on the way in */
    struct attnd_prefix_handle *prefix; /* the namespace of a prefix operation */
    struct attnd_prefix_parked *parked; /* a match that waits, in no lane; else NULL */
    struct attnd_attachment *into;   /* of a claim: where its pages go; of a ready: of its ticket */
    struct attnd_transfer *transfer; /* of a claim that waits, in no lane; else NULL */
    uint32_t result_words;           /* reserved for its completion */
    uint32_t answer_words;           /* put there */
    struct attnd_plan_change change; /* of a set or an advance: what was sent */
    struct attnd_lengths lengths;    /* of an append, a run or a merge */
    struct attnd_memory *memories[ATTND_RUN_PLACES]; /* that it names; referenced */
    struct attnd_admitted *admitted;
    int admits;                   /* that is under way */
    struct attnd_planner_job job; /* while it is planned by the thread */
    uint32_t generation;          /* that an advance writes; ATTND_NONE: it plans again */
    enum attnd_change_stage stage;
    int awaits;               /* of a change: awaits_before is that of the plan before */
    uint64_t begin_ns;        /* of what takes several turns; 0: it does not */
    uint64_t taken_ns;        /* out of the ring */
    uint64_t deadline_ns;     /* 0: none */
    uint32_t deadline_place;  /* 1 + place among the session's deadlines; 0: in none */
    uint32_t cursor;          /* of a prefix operation: blocks that are done; of a set: pages */
    uint32_t counted;         /* of those: foreign ones, or taken ones */
    uint32_t run;             /* slot, while dispatched */
    int32_t verdict;          /* -ATTND_E_CANCELLED or -ATTND_E_TIMEOUT asked of a dispatched run */
    struct attnd_fault fault; /* code != 0: what the step will bring */
};

enum attnd_lane_state {
    ATTND_LANE_IDLE,       /* nothing at the head, or its turn is now */
    ATTND_LANE_READY,      /* the head's turn is to come: the piece of its session is over */
    ATTND_LANE_WAITING,    /* the head waits for a run slot, scratch or the worker */
    ATTND_LANE_BLOCKED,    /* the head waits for a generation of its plan, or for a mapping */
    ATTND_LANE_DISPATCHED, /* the worker has the head */
    ATTND_LANE_SENT,       /* the head waits for the ack of a HOLD or PUBLISH of its plan */
    ATTND_LANE_PLANNING,   /* the planner's thread has the head */
    ATTND_LANE_LOST        /* a worker that died had the head: all that is queued is answered so */
};

struct attnd_lane {
    struct attnd_client_lanes *session;
    struct attnd_sched_op *head, *tail;
    struct attnd_lane *next; /* in session->waiting, blocked or ready */
    uint64_t since;          /* waiting: the smaller the number, the longer */
    enum attnd_lane_state state;
    uint32_t changes;     /* sets and advances in it */
    int append_code;      /* of the last append that failed; 0: none did */
    uint32_t append_slot; /* of its completion */
};

/* Operations that have a deadline, the earliest first. */
struct attnd_deadlines {
    struct attnd_sched_op **heap; /* [count], room for all operations */
    uint32_t count;
};

struct attnd_lane_list {
    struct attnd_lane *head, *tail;
    uint32_t count;
};

struct attnd_client_lanes {
    struct attnd_client *client;
    struct attnd_scheduler *scheduler;
    uint32_t index;   /* in scheduler->open, while open */
    int closing;      /* operations end without a completion */
    int broken;       /* the client's indices are impossible: killed by the next flush */
    int dirty;        /* the next flush has to look at it */
    uint32_t cq_room; /* completion slots known to be free */
    int call_waits;   /* a control call does, until sq.index is at call_tail */
    uint32_t call_tail;
    uint32_t refusals;            /* sets that were refused */
    uint32_t dispatched;          /* runs the worker has */
    uint32_t sent;                /* lanes in ATTND_LANE_SENT */
    uint32_t planning;            /* lanes in ATTND_LANE_PLANNING */
    uint64_t planned_last;        /* the planner: when it had a job of this session last */
    uint64_t charged_bytes;       /* of the daemon's memory, for all this */
    uint64_t admitted_bytes;      /* that operations hold */
    struct attnd_admitted *spare; /* one that none holds, or NULL: its memory is used again */
    struct attnd_results results;
    struct attnd_prefix_parked *parked;             /* matches that wait, in no lane */
    struct attnd_prefix_parked *woken, **woken_end; /* of them, those that need not any more */
    struct attnd_prefix_parked *leaving;            /* that are over */
    uint32_t parked_count;
    uint64_t parked_bytes;
    struct attnd_sched_op *claims; /* that wait, in no lane; linked as in one */
    uint32_t claims_count;
    uint64_t stall_ns; /* until the completion ring is looked at again; 0: not stalled */
    struct attnd_lane_list waiting; /* for what all runs share, in order of arrival */
    struct attnd_lane_list blocked; /* for something of their own */
    struct attnd_lane_list ready;
    struct attnd_work ring_work;       /* slots are in the ring */
    struct attnd_work lanes_work;      /* lanes are ready */
    struct attnd_work retry_work;      /* what blocked lanes wait for may be there */
    struct attnd_work wake_work;       /* parked matches are woken */
    struct attnd_work leave_work;      /* and some are over, whose pages are given back */
    struct attnd_work close_work;      /* it is closing */
    uint32_t close_lane, close_prefix; /* how far that is */
    int closed;                        /* and it is over */
    struct attnd_deadlines deadlines;
    struct attnd_work expire_work;    /* some of them have passed */
    struct attnd_work lost_work;      /* lanes are lost */
    struct attnd_sqe taking;          /* a slot that takes several pieces */
    int takes;                        /* 1: there is one */
    struct attnd_sched_op *entering;  /* its operation, which is in no lane yet; or NULL */
    struct attnd_admission admission; /* what that carries, on its way */
    struct attnd_sched_op *free_ops;
    uint32_t fresh_op; /* from here on they were never used: memory is touched as it is needed */
    struct attnd_lane lane[ATTND_LANES_MAX];
    struct attnd_sched_op ops[]; /* [ring_entries] */
};

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

/* The outcome of an operation's turn. */
enum attnd_step {
    ATTND_STEP_DONE,    /* complete it, with op->fault */
    ATTND_STEP_MORE,    /* a part of it is done: it has another turn, behind others if need be */
    ATTND_STEP_WAIT,    /* in line, for what all runs share */
    ATTND_STEP_BLOCKED, /* apart, for something of its own */
    ATTND_STEP_DISPATCHED,
    ATTND_STEP_SENT,     /* it has another turn when the worker has answered */
    ATTND_STEP_PLANNING, /* and when the planner's thread is done with it */
    ATTND_STEP_PARKED    /* it has left the lane, which goes on, and completes by itself */
};

/* ---- flush.c ---- */

/** attnd_sched_flush() - ring doorbells, notify clients, kill the broken: the end of every entry
 * into the scheduler. Sessions may be gone afterwards. */
void attnd_sched_flush(struct attnd_scheduler *scheduler);

/** attnd_lanes_drain() - if the worker has nothing of a closing session any more, it is over: the
 * session is freed, and the event drained follows. */
void attnd_lanes_drain(struct attnd_client_lanes *session);

/** attnd_sched_now() - CLOCK_MONOTONIC, read at most once a piece. */
uint64_t attnd_sched_now(struct attnd_scheduler *scheduler);

/** attnd_sched_works() - the service's, and whose account a session's pieces are. */
static inline struct attnd_works *attnd_sched_works(const struct attnd_client_lanes *session)
{
    return &session->scheduler->service->works;
}

/* ---- close.c ---- */

/** attnd_session_close_go() - the item of a closing session, which is gone when it is over. */
int attnd_session_close_go(struct attnd_work *work);

/* ---- submit.c ---- */

/** attnd_submit_sweep() - consume what the session's ring holds and there is room for, until the
 * piece is over. Return: slots consumed. */
int attnd_submit_sweep(struct attnd_client_lanes *session);
/** attnd_submit_go() - the same, as the item of the ring. */
int attnd_submit_go(struct attnd_work *work);

/* ---- lane.c ---- */

/** attnd_lane_push() - at the tail. Its lengths are pinned if no set or advance is before it. */
void attnd_lane_push(struct attnd_lane *lane, struct attnd_sched_op *op);
/** attnd_lane_pop() - take the head off; nothing of it is under way. Behind a set or an advance,
 * lengths of what follows are pinned up to the next. */
struct attnd_sched_op *attnd_lane_pop(struct attnd_lane *lane);
/** attnd_lane_unlist() - out of the line it stands in, if it does; IDLE then. */
void attnd_lane_unlist(struct attnd_lane *lane);
/** attnd_lane_remove() - take a queued (not dispatched) operation out, wherever it stands. */
void attnd_lane_remove(struct attnd_lane *lane, struct attnd_sched_op *op);
/** attnd_lane_users() - operations of other lanes on the plan of @op that keep the lengths which it
 * has now: those with no set or advance in front of them. */
uint32_t attnd_lane_users(const struct attnd_sched_op *op);
/** attnd_lane_go() - give turns until the lane is empty, waits, or the worker has its head; or the
 * piece is over: then it is ready, and goes on by turns. */
void attnd_lane_go(struct attnd_lane *lane);
/** attnd_lane_ready_go() - the item of lanes that are ready. */
int attnd_lane_ready_go(struct attnd_work *work);
/** attnd_lane_retry_go() - the item of blocked lanes. */
int attnd_lane_retry_go(struct attnd_work *work);
/** attnd_lane_line_go() - the item of a long line for run slots and scratch. */
int attnd_lane_line_go(struct attnd_work *work);
/** attnd_lane_acked() - the event acked of prepared runs: the lane of the change goes on. */
void attnd_lane_acked(struct attnd_plan_change *change, uint32_t kind);
/** attnd_lane_retry() - lanes that wait take a step again, in order, as far as it goes. */
void attnd_lane_retry(struct attnd_scheduler *scheduler);

/** attnd_lane_let_plan_go() - of a closing session: a plan that its head has held must be let go,
 * or a plan that comes to lie there will never run. Return: 1 it was sent the PUBLISH; 0 nothing is
 * held. */
int attnd_lane_let_plan_go(struct attnd_lane *lane);
/** attnd_lane_planned() - the thread is done with the head, or will not begin: the lane goes on. */
void attnd_lane_planned(struct attnd_sched_op *op);

/* ---- line.c ---- */

/** attnd_line_slot() - may the session take a run slot now? */
int attnd_line_slot(const struct attnd_client_lanes *session);
/** attnd_line_count() - the worker has @more runs of it, 1 or -1. */
void attnd_line_count(struct attnd_client_lanes *session, int more);
/** attnd_line_next() - the lane that is next in the line; NULL: none. */
struct attnd_lane *attnd_line_next(const struct attnd_scheduler *scheduler);
/** attnd_line_is_before() - 1: a run that comes now has others before it. */
int attnd_line_is_before(const struct attnd_client_lanes *session);

/* ---- change.c ---- */

/** attnd_change_set(), _advance() - the step of a set or an advance of a plan. */
enum attnd_step attnd_change_set(struct attnd_sched_op *op);
enum attnd_step attnd_change_advance(struct attnd_sched_op *op);

/* ---- prefix_step.c ---- */

/** attnd_prefix_step() - of an operation on the prefix tree. DONE, MORE or PARKED. */
enum attnd_step attnd_prefix_step(struct attnd_sched_op *op);
/** attnd_prefix_find() - a match, whose pages are leased, also of what comes back from the host.
 * @recalls: 0: blocks are brought back only behind one that is found. */
struct attnd_tree_result attnd_prefix_find(const struct attnd_prefix_handle *handle,
                                           const struct attnd_tree_chain *chain, int recalls,
                                           int32_t *pages);
/** attnd_prefix_part() - of @blocks, as many as an operation does before it looks at the clock. */
uint32_t attnd_prefix_part(uint32_t blocks, uint32_t block_pages);
/** attnd_prefix_waits() - 1: a match that ended like that is to wait for the claim. */
int attnd_prefix_waits(const struct attnd_sched_op *op, const struct attnd_tree_result *result);
/** attnd_prefix_answer() - what the operation's completion says. */
void attnd_prefix_answer(struct attnd_sched_op *op, uint32_t blocks, enum attnd_prefix_stop stop,
                         uint64_t value);

/* ---- parked.c ---- */

/** attnd_prefix_park() - a match that found @result waits for the rest. Return: 1 it is parked;
 * 0 it does not wait: too many of the session do, or the claim has just ended. */
int attnd_prefix_park(struct attnd_sched_op *op, const struct attnd_prefix_view *view,
                      const struct attnd_tree_result *result);
/** attnd_prefix_cancel() - end those of @user_data. Return: how many. */
int attnd_prefix_cancel(struct attnd_client_lanes *session, uint64_t user_data);
/** attnd_prefix_expire() - end one whose deadline has passed. */
void attnd_prefix_expire(struct attnd_sched_op *op);
/** attnd_prefix_close() - the session is closing: an operation more, until nothing of it waits or
 * is claimed any more. Return: 1 there is more; 0. */
int attnd_prefix_close(struct attnd_client_lanes *session);
/** attnd_prefix_leave_go() - the item of matches that are over, and found too much. */
int attnd_prefix_leave_go(struct attnd_work *work);
/** attnd_prefix_wake_go() - the item of matches that are woken. */
int attnd_prefix_wake_go(struct attnd_work *work);

/* ---- claim.c ---- */

/** attnd_claim_check() - the attachment that a claim's pages go to. Return: NULL with *@fault. */
struct attnd_attachment *attnd_claim_check(const struct attnd_client *client,
                                           const struct attnd_sqe *sqe, struct attnd_fault *fault);
/** attnd_claim_step() - of a claim of pages. DONE or PARKED. */
enum attnd_step attnd_claim_step(struct attnd_sched_op *op);
/** attnd_ready_check() - the attachment of the pool that a ready names. Return: NULL with *@fault.
 */
struct attnd_attachment *attnd_ready_check(const struct attnd_client *client,
                                           const struct attnd_sqe *sqe, struct attnd_fault *fault);
/** attnd_ready_step() - layers of a ticket are whole, since what is in front of it in its lane is
 * over. DONE. */
enum attnd_step attnd_ready_step(struct attnd_sched_op *op);
/** attnd_lane_failed_append() - of an append of @op's lane that failed, and whose completion the
 * client has not read yet. Return: its code; 0: there is none. */
int attnd_lane_failed_append(const struct attnd_sched_op *op);
/** attnd_claim_listed() - a parked operation has left its lane; one that is no claim stays as it
 * is.
 */
void attnd_claim_listed(struct attnd_sched_op *op);
/** attnd_claim_cancel() - end those of @user_data that wait. Return: how many. */
int attnd_claim_cancel(struct attnd_client_lanes *session, uint64_t user_data);
/** attnd_claim_expire() - end one whose deadline has passed. */
void attnd_claim_expire(struct attnd_sched_op *op);
/** attnd_claim_close() - the session is closing: one claim more is given up. Return: 1 there was
 * one; 0. */
int attnd_claim_close(struct attnd_client_lanes *session);

/* ---- dispatch.c ---- */

/**
 * attnd_dispatch_run() - the step of an append, a run or a merge
 * @in_line: 1: lanes that wait go first; 0: this is the first of them
 */
enum attnd_step attnd_dispatch_run(struct attnd_sched_op *op, int in_line);
/** attnd_dispatch_release() - give back what a run held. */
void attnd_dispatch_release(struct attnd_scheduler *scheduler, uint32_t run);

/* ---- retire.c ---- */

/** attnd_retire_sweep() - take what the worker retired. Return: slots consumed. */
int attnd_retire_sweep(struct attnd_scheduler *scheduler);
/** attnd_retire_lost_go() - the item of lanes whose head a worker took with it. */
int attnd_retire_lost_go(struct attnd_work *work);

/* ---- admit.c ---- */

/** attnd_op_admit() - copy and check what the operation carries, once; of a batch or an advance the
 * beginning. A failure becomes the operation's fault. */
void attnd_op_admit(struct attnd_sched_op *op);
/** attnd_op_admit_some() - the rest, as far as the piece goes. Return: 1 there is more; 0. */
int attnd_op_admit_some(struct attnd_sched_op *op);
/** attnd_op_let_go() - the operation needs its copy no more. Harmless without one. */
void attnd_op_let_go(struct attnd_sched_op *op);
/** attnd_admitted_free() - the memory of a copy of @client's. NULL is fine. */
void attnd_admitted_free(struct attnd_client *client, struct attnd_admitted *admitted);

/* ---- complete.c ---- */

/** attnd_complete() - post op->fault (code 0: success) and free the operation; it is in no lane. */
void attnd_complete(struct attnd_sched_op *op, uint64_t begin_ns, uint64_t end_ns);
/** attnd_lanes_mark_dirty() - have the next flush look at the session. */
void attnd_lanes_mark_dirty(struct attnd_client_lanes *session);
/** attnd_lanes_break() - its indices are impossible: the next flush kills it. */
void attnd_lanes_break(struct attnd_client_lanes *session);
/** attnd_op_new() - an operation for a slot; its lane is the first until it is put in another. */
struct attnd_sched_op *attnd_op_new(struct attnd_client_lanes *session,
                                    const struct attnd_sqe *sqe);
/** attnd_op_free() - back to the session without a completion; it is in no lane. */
void attnd_op_free(struct attnd_sched_op *op);

/* ---- deadline.c ---- */

/** attnd_timeout_us() - of an append, a run, a merge, a match or a claim; 0: none, or another
 * operation. */
static inline uint32_t attnd_timeout_us(const struct attnd_sqe *sqe)
{
    if (sqe->opcode == ATTND_OP_RUN)
        return sqe->u.run.timeout_us;
    if (sqe->opcode == ATTND_OP_PREFIX_MATCH)
        return sqe->u.prefix.timeout_us;
    if (sqe->opcode == ATTND_OP_MERGE)
        return sqe->u.merge.timeout_us;
    if (sqe->opcode == ATTND_OP_PAGES_CLAIM)
        return sqe->u.claim.timeout_us;
    return sqe->opcode == ATTND_OP_APPEND ? sqe->u.append.timeout_us : 0;
}

/** attnd_deadline_fault() - the fault of an operation whose deadline passed. */
static inline void attnd_deadline_fault(struct attnd_sched_op *op)
{
    uint32_t timeout_us = attnd_timeout_us(&op->sqe);
    attnd_fault_set(&op->fault, -ATTND_E_TIMEOUT, ATTND_F_TIMEOUT, 0, timeout_us, timeout_us);
}

/** attnd_deadline_start() - the timer. Return: 0; -ATTND_E_NO_MEMORY. */
int attnd_deadline_start(struct attnd_scheduler *scheduler);
/** attnd_deadline_cancel() - end operations of @session that carry @user_data, as many as the
 * piece has time for. Return: 1 all of them are ended; 0 some may be left. */
int attnd_deadline_cancel(struct attnd_client_lanes *session, uint64_t user_data);
/** attnd_deadline_expire_go() - the item of deadlines that have passed. */
int attnd_deadline_expire_go(struct attnd_work *work);

/* ---- deadlines.c ---- */

/** attnd_deadline_arm() - have the timer fire at @when_ns or earlier. */
void attnd_deadline_arm(struct attnd_scheduler *scheduler, uint64_t when_ns);
/** attnd_deadlines_add() - @op, which has one. */
void attnd_deadlines_add(struct attnd_deadlines *deadlines, struct attnd_sched_op *op);
/** attnd_deadlines_remove() - harmless without one. */
void attnd_deadlines_remove(struct attnd_deadlines *deadlines, struct attnd_sched_op *op);
/** attnd_deadlines_first() - NULL: none. */
struct attnd_sched_op *attnd_deadlines_first(const struct attnd_deadlines *deadlines);

#endif
