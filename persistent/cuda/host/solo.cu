/*
 * solo.cu - a queue segment and what the kernels need beside it, all of them fresh.
 */
#include "persistent/cuda/host/solo.cuh"

extern "C" {
#include "schemas/atomics.h"
#include "schemas/checksum.h"
#include "schemas/clock.h"
}

#include <string.h>
#include <time.h>

namespace attnd
{

template <typename T> static cudaError_t zeroed(T **out, uint64_t bytes)
{
    void *memory = nullptr;
    cudaError_t error = cudaMalloc(&memory, bytes);
    *out = static_cast<T *>(memory);
    return error ? error : cudaMemset(memory, 0, bytes);
}

static void describe_queue(const Solo &solo)
{
    attnd_queue_head *head = solo_head(solo);
    head->commands_offset_bytes = solo_commands_at;
    head->retires_offset_bytes = solo_retires_at;
    head->runs_offset_bytes = solo_runs_at;
    head->heap_offset_bytes = solo_heap_at;
    head->heap_bytes = solo.queue_bytes - solo_heap_at;
    head->ring_entries = solo_entries;
    head->runs = head->runs_transient = solo_entries;
}

static cudaError_t allocate(Solo *solo, const Memory *memories, uint32_t count)
{
    Resident &r = solo->settings;
    const uint64_t mirrored_size = (solo->queue_bytes / mirrored_bytes + 1) * sizeof(Mirrored);
    cudaError_t error;
    if ((error = cudaHostAlloc(reinterpret_cast<void **>(&solo->queue), solo->queue_bytes,
                               cudaHostAllocMapped)) ||
        (error = cudaHostAlloc(reinterpret_cast<void **>(&solo->words), host_words_bytes,
                               cudaHostAllocMapped)) ||
        (error = zeroed(&solo->resident, sizeof(Resident))) ||
        (error = zeroed(&r.mirror, solo->queue_bytes)) ||
        (error = zeroed(&r.mirrored, mirrored_size)) ||
        (error = zeroed(&r.memories, ATTND_MEMORIES_MAX * sizeof(Memory))) ||
        (error =
             cudaMemcpy(r.memories, memories, count * sizeof(Memory), cudaMemcpyHostToDevice)) ||
        (error = cudaMalloc(reinterpret_cast<void **>(&r.scratch), r.scratch_bytes)) ||
        (error = zeroed(&r.runs, run_slots * sizeof(ActiveRun))) ||
        (error = zeroed(&r.templates, map_templates * sizeof(TensorMap))))
        return error;
    return resident_templates(r.templates, 0);
}

cudaError_t solo_open(Solo *solo, uint64_t heap_bytes, uint32_t workers, uint64_t scratch_bytes,
                      const Memory *memories, uint32_t count)
{
    Resident &r = solo->settings;
    solo->queue_bytes = solo_heap_at + heap_bytes;
    r.scratch_bytes = scratch_bytes;
    cudaError_t error = allocate(solo, memories, count);
    if (error)
        return error;
    memset(solo->queue, 0, solo->queue_bytes);
    memset(static_cast<void *>(solo->words), 0, host_words_bytes);
    describe_queue(*solo);
    r.queue = solo_head(*solo);
    r.host = solo->words;
    r.workers = workers;
    r.paths = paths_all;
    r.transient = solo_entries; /* nothing is prepared */
    return cudaSuccess;
}

void solo_ring(Solo *solo, const attnd_run *run)
{
    const uint32_t slot = solo->tail % solo_entries;
    attnd_command *command =
        reinterpret_cast<attnd_command *>(solo->queue + solo_commands_at) + slot;
    const attnd_plan_head *plan =
        reinterpret_cast<const attnd_plan_head *>(solo->queue + run->plan_offset_bytes);
    const attnd_heap_pool *pool =
        reinterpret_cast<const attnd_heap_pool *>(solo->queue + plan->pool_offset_bytes);
    const attnd_heap_plane *planes = reinterpret_cast<const attnd_heap_plane *>(pool + 1);
    reinterpret_cast<attnd_run *>(solo->queue + solo_runs_at)[slot] = *run;
    *command = {};
    command->kind = ATTND_COMMAND_RUN;
    command->run = slot;
    command->set_version = plan->set_version;
    command->advance_version = plan->advance_version;
    command->page_size = pool->page_size;
    command->pages = pool->pages;
    command->body = *run;
    command->k = planes[run->layer];
    command->v = planes[pool->layers + run->layer];
    command->checksum = attnd_checksum(command, solo->tail);
    attnd_publish32(&solo_head(*solo)->command_tail, ++solo->tail);
}

int solo_wait(const Solo &solo, uint32_t number, uint64_t timeout_ns, attnd_retire *retire)
{
    const uint64_t begin_ns = attnd_clock_ns();
    while (int32_t(attnd_observe32(&solo_head(solo)->retire_tail) - number) <= 0)
        if (attnd_clock_ns() - begin_ns > timeout_ns)
            return -1;
    *retire = reinterpret_cast<attnd_retire *>(solo.queue + solo_retires_at)[number % solo_entries];
    return 0;
}

void solo_park(const Solo &solo)
{
    attnd_publish32(&solo_head(solo)->park, 1);
}

void solo_close(Solo *solo)
{
    const Resident &r = solo->settings;
    void *const memories[] = {solo->resident, r.mirror, r.mirrored, r.memories,
                              r.scratch,      r.runs,   r.templates};
    for (void *memory : memories)
        cudaFree(memory);
    cudaFreeHost(solo->queue);
    cudaFreeHost(static_cast<void *>(solo->words));
    *solo = {};
}

} // namespace attnd
