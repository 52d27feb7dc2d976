/*
 * helper.cu - the thread that does for the kernels what a GPU cannot do itself.
 *
 * It writes the heartbeat (a kernel whose host is gone leaves by itself), wakes the daemon when a
 * retire finds it asleep, and launches. A launch is a gang: the dispatcher and its workers. Its
 * number is one more than the last one's, and the dispatcher writes that to `left` when it leaves:
 * when everything is over; in `elastic` as soon as it takes nothing more.
 *
 * In `shared` and `exclusive` a gang stays. It leaves when a run needs a variant that is not there,
 * when the service parks, or when the heartbeat stood still; then the next one is launched.
 *
 * In `elastic` a gang leaves when nothing is left to do, and the next ones have been enqueued ahead
 * of time, each behind a stream wait for the wake word. Everybody who has something to do sets it:
 *
 *   wake  gang        who                        what follows
 *   0     none        engine: doorbell, wake = 1 the next armed gang comes
 *   0     none        helper: a command waits,   the same
 *                     wake = 1
 *   1     coming      engine, helper             nothing: the gang looks at everything
 *   1     there       engine: doorbell, wake = 1 the gang takes the doorbell
 *   1     drained     gang: closes, wake = 0     0 and closed; behind a fence the gang looks at all
 *                                                doorbells again, sets wake if one is rung, and
 *                                                writes `left`
 *   0     closed      engine: doorbell, wake = 1 the look finds the doorbell, or wake stays 1:
 *                                                either way the next gang comes when this is gone
 *   any   closed      helper                     sees `left`, and a command that nobody took: again
 *   any   any         helper: dismiss = 1,       each armed gang comes, leaves wake alone, and goes
 *                     wake = 1                   when what it took before it saw that is executed
 *
 * A gang is drained when no item is left to take and it lingers for none. Closed is not gone: its
 * last items are in work, and their answers come. So an engine may ring a lane again that is busy
 * here. The last look sees that ring as any other: what the gang took itself it has marked before
 * it closed.
 *
 * So no doorbell is lost, and no gang comes for nothing but in two cases: a ring's store to wake
 * may come behind that of the gang that took its doorbell, and a doorbell that is refused is rung
 * until it is answered. The stream does the rest: gang n + 1 begins when all of gang n is gone.
 */
#include "persistent/cuda/host/clock.cuh"
#include "persistent/cuda/host/helper.cuh"
#include "persistent/cuda/host/modules.cuh"

extern "C" {
#include "schemas/atomics.h"
#include "schemas/crash.h"
#include "schemas/futex.h"
}

#include <time.h>

/* So many are armed: enough for the time that this thread sleeps. To let them all come and go, as
 * parking does, takes 10 us each. To arm one takes 25 us, in which nobody else's answer is seen, so
 * few are at a time. */
constexpr uint32_t gangs_armed = 96, gangs_batch = 8;
/* Sleeping: while nothing happens; where gangs may come; where engines ring, which wakes nobody
 * here, and use up what is armed in 2.4 ms at the soonest; and while gangs come and go. Not
 * sleeping: so long after the last command, because to be woken takes longer than a run. */
constexpr long nap_ns = 100000000, gang_nap_ns = 10000000, ring_nap_ns = 2000000,
               busy_nap_ns = 1000000;
constexpr uint64_t spin_ns = 60000;
/* A gang is called all the same after so long, where engines ring: a session may wipe out the wake
 * word of others. */
constexpr uint64_t call_ns = 50000000;
/* How often it is looked which kernels had runs lately. */
constexpr uint64_t recent_look_ns = 100000000;
/* A copy that the host asks for takes some 10 us. */
constexpr uint64_t side_stuck_ns = 2000000;
/* Gangs that are to come and go are called so often. */
constexpr uint64_t flush_call_ns = 200000;

static bool elastic(const attnd_backend *backend)
{
    return backend->residency == ATTND_RESIDENCY_ELASTIC;
}

/* Elastic, and some workers stay: the others are extra (dispatch/extra.cuh). */
static bool reserves(const attnd_backend *backend)
{
    return backend->settings.reserved != 0;
}

/* The last gang that has left; or the last extras that were told to. */
static uint32_t last_gone(const attnd_backend *backend)
{
    return attnd_observe32(reserves(backend) ? &backend->words->extras_left
                                             : &backend->words->left);
}

/* Where gangs are armed, or extras. */
static cudaStream_t armed_stream(const attnd_backend *backend)
{
    return reserves(backend) ? backend->extras_stream : backend->streams[0];
}

static cudaError_t of_driver(CUresult result)
{
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorLaunchFailure;
}

