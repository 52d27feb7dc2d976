/*
 * run.cuh - a run as the workers see it: everything resolved to pointers once, by the dispatcher;
 * and its entry in the ring of published runs.
 */
#ifndef ATTND_PERSISTENT_CUDA_STATE_RUN_CUH
#define ATTND_PERSISTENT_CUDA_STATE_RUN_CUH

#include "persistent/cuda/machine/atomics.cuh"
#include "persistent/cuda/machine/copy.cuh"
#include "schemas/abi.h"
#include "schemas/tensor_maps.h"

namespace attnd
{

constexpr uint32_t map_dims = ATTND_MAP_DIMS, map_latents = ATTND_MAP_LATENTS,
                   map_192 = ATTND_MAP_192, map_templates = ATTND_MAP_TEMPLATES,
                   latent_box_rows = 16;
/* In the last dimension of a map of K, where nothing is. */
constexpr uint32_t unit_absent = 0x7fffffff;

/* Two loader warps share the boxes of K, and each must have one of every block. One that has none
 * is waited for by nobody: its barriers go on without it, two phases, and then it waits for ever;
 * and if it did not wait it would bring a later item's boxes to where an earlier one's are read. */
constexpr uint32_t k_loaders = 2;

/* Tokens of a box of K at most: half a block of keys (prefill_load.cuh). */
__host__ __device__ constexpr uint32_t box_rows_max(uint32_t dim)
{
    return dim == 256 ? 32 : 64;
}

/* A prepared run, as the daemon sent it. Workers do not read it, so it may change while the run
 * that was made of it is in flight. */
struct PreparedSource {
    attnd_run body;
    attnd_heap_plane k, v; /* of the run's layer */
    uint32_t page_size, pages;
    uint64_t set_version; /* of the plan */
    uint32_t advance_version;
    uint32_t zero;
};

/* Parts of a run's variant that are looked up where they lie. */
struct RunTables {
    const attnd_variant *variant; /* in the mirror */
    const uint8_t *mask;          /* with ATTND_OPTION_MASK */
    const uint32_t *mask_begin;   /* [entries] where an entry's bits begin, bytes */
    const float *kv_scales;       /* [2][heads_kv] with ATTND_OPTION_HEAD_SCALES */
};

/* One over the scale of K or of V of head @head. */
__device__ __forceinline__ float kv_reciprocal(const RunTables &tables, const attnd_plan_head &plan,
                                               uint32_t head, bool of_v)
{
    float scale = 1.0f;
    if (plan.options & ATTND_OPTION_SCALES)
        scale = of_v ? tables.variant->v_scale : tables.variant->k_scale;
    if (plan.options & ATTND_OPTION_HEAD_SCALES)
        scale *= __ldcg(tables.kv_scales + (of_v ? plan.heads_kv : 0) + head);
    return __frcp_rn(scale);
}

/* A run as the workers see it: everything resolved to pointers once, by the dispatcher. It does not
 * change while the run is in flight. */
struct alignas(128) ActiveRun {
    attnd_plan_head plan; /* reads_first: whose it is, session, from bit 32 on the layer */
    const attnd_entry *entries;
    const attnd_tile *tiles;
    const attnd_merge *merges;
    const uint32_t *merge_parts;
    const int32_t *kv_pages;
    const int32_t *kv_len; /* [ATTND_GENERATIONS][plan.entries_max] */
    uint32_t *arrivals;    /* [merges * heads_kv]; zero between runs */
    float *states;         /* [partial_rows * heads_q][2]; MERGE: the second lse */
    float *outputs;        /* [partial_rows * heads_q][dim_vo] */
    uint32_t group_reciprocal, heads_reciprocal; /* of group, of heads_kv */

    /* So much follows from the plan. The rest is the run's. */
    attnd_heap_plane k_plane, v_plane; /* of the run's layer */
    char *k_base, *v_base;             /* planes, offset applied */
    const char *q;
    char *o;
    float *lse;                    /* NULL: not wanted */
    const char *k_rows, *v_rows;   /* APPEND; MERGE: with q, as struct attnd_run has it */
    uint32_t *answer;              /* of the mailbox's lane; NULL: a retire record answers */
    uint32_t page_size, pages;     /* of the pool */
    uint32_t unit_page, unit_head; /* from page to page, head to head: in units of k_map */
    uint32_t page_reciprocal;      /* of page_size */
    uint8_t kind;                  /* enum attnd_run_kind */
    uint8_t aligned;               /* 1: every row of q, K and V keeps 16-byte alignment */
    uint8_t box_rows;              /* tokens a TMA copy of K moves; 0: by cp.async */
    uint8_t passes;                /* 1: not all KV heads are in work at once (head_passes) */
    const float *sinks;            /* [heads_q], of the run's layer; NULL: none */

    /* not copied */
    alignas(128) TensorMap k_map, v_map; /* of the run's layer; if box_rows */
    PreparedSource source;               /* prepared runs: resolved again when the plan is set */
    uint64_t set_version;                /* of the plan, when that was done last */
    RunTables tables;                    /* of runs whose options have any */
    uint64_t reads_first;                /* the plan's */
};

/* Of a run, what workers read beside its items, and the part of it that is its plan's: vectors. */
constexpr uint32_t run_copy_bytes = offsetof(ActiveRun, k_map);
constexpr uint32_t run_plan_bytes = offsetof(ActiveRun, k_plane);
static_assert(run_copy_bytes == 32 * 16 && run_plan_bytes % 16 == 0, "a vector a lane");

/* What of an item follows from its plan and generation, whatever the layer: in vectors, so that it
 * may be found once for all layers (state/engine.cuh). */
struct alignas(16) PlannedItem {
    attnd_tile tile;
    int32_t pages[32];   /* from page_first on */
    uint32_t parts[32];  /* of the tile's first merge */
    uint32_t *arrivals;  /* of its first merge */
    uint32_t generation; /* of lengths and pages */
    uint32_t kv_head;
    uint32_t packed_rows;
    int32_t kv_len; /* of the entry: the generation's, clamped to the planned pages */
    int32_t kv_begin, kv_end;
    uint32_t page_first; /* of the entry's list: where the range begins */
    /* No block of keys below it is computed by many rows: kv_begin, or more once the item has
     * failed. */
    mutable int32_t floor;
    uint32_t rows_begin, rows_end; /* of latents: the packed rows that are computed */
};

/* A run published, as an entry of the ring of runs: what a worker learns with one load. */
struct alignas(16) RunEntry {
    uint32_t sequence; /* 1 + its position, free-running; anything else: not there yet */
    uint32_t slot;     /* of runs[] */
    uint32_t items;
    uint16_t variant, generation;
};

/* A1 for an entry: in one access. */
__device__ __forceinline__ RunEntry observe_entry(const RunEntry *entry)
{
    uint64_t low, high;
    observe_gpu16(entry, &low, &high);
    RunEntry value;
    value.sequence = uint32_t(low);
    value.slot = uint32_t(low >> 32);
    value.items = uint32_t(high);
    value.variant = uint16_t(high >> 32);
    value.generation = uint16_t(high >> 48);
    return value;
}

/* The store of R1 for an entry; the fence is the caller's. */
__device__ __forceinline__ void store_entry(RunEntry *entry, const RunEntry &value)
{
    uint64_t low = uint64_t(value.slot) << 32 | value.sequence;
    uint64_t high = uint64_t(value.generation) << 48 | uint64_t(value.variant) << 32 | value.items;
    store_relaxed_gpu16(entry, low, high);
}

} // namespace attnd

#endif
