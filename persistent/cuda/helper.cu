/*
 * helper.cu - the thread that does for the kernels what a GPU cannot do itself.
 *
 * It writes the heartbeat (a kernel whose host is gone leaves by itself), wakes the daemon when a
 * retire finds it asleep, and launches. Kernels leave for three reasons besides parking: a run
 * needs a variant that is not resident; the residency is `isolated` and nothing is queued; or the
 * heartbeat stood still, because this process was stopped. Whatever the reason was, the dispatcher
 * says that it has left in `left`, and what to do next depends only on what there is to do.
 */
#include "persistent/cuda/backend.cuh"

extern "C" {
#include "schemas/atomics.h"
#include "schemas/futex.h"
}

/* What is much: so many runs in flight, for so long. */
constexpr uint32_t burst_runs = 4;
constexpr uint64_t burst_after_ns = 100000;
constexpr long nap_ns = 100000000, doorbell_nap_ns = 50000;

cudaError_t kernels_wait(attnd_backend *backend)
{
    for (cudaStream_t stream : backend->streams) {
        cudaError_t error = cudaStreamSynchronize(stream);
        if (error)
            return error;
    }
    return cudaSuccess;
}

/* Is a doorbell rung in a mailbox in host memory? @there: is there such a mailbox at all? What is
 * made of it is the dispatcher's business. */
static bool doorbell_waits(const attnd_backend *backend, bool *there)
{
    const char *base = reinterpret_cast<const char *>(backend->config.queue);
    const attnd_mailbox_slot *slots = reinterpret_cast<const attnd_mailbox_slot *>(
        base + backend->config.queue->mailboxes_offset);
    bool set = false;
    *there = false;
    for (uint32_t i = 0; i < ATTND_MAILBOXES_MAX; i++) {
        const uint32_t memory = attnd_peek32(&slots[i].memory);
        if (memory >= ATTND_MEMORIES_MAX || !backend->mappings[memory].host)
            continue;
        const char *address = static_cast<const char *>(backend->mappings[memory].host);
        const attnd_mailbox *mailbox =
            reinterpret_cast<const attnd_mailbox *>(address + slots[i].offset_bytes);
        *there = true;
        for (const uint32_t &doorbell : mailbox->doorbell)
            set |= attnd_doorbell_rung(attnd_peek32(&doorbell)) != 0;
    }
    return set;
}

/* A command that no dispatcher has taken, or a doorbell. The ring's head is the device's word, and
 * stands still while no kernel is there. */
static bool work_waits(const attnd_backend *backend)
{
    const attnd_queue_head *queue = backend->config.queue;
    bool there;
    return attnd_observe32(&queue->command_tail) != attnd_observe32(&queue->command_head) ||
           doorbell_waits(backend, &there);
}

static cudaError_t launch(attnd_backend *backend)
{
    const uint32_t wanted = attnd_observe32(&backend->words->wanted);
    cudaError_t error;
    if (wanted) { /* it comes beside those that were used since the last change */
        uint32_t used;
        if ((error = cudaMemcpy(&used, &backend->resident->used, 4, cudaMemcpyDeviceToHost)))
            return error;
        backend->variants = used | 1u << (wanted - 1);
        if (uint32_t(__builtin_popcount(backend->variants)) > backend->settings.workers)
            backend->variants = 1u << (wanted - 1); /* a worker each is the least */
        attnd_poke32(&backend->words->wanted, 0);
    }
    attnd_poke32(&backend->words->left, 0);
    attnd_poke64(&backend->words->heartbeat_ns, monotonic_ns());
    if (wanted || backend->settings_fresh)
        error = attnd::resident_launch(backend->resident, &backend->settings, backend->variants,
                                       backend->streams);
    else
        error = attnd::resident_relaunch(backend->resident, &backend->settings, backend->streams);
    backend->settings_fresh = 0;
    uint32_t *launches = &backend->config.queue->launches;
    if (!error) /* the dispatcher, and a kernel a variant */
        attnd_poke32(launches,
                     attnd_peek32(launches) + 1 + uint32_t(__builtin_popcount(backend->variants)));
    return error;
}

