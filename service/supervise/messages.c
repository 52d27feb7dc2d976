/*
 * messages.c - what daemon and worker say to each other beside the rings.
 *
 * The worker says whether it came up; the daemon says which memory comes and goes and which pages
 * are to be copied (copies.c), and the worker answers. Nothing here waits: a message that the
 * socket does not take is due again when an answer has made room. A worker that talks nonsense is
 * killed, and its death handled like any other.
 */
#include "service/supervise/internal.h"

#include "ipc/fdpass.h"
#include "schemas/clock.h"
#include "schemas/crash.h"
#include "service/supervise/worker_abi.h"

#include <string.h>

/* ---- memory ---- */

/* Until the socket is full, or for as long as a turn may take; the answer to one of them comes back
 * here. */
void attnd_messages_send_due(struct attnd_supervisor *supervisor)
{
    const uint64_t begin_ns = attnd_clock_ns();
    uint32_t index;
    if (supervisor->condemned ||
        (supervisor->state != ATTND_WORKER_COMING_UP && supervisor->state != ATTND_WORKER_UP))
        return;
    while (attnd_maps_due(&supervisor->maps, &index)) {
        const struct attnd_memory_source *source = &supervisor->sources[index];
        int maps = supervisor->maps.state[index] == ATTND_MAP_TO_MAP;
        struct attnd_worker_message message = {.kind = maps ? ATTND_WORKER_MAP : ATTND_WORKER_UNMAP,
                                               .index = index,
                                               .size_bytes = maps ? source->size_bytes : 0,
                                               .memory_kind = maps ? source->kind : 0};
        int has_fd = maps && source->fd >= 0;
        if (maps && source->handle)
            memcpy(message.handle, source->handle, sizeof(message.handle));
        int rc = attnd_fdpass_send(supervisor->process.control, &message, sizeof(message),
                                   has_fd ? &source->fd : NULL, has_fd);
        if (rc == -ATTND_E_FULL || rc == -ATTND_E_DISCONNECTED)
            return; /* its end is handled where it is noticed */
        if (rc < 0) {
            attnd_supervisor_kill(supervisor, "it cannot be sent memory");
            return;
        }
        attnd_maps_sent(&supervisor->maps);
        attnd_crash(ATTND_CRASH_DAEMON_MEMORY_SENT);
        if (attnd_clock_ns() - begin_ns >= ATTND_WORK_BUDGET_NS)
            return;
    }
}

int attnd_supervisor_map(struct attnd_supervisor *supervisor, uint32_t index,
                         const struct attnd_memory_source *source)
{
    supervisor->sources[index] = *source;
    attnd_maps_add(&supervisor->maps, index);
    attnd_messages_send_due(supervisor);
    return 0;
}

void attnd_supervisor_unmap(struct attnd_supervisor *supervisor, uint32_t index)
{
    if (attnd_maps_remove(&supervisor->maps, index))
        supervisor->events->unmapped(supervisor->service, index);
    else
        attnd_messages_send_due(supervisor);
}

/* ---- messages ---- */

static void worker_ready(struct attnd_supervisor *supervisor)
{
    struct attnd_queue *queue = supervisor->service->queue;
    struct attnd_worker_info *info = &queue->info;
    *info = queue->head->info;
    /* What was measured stays: plans of one service are made with the same rates. */
    if (queue->rates.source == ATTND_RATES_NONE)
        queue->rates = queue->head->rates;
    if (queue->switch_cost_us == 0)
        queue->switch_cost_us = queue->head->switch_cost_us;
    info->backend[sizeof(info->backend) - 1] = '\0';
    info->isa[sizeof(info->isa) - 1] = '\0';
    if (!info->tile_workers || !info->rows_per_tile || !info->kv_granule) {
        attnd_supervisor_kill(supervisor, "it has no tile workers");
        return;
    }
    /* "auto" was a question. A GPU that is away for a moment is no reason to go on without it. */
    supervisor->service->options.backend = strcmp(info->backend, "cuda") == 0 ? "cuda" : "cpu";
    supervisor->state = ATTND_WORKER_UP;
    attnd_supervisor_arm(supervisor, UINT64_MAX);
    attnd_watchdog_start(supervisor);
    attnd_log(ATTND_LOG_INFO, "worker %d: running, backend %s (%s), %u tile workers",
              (int)supervisor->process.pid, info->backend, info->isa, info->tile_workers);
    if (supervisor->events->up(supervisor->service, info->scratch_bytes) < 0)
        attnd_supervisor_kill(supervisor, "no memory for its scratch");
}

