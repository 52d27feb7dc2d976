/*
 * stream.h - stream-ordered runs, the daemon's half: it prepares them and is not asked again.
 *
 *   stream.c        mailboxes and prepared runs: from the call that makes them to the end
 *   stream_note.c   notes: what the worker is told beside runs, and its answers
 *   stream_plan.c   what a prepared run is while its plan is set and advanced; scratch
 *   stream_calls.c  MailboxOpen, Prepare, Unprepare
 *
 * A prepared run is a slot of the run table behind those of submitted runs. It stays filled, and
 * the worker executes it whenever the mailbox of its session rings it. The daemon never sees that;
 * it must therefore tell the worker before it changes anything that such a run may use, and wait
 * for the answer: each note is answered once, and objects live until all notes about them are.
 */
#ifndef ATTND_SERVICE_PREPARED_PREPARED_H
#define ATTND_SERVICE_PREPARED_PREPARED_H

#include "service/sched/sched.h"

/* So that one session leaves some to others. */
#define ATTND_PREPARED_SESSION_MAX (ATTND_QUEUE_PREPARED / 2)
#define ATTND_SCRATCH_SESSION_PART 2u /* of the scratch: 1 / this */

/* A HOLD is answered when the runs that it waits for have ended, which may be long; everything else
 * soon. So a session has only so many of them out: each has as many, and notes are left for a call
 * of each session and for its end. */
#define ATTND_HOLDS_SESSION_MAX                                                                    \
    ((ATTND_QUEUE_CONTROLS - 2 * ATTND_SESSIONS_MAX) / ATTND_SESSIONS_MAX)

enum attnd_mail_state {
    ATTND_MAIL_FREE,
    ATTND_MAIL_OPENING, /* the worker does not watch it yet */
    ATTND_MAIL_OPEN,
    ATTND_MAIL_CLOSING /* the session is gone; the worker has not said that it let go */
};

/* A session's mailbox. Its number is that of its slot in the queue segment. */
struct attnd_mail {
    struct attnd_client *client;
    struct attnd_memory *memory; /* referenced */
    uint32_t handle;             /* of the memory, in the session */
    enum attnd_mail_state state;
    uint32_t prepared;      /* runs */
    uint64_t scratch_bytes; /* of them */
    uint32_t runs_due;      /* of them, that the worker is still to be told of */
    uint32_t notes;         /* sent and not answered, about it and its runs */
    int due;                /* a note about it waits to be sent */
    int stopped;            /* the worker has let go of it */
    int calling;            /* MailboxOpen, Prepare or Unprepare waits for the worker */
    uint64_t call_id;       /* that request */
};

/* The daemon's half of a prepared run. Its number is that of its run slot - ATTND_QUEUE_RUNS. */
struct attnd_prepared {
    struct attnd_mail *mail; /* NULL: free */
    struct attnd_plan_object *plan;
    struct attnd_memory *memories[ATTND_RUN_PLACES]; /* q, o, lse; referenced */
    struct attnd_sqe_run wish;                       /* as it was asked for */
    uint32_t lane;
    uint32_t next; /* in its plan's list or the free list; ATTND_NONE */
    uint32_t serial;
    uint32_t notes; /* sent and not answered */
    uint8_t due;    /* a note about it waits to be sent */
    uint8_t ending; /* unprepared: nobody may ring it any more */
    uint8_t ended;  /* and the worker has said so */
    uint8_t called; /* the call of its session that waits is about it */
};

/* Scratch of the prepared runs of one plan and lane; they never overlap in time. */
struct attnd_plan_lane {
    uint64_t offset_bytes, bytes;
    uint32_t uses;
};

/* Of a plan that has, or had, prepared runs. */
struct attnd_plan_prepared {
    struct attnd_mail *mail;      /* of the prepared runs, whose session the plan is of */
    uint32_t first;               /* prepared run; ATTND_NONE */
    uint32_t shown;               /* bit g: runs in flight may use generation g */
    struct attnd_sched_op *taken; /* a set or an advance that the worker is told of: others wait */
    struct attnd_plan_lane lane[ATTND_LANES_MAX];
};

/* Something that the worker is to be told, or was. */
struct attnd_control_command {
    uint32_t kind;   /* enum attnd_command_kind */
    uint32_t index;  /* mailbox or prepared run */
    uint32_t serial; /* of the prepared run: that of an earlier user of the slot is void */
    uint32_t ending; /* as it was when this was sent: empty, or watched no more */
    struct attnd_sched_op *op; /* HOLD, PUBLISH: who waits; else NULL */
    uint32_t next_free;
};

/* Every object has at most one note waiting, and operations one each. */
#define ATTND_CONTROL_COMMANDS_MAX 16384u

