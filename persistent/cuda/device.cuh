/*
 * device.cuh - what lives in device memory while the kernel is resident, and the memory orders of
 * the device side, each named where it acts.
 *
 * Host memory is watched by one warp of CTA 0 only (the dispatcher); everyone else polls device
 * memory. All flags that cross the PCIe bus are system scope, all others GPU scope.
 */
#ifndef ATTND_PERSISTENT_CUDA_DEVICE_CUH
#define ATTND_PERSISTENT_CUDA_DEVICE_CUH

#include "schemas/abi.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace attnd
{

/* Runs published to the workers; a slot is reused only when every worker has moved past it. */
constexpr uint32_t active_runs = 256;
constexpr uint32_t workers_max = 512;

/* The compiled variants of the worker kernel, one a head dimension and element type. Each has a
 * file of its own (variant_*.cu) and a row in resident.cu, in the order of variant_index(). */
constexpr uint32_t variants_count = 6;

/* Which one executes a head dimension and element type; variants_count: none does. */
__host__ __device__ constexpr uint32_t variant_index(uint32_t dim, uint32_t dtype)
{
    if ((dim != 64 && dim != 128 && dim != 256) || (dtype != ATTND_FP16 && dtype != ATTND_BF16))
        return variants_count;
    return (dim == 64 ? 0 : dim == 128 ? 2 : 4) + (dtype == ATTND_BF16);
}

/* Templates of tensor maps: for K one a box height, 16, 32, 64 tokens of one panel of 64 dims; for
 * V one a head dimension, 16 tokens of 1, 2, 4 panels. */
constexpr uint32_t map_templates_k = 3, map_templates = map_templates_k + 3;
struct alignas(128) TensorMap {
    char opaque[128];
};

/* Words the device and the worker's host half share, in pinned host memory. */
struct HostWords {
    uint64_t heartbeat_ns; /* host: a kernel whose host is gone leaves by itself */
    uint32_t wanted;       /* device: 1 + a variant that is not resident and now must be */
    uint32_t left;         /* device: the dispatcher has left, the workers follow */
};

/* Of a thread that waited in vain, one a variant. */
struct StuckNote {
    uint32_t seen; /* 1: the rest is filled */
    uint32_t block, thread;
    uint32_t barrier, parity; /* shared address */
};

/* One entry of the memory table. Host memory (memfd) is registered, device memory imported. */
struct Memory {
    char *base;
    uint64_t size_bytes;
};

/* A run as the workers see it: everything resolved to pointers once, by the dispatcher. */
struct ActiveRun {
    attnd_run run;
    attnd_plan_head plan;
    const attnd_entry *entries;
    const attnd_tile *tiles;
    const attnd_merge *merges;
    const uint32_t *merge_parts;
    const int32_t *kv_pages;
    const int32_t *kv_len;             /* of the run's generation */
    uint32_t page_size, pages;         /* of the pool */
    attnd_heap_plane k_plane, v_plane; /* of the run's layer */
    char *k_base, *v_base;             /* planes, offset applied */
    const char *q;
    char *o;
    float *lse;                  /* NULL: not wanted */
    const char *k_rows, *v_rows; /* APPEND */
    uint32_t *arrivals;          /* [merges * heads_kv] */
    float *states;               /* [partial_rows * heads_q][2] */
    float *outputs;              /* [partial_rows * heads_q][dim_vo] */
    uint32_t slot;               /* of the daemon's run table */
    int32_t code;                /* what it retires with */
    uint32_t variant;            /* which workers execute it */
    uint32_t box_rows;           /* tokens a TMA copy moves; 0: by cp.async */
    uint32_t aligned;            /* 1: every row of q, K and V keeps 16-byte alignment */
    TensorMap k_map, v_map;      /* of the run's layer; if box_rows */

    /* counters, a line of their own */
    alignas(128) uint32_t next_item;
    uint32_t done_items;
    uint32_t state; /* enum RunState */
    uint32_t cancelled;
    unsigned long long begin_ns, end_ns, busy_ns, kv_bytes;
};

/* The kernel's own state. Lives as long as the backend. */
struct Resident {
    /* set before launch, constant after */
    attnd_queue_head *queue; /* host memory, device pointer */
    char *mirror;            /* device copy of the queue segment's heap, same offsets */
    Memory *memories;        /* [ATTND_MEMORIES_MAX] */
    char *scratch;
    uint64_t scratch_bytes;
    HostWords *host;              /* host memory, device pointer */
    ActiveRun *runs;              /* [active_runs] */
    TensorMap *templates;         /* [map_templates] */
    int64_t host_clock_offset_ns; /* CLOCK_MONOTONIC - globaltimer */
    uint32_t workers;
    /* inner loops that may be used: bit 0 decode, bit 1 prefill, bit 2 TMA; else naive */
    uint32_t paths;
    uint32_t drain;    /* 1: leave when the queue is empty, for profilers */
    uint32_t resident; /* bit v: workers of variant v are resident */
    uint32_t inject;   /* tests, enum attnd_injection: 1 no item is counted, 2 a wait in vain */

    alignas(128) uint32_t published;      /* runs published, free-running */
    alignas(128) uint32_t leave;          /* 1: park */
    alignas(128) uint32_t retired;        /* runs retired, free-running; survives a park */
    uint32_t commands_head, retires_tail; /* the dispatcher's private indices between launches */
    uint32_t error;                       /* ATTND_E_* of a dispatcher that gave up */
    uint32_t used;                        /* bit v: runs of variant v came since the launch */
    alignas(128) uint32_t cursor[workers_max]; /* the run each worker is at */
    uint32_t doing[workers_max];               /* enum WarpState */
};

enum RunState { run_published = 1, run_finished = 2, run_retired = 3 };

/* For the debug dump: what a CTA is doing. */
enum WarpState { state_idle = 1, state_item = 2, state_left = 3 };

/* A1 across the bus */
__device__ __forceinline__ uint32_t observe_sys(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

/* R1 across the bus */
__device__ __forceinline__ void publish_sys(uint32_t *word, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t observe_gpu(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ void publish_gpu(uint32_t *word, uint32_t value)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/* Tickets: no data hangs on them. */
__device__ __forceinline__ uint32_t take_gpu(uint32_t *word)
{
    uint32_t value;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(value)
                 : "l"(word)
                 : "memory");
    return value;
}

/* Arrival counters: the last arriver sees what all others wrote. */
__device__ __forceinline__ uint32_t arrive_gpu(uint32_t *word)
{
    uint32_t value;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(value)
                 : "l"(word)
                 : "memory");
    return value;
}

/* Host memory that the daemon rewrites between doorbells: never through the read-only path. */
__device__ __forceinline__ uint4 load_host(const uint4 *from)
{
    uint4 value;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}

__device__ __forceinline__ uint64_t clock_ns()
{
    uint64_t value;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
    return value;
}

} // namespace attnd

#endif