static void worker_failed(struct attnd_supervisor *supervisor,
                          const struct attnd_worker_message *message)
{
    char text[160];
    int code = message->code < 0 ? message->code : -ATTND_E_UNSUPPORTED;
    supervisor->fault = (struct attnd_fault){
        .code = code, .field = message->field, .value = message->value, .limit = message->limit};
    attnd_log(ATTND_LOG_ERROR, "worker %d: cannot %s: %s", (int)supervisor->process.pid,
              supervisor->state == ATTND_WORKER_UP ? "go on" : "start",
              attnd_fault_string(&supervisor->fault, text, sizeof(text)));
}

static void worker_mapped(struct attnd_supervisor *supervisor,
                          const struct attnd_worker_message *message)
{
    struct attnd_fault fault = {.code = message->code < 0 ? message->code : 0};
    char text[160];
    if (!attnd_maps_mapped(&supervisor->maps, message->index, fault.code))
        return;
    attnd_crash(ATTND_CRASH_DAEMON_MEMORY_MAPPED);
    if (fault.code < 0) {
        fault.field = message->field ? message->field : (uint32_t)ATTND_F_MEMORY;
        fault.value = message->value;
        fault.limit = message->limit;
        attnd_log(ATTND_LOG_WARNING, "worker %d: cannot map memory %u: %s",
                  (int)supervisor->process.pid, message->index,
                  attnd_fault_string(&fault, text, sizeof(text)));
    }
    supervisor->events->mapped(supervisor->service, message->index, &fault);
}

static void worker_says(struct attnd_supervisor *supervisor,
                        const struct attnd_worker_message *message)
{
    uint32_t index = message->index;
    switch (message->kind) {
    case ATTND_WORKER_READY:
        if (supervisor->state == ATTND_WORKER_COMING_UP)
            worker_ready(supervisor);
        else /* it would free the scratch of runs in flight */
            attnd_supervisor_kill(supervisor, "it is ready twice");
        return;
    case ATTND_WORKER_FAILED:
        worker_failed(supervisor, message);
        return;
    case ATTND_WORKER_COPY:
        if (attnd_copies_answered(supervisor, index, message->code) < 0)
            attnd_supervisor_kill(supervisor, "it sent an unknown message");
        return;
    case ATTND_WORKER_MAP:
    case ATTND_WORKER_UNMAP:
        if (index < ATTND_MEMORIES_MAX)
            break;
        /* fall through */
    default:
        attnd_supervisor_kill(supervisor, "it sent an unknown message");
        return;
    }
    if (message->kind == ATTND_WORKER_UNMAP) {
        /* UNKNOWN: what it could not map, and was sent the unmap of before it had said so. */
        if (message->code < 0 && message->code != -ATTND_E_UNKNOWN)
            attnd_supervisor_kill(supervisor, "it cannot let go of memory");
        else if (attnd_maps_unmapped(&supervisor->maps, index))
            supervisor->events->unmapped(supervisor->service, index);
    } else {
        worker_mapped(supervisor, message);
    }
}

int attnd_messages_receive(struct attnd_supervisor *supervisor)
{
    const uint64_t begin_ns = attnd_clock_ns();
    struct attnd_worker_message message;
    int fds[ATTND_FDS_MAX], fd_count;
    long got = 1;
    while (got > 0 && attnd_clock_ns() - begin_ns < ATTND_WORK_BUDGET_NS) {
        got = attnd_fdpass_recv(supervisor->process.control, &message, sizeof(message), fds,
                                &fd_count);
        if (got <= 0)
            break;
        attnd_fdpass_close(fds, fd_count);
        if (got == (long)sizeof(message))
            worker_says(supervisor, &message);
        else
            attnd_supervisor_kill(supervisor, "it sent an unknown message");
    }
    attnd_messages_send_due(supervisor);
    supervisor->events->heard(supervisor->service);
    return got >= 0;
}
