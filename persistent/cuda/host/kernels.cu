/*
 * kernels.cu - the kernels begin, and rest: for parking, and while host memory is let go.
 */
#include "persistent/cuda/host/backend.cuh"
#include "persistent/cuda/machine/scalar.cuh"

extern "C" {
#include "schemas/atomics.h"
#include "schemas/crash.h"
#include "schemas/futex.h"
}

__global__ void read_clock(uint64_t *out)
{
    *out = attnd::clock_ns();
}

/* globaltimer and CLOCK_MONOTONIC differ by a constant and little drift: taken at every launch. */
int64_t clock_offset(uint64_t *pinned, cudaStream_t stream)
{
    int64_t best_span = INT64_MAX, offset = 0;
    for (int i = 0; i < 8; i++) {
        int64_t before = int64_t(monotonic_ns());
        read_clock<<<1, 1, 0, stream>>>(pinned);
        cudaStreamSynchronize(stream);
        int64_t after = int64_t(monotonic_ns());
        if (after - before < best_span) {
            best_span = after - before;
            offset = before + best_span / 2 - int64_t(*pinned);
        }
    }
    return offset;
}

int backend_start(attnd_backend *backend)
{
    attnd::HostWords *words = backend->words;
    attnd_queue_head *queue = backend->config.queue;
    backend->settings.host_clock_offset_ns = clock_offset(&words->clock_ns, backend->side_stream);
    attnd_poke64(&trace_head(queue, queue->trace_offset_bytes)->offset_ns,
                 uint64_t(backend->settings.host_clock_offset_ns));
    attnd_poke32(&words->heartbeat_ms, uint32_t(monotonic_ns() / 1000000));
    backend->settings_fresh = 1;
    attnd_poke32(&backend->helper_leave, 0);
    if (pthread_create(&backend->helper, NULL, helper_main, backend) != 0)
        return -ATTND_E_SYSTEM;
    backend->running = 1;
    attnd_publish32(&queue->state, ATTND_WORKER_RUNNING);
    return 0;
}

int backend_quiesce(attnd_backend *backend)
{
    attnd_queue_head *queue = backend->config.queue;
    if (!backend->running)
        return 0;
    uint32_t asked = attnd_swap32(&queue->park, 1);
    attnd_poke32(&backend->helper_leave, 1);
    attnd_futex_wake(&queue->command_tail, 1);
    pthread_join(backend->helper, NULL); /* first: it may be launching */
    cudaError_t error = kernels_wait(backend);
    attnd_publish32(&backend->launched, 0);
    attnd_publish32(&queue->park, asked);
    attnd_poke32(&backend->words->wanted, 0); /* the command is still there and will ask again */
    backend->running = 0;
    attnd_crash(ATTND_CRASH_GPU_QUIESCED);
    /* Runs that were begun have been finished, with no helper there to say so. */
    backend->config.port->knock(backend->config.port->context);
    return error == cudaSuccess && !backend->failed ? 0 : -ATTND_E_SYSTEM;
}
