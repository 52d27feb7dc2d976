/*
 * kernels.cu - the kernels begin, and rest: for parking, and while host memory is let go.
 */
#include "persistent/cuda/host/clock.cuh"
#include "persistent/cuda/host/helper.cuh"
#include "persistent/cuda/host/kernels.cuh"

extern "C" {
#include "schemas/atomics.h"
#include "schemas/crash.h"
#include "schemas/futex.h"
}

/* Others may keep the GPU busy for so long. */
constexpr uint64_t start_ns = 5000000000;

int backend_start(attnd_backend *backend)
{
    attnd::HostWords *words = backend->words;
    attnd_queue_head *queue = backend->config.queue;
    int64_t offset_ns = 0;
    if (clock_offset(&words->clock_ns, backend->side_stream, attnd_clock_ns() + start_ns,
                     &offset_ns))
        return -ATTND_E_SYSTEM;
    clock_take(backend, offset_ns);
    attnd_poke32(&words->heartbeat_ms, clock_beat_ms(offset_ns));
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