struct attnd_prepared_runs {
    struct attnd_scheduler *scheduler;
    int lost; /* there is no worker: nothing is in flight, and the next one is told everything */
    struct attnd_heap scratch; /* of prepared runs */
    uint32_t free_prepared, prepared_count;
    uint32_t controls_begin, controls_count; /* waiting, circular */
    uint32_t free_sent, sent_count;
    struct attnd_mail mail[ATTND_MAILBOXES_MAX];
    struct attnd_control_command sent[ATTND_QUEUE_CONTROLS]; /* by tag */
    struct attnd_prepared prepared[ATTND_QUEUE_PREPARED];
    struct attnd_control_command notes[ATTND_CONTROL_COMMANDS_MAX];
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
    return &prepared_runs->scheduler->queue
                ->runs[ATTND_QUEUE_RUNS + attnd_prepared_index(prepared_runs, prepared)];
}

/* ---- stream.c ---- */

int attnd_prepared_new(struct attnd_scheduler *scheduler, struct attnd_prepared_runs **out);
void attnd_prepared_free(struct attnd_prepared_runs *prepared_runs);

/** attnd_prepared_close() - the session is dying: its mailbox is looked at no more. client->mail is
 * NULL once the worker has said so and everything prepared is let go, at once or later; then
 * attnd_sched_drain() is called. */
void attnd_prepared_close(struct attnd_client *client);

/** attnd_prepared_mail_acked(), _prepared_told() - the worker answered a note with @code; the last
 * thing that is done with what it is about. */
void attnd_prepared_mail_acked(struct attnd_prepared_runs *prepared_runs, struct attnd_mail *mail,
                               int stopped, int code);
void attnd_prepared_run_acked(struct attnd_prepared_runs *prepared_runs,
                              struct attnd_prepared *prepared, int emptied, int code);

/** attnd_prepared_lost() - the worker is gone: every note is as good as answered. */
void attnd_prepared_lost(struct attnd_prepared_runs *prepared_runs);
/** attnd_prepared_resume() - a new one: it is told everything. Return: 0 or -ATTND_E_NO_MEMORY. */
int attnd_prepared_resume(struct attnd_prepared_runs *prepared_runs, uint64_t begin_bytes,
                          uint64_t end_bytes);

/* ---- stream_note.c ---- */

void attnd_control_command_init(struct attnd_prepared_runs *prepared_runs);
void attnd_control_command_mail(struct attnd_prepared_runs *prepared_runs, struct attnd_mail *mail);
void attnd_control_command_prepared(struct attnd_prepared_runs *prepared_runs,
                                    struct attnd_prepared *prepared);
/** attnd_control_command_plan() - HOLD or PUBLISH of op's plan; it goes on when that is answered.
 */
void attnd_control_command_plan(struct attnd_prepared_runs *prepared_runs, uint32_t kind,
                                struct attnd_sched_op *op);

/** attnd_control_command_pump() - send what can be sent: room, and memory that the worker has
 * mapped. */
void attnd_control_command_pump(struct attnd_prepared_runs *prepared_runs);
/** attnd_control_command_retired() - the worker's answer. Return: 0; -ATTND_E_PROTOCOL: nobody
 * asked. */
int attnd_control_command_retired(struct attnd_prepared_runs *prepared_runs,
                                  const struct attnd_retire *retire);
/** attnd_control_command_forget() - no note is waiting or sent any more.
 * @each: called with each HOLD and PUBLISH among them; may add new ones. */
void attnd_control_command_forget(struct attnd_prepared_runs *prepared_runs,
                                  void (*each)(struct attnd_prepared_runs *prepared_runs,
                                               const struct attnd_control_command *note));

/* ---- stream_plan.c ---- */

/** attnd_prepared_join() - @prepared is of its plan from here: scratch, body. Return: 0 or a fault;
 * then nothing is changed. */
int attnd_prepared_join(struct attnd_prepared_runs *prepared_runs, struct attnd_prepared *prepared,
                        struct attnd_fault *fault);
void attnd_prepared_leave(struct attnd_prepared_runs *prepared_runs,
                          struct attnd_prepared *prepared);

/** attnd_prepared_fill() - what the run is now, into the run table.
 * Return: 1 if the worker must be told. */
int attnd_prepared_fill(struct attnd_prepared_runs *prepared_runs,
                        const struct attnd_prepared *prepared);

/** attnd_prepared_changing() - the plan is held for a set that is not done: it may not be read. */
int attnd_prepared_changing(const struct attnd_plan_object *plan);

/** attnd_prepared_rescratch() - blocks again from an empty heap; runs that get none become bad. */
void attnd_prepared_rescratch(struct attnd_prepared_runs *prepared_runs,
                              struct attnd_plan_object *plan);

/** attnd_prepared_step() - a HOLD or PUBLISH for @op is answered: its lane goes on. */
void attnd_prepared_step(struct attnd_prepared_runs *prepared_runs, struct attnd_sched_op *op,
                         uint32_t kind);

/* ---- stream_calls.c ---- */

/* The call that waits is answered: with its result, or @code if that is negative. The client may be
 * ended by it, and its mailbox gone. */
void attnd_prepared_answer_open(struct attnd_mail *mail, int code);
void attnd_prepared_answer_add(struct attnd_mail *mail, uint32_t run, int code);
void attnd_prepared_answer_remove(struct attnd_mail *mail);

#endif
