/*
 * solo.cuh - the resident kernels without a service: a queue segment of their own in pinned memory,
 * into which one thread writes runs and from which it reads that they ended. For what is measured
 * of the kernels alone (rates.cu, bench/gpu_drain.cu).
 */
#ifndef ATTND_PERSISTENT_CUDA_HOST_SOLO_CUH
#define ATTND_PERSISTENT_CUDA_HOST_SOLO_CUH

#include "persistent/cuda/host/launch.cuh"

namespace attnd
{

constexpr uint32_t solo_entries = 256; /* runs in flight, at most */
constexpr uint64_t solo_commands_at = 4096,
                   solo_retires_at = solo_commands_at + solo_entries * sizeof(attnd_command),
                   solo_runs_at = solo_retires_at + solo_entries * sizeof(attnd_retire),
                   solo_heap_at = solo_runs_at + solo_entries * sizeof(attnd_run);

struct Solo {
    char *queue; /* pinned, one address on both sides; the caller's pools and plans from
                    solo_heap_at on */
    uint64_t queue_bytes;
    HostWords *words;   /* pinned */
    Resident settings;  /* the caller may change them before a launch */
    Resident *resident; /* device memory */
    uint32_t tail;      /* runs so far */
};

inline attnd_queue_head *solo_head(const Solo &solo)
{
    return reinterpret_cast<attnd_queue_head *>(solo.queue);
}

/* @solo: zeros. @heap_bytes: for pools and plans. @memories: the table, in which runs name q, o and
 * planes. What is missing when it fails is given back by solo_close(). */
cudaError_t solo_open(Solo *solo, uint64_t heap_bytes, uint32_t workers, uint64_t scratch_bytes,
                      const Memory *memories, uint32_t count);

/* Publishes a run, whose plan and pool lie in the segment. */
void solo_ring(Solo *solo, const attnd_run *run);

/* Waits for the end of run @number, counted from 0. Return: 0, or -1 after @timeout_ns. */
int solo_wait(const Solo &solo, uint32_t number, uint64_t timeout_ns, attnd_retire *retire);

/* The kernels are to leave when they have done what was published. */
void solo_park(const Solo &solo);

/* None of its kernels may be there. */
void solo_close(Solo *solo);

} // namespace attnd

#endif
