/*
 * mail.h - prepared runs on the CPU: what is watched, what may begin, what waits for an answer.
 *
 *   mailbox.c   doorbells to runs, ends of runs to answers
 *   control.c   commands about mailboxes, prepared runs and plans
 *   doorbell.c  the thread that sleeps until somebody rings
 *
 * Everything here is under one lock; it is held for a look at some words and never while a tile is
 * executed. The mailbox itself is the engine's to write at any time.
 */
#ifndef ATTND_PERSISTENT_CPU_MAIL_H
#define ATTND_PERSISTENT_CPU_MAIL_H

#include <pthread.h>

#include "schemas/abi.h"

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

#endif