static cudaError_t wait_for(const attnd_backend *backend, cudaStream_t stream, const uint32_t *word,
                            uint32_t value)
{
    return of_driver(backend->driver.wait_value(stream, reinterpret_cast<CUdeviceptr>(word), value,
                                                CU_STREAM_WAIT_VALUE_GEQ));
}

/* What is enqueued in @stream from here on begins when the gate is opened, and not before all of it
 * is there: workers that are enqueued beside a dispatcher that has begun wait for its end, and it
 * for them. */
cudaError_t gate_close(attnd_backend *backend, cudaStream_t stream)
{
    return wait_for(backend, stream, &backend->words->gate, ++backend->batch);
}

void gate_open(attnd_backend *backend)
{
    attnd_publish32(&backend->words->gate, backend->batch);
}

static void beat(attnd_backend *backend)
{
    attnd_poke32(&backend->words->heartbeat_ms,
                 clock_beat_ms(backend->settings.host_clock_offset_ns));
}

void gang_wake(attnd_backend *backend)
{
    const uint32_t memory = attnd_observe32(&backend->wake_memory); /* A1: it is mapped */
    attnd_wake *wake =
        memory ? static_cast<attnd_wake *>(backend->mappings[memory - 1].host) : backend->own_wake;
    if (elastic(backend))
        attnd_publish32(&wake->wake, 1);
    attnd_crash(ATTND_CRASH_GPU_GANG_CALLED);
}

cudaError_t side_wait(attnd_backend *backend)
{
    const timespec step = {0, 50000};
    const uint64_t begun_ns = attnd_clock_ns();
    cudaError_t error;
    while ((error = cudaStreamQuery(backend->side_stream)) == cudaErrorNotReady) {
        if (attnd_clock_ns() - begun_ns < side_stuck_ns)
            continue;
        gang_wake(backend); /* of those that it might stand behind */
        (void)nanosleep(&step, NULL);
    }
    return error;
}

void gangs_dismiss(attnd_backend *backend, uint32_t dismiss)
{
    attnd_publish32(&backend->words->dismiss, dismiss);
}

/* Armed gangs must be called, and again: a gang that had closed before it was told to leave wipes
 * the word out. */
cudaError_t kernels_wait(attnd_backend *backend)
{
    const timespec step = {0, long(flush_call_ns)};
    cudaError_t error = cudaSuccess;
    gangs_dismiss(backend, 1);
    while (elastic(backend) &&
           (error = cudaStreamQuery(armed_stream(backend))) == cudaErrorNotReady) {
        beat(backend);
        gang_wake(backend);
        (void)nanosleep(&step, NULL);
    }
    for (uint32_t i = 0; i < backend->streams_count && !error; i++)
        error = cudaStreamSynchronize(backend->streams[i]);
    backend->flushing = 0;
    attnd_poke32(&backend->words->extras_left, backend->extras);
    gangs_dismiss(backend, 0);
    return error;
}

/* A command that no dispatcher has taken. The ring's head is the device's word, and stands still
 * while no kernel is there. */
static bool command_waits(const attnd_backend *backend)
{
    const attnd_queue_head *queue = backend->config.queue;
    return attnd_observe32(&queue->command_tail) != attnd_observe32(&queue->command_head);
}

/* Kernels whose workers others could have: a model's, say, that was here once. */
static void look_for_idle(attnd_backend *backend)
{
    char name[ATTND_KERNEL_NAME_BYTES];
    const uint64_t now_ns = attnd_clock_ns();
    uint32_t ran[attnd::variants_count];
    if (backend->keep || now_ns - backend->recent_ns < recent_look_ns)
        return;
    backend->recent_ns = now_ns;
    for (uint32_t v = 0; v < attnd::variants_count; v++)
        ran[v] = attnd_observe32(&backend->words->ran[v]);
    const uint32_t recent = attnd_recent_note(&backend->recent, ran, now_ns);
    const uint32_t needed = kernels_for(recent), idle = backend->variants & ~needed;
    if (!needed || __builtin_popcount(needed) >= __builtin_popcount(backend->variants))
        return;
    backend->keep = recent;
    for (uint32_t v = 0; v < attnd::variants_count; v++)
        if (idle >> v & 1)
            backend_say(backend, "no run of %s came for %u s: its workers are the others'",
                        attnd_kernel_name(v, name), uint32_t(ATTND_RECENT_NS / 1000000000));
}

/* Settings, and which variants come: that which is wanted beside those that were used since the
 * last change; or those of which runs come. Where workers stay, each has one of them: whether
 * extra workers come decides nothing but how fast a run is, also to kernels that close. */
