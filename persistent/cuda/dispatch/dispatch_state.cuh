/*
 * dispatch_state.cuh - what the dispatcher's warps share, in shared memory of their CTA.
 *
 * Two warps publish runs: one those of the command ring, from host memory, one those that doorbells
 * name, from device memory. Each finds out all it needs on its own, bus trips and all; only the
 * publication, an entry in the ring, is under a lock, and that is held for a fence and a store.
 *
 * A position of the ring is `ready` when its last run is retired, every worker's cursor is past it
 * and its live line is zero; the watching warp sees to that ahead of time.
 */
#ifndef ATTND_PERSISTENT_CUDA_DISPATCH_DISPATCH_STATE_CUH
#define ATTND_PERSISTENT_CUDA_DISPATCH_DISPATCH_STATE_CUH

#include "persistent/cuda/state/resident.cuh"

namespace attnd
{

/* A published run, as the dispatcher remembers it. */
struct Position {
    uint64_t begin_ns;
    uint32_t run; /* of the run table */
    uint32_t tag, items;
    uint32_t
        doorbell;    /* mailbox * ATTND_LANES_MAX + lane; ATTND_NONE: it came by the command ring */
    uint32_t plan;   /* as in Prepared */
    uint32_t active; /* put_position() */
    /* Of the command's; of a launched run its PreparedSource has them. */
    uint32_t session, weight;
};

/* An answer to a command that is no run in flight: from the warp that takes commands to the one
 * that writes retires. */
struct Direct {
    uint32_t kind, run, tag;
    int32_t code;
};
constexpr uint32_t direct_max = 32;

/* Which set of a plan, and which advance since, a command is about. */
struct PlanVersion {
    uint64_t set; /* no other plan has it; 0: none */
    uint32_t advance;
};

/* The parts of a resolved run that follow from its plan and pool alone, beside Dispatch.build: it
 * stays from run to run, because engines run one plan layer after layer. */
struct BuiltPlan {
    PlanVersion version;
    uint32_t page_size;
    uint32_t variant;              /* variants_count: none */
    uint32_t counters;             /* of merges, 4 bytes each, at the beginning of scratch */
    uint32_t many;                 /* as in Mirrored */
    uint32_t odd;                  /* 1: rows of q do not keep 16-byte alignment */
    uint64_t reads_first;          /* the plan's */
    uint64_t states, outputs, end; /* places in scratch, bytes */
};

struct Dispatch {
    Settings settings;
    uint32_t gang;  /* the number of this launch */
    uint32_t quiet; /* 1: the gang ends for a reason that more gangs do not cure */
    uint32_t lock;
    uint32_t closing;                   /* nothing is published any more */
    uint32_t makes_way;                 /* no run is begun any more, but: may_begin() */
    uint32_t way_end;                   /* positions published before that */
    uint32_t ended;                     /* closing, and every command that was taken is answered */
    uint32_t over;                      /* closing, and no item is left to take */
    uint32_t wanted;                    /* 1 + a variant that a doorbell asks for */
    uint32_t ran;                       /* bit v: a run of variant v was published */
    uint32_t published, ready, retired; /* positions, free-running */
    uint64_t plan_bytes;                /* of plans, copied over the bus */
    uint32_t doorbell_rounds;           /* of the warp that watches mailboxes */
    uint32_t recent;                    /* as in Resident, at the launch */
    uint32_t direct_head, direct_tail;
    Direct direct[direct_max];
    Pending *pending; /* [pending_max], in device memory: what is rare has no place here */
    uint32_t pending_count;
    uint32_t transient, prepared_count; /* as in Settings */
    uint32_t watched;                   /* mailboxes */
    uint8_t watched_list[ATTND_MAILBOXES_MAX];
    attnd_mailbox *mailboxes[ATTND_MAILBOXES_MAX]; /* NULL: not watched */
    /* Of these, one more than there are: nobody's. */
    uint32_t busy[ATTND_MAILBOXES_MAX + 1][2]; /* bit l: a run that lane l rang is in flight */
    Position positions[ring_positions + 1];
    uint32_t finished[ring_positions / 32 + 1]; /* retired, but not yet all before it */
    alignas(16) attnd_command command;          /* the one in hand */
    ActiveRun build;                            /* the run it becomes */
    BuiltPlan built;                            /* of whose plan that is */
    Prepared prepared[prepared_max];
};

/* The whole warp. */
__device__ __forceinline__ void dispatch_lock(Dispatch *dispatch)
{
    if (threadIdx.x % 32 == 0)
        while (lock_cta(&dispatch->lock))
            ;
    __syncwarp();
}

__device__ __forceinline__ void dispatch_unlock(Dispatch *dispatch)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        publish_cta(&dispatch->lock, 0);
}

__device__ __forceinline__ attnd_mailbox_slot *mailbox_slot(const Dispatch *dispatch,
                                                            uint32_t index)
{
    char *queue = reinterpret_cast<char *>(dispatch->settings.queue);
    return reinterpret_cast<attnd_mailbox_slot *>(queue + dispatch->settings.mailboxes_offset) +
           index;
}

/* Has every run in flight before position @end given out its last item? The whole warp. */
__device__ __forceinline__ bool items_gone(const Dispatch *dispatch, const Resident *resident,
                                           uint32_t retired, uint32_t end)
{
    bool left = false;
#pragma unroll 1 /* most often once: fewer instructions to wait for */
    for (uint32_t i = retired + threadIdx.x % 32; int32_t(end - i) > 0; i += 32) {
        const Position *position = &dispatch->positions[i % ring_positions];
        left |= observe_cta(&position->active) &&
                peek_gpu(&resident->live[i % ring_positions].next_item) < position->items;
    }
    return !__any_sync(0xffffffffu, left);
}

/* Where kernels make way: are items left of what was published before? The whole warp. */
__device__ __forceinline__ bool stays_for_others(const Dispatch *dispatch, const Resident *resident)
{
    return !items_gone(dispatch, resident, observe_cta(&dispatch->retired), dispatch->way_end);
}

/* Under the lock; for those who look without it: the rest is there before `active` says so. */
__device__ __forceinline__ void put_position(Dispatch *dispatch, Resident *resident, uint32_t at,
                                             Position position)
{
    Position *to = &dispatch->positions[at % ring_positions];
    position.active = 0;
    *to = position;
    publish_cta(&to->active, 1);
    resident->submitted_run[at % ring_positions] = position.run;
}

/* A run of the command ring becomes visible to the workers; the ring's head is @head then. The
 * whole warp. Return: false if there is no room. */
__device__ __forceinline__ bool publish_run(Dispatch *dispatch, Resident *resident, RunEntry entry,
                                            const Position &position, uint32_t head)
{
    fence_gpu(); /* R1: the resolved run, which this warp stored */
    dispatch_lock(dispatch);
    const uint32_t at = dispatch->published;
    const bool room = (at != dispatch->ready) & !dispatch->closing;
    if (room && threadIdx.x % 32 == 0) {
        entry.sequence = at + 1;
        store_entry(&resident->ring[at % ring_positions], entry);
        /* Behind the entry, for which workers wait, what only its retiring needs: who retires it
         * finds the position active first, so the daemon sees the head before the record. */
        store_relaxed_sys(&dispatch->settings.queue->command_head, head);
        put_position(dispatch, resident, at, position);
        set_bits(&dispatch->ran, 1u << entry.variant);
        dispatch->published = resident->published = at + 1;
    }
    dispatch_unlock(dispatch);
    return room;
}

} // namespace attnd

#endif
