/*
 * resident.cuh - what lives in device memory while the kernels are resident.
 *
 * Host memory is watched by one warp of the dispatcher only; all others poll device memory. All
 * flags that cross the bus are system scope, all others GPU scope (atomics.cuh).
 */
#ifndef ATTND_PERSISTENT_CUDA_STATE_RESIDENT_CUH
#define ATTND_PERSISTENT_CUDA_STATE_RESIDENT_CUH

#include "persistent/cuda/state/run.cuh"
#include "persistent/cuda/state/variants.cuh"
#include "schemas/errors.h"

namespace attnd
{

/* Positions of the ring of published runs; one is used again only when every worker has moved past
 * it. */
constexpr uint32_t ring_positions = 256;
/* Prepared runs: slots of the run table from runs_transient on. */
constexpr uint32_t prepared_max = 4096;
/* Resolved runs: one for each position, in turn, then one for each prepared run, for good. */
constexpr uint32_t run_slots = ring_positions + prepared_max;
constexpr uint32_t workers_max = 512;
/* Places for what warmups store, each of some workers, and the bytes of one: a partial row of the
 * widest head, its state, and a row. */
constexpr uint32_t warmup_places = 64, warmup_bytes = 2048;

/* Words the device and the worker's host half share, in pinned host memory. */
struct HostWords {
    uint64_t clock_ns;            /* device: answer of read_clock() */
    uint32_t heartbeat_ms;        /* host, by the GPU's clock: a kernel whose host is gone leaves by
                                     itself; 0: there is none to be gone */
    uint32_t wanted;              /* device: 1 + a variant that is not resident and now must be */
    uint32_t left;                /* device: number of the last gang that leaves (helper.cu) */
    uint32_t dismiss;             /* host: 1: gangs leave at once */
    uint32_t gate;                /* host: the last batch of gangs that may begin */
    uint32_t extras_left;         /* device: number of the last extras that were told to leave */
    uint32_t ran[variants_count]; /* device: the last gang in which a run of the variant came */
};
constexpr uint32_t host_words_bytes = 256;
static_assert(sizeof(HostWords) <= host_words_bytes, "what is allocated for them");

/* One entry of the memory table. Host memory (memfd) is registered, device memory imported. */
struct Memory {
    char *base;
    uint64_t size_bytes;
    uint32_t host; /* 1: it lies behind the bus */
    uint32_t zero;
};

/* The facts that decide about a doorbell, one struct a prepared run. */
struct alignas(16) Prepared {
    uint32_t plan; /* its place in the heap, in units of 64 bytes */
    uint32_t items;
    uint8_t mailbox, lane; /* whose doorbell may name it */
    uint8_t state;         /* PreparedState bits */
    uint8_t code;          /* ATTND_E_* that a ring is answered with; 0: execute */
    uint8_t variant, generation;
    uint16_t serial; /* of the number that names it */
};
enum PreparedState : uint8_t {
    prepared_there = 1,
    prepared_held = 2,
    prepared_owned = 4,    /* the mailbox slot is of the session that prepared it */
    prepared_bad = 8,      /* the daemon's body could not be resolved */
    prepared_changing = 16 /* a run of its plan is being resolved: their counters are one block */
};

/* Which plan the mirror holds at a place of the heap. A table of its own, at places where no plan
 * is copied to: in the mirror itself, the page list of a plan that lay there before could say
 * anything. Written by the warp that takes commands. */
struct alignas(16) Mirrored {
    uint64_t set_version; /* 0: none */
    uint32_t advance_version;
    uint32_t many; /* 1: an entry has more packed rows than the decode loop takes */
};
/* No plan is shorter, so no two that are there at once share a row of the table. */
constexpr uint64_t mirrored_bytes = sizeof(attnd_plan_head);

/* State that changes while a run is in flight, one a position. All zero in a free position. */
struct alignas(128) Live {
    uint32_t next_item;
    uint32_t cancelled; /* ATTND_E_* that items fail with from now on; 0: none */
    /* Items that are done, and in the upper half the time they took, in units of 32 ns: one arrival
     * brings both. */
    unsigned long long done;
    alignas(16) unsigned long long end_ns; /* of the item that ended last, for retire records */
    unsigned long long kv_bytes;
    uint32_t code;       /* ATTND_E_* of the first item that failed */
    uint32_t portions;   /* of items in hand, that are done: items that take long get on, too */
    uint32_t next_of[2]; /* items of a class that are taken, if both are to be in work at once */
};
constexpr uint32_t busy_unit_ns = 32;

/* While a launched run is in flight its lane's doorbell counts: it begins this far below 1 for each
 * item, each item that is done adds as much, and the first that fails adds its code. */
constexpr uint32_t doorbell_item = ATTND_DOORBELL_ITEM;
static_assert(1u - ATTND_DOORBELL_ITEMS_MAX * doorbell_item > ATTND_DOORBELL_TAKEN,
              "it reads as taken");
#define X(name, number, sentence) &&number < doorbell_item
static_assert(true ATTND_ERRORS(X), "a failure does not look like an item");
#undef X

/* A command that is answered when certain runs have ended. */
struct Pending {
    uint32_t kind, run, tag;
    uint32_t plan;  /* HOLD; PREPARED: of a body that is to be resolved then; else ATTND_NONE */
    uint32_t round; /* MAILBOX: when the watching began to look elsewhere */
    uint32_t held;  /* PREPARED: a HOLD of the plan came after it */
};
constexpr uint32_t pending_max = 512; /* the daemon has no more of them out */

/* Of the runs that a mailbox rang: struct attnd_mailbox_slot. */
struct alignas(16) MailboxSums {
    unsigned long long runs, tiles, busy_ns, kv_bytes;
    uint32_t errors, error, error_lane, zero;
    unsigned long long sent; /* runs and errors that the host has been sent */
    unsigned long long unused;
};

/* Of Settings.paths: decode, prefill, tensor maps, and the prefill loop for few rows. What none of
 * them executes goes the plain way. */
constexpr uint32_t paths_all = 15, paths_without_maps = 3;

/* Set before a launch, constant after it. A CTA has a copy in shared memory: an acquire empties the
 * L1. */
struct Settings {
    attnd_queue_head *queue; /* host memory, device pointer */
    char *mirror;            /* device copy of the queue segment's heap, same offsets */
    Mirrored *mirrored;      /* [queue bytes / mirrored_bytes + 1] */
    Memory *memories;        /* [ATTND_MEMORIES_MAX] */
    char *scratch;
    uint64_t scratch_bytes;
    HostWords *host;              /* host memory, device pointer */
    ActiveRun *runs;              /* [run_slots] */
    TensorMap *templates;         /* [map_templates] */
    int64_t host_clock_offset_ns; /* CLOCK_MONOTONIC - globaltimer */
    uint32_t workers;
    uint32_t paths;                     /* bits: inner loops that may be used */
    uint32_t drain;                     /* 1: leave when nothing is left to take, drained() */
    uint32_t kernels;                   /* bit v: workers of variant v are resident */
    uint32_t resident;                  /* bit v: some that execute runs of variant v are */
    uint32_t transient, prepared_count; /* of the run table: doorbells name the second part */
    uint32_t mailboxes_offset;          /* of the queue segment, bytes */
    attnd_wake *wake;                   /* elastic: what calls a gang, in host memory; else NULL */
    attnd_trace_head *records;          /* host memory, device pointer; records behind it */
    uint32_t inject;   /* tests, enum attnd_injection: 1 no item is counted, 2 a wait in vain */
    uint32_t missing;  /* bit v: no kernel is there that executes runs of variant v */
    uint32_t reserved; /* workers before it stay, the others are extra; 0: all are alike */
    uint32_t extras_before; /* extras up to this number were there before the launch */
};

/* The kernels' own state, in device memory. Lives as long as the backend. */
struct Resident : Settings {
    alignas(128) uint32_t published;      /* positions, free-running; kept from launch to launch */
    uint32_t submitted_runs;              /* of them, from the command ring */
    uint32_t commands_head, retires_tail; /* the dispatcher's private indices between launches */
    uint32_t error;                       /* ATTND_E_* of a dispatcher that gave up */
    uint32_t used;                        /* bit v: runs of variant v came since the launch */
    uint32_t retired;                     /* positions; for a look from outside, as published is */
    /* Positions before it are gone: no worker enters there. Moved by the dispatcher (retire.cuh).
     */
    uint32_t horizon;
    uint32_t dirty;      /* positions from here to `published` have live lines that are not zero */
    uint32_t running;    /* the last gang whose dispatcher has begun */
    uint64_t plan_bytes; /* of plans, copied over the bus by this worker */
    uint64_t twin_runs;  /* that were named with a twin (turns.h), by this worker */
    uint32_t prepared_end; /* entries of prepared[] that were ever used */
    uint32_t recent;       /* of runs[]: the last that was launched by a doorbell */
    uint32_t dismissed;    /* 1: the last gang was, perhaps: the next one looks before it begins */
    alignas(
        128) uint32_t leave; /* the last gang that is to leave; set after its last publication */
    uint32_t trace;          /* 1: records of items are wanted; read together with `leave` */
    uint32_t turn;           /* likewise: whose items are next, turn_of(); 0: as published */
    uint32_t extras_leave;   /* likewise: the last extras that are to leave */
    uint32_t over;           /* the last gang that has no item left to take, and gets none */
    alignas(128) uint32_t nothing[workers_max][128];       /* zeros, for warmups (work_slot.cuh) */
    alignas(128) char spoilt[warmup_places][warmup_bytes]; /* and where they store */
    alignas(128) RunEntry ring[ring_positions];
    Live live[ring_positions + 1];                 /* one of nobody's (retire.cuh) */
    uint32_t extras_there;                         /* the last extras that have begun */
    uint32_t submitted_run[ring_positions];        /* of the run table; for a look from outside */
    alignas(128) uint32_t cursor[workers_max];     /* the position each worker is at */
    uint32_t doing[workers_max];                   /* enum WarpState */
    uint32_t present[workers_max];                 /* 1: its cursor counts */
    uint32_t traced[workers_max];                  /* records that each worker has written */
    Prepared prepared[prepared_max];               /* the dispatcher's, between launches */
    attnd_mailbox *mailboxes[ATTND_MAILBOXES_MAX]; /* likewise; NULL: not watched */
    MailboxSums sums[ATTND_MAILBOXES_MAX + 1];     /* likewise; one of nobody's */
    Pending pending[pending_max];                  /* the dispatcher's, of this launch */
};

/* Worker @worker is not of those that stay beside their dispatcher (dispatch/extra.cuh). */
__host__ __device__ __forceinline__ bool is_extra(const Settings &settings, uint32_t worker)
{
    return settings.reserved && worker >= settings.reserved;
}

/* A word for workers: items of the run at position @at are to be taken first; and by every other
 * worker those of its twin, if that is not the same, at most a ring later. */
constexpr uint32_t turn_positions = 0x7fffff;
__device__ __forceinline__ uint32_t turn_of(uint32_t at, uint32_t twin)
{
    return at << 9 | (twin - at) % ring_positions << 1 | 1;
}

__device__ __forceinline__ uint32_t turn_at(uint32_t turn)
{
    return turn >> 9;
}

/* How many positions later the twin is. */
__device__ __forceinline__ uint32_t turn_twin(uint32_t turn)
{
    return turn >> 1 & (ring_positions - 1);
}

/* For the debug dump: what a CTA is doing. */
enum WarpState { state_idle = 1, state_item = 2, state_left = 3 };

} // namespace attnd

#endif
