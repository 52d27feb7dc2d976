/*
 * prepared.h - runs that are prepared once and launched by an engine's stream: the daemon's half.
 *
 * A prepared run is a slot of the run table behind those of submitted runs. It stays filled, and
 * the worker executes it whenever the mailbox of its session names it. The daemon never sees that.
 * Therefore it sends the worker a control command before it changes anything that such a run may
 * use, and waits for the ack. Each control command is acked once, and objects live until all
 * control commands about them are.
 */
#ifndef ATTND_SERVICE_PREPARED_PREPARED_H
#define ATTND_SERVICE_PREPARED_PREPARED_H

#include "service/objects/places.h"
#include "service/supervise/maps.h"
#include "service/supervise/queue.h"

/* So that one session leaves some to others. */
#define ATTND_PREPARED_SESSION_MAX (ATTND_QUEUE_PREPARED / 2)
#define ATTND_SCRATCH_SESSION_PART 2u /* of the scratch: 1 / this */

/* A HOLD is acked when the runs that it waits for have ended, which may be long; everything else is
 * acked soon. So a session may have only so many of them out: all may have as many, and control
 * commands are left for a call of each session and for its end. */
#define ATTND_HOLDS_SESSION_MAX                                                                    \
    ((ATTND_QUEUE_CONTROLS - 2 * ATTND_SESSIONS_MAX) / ATTND_SESSIONS_MAX)

enum attnd_mail_state {
    ATTND_MAIL_FREE,
    ATTND_MAIL_OPENING, /* the worker does not watch it yet */
    ATTND_MAIL_OPEN,
    ATTND_MAIL_CLOSING /* the session is gone; the worker has not acked that it let go */
};

/* A session's mailbox. Its number is that of its slot in the queue segment. Where the engine
 * executes its launched runs itself there is no memory, and the worker hears of none of it. */
struct attnd_mail {
    struct attnd_client *client;
    struct attnd_memory *memory; /* referenced; NULL: the engine executes */
    uint32_t handle;             /* of the memory, in the session */
    int by_engine;
    struct attnd_shm account; /* of that, charged for; address NULL: it does not count */
    const char *why;          /* that, or not; for status; static */
    enum attnd_mail_state state;
    uint32_t prepared;      /* runs */
    uint64_t scratch_bytes; /* of them */
    uint32_t runs_due;      /* of them, about which a control command waits to be sent */
    uint32_t unacked;       /* control commands about it and its runs, sent and not acked */
    int due;                /* a control command about it waits to be sent */
    int stopped;            /* the worker has let go of it */
    int calling;            /* MailboxOpen, Prepare or Unprepare waits for the worker */
    uint64_t call_id;       /* that request */
};

/* The daemon's half of a prepared run. Its slot in the run table is ATTND_QUEUE_RUNS behind its
 * index here. */
struct attnd_prepared {
    struct attnd_mail *mail; /* NULL: free */
    struct attnd_plan_object *plan;
    struct attnd_memory *memories[ATTND_RUN_PLACES]; /* q, o, lse; referenced */
    struct attnd_sqe_run wish;                       /* as it was asked for */
    uint32_t lane;
    uint32_t next;    /* in its plan's list or the free list; ATTND_NONE */
    uint32_t serial;  /* counts beginnings and ends: no two runs of the slot had the same one */
    uint32_t unacked; /* control commands about it, sent and not acked */
    uint8_t due;      /* a control command about it waits to be sent */
    uint8_t ending;   /* unprepared: nobody may launch it any more */
    uint8_t ended;    /* and the worker has said so */
    uint8_t called;   /* the call of its session that waits is about it */
};

/* Scratch of the prepared runs of one plan and lane; they never overlap in time. */
struct attnd_plan_lane {
    uint64_t offset_bytes, bytes;
    uint32_t uses;
};

/* A set or an advance of a plan that has prepared runs, on its way. It is the scheduler's: a part
 * of the operation. */
struct attnd_plan_change {
    struct attnd_client *client;
    struct attnd_plan_object *plan;
    uint32_t sent; /* ATTND_COMMAND_HOLD, _PUBLISH: the last one that was sent; 0: none */
};

/* Of a plan that has, or had, prepared runs. */
struct attnd_plan_prepared {
    struct attnd_mail *mail;         /* of the prepared runs, whose session the plan is of */
    uint32_t first;                  /* prepared run; ATTND_NONE */
    struct attnd_plan_change *taken; /* the change that has the plan: others wait */
    struct attnd_plan_lane lane[ATTND_LANES_MAX];
};

