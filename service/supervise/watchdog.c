/*
 * watchdog.c - a worker that is alive and does not move.
 *
 * A process that was stopped, or that hangs in a call that never returns, does not die, and nobody
 * would start another. So the worker counts in the queue segment for as long as it moves, by a
 * thread that does nothing else but look whether all is well, and the daemon looks at the count a
 * few times a second. It counts looks, not time: if both were stopped and go on together, the
 * daemon does not blame the worker for it.
 *
 * By default a CUDA worker's kernels, which watch their host's heartbeat themselves, have left when
 * the process is killed: no other client of MPS is taken along.
 */
#include "service/supervise/internal.h"

#include "schemas/atomics.h"

#define LOOK_NS 500000000u
#define LOOKS_A_SECOND (1000000000u / LOOK_NS)

static void look_later(const struct attnd_supervisor *supervisor)
{
    attnd_loop_timer_set(supervisor->service->loop, supervisor->watchdog,
                         attnd_clock_ns() + LOOK_NS);
}

static void look(void *context)
{
    struct attnd_supervisor *supervisor = context;
    uint32_t heartbeat = attnd_observe32(&supervisor->service->queue->head->heartbeat);

    if (heartbeat != supervisor->heartbeat) {
        supervisor->heartbeat = heartbeat;
        supervisor->heartbeat_missed = 0;
    } else if (++supervisor->heartbeat_missed >
               supervisor->service->options.watchdog_s * LOOKS_A_SECOND) {
        attnd_supervisor_kill(supervisor, "it does not move");
        return;
    }
    look_later(supervisor);
}

int attnd_watchdog_new(struct attnd_supervisor *supervisor)
{
    supervisor->watchdog = attnd_loop_timer_new(supervisor->service->loop, look, supervisor);
    return supervisor->watchdog ? 0 : -ATTND_E_NO_MEMORY;
}

void attnd_watchdog_start(struct attnd_supervisor *supervisor)
{
    if (supervisor->service->options.watchdog_s == 0)
        return;
    supervisor->heartbeat_missed = 0;
    look_later(supervisor);
}

void attnd_watchdog_stop(struct attnd_supervisor *supervisor)
{
    if (supervisor->watchdog)
        attnd_loop_timer_set(supervisor->service->loop, supervisor->watchdog, UINT64_MAX);
}
