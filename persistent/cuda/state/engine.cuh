/*
 * engine.cuh - what a worker kernel finds in device memory where an engine's own stream launched it
 * (persistent/cuda/engine): the session's block, and a block for each plan in a lane.
 *
 * Nothing here is shared with another process, and runs of a lane follow each other in the order of
 * the engine's stream. So a plan's block is written by a kernel in front of the runs that read it,
 * and no word of it is ever waited for.
 */
#ifndef ATTND_PERSISTENT_CUDA_STATE_ENGINE_CUH
#define ATTND_PERSISTENT_CUDA_STATE_ENGINE_CUH

#include "persistent/cuda/state/resident.cuh"
#include "schemas/engine.h"

namespace attnd
{

/* SMs of a GPU, more than there are. */
constexpr uint32_t engine_workers_max = 192;

/* What decides about a launch, one vector. */
struct alignas(16) EngineDecision {
    uint32_t items; /* 0: nothing is executed */
    uint16_t variant, generation;
    uint32_t code; /* ATTND_E_*: why nothing is; 0 */
    uint32_t zero;
};

/* All that a worker reads of the plan to begin with its first item, which is the one of its own
 * number: found once, by a refresh, for the runs of all layers. The item is as its slot has it. */
constexpr uint32_t first_queries = 8; /* rows, of which alone are keys asked for early */
struct alignas(128) EngineFirst {
    PlannedItem item;
    alignas(16) int64_t q[first_queries]; /* bytes from the beginning of q to each packed row */
};

/* A plan in a lane. */
struct alignas(128) EnginePlan {
    uint32_t words[run_plan_bytes / 4]; /* an ActiveRun's that follow from its plan */
    EngineDecision decision;
    uint64_t set_version; /* that the mirror holds; 0: nothing */
    uint32_t advance_version;
    uint16_t odd; /* 1: rows of q do not keep 16-byte alignment */
    uint16_t
        passes; /* as in ActiveRun: the plan's alone here, because first items follow from it */
    attnd_engine_plan place;
    alignas(128) uint32_t left; /* of a fused plan: workers that have left the run in flight */
    EngineFirst first[engine_workers_max];
    attnd_fault
        fault; /* of the first request that a cut refused; code 0: none since it was asked */
};

/* A prepared run, beside its ActiveRun. */
struct alignas(16) EngineRun {
    const EnginePlan *plan; /* NULL: the slot is free */
    uint32_t layer;
    uint32_t serial; /* of the run: a graph may launch one that is not there any more */
};

/* A session's block. Behind it lies what worker kernels know a service's state by; of its rings and
 * tables they use none, and its live lines are those of the session's lanes. These also count, from
 * the beginning of the session on: `done` runs, `end_ns` the time that their workers took. */
struct EngineSession {
    ActiveRun active[prepared_max];
    EngineRun runs[prepared_max];
    TensorMap templates[map_templates];
    Memory memories[ATTND_MEMORIES_MAX];
    uint32_t errors[ATTND_LANES_MAX];
    uint32_t failed[ATTND_LANES_MAX]; /* runs that were not executed */
    attnd_engine_account *account;    /* in host memory; NULL: nobody asks what was executed */
};
static_assert(sizeof(attnd_engine_account::lane) / sizeof(attnd_engine_sums) == ATTND_LANES_MAX,
              "a lane each");
static_assert(sizeof(Memory) == sizeof(attnd_engine_memory) &&
                  offsetof(Memory, host) == offsetof(attnd_engine_memory, host),
              "the same");
static_assert(ATTND_LANES_MAX <= ring_positions, "a live line each");

__device__ __forceinline__ Resident *engine_resident(EngineSession *session)
{
    static_assert(sizeof(EngineSession) % alignof(Resident) == 0, "it lies behind");
    return reinterpret_cast<Resident *>(session + 1);
}

/* A worker kernel's last argument. */
struct EngineLaunch {
    EngineSession *session;
    EnginePlan *plan; /* NULL: the service launched it */
    uint32_t slot, serial, lane;
    uint32_t first_rows; /* of the item that workers begin with, most likely; 0: not known */
};
static_assert(sizeof(EngineLaunch) == sizeof(attnd_engine_launch), "the same");

} // namespace attnd

#endif