/* Kernels are there when they have to be. */
static cudaError_t keep_launched(attnd_backend *backend)
{
    const bool isolated = backend->residency == ATTND_RESIDENCY_ISOLATED;
    cudaError_t error;
    if (attnd_peek32(&backend->launched)) {
        if (!attnd_observe32(&backend->words->left))
            return cudaSuccess;
        if ((error = kernels_wait(backend)))
            return error;
        attnd_publish32(&backend->launched, 0);
    }
    if (attnd_observe32(&backend->config.queue->park) || (isolated && !work_waits(backend)))
        return cudaSuccess;
    if ((error = launch(backend)))
        return error;
    attnd_publish32(&backend->launched, 1);
    return cudaSuccess;
}

/* Much is queued, and has been for a moment: workers on the SMs that are the others', if those have
 * no use for them now. One burst at a time, so that kernels of others that wait for an SM get it in
 * between. What a doorbell rang is not seen from here. */
static cudaError_t burst(attnd_backend *backend, uint32_t in_flight)
{
    cudaStream_t stream = backend->streams[1 + attnd::variants_count];
    const uint32_t variants = backend->settings.resident;
    if (!backend->settings.burst || in_flight < burst_runs || !attnd_peek32(&backend->launched) ||
        (variants & (variants - 1))) {
        backend->queued_ns = 0;
        return cudaSuccess;
    }
    const uint64_t now_ns = monotonic_ns();
    if (!backend->queued_ns)
        backend->queued_ns = now_ns;
    if (now_ns - backend->queued_ns < burst_after_ns)
        return cudaSuccess;
    backend->queued_ns = now_ns;
    cudaError_t error = cudaStreamQuery(stream);
    if (error)
        return error == cudaErrorNotReady ? cudaSuccess : error;
    return attnd::resident_burst(backend->resident, &backend->settings, stream);
}

/* Nothing is in flight: until the next command, or for a moment. A doorbell in host memory wakes
 * nobody, so where there is one the moment is short. */
static void sleep_on(const attnd_backend *backend, uint32_t commands)
{
    attnd_queue_head *queue = backend->config.queue;
    bool doorbells = false;
    if (backend->residency == ATTND_RESIDENCY_ISOLATED && doorbell_waits(backend, &doorbells))
        return;
    const timespec nap = {0, doorbells ? doorbell_nap_ns : nap_ns};
    attnd_poke32(&queue->command_need, 1);
    attnd_fence_full(); /* F1 */
    if (attnd_observe32(&queue->command_tail) == commands)
        attnd_futex_wait(&queue->command_tail, commands, &nap);
    attnd_poke32(&queue->command_need, 0);
}

void *helper_main(void *argument)
{
    attnd_backend *backend = static_cast<attnd_backend *>(argument);
    attnd_queue_head *queue = backend->config.queue;
    uint32_t retired = attnd_peek32(&queue->retire_tail);
    cudaError_t error = cudaSetDevice(backend->driver.device);
    while (!error && !attnd_peek32(&backend->helper_leave)) {
        attnd_poke64(&backend->words->heartbeat_ns, monotonic_ns());
        if ((error = keep_launched(backend)))
            break;
        uint32_t tail = attnd_observe32(&queue->retire_tail);
        if (tail != retired) {
            retired = tail;
            backend->config.port->knock(backend->config.port->context);
            continue;
        }
        uint32_t commands = attnd_observe32(&queue->command_tail);
        if ((error = burst(backend, commands - tail)))
            break;
        if (commands == tail) /* every command retires in the end */
            sleep_on(backend, commands);
        else
            attnd_relax();
    }
    if (error) /* health.cu ends the worker */
        attnd_publish32(&backend->failed, uint32_t(error));
    return NULL;
}