/* A control command, waiting or sent. */
struct attnd_control_command {
    uint32_t kind;   /* enum attnd_command_kind */
    uint32_t index;  /* mailbox or prepared run */
    uint32_t serial; /* of the prepared run: that of an earlier user of the slot is void */
    uint32_t ending; /* as it was when this was sent: empty, or watched no more */
    struct attnd_plan_change *change; /* HOLD, PUBLISH: what waits; else NULL */
    uint32_t next_free;
};

/* Every object has at most one control command waiting, and operations one each. */
#define ATTND_CONTROL_COMMANDS_MAX 16384u

/* An answer to the call that a session waits for: MailboxOpen, Prepare or Unprepare. */
struct attnd_prepared_answer {
    enum { ATTND_PREPARED_OPENED, ATTND_PREPARED_ADDED, ATTND_PREPARED_REMOVED } call;
    uint32_t run;             /* ADDED: its index in the run table */
    struct attnd_fault fault; /* code 0, or why not */
};

/* Events that the rooms above have asked to hear. */
struct attnd_prepared_events {
    /* The call that waits has its answer. The session may be ended by it, and its mailbox gone. */
    void (*answered)(struct attnd_mail *mail, const struct attnd_prepared_answer *answer);
    /* The worker does not watch the mailbox of a session that counts on it. */
    void (*unwatched)(struct attnd_client *client, const char *why);
    /* The HOLD or PUBLISH (@kind) of a change is acked: its step comes again. */
    void (*acked)(struct attnd_plan_change *change, uint32_t kind);
    /* Nothing of a dying session's mailbox is left. */
    void (*closed)(struct attnd_client *client);
};

struct attnd_prepared_runs {
    struct attnd_service *service;
    struct attnd_queue *queue;
    const struct attnd_maps *maps;
    struct attnd_prepared_events events;
    int lost; /* there is no worker: nothing is in flight, and the next one is sent everything */
    struct attnd_heap scratch; /* of prepared runs */
    /* The one that was given back first is given out first: a graph that replays the number of a
     * run that is gone is answered so, and does not come upon another's. */
    uint32_t free_prepared, free_last, prepared_count;
    uint32_t waiting_begin, waiting_count; /* circular */
    uint32_t free_sent, sent_count;
    struct attnd_mail mail[ATTND_MAILBOXES_MAX];
    struct attnd_control_command sent[ATTND_QUEUE_CONTROLS]; /* by tag */
    struct attnd_prepared prepared[ATTND_QUEUE_PREPARED];
    struct attnd_control_command waiting[ATTND_CONTROL_COMMANDS_MAX];
};

static inline uint32_t attnd_mail_index(const struct attnd_prepared_runs *prepared_runs,
                                        const struct attnd_mail *mail)
{
    return (uint32_t)(mail - prepared_runs->mail);
}

static inline uint32_t attnd_prepared_index(const struct attnd_prepared_runs *prepared_runs,
                                            const struct attnd_prepared *prepared)
{
    return (uint32_t)(prepared - prepared_runs->prepared);
}

static inline struct attnd_run *attnd_prepared_run(const struct attnd_prepared_runs *prepared_runs,
                                                   const struct attnd_prepared *prepared)
{
    return &prepared_runs->queue
                ->runs[ATTND_QUEUE_RUNS + attnd_prepared_index(prepared_runs, prepared)];
}

/* What its number has beside its slot; an end lies between two runs of a slot. */
static inline uint32_t attnd_prepared_serial(const struct attnd_prepared *prepared)
{
    return prepared->serial / 2 % ATTND_DOORBELL_SERIALS;
}

/* By which its session names it, and launches it. */
static inline uint32_t attnd_prepared_number(const struct attnd_prepared_runs *prepared_runs,
                                             const struct attnd_prepared *prepared)
{
    return attnd_doorbell_number(ATTND_QUEUE_RUNS + attnd_prepared_index(prepared_runs, prepared),
                                 attnd_prepared_serial(prepared));
}

/* ---- life.c: from the call that makes them to the end ---- */

/** attnd_prepared_new() - for the service's queue and @maps; @events is copied. The scheduler fills
 * in its own. */
int attnd_prepared_new(struct attnd_service *service, const struct attnd_maps *maps,
                       const struct attnd_prepared_events *events,
                       struct attnd_prepared_runs **out);
void attnd_prepared_free(struct attnd_prepared_runs *prepared_runs);

/* The three below answer request @id by the event answered where they return 1: later, or before
 * they return where the worker has no part in it. Otherwise they return a fault's code. A session
 * has one of them open at a time. */

