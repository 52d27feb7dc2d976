/*
 * abi_doorbell.h - the part of abi.h that is between an engine's stream and the worker: the words
 * by which a run is rung and answered. Included by abi.h.
 */
#ifndef ATTND_SCHEMAS_ABI_DOORBELL_H
#define ATTND_SCHEMAS_ABI_DOORBELL_H

#include "schemas/abi_assert.h"

#include <stdint.h>

#define ATTND_LANES_MAX 64u /* of a session; each has a doorbell */
#define ATTND_MAILBOXES_MAX 128u

/* One a GPU, of a worker whose kernels come when they are wanted (elastic), in host memory: the
 * GPU's front end waits for the word, and the host sets it, too, without a stream that might stand
 * still. Every session that rings sets it behind its doorbell, and the kernels clear it when they
 * leave, both by plain stores with a fence behind or in front, because GPUs have no atomics on host
 * memory. It is shared by sessions that do not trust each other, so nothing but time hangs on it: a
 * session that clears it or sets it all the time delays others, as it could by kernels of its own.
 */
struct attnd_wake {
    uint32_t wake; /* not 0: called */
    uint32_t zero[31];
};
ATTND_ASSERT_SIZE(attnd_wake, 128);

/* One a session, in a memory of its own. A lane's word says where its run is:
 *
 *   1 + code                   at rest: what became of the last one, 0 or ATTND_E_*
 *   ATTND_DOORBELL_RUNG + run  rung by the engine: attnd_doorbell_number() of a prepared run
 *   0, ATTND_DOORBELL_TAKEN..  taken by the worker, which may count in it what is still to do
 *
 * A ring goes from the first to the second, the worker from there to the third and back to the
 * first.
 *
 * So as a signed number it is above 0 when the run is over. It is one word so that each step is one
 * store, and there is no moment between two of them at which a worker that takes over from a dead
 * one could mistake what it sees: what is taken is a run that the other one took with it. A ring is
 * a constant, so a captured graph replays it. The engine rings only a lane that is at rest, but may
 * in fact write anything anywhere at any time: the worker reads a doorbell once and believes
 * nothing but that somebody of this session wrote it. */
struct attnd_mailbox {
    uint32_t doorbell[ATTND_LANES_MAX];
    uint32_t error[ATTND_LANES_MAX]; /* worker: ATTND_E_* of the first failure; engine: 0 */
    uint32_t rung;                   /* host engines count their rings here and wake (futex) */
    uint32_t zero[127];
};
#define ATTND_DOORBELL_RUNG 0x80000000u
#define ATTND_DOORBELL_TAKEN 0xc0000000u

/* A worker that counts in the word begins at 1 - items * ATTND_DOORBELL_ITEM and adds as much for
 * each item that is done, and less than that once for a failure. The number of an engine that rings
 * a lane that does not rest is counted up like that; it must not come to look like one that is
 * taken, which nobody would ever answer. So rings have half of the numbers there are, and items
 * less than the rest. */
#define ATTND_DOORBELL_ITEM 64u
#define ATTND_DOORBELL_RUNS (1u << 29)      /* what is rung is below */
#define ATTND_DOORBELL_ITEMS_MAX (1u << 22) /* of a run that is prepared */
ATTND_ASSERT_ABI(ATTND_DOORBELL_RUNS + (ATTND_DOORBELL_ITEMS_MAX + 1) * ATTND_DOORBELL_ITEM <=
                 ATTND_DOORBELL_TAKEN - ATTND_DOORBELL_RUNG);

/* A number has the index of its run in the run table, and a serial of those that had that slot: a
 * graph that rings a run that was unprepared meanwhile starts no other one. A serial comes again
 * after as many runs in its slot. */
#define ATTND_DOORBELL_SLOTS (1u << 13)
#define ATTND_DOORBELL_SERIALS (ATTND_DOORBELL_RUNS / ATTND_DOORBELL_SLOTS)
ATTND_ASSERT_SIZE(attnd_mailbox, 1024);
ATTND_ASSERT_AT(attnd_mailbox, error, 256);
ATTND_ASSERT_AT(attnd_mailbox, rung, 512);

/* 1: the lane's run is over, or there was none; *doorbell - 1 is its code. */
static inline int attnd_doorbell_rests(uint32_t doorbell)
{
    return doorbell != 0 && doorbell < ATTND_DOORBELL_RUNG;
}

/* 1: no worker has taken it yet. */
static inline int attnd_doorbell_rung(uint32_t doorbell)
{
    return doorbell >= ATTND_DOORBELL_RUNG && doorbell < ATTND_DOORBELL_TAKEN;
}

/* 1: a worker has, and its answer is still to come. */
static inline int attnd_doorbell_taken(uint32_t doorbell)
{
    return !attnd_doorbell_rests(doorbell) && !attnd_doorbell_rung(doorbell);
}

/* The number of a prepared run: @slot < ATTND_DOORBELL_SLOTS in the run table, @serial. */
static inline uint32_t attnd_doorbell_number(uint32_t slot, uint32_t serial)
{
    return serial % ATTND_DOORBELL_SERIALS * ATTND_DOORBELL_SLOTS + slot;
}

/* Which mailboxes there are, and what came of them. */
struct attnd_mailbox_slot {
    uint32_t memory; /* worker memory table index; ATTND_NONE: none */
    uint32_t session;
    uint64_t offset_bytes; /* multiple of 64 */
    uint32_t fresh;        /* 1: no worker has watched it yet */
    uint32_t zero0[11];

    /* Worker: sums over all rings that were answered, with an error or not. */
    uint64_t runs, tiles, busy_ns, kv_bytes;
    uint32_t errors;     /* rings answered with an error */
    uint32_t error_code; /* ATTND_E_* of the last one */
    uint32_t error_lane;
    uint32_t zero1;
    uint64_t zero2[2];
};
ATTND_ASSERT_SIZE(attnd_mailbox_slot, 128);
ATTND_ASSERT_AT(attnd_mailbox_slot, runs, 64);

#endif
