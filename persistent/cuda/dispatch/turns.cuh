/*
 * turns.cuh - whose items are next: the choice of persistent/turns.h, made by the chores' warp.
 *
 * Workers take items in the order in which runs were published, as long as nobody says otherwise.
 * The warp looks at the counters of runs in flight, and where several sessions have items left it
 * names the position whose turn it is in a word that workers read with each item. An item that a
 * worker has in hand is executed first; and one of decode that it claimed ahead, if that is short
 * or there were no turns then. A turn that is over is seen by the run's tickets. Where one session
 * has work, or its run is the oldest, the word is 0.
 *
 * Twins, runs of several sessions that read the same keys, are named together: every other worker
 * takes of the later one, so that both are read while the keys are in the L2. Nobody waits for a
 * twin: what is published first begins at once, and what comes when too much of it is read is none.
 *
 * A run that is alone in flight has no turn to choose, and nobody is charged for it. So a gang that
 * comes for one run, as most do, executes none of this: cold instructions at its end would keep the
 * next gang waiting.
 */
#ifndef ATTND_PERSISTENT_CUDA_DISPATCH_TURNS_CUH
#define ATTND_PERSISTENT_CUDA_DISPATCH_TURNS_CUH

#include "persistent/cuda/dispatch/dispatch_state.cuh"
#include "persistent/turns.h"

namespace attnd
{

static_assert(ATTND_TURNS_RUNS == ring_positions, "a run a position");

/* The warp's own. The same in all lanes, but for @met, which is the first one's. */
struct Turns {
    attnd_turns *state;
    uint32_t completed; /* positions before it are over, and charged */
    uint32_t known;     /* positions before it have begun here */
    uint32_t sent;      /* what workers read */
    uint32_t met;       /* runs that were named with a twin, as told the host */
    bool begun;         /* the state is there */
};

/* Beside Dispatch, which somebody's layer waits for to be cleared. */
__device__ __forceinline__ Turns turns_start(const Dispatch *dispatch)
{
    __shared__ attnd_turns state;
    const uint32_t begin = observe_cta(&dispatch->retired);
    return {&state, begin, begin, 0, 0, false};
}

/* Two runs are in flight. The whole warp. */
__device__ __forceinline__ void turns_clear(Turns *turns)
{
    static_assert(sizeof(attnd_turns) % 8 == 0, "by words");
    for (uint32_t i = threadIdx.x % 32; i < sizeof(attnd_turns) / 8; i += 32)
        reinterpret_cast<uint64_t *>(turns->state)[i] = 0;
    __syncwarp();
    turns->begun = true;
}

/* Is what is said of position @at all there, and what became of its run? One before @retired is
 * over. */
__device__ __forceinline__ bool position_there(const Dispatch *dispatch, uint32_t at,
                                               uint32_t retired)
{
    return observe_cta(&dispatch->positions[at % ring_positions].active) ||
           int32_t(retired - at) > 0 ||
           observe_cta(&dispatch->finished[at % ring_positions / 32]) >> at % 32 & 1;
}

/* Of the run at position @at: the same of all runs whose first keys are the same, of one layer's
 * plane, of one page; 0: of none. If others are the same by accident, they take turns. */
__device__ __forceinline__ uint64_t run_reads(const Resident *resident, uint32_t at)
{
    const RunEntry entry = observe_entry(&resident->ring[at % ring_positions]); /* A1 */
    if (entry.sequence != at + 1)
        return 0; /* it is over, and its line another's */
    const ActiveRun &run = resident->runs[entry.slot];
    const uint64_t page = __ldcg(&run.reads_first);
    const uint64_t plane = __ldcg(reinterpret_cast<const uint64_t *>(&run.k_base));
    return page ? plane + page * 0x9e3779b97f4a7c15 : 0;
}

/* Runs that were published since the last pass. The whole warp. */
__device__ __forceinline__ void turns_begin(const Dispatch *dispatch, const Resident *resident,
                                            Turns *turns, uint32_t retired, uint32_t published)
{
    for (; turns->known != published; turns->known++) {
        const uint32_t at = turns->known;
        if (!position_there(dispatch, at, retired))
            return; /* in the next pass */
        if (threadIdx.x % 32 == 0) {
            const Position &position = dispatch->positions[at % ring_positions];
            uint32_t session = position.session, weight = position.weight;
            if (position.doorbell != ATTND_NONE) {
                const attnd_run &body =
                    dispatch->settings.runs[ring_positions + position.run - dispatch->transient]
                        .source.body;
                session = peek_gpu(&body.session);
                weight = peek_gpu(&body.weight);
            }
            attnd_turns_begin(turns->state, at, session, weight, position.items,
                              run_reads(resident, at));
        }
        __syncwarp();
    }
}

/* What workers took and did since. The whole warp. */
__device__ __forceinline__ void turns_note(const Resident *resident, Turns *turns, uint32_t retired)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t base = turns->completed; int32_t(turns->known - base) > 0; base += 32) {
        const uint32_t mine = base + lane;
        const Live *live = &resident->live[mine % ring_positions];
        const attnd_turns_run *run = &turns->state->run[mine % ring_positions];
        uint64_t done = 0;
        uint32_t taken = 0;
        bool changed = false;
        if (int32_t(turns->known - mine) > 0) {
            done = observe_gpu8(&live->done); /* first: no item is done that is not taken */
            taken = int32_t(retired - mine) > 0 ? run->items : peek_gpu(&live->next_item);
            changed = (uint32_t(done) != run->done || min(taken, run->items) != run->taken);
        }
        for (uint32_t left = __ballot_sync(0xffffffffu, changed); left; left &= left - 1) {
            const uint32_t from = uint32_t(__ffs(int32_t(left))) - 1;
            if (lane == from)
                attnd_turns_note(turns->state, mine, taken, uint32_t(done),
                                 (done >> 32) * busy_unit_ns);
            __syncwarp();
        }
    }
    turns->completed = int32_t(turns->known - retired) < 0 ? turns->known : retired;
}

/* One pass. Positions are made ready, and their lines zero, when they are completed here. The whole
 * warp. */
__device__ __forceinline__ void pass_turns(const Dispatch *dispatch, Resident *resident,
                                           Turns *turns)
{
    const uint32_t retired = observe_cta(&dispatch->retired);
    const uint32_t published = observe_cta(&dispatch->published);
    if (turns->known == turns->completed) { /* none is followed */
        turns->known = turns->completed = retired;
        if (published - retired < 2)
            return;
        if (!turns->begun)
            turns_clear(turns);
    }
    turns_begin(dispatch, resident, turns, retired, published);
    turns_note(resident, turns, retired);
    uint32_t next = 0;
    if (threadIdx.x % 32 == 0) {
        const attnd_turns_choice choice =
            attnd_turns_next(turns->state, turns->completed, turns->known);
        next = choice.at == turns->known ? 0 : turn_of(choice.at, choice.twin);
        if (turns->met != turns->state->met) {
            resident->twin_runs += turns->state->met - turns->met;
            turns->met = turns->state->met;
            store_relaxed_sys(&resident->queue->twin_runs, resident->twin_runs);
        }
    }
    next = __shfl_sync(0xffffffffu, next, 0);
    if (next == turns->sent)
        return;
    turns->sent = next;
    if (threadIdx.x % 32 == 0)
        publish_gpu(&resident->turn, next);
}

/* Nothing is in flight any more. */
__device__ __forceinline__ void turns_end(Resident *resident, const Turns *turns)
{
    if (turns->sent && threadIdx.x % 32 == 0)
        publish_gpu(&resident->turn, 0);
}

} // namespace attnd

#endif