static cudaError_t upload(attnd_backend *backend)
{
    const uint32_t wanted = attnd_observe32(&backend->words->wanted);
    cudaError_t error;
    if (modules_due(backend))
        modules_take(backend);
    if (!wanted && !backend->keep && !backend->settings_fresh && !reserves(backend))
        return cudaSuccess;
    if (backend->keep)
        backend->variants = kernels_for(backend->keep);
    backend->keep = 0;
    if (wanted) {
        uint32_t used;
        if ((error = cudaMemcpy(&used, &backend->resident->used, 4, cudaMemcpyDeviceToHost)))
            return error;
        backend->variants = kernels_for(used | 1u << (wanted - 1));
        if (uint32_t(__builtin_popcount(backend->variants)) >
            (reserves(backend) ? backend->settings.reserved : backend->settings.workers))
            backend->variants = kernels_for(1u << (wanted - 1)); /* a worker each is the least */
        attnd_recent_ask(&backend->recent, wanted - 1, attnd_clock_ns());
        attnd_poke32(&backend->words->wanted, 0);
    }
    backend->settings_fresh = 0;
    backend->settings.extras_before = backend->extras;
    return attnd::resident_upload(backend->resident, &backend->settings, backend->variants);
}

/* A kernel a variant, and the dispatcher, but with extra workers. */
static void count_launch(attnd_backend *backend, uint32_t dispatchers)
{
    uint32_t *launches = &backend->config.queue->launches;
    const uint32_t kernels = uint32_t(__builtin_popcount(backend->variants));
    attnd_poke32(launches, attnd_peek32(launches) + dispatchers + kernels);
}

/* The memory whose word engines see, once there is one: 1 + memory; until then the worker has its
 * own, 0. */
static uint32_t shared_word(const attnd_backend *backend)
{
    const uint32_t memory = attnd_observe32(&backend->config.queue->wake_memory); /* A1: mapped */
    return memory - 1 < ATTND_MEMORIES_MAX && backend->mappings[memory - 1].host ? memory : 0;
}

static bool wake_moved(const attnd_backend *backend)
{
    const uint32_t memory = shared_word(backend);
    return memory && memory != attnd_peek32(&backend->wake_memory);
}

static void take_word(attnd_backend *backend)
{
    const uint32_t memory = shared_word(backend);
    backend->settings.wake = reinterpret_cast<attnd_wake *>(backend->mappings[memory - 1].device);
    backend->settings_fresh = 1;
    attnd_publish32(&backend->wake_memory, memory); /* R1 */
}

/* ---- kernels that stay ---- */

static cudaError_t keep_resident(attnd_backend *backend)
{
    cudaError_t error;
    if (attnd_peek32(&backend->launched)) {
        if (attnd_observe32(&backend->words->left) != backend->gang)
            return cudaSuccess;
        if ((error = kernels_wait(backend)))
            return error;
        attnd_publish32(&backend->launched, 0);
    }
    if (attnd_observe32(&backend->config.queue->park))
        return cudaSuccess;
    beat(backend);
    if (reserves(backend) && wake_moved(backend))
        take_word(backend);
    if ((error = upload(backend)))
        return error;
    if (reserves(backend) && (error = gate_close(backend, backend->streams[0])))
        return error;
    backend->gang++;
    error = attnd::resident_launch(backend->resident, &backend->settings, backend->gang,
                                   backend->streams);
    if (error)
        return error;
    gate_open(backend);
    count_launch(backend, 1);
    attnd_publish32(&backend->launched, 1);
    attnd_crash(ATTND_CRASH_GPU_LAUNCHED);
    return cudaSuccess;
}

/* ---- gangs that come and go ---- */

/* A batch of gangs stands behind a gate. */
static cudaError_t arm(attnd_backend *backend)
{
    cudaError_t error = gate_close(backend, armed_stream(backend));
    for (uint32_t i = 0; !error && i < gangs_batch; i++) {
        if ((error = wait_for(backend, armed_stream(backend), &backend->settings.wake->wake, 1)))
            break;
        uint32_t *number = reserves(backend) ? &backend->extras : &backend->gang;
        error = attnd::resident_arm(backend->resident, &backend->settings, ++*number,
                                    armed_stream(backend));
        count_launch(backend, !reserves(backend));
        beat(backend);
    }
    if (!error)
        gate_open(backend);
    attnd_crash(ATTND_CRASH_GPU_LAUNCHED);
    return error;
}

/* Armed gangs come and go, because those that are needed are of other variants, or wait for another
 * word. That may take as long as what is in flight, so this is a step of it. */
static cudaError_t flush(attnd_backend *backend)
{
    const uint64_t now_ns = attnd_clock_ns();
    cudaError_t error = cudaStreamQuery(backend->streams[0]);
    if (error == cudaSuccess) {
        backend->flushing = 0;
        attnd_publish32(&backend->launched, 0);
        gangs_dismiss(backend, 0);
        return error;
    }
    if (error != cudaErrorNotReady)
        return error;
    if (backend->flushing && now_ns - backend->called_ns < flush_call_ns)
        return cudaSuccess;
    backend->called_ns = now_ns;
    gangs_dismiss(backend, 1);
    backend->flushing = 1;
    gang_wake(backend);
    return cudaSuccess;
}

