/*
 * data.c - the data plane as one thing: started, stopped, freed, asked how it is.
 *
 * Start builds from the inside out: the segment, the scheduler, the worker, the watch on its
 * answers. Stop takes the same road back, but leaves the objects in place: sessions, pools and
 * plans are let go after it, and find nothing in flight.
 */
#include "schemas/atomics.h"
#include "service/sched/sched.h"
#include "service/supervise/device.h"
#include "service/supervise/supervise.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define START_TIMEOUT_NS 10000000000u
#define DRAIN_STEP_NS 1000000u

static void on_retire_eventfd(void *context, uint32_t poll_events)
{
    const struct attnd_queue *queue = context;
    (void)poll_events;
    /* Only to make it unreadable again: the sweep that follows looks at the ring itself. */
    attnd_doorbell_drain(queue->retire_fd);
}

int attnd_data_watch_retires(struct attnd_service *service, struct attnd_fault *fault)
{
    struct attnd_queue *queue = service->queue;
    /* A wait on the word of the worker before would sleep on that one's file. */
    attnd_loop_unwatch(service->loop, service->scheduler->retire_watch, NULL, NULL);
    service->scheduler->retire_watch =
        queue->retire_fd < 0 ? attnd_loop_watch_word(service->loop, &queue->head->retire_tail)
                             : attnd_loop_watch_fd(service->loop, queue->retire_fd, POLLIN,
                                                   on_retire_eventfd, queue);
    if (service->scheduler->retire_watch)
        return 0;
    return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
}

/* Without it the service is as good as ever, except that memory is the host's. */
static void open_device(struct attnd_service *service)
{
    struct attnd_fault fault = {0};
    char text[160];

    int rc = attnd_device_open(service->queue->info.gpu_uuid, &service->device, &fault);
    if (rc < 0)
        attnd_log(ATTND_LOG_WARNING, "no device memory can be made: %s%s",
                  attnd_fault_string(&fault, text, sizeof(text)),
                  rc == -ATTND_E_UNKNOWN
                      ? ": attnd does not see the worker's GPU (does MPS see others than attnd, by "
                        "a CUDA_VISIBLE_DEVICES of its own?)"
                      : "");
}

int attnd_data_start(struct attnd_service *service, struct attnd_fault *fault)
{
    int rc = attnd_queue_new(service->options.heap_bytes, !attnd_loop_has_futex(service->loop),
                             &service->queue, fault);
    if (rc < 0) {
        attnd_log(ATTND_LOG_ERROR, "no segment for plans of --heap %" PRIu64 " bytes",
                  service->options.heap_bytes);
        return rc;
    }
    rc = attnd_supervisor_new(service, &service->supervisor);
    if (rc == 0)
        rc = attnd_sched_new(service, service->queue, &service->supervisor->maps,
                             &service->scheduler);
    if (rc < 0)
        attnd_fault_set(fault, rc, ATTND_F_NONE, 0, 0, 0);
    else
        rc = attnd_data_watch_retires(service, fault);
    if (rc == 0)
        rc = attnd_supervisor_start(service->supervisor, START_TIMEOUT_NS, fault);
    if (rc == 0 && strcmp(service->queue->info.backend, "cuda") == 0)
        open_device(service);
    if (rc < 0) {
        if (service->scheduler)
            attnd_loop_unwatch(service->loop, service->scheduler->retire_watch, NULL, NULL);
        attnd_data_free(service);
    }
    return rc;
}

/* Lets runs that the worker has come to their end; what is queued stays queued. */
static void drain(struct attnd_service *service, uint64_t deadline_ns)
{
    struct attnd_scheduler *scheduler = service->scheduler;
    struct attnd_queue *queue = service->queue;
    attnd_sched_pause(scheduler);
    (void)attnd_retire_sweep(scheduler);
    while (scheduler->dispatched && service->supervisor->state == ATTND_WORKER_UP &&
           attnd_clock_ns() < deadline_ns) {
        (void)attnd_wake_wait(&queue->head->retire_tail, queue->retires.index,
                              &queue->head->retire_need, DRAIN_STEP_NS);
        (void)attnd_retire_sweep(scheduler);
    }
    attnd_sched_flush(scheduler);
}

void attnd_data_stop(struct attnd_service *service, uint64_t timeout_ns)
{
    struct attnd_scheduler *scheduler = service->scheduler;
    if (!scheduler)
        return;
    uint64_t deadline_ns = attnd_clock_ns() + timeout_ns;
    drain(service, deadline_ns);
    uint64_t now_ns = attnd_clock_ns();
    attnd_supervisor_stop(service->supervisor, deadline_ns > now_ns ? deadline_ns - now_ns : 0);
    attnd_deadline_stop(scheduler);
    attnd_loop_unwatch(service->loop, scheduler->retire_watch, NULL, NULL);
    scheduler->retire_watch = NULL;
}

void attnd_data_free(struct attnd_service *service)
{
    if (service->wake) { /* no worker is left to let go of it */
        close(service->wake->fd);
        service->memories[service->wake->index] = NULL;
        free(service->wake);
        service->wake = NULL;
    }
    attnd_sched_free(service->scheduler);
    attnd_supervisor_free(service->supervisor);
    attnd_queue_free(service->queue);
    service->scheduler = NULL;
    service->supervisor = NULL;
    service->queue = NULL;
    attnd_device_close(service->device);
    service->device = NULL;
}

const struct attnd_worker_info *attnd_data_worker(const struct attnd_service *service)
{
    return &service->queue->info;
}

int attnd_data_running(const struct attnd_service *service)
{
    return service->supervisor->state == ATTND_WORKER_UP;
}

/* Return: NULL where there is no GPU. */
static const char *residency_name(uint32_t residency)
{
    switch (residency) {
    case ATTND_RESIDENCY_SHARED:
        return "shared";
    case ATTND_RESIDENCY_EXCLUSIVE:
        return "exclusive";
    case ATTND_RESIDENCY_ELASTIC:
        return "elastic";
    default:
        return NULL;
    }
}

void attnd_data_status(const struct attnd_service *service, struct attnd_data_status *status)
{
    const struct attnd_scheduler *scheduler = service->scheduler;
    const struct attnd_supervisor *supervisor = service->supervisor;
    const struct attnd_worker_info *info = &service->queue->info;
    *status = (struct attnd_data_status){
        .backend = service->queue->info.backend,
        .isa = service->queue->info.isa,
        .worker_state = attnd_supervisor_state_name(supervisor),
        .worker_pid = supervisor->process.pid,
        .worker_restarts = supervisor->restarts,
        .tile_workers = service->queue->info.tile_workers,
        .queue_runs = scheduler->dispatched,
        .queue_waiting = scheduler->waiting.count + scheduler->blocked.count,
        .worker_last_end = supervisor->last_end[0] ? supervisor->last_end : NULL,
        .residency = residency_name(info->residency),
        .sms = info->sms,
        .sms_resident = info->sms_resident,
        .sms_burst = info->sms_burst,
        .launches = attnd_peek32(&service->queue->head->launches),
        .mps = info->mps == 1};
}
