/*
 * op.h - an operation, from the slot to the completion.
 */
#ifndef ATTND_SERVICE_SCHED_OP_H
#define ATTND_SERVICE_SCHED_OP_H

#include "schemas/errors.h"
#include "service/admission/admit.h"
#include "service/prepared/prepared.h"
#include "service/sched/planner.h"

struct attnd_lane;
struct attnd_attachment;
struct attnd_prefix_handle;
struct attnd_prefix_parked;
struct attnd_transfer;

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
    uint32_t checked;         /* of a publish: blocks that were looked at */
    uint32_t run;             /* slot, while dispatched */
    int32_t verdict;          /* -ATTND_E_CANCELLED or -ATTND_E_TIMEOUT asked of a dispatched run */
    struct attnd_fault fault; /* code != 0: what the step will bring */
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

#endif