static bool few_armed(const attnd_backend *backend)
{
    const uint32_t last = reserves(backend) ? backend->extras : backend->gang;
    return last - last_gone(backend) < gangs_armed - gangs_batch;
}

static cudaError_t keep_armed(attnd_backend *backend)
{
    cudaError_t error;
    const bool there = attnd_peek32(&backend->launched);
    if (attnd_observe32(&backend->config.queue->park))
        return cudaSuccess; /* what is armed comes and goes: see backend_quiesce() */
    const bool moved = wake_moved(backend);
    look_for_idle(backend);
    if (there &&
        (moved || backend->flushing || attnd_observe32(&backend->words->wanted) || backend->keep ||
         modules_due(backend)) &&
        ((error = flush(backend)) || backend->flushing))
        return error;
    if (moved)
        take_word(backend);
    if (!attnd_peek32(&backend->launched)) {
        /* The first looks at everything that came meanwhile. */
        backend->woken = backend->gang + 1;
        if ((error = upload(backend)) || (error = arm(backend)))
            return error;
        gang_wake(backend);
        attnd_publish32(&backend->launched, 1);
        return cudaSuccess;
    }
    const uint32_t left = attnd_observe32(&backend->words->left);
    const uint64_t now_ns = attnd_clock_ns();
    const bool waits = int32_t(left - backend->woken) >= 0 && command_waits(backend);
    if (left != backend->last_left) {
        backend->last_left = left;
        backend->called_ns = now_ns;
        if (int32_t(left - backend->woken) > 0)
            backend->woken = left; /* or gangs that engines call would come around to it */
    }
    if (waits || (shared_word(backend) && now_ns - backend->called_ns > call_ns)) {
        backend->called_ns = now_ns;
        backend->woken = left + 1;
        gang_wake(backend);
    }
    return few_armed(backend) ? arm(backend) : cudaSuccess;
}

/* Is there more to do than to look? */
static bool arming(const attnd_backend *backend)
{
    return backend->flushing || !attnd_peek32(&backend->launched) || few_armed(backend);
}

/* ---- some that stay, and extra workers ---- */

/* Engines have a word now, which the kernels that are there do not know: those leave first. */
static cudaError_t keep_both(attnd_backend *backend)
{
    cudaError_t error;
    if (attnd_peek32(&backend->launched) && (wake_moved(backend) || modules_due(backend)))
        gangs_dismiss(backend, 1);
    if ((error = keep_resident(backend)))
        return error;
    if (attnd_observe32(&backend->config.queue->park) || !attnd_peek32(&backend->launched))
        return cudaSuccess;
    return few_armed(backend) ? arm(backend) : cudaSuccess;
}

/* ---- the thread ---- */

/* Nothing is in flight: until the next command, or for a moment. @busy: gangs have come since the
 * last nap. */
static void sleep_on(const attnd_backend *backend, uint32_t commands, bool busy)
{
    attnd_queue_head *queue = backend->config.queue;
    const timespec nap = {0, !elastic(backend)      ? nap_ns
                             : busy                 ? busy_nap_ns
                             : shared_word(backend) ? ring_nap_ns
                                                    : gang_nap_ns};
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
    uint32_t retired = attnd_peek32(&queue->retire_tail), before = 0;
    uint64_t active_ns = 0;
    cudaError_t error = cudaSetDevice(backend->driver.device);
    while (!error && !attnd_peek32(&backend->helper_leave)) {
        const uint64_t now_ns = attnd_clock_ns();
        beat(backend);
        clock_keep(backend);
        error = reserves(backend)  ? keep_both(backend)
                : elastic(backend) ? keep_armed(backend)
                                   : keep_resident(backend);
        if (error)
            break;
        uint32_t tail = attnd_observe32(&queue->retire_tail);
        if (tail != retired) {
            retired = tail;
            active_ns = now_ns;
            attnd_crash(ATTND_CRASH_GPU_RETIRE_SEEN);
            backend->config.port->knock(backend->config.port->context);
            continue;
        }
        uint32_t commands = attnd_observe32(&queue->command_tail);
        if (commands != tail) { /* every command retires in the end */
            active_ns = now_ns;
            attnd_relax();
        } else if (elastic(backend) && (now_ns - active_ns < spin_ns || arming(backend))) {
            attnd_relax();
        } else {
            const uint32_t gone = last_gone(backend);
            sleep_on(backend, commands, gone != before);
            before = gone;
        }
    }
    if (error) /* health.cu ends the worker */
        attnd_publish32(&backend->failed, uint32_t(error));
    return NULL;
}
