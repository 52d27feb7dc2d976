/*
 * lanes.h - the lanes of a session. The files of the room, in the order in which an operation meets
 * them; each has a header of its name:
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
 *   sweep.c         sessions in and out, the sweep, the loop's hooks
 */
#ifndef ATTND_SERVICE_SCHED_LANES_H
#define ATTND_SERVICE_SCHED_LANES_H

#include "service/sched/op.h"
#include "service/service.h"

struct attnd_scheduler; /* scheduler.h */

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

struct attnd_lane_list {
    struct attnd_lane *head, *tail;
    uint32_t count;
};

/* Operations that have a deadline, the earliest first. */
struct attnd_deadlines {
    struct attnd_sched_op **heap; /* [count], room for all operations */
    uint32_t count;
};

/* Words of results (results.c) up to `end` are free again when the slot of completion `slot` is. */
struct attnd_result_mark {
    uint32_t slot, end;
};

struct attnd_results {
    int32_t *words;                 /* [ATTND_RESULT_WORDS], written only */
    uint32_t begin, end;            /* in use; they run freely */
    uint32_t reserved;              /* for operations that are queued */
    struct attnd_result_mark *mark; /* [ring_entries], of completions that the client may read */
    uint32_t mark_begin, mark_end;
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

#endif
