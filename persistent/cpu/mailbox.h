/*
 * mailbox.h - prepared runs on the CPU: who rings, what may begin, who is answered.
 *
 *   mailbox.c   doorbells to runs, ends of runs to answers
 *   control.c   commands about mailboxes, prepared runs and plans
 *   doorbell.c  the thread that sleeps until somebody rings
 *
 * Everything here is under one lock; it is held for a look at some words and never while a tile is
 * executed. The mailbox itself is the engine's to write at any time.
 */
#ifndef ATTND_PERSISTENT_CPU_MAILBOX_H
#define ATTND_PERSISTENT_CPU_MAILBOX_H

#include "persistent/cpu/cpu.h"

/* A mailbox that is watched. The number is that of its slot in the queue segment. */
struct attnd_cpu_mailbox {
    struct attnd_mailbox *box; /* NULL: not watched */
    uint32_t session;
    uint32_t running;              /* runs of it in flight, also after it was let go */
    uint32_t seen, heard;          /* of `rung`: by the dispatcher, by the doorbell */
    uint32_t rescan;               /* a doorbell that had to wait may be taken now */
    uint8_t busy[ATTND_LANES_MAX]; /* a run of the lane is in flight */
};

/* A prepared run. The number is that of its run slot - runs_transient. */
struct attnd_cpu_prepared {
    struct attnd_run body; /* kind 0: empty */
    uint32_t running;      /* 1: in flight, as what it was when it began: */
    uint32_t mailbox, lane;
    uint64_t plan_offset_bytes;
};

/* A command that is answered when nothing of what it is about is in flight. */
struct attnd_cpu_wait {
    uint32_t kind, run, tag;
    int32_t code;
    uint64_t plan_offset_bytes;
};

struct attnd_cpu_mail {
    pthread_mutex_t lock;
    uint32_t runs_transient, prepared_count;
    struct attnd_mailbox_slot *slots; /* in the queue segment */
    struct attnd_cpu_prepared *prepared;
    struct attnd_cpu_mailbox mailboxes[ATTND_MAILBOXES_MAX];

    uint64_t *held; /* [held_max] offsets of plans */
    uint32_t held_count, held_max;
    struct attnd_cpu_wait *waits; /* [waits_max] */
    uint32_t waits_count, waits_max;

    pthread_t doorbell;
    uint32_t doorbell_runs, doorbell_stop;
    uint32_t doorbell_word; /* counts changes that the doorbell has to know of; it sleeps on it */
};

int attnd_cpu_mail_init(struct attnd_backend *backend);
void attnd_cpu_mail_free(struct attnd_backend *backend);

/* ---- mailbox.c ---- */

/** attnd_cpu_mail_scan() - begin what is rung. Threads: the dispatcher.
 * Return: 1 if a run was published. */
int attnd_cpu_mail_scan(struct attnd_backend *backend);

/** attnd_cpu_mail_done() - a prepared run has ended: answer, and let the lane go on. Threads: any.
 * The slot may be opened again before this returns. */
void attnd_cpu_mail_done(struct attnd_backend *backend, struct attnd_cpu_run *run);

/** attnd_cpu_mail_answer() - lock held. @code: ATTND_E_*, 0: done. */
void attnd_cpu_mail_answer(struct attnd_cpu_mail *mail, uint32_t mailbox, uint32_t lane,
                           uint32_t code);

/* ---- control.c ---- */

/** attnd_cpu_mail_command() - any command but a run. Threads: the dispatcher. */
void attnd_cpu_mail_command(struct attnd_backend *backend, const struct attnd_command *command);

/** attnd_cpu_mail_held() - lock held. 1: no run of the plan may begin. */
int attnd_cpu_mail_held(const struct attnd_cpu_mail *mail, uint64_t plan_offset_bytes);

/** attnd_cpu_mail_answer_due() - answer the commands that wait for nothing any more; lock held. */
void attnd_cpu_mail_answer_due(struct attnd_backend *backend);

/* ---- doorbell.c ---- */

/** attnd_cpu_doorbell_start()/stop() - Return: 0 or -ATTND_E_SYSTEM. */
int attnd_cpu_doorbell_start(struct attnd_backend *backend);
void attnd_cpu_doorbell_stop(struct attnd_backend *backend);
/** attnd_cpu_doorbell_watch() - another set of mailboxes is watched. */
void attnd_cpu_doorbell_watch(struct attnd_cpu_mail *mail);

#endif
