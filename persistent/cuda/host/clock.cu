/*
 * clock.cu - CLOCK_MONOTONIC and globaltimer, the clocks of host and GPU.
 *
 * They do not run alike, and a worker runs for weeks. So their difference is asked for anew every
 * few seconds. The heartbeat is told in the GPU's time: kernels compare it with their own clock and
 * need not know the difference, which those that stay would have from their launch. What the GPU
 * tells of times is made the host's by the difference that a launch has found in the settings.
 */
#include "persistent/cuda/host/clock.cuh"
#include "persistent/cuda/machine/scalar.cuh"

extern "C" {
#include "schemas/atomics.h"
}

/* How often the clocks are compared, and for how long an answer is waited for: where one takes
 * longer, kernels of others were in front of it, and it says little. */
constexpr uint64_t compare_ns = 5000000000, answer_ns = 1000000;

static __global__ void read_clock(uint64_t *out)
{
    *out = attnd::clock_ns();
}

/* One question. @offset_ns is right to half of @span_ns. */
static cudaError_t ask(uint64_t *pinned, cudaStream_t stream, uint64_t end_ns, int64_t *offset_ns,
                       int64_t *span_ns)
{
    const int64_t before = int64_t(attnd_clock_ns());
    read_clock<<<1, 1, 0, stream>>>(pinned);
    cudaError_t error = cudaGetLastError();
    if (error)
        return error;
    while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady && attnd_clock_ns() < end_ns)
        ;
    *span_ns = int64_t(attnd_clock_ns()) - before;
    *offset_ns = before + *span_ns / 2 - int64_t(attnd_observe64(pinned));
    return error;
}

cudaError_t clock_offset(uint64_t *pinned, cudaStream_t stream, uint64_t end_ns, int64_t *offset_ns)
{
    int64_t best_ns = INT64_MAX, offset = 0, span = 0;
    for (int i = 0; i < 8; i++) {
        const cudaError_t error = ask(pinned, stream, end_ns, &offset, &span);
        if (error)
            return error;
        if (span >= best_ns)
            continue;
        best_ns = span;
        *offset_ns = offset;
    }
    return cudaSuccess;
}

void clock_take(attnd_backend *backend, int64_t offset_ns)
{
    attnd_queue_head *queue = backend->config.queue;
    backend->settings.host_clock_offset_ns = offset_ns;
    backend->compared_ns = attnd_clock_ns();
    attnd_poke64(&trace_head(queue, queue->trace_offset_bytes)->offset_ns, uint64_t(offset_ns));
}

void clock_keep(attnd_backend *backend)
{
    const uint64_t now_ns = attnd_clock_ns();
    int64_t offset_ns = 0, span_ns = 0;
    if (now_ns - backend->compared_ns < compare_ns ||
        cudaStreamQuery(backend->side_stream) != cudaSuccess)
        return;
    backend->compared_ns = now_ns;
    if (ask(&backend->words->clock_ns, backend->side_stream, now_ns + answer_ns, &offset_ns,
            &span_ns) ||
        span_ns > int64_t(answer_ns))
        return;
    clock_take(backend, offset_ns);
    (void)cudaMemcpyAsync(&backend->resident->host_clock_offset_ns, &offset_ns, sizeof(offset_ns),
                          cudaMemcpyHostToDevice, backend->side_stream);
}

uint32_t clock_beat_ms(int64_t offset_ns)
{
    const uint32_t ms = uint32_t((int64_t(attnd_clock_ns()) - offset_ns) / 1000000);
    return ms ? ms : 1; /* 0: there is no heartbeat */
}