/** attnd_prepared_open() - a mailbox for the session; @wish: enum attnd_executor; @counts: it has a
 * use for an account, where it executes itself.
 * -ATTND_E_BUSY it has one; -ATTND_E_UNSUPPORTED the worker watches none (field mailbox), or the
 * engine cannot execute what it wants to (field executor); -ATTND_E_INVALID (field executor);
 * -ATTND_E_NO_MEMORY. */
int attnd_prepared_open(struct attnd_client *client, uint64_t id, uint32_t wish, int counts,
                        struct attnd_fault *fault);

/**
 * attnd_prepared_add() - a run that the session's stream may launch
 * @wish: what a submitted run would say; checked here
 */
int attnd_prepared_add(struct attnd_client *client, uint64_t id, uint32_t plan, uint32_t lane,
                       const struct attnd_sqe_run *wish, struct attnd_fault *fault);
/** attnd_prepared_remove() - @number: of the run; answered when nothing of it is in flight. */
int attnd_prepared_remove(struct attnd_client *client, uint64_t id, uint32_t number,
                          struct attnd_fault *fault);

struct attnd_prepared_status {
    int by_engine;
    const char *why; /* static */
    uint32_t prepared;
    uint64_t launches, busy_ns;
    uint32_t errors, error_code, error_lane; /* of the last one, ATTND_E_* */
};
/** attnd_prepared_status() - Return: 1; 0 the session has no mailbox. */
int attnd_prepared_status(const struct attnd_client *client, struct attnd_prepared_status *status);

/** attnd_prepared_close() - the session is dying: its mailbox is looked at no more. client->mail is
 * NULL once the worker has said so and everything prepared is let go, at once or later; if later,
 * by the event closed. */
void attnd_prepared_close(struct attnd_client *client);

/** attnd_prepared_lost() - the worker is gone: every control command is as good as
 * acked. */
void attnd_prepared_lost(struct attnd_prepared_runs *prepared_runs);
/** attnd_prepared_resume() - a new one: it is sent everything. Return: 0 or -ATTND_E_NO_MEMORY. */
int attnd_prepared_resume(struct attnd_prepared_runs *prepared_runs, uint64_t begin_bytes,
                          uint64_t end_bytes);

/* ---- control_command.c: what the worker is sent beside runs ---- */

/** attnd_control_command_pump() - send what can be sent: room, and memory that the worker has
 * mapped. */
void attnd_control_command_pump(struct attnd_prepared_runs *prepared_runs);
/** attnd_control_command_retired() - the worker's ack. Return: 0; -ATTND_E_PROTOCOL: there is no
 * such command. */
int attnd_control_command_retired(struct attnd_prepared_runs *prepared_runs,
                                  const struct attnd_retire *retire);

/* ---- plan.c: the step of a set or an advance whose plan has prepared runs ---- */

/** attnd_prepared_taken() - another change has the plan: this one must wait. */
int attnd_prepared_taken(const struct attnd_plan_object *plan);
/** attnd_prepared_stale() - no generation is free, and a HOLD would free one. */
int attnd_prepared_stale(const struct attnd_plan_object *plan);
/** attnd_prepared_hold() - before a plan may change. Return: 1 the change waits for the event
 * acked, and change->sent says why when its step comes again; 0 go on: nobody can launch a run of
 * it. */
int attnd_prepared_hold(struct attnd_plan_change *change);
/** attnd_prepared_make_room() - scratch for the plan's prepared runs, of @scratch_bytes each:
 * before a set is written. Return: 0, or the fault's code with everything as it was. */
int attnd_prepared_make_room(const struct attnd_plan_change *change, uint64_t scratch_bytes,
                             struct attnd_fault *fault);
/** attnd_prepared_was_set() - scratch and extents of the plan's prepared runs again; if there is no
 * scratch, because a worker has died since, the plan is empty. Return: 0, or the fault's code. */
int attnd_prepared_was_set(struct attnd_plan_change *change, struct attnd_fault *fault);
/** attnd_prepared_publish() - after it did. Return: 1 the change waits for the event acked; 0
 * it is done. */
int attnd_prepared_publish(struct attnd_plan_change *change);
/** attnd_prepared_acked() - the scheduler, in its event acked: the change goes on.
 * @closing: its session is dying. Return: 1 another command was sent, so that the plan does not
 * stay held in the worker, where another may come to lie; 0 nothing of the change is under way. */
int attnd_prepared_acked(struct attnd_plan_change *change, uint32_t kind, int closing);

#endif
