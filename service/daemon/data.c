/*
 * data.c - the data plane as one thing: put together, started, stopped, freed.
 *
 * This is the one place that knows all rooms. It builds from the ground up: the segment, the
 * supervisor, prepared runs, the scheduler. Each is given the events that rooms above it have asked
 * for; the tables here are all there are. Stopping takes the same road back, but leaves the objects
 * in place: sessions, pools and plans are let go after it, and find nothing in flight.
 */
#include "service/daemon/data.h"

#include "service/objects/memory.h"
#include "service/peers/peers.h"
#include "service/prefix/tier.h"
#include "service/prepared/prepared.h"
#include "service/rpc/calls.h"
#include "service/sched/sched.h"
#include "service/session/session.h"
#include "service/supervise/device.h"
#include "service/supervise/supervise.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define START_TIMEOUT_NS 10000000000u

/* ---- who hears what ---- */

static int worker_up(struct attnd_service *service, uint64_t scratch_bytes)
{
    attnd_monitor_say(&service->monitor, ATTND_MONITOR_WORKER, 0, 0, 0, "runs");
    int rc = attnd_sched_resume(service->scheduler, scratch_bytes);
    attnd_tier_pump_all(service);
    attnd_peers_pump(service);
    return rc;
}

static void worker_lost(struct attnd_service *service)
{
    const char *how = service->supervisor->last_end;

    attnd_monitor_say(&service->monitor, ATTND_MONITOR_WORKER, 0, 0, 0,
                      service->stopping || !how[0] ? "stops" : how);
    attnd_retire_lost(service->scheduler);
}

static void worker_heard(struct attnd_service *service)
{
    attnd_tier_pump_all(service);
    attnd_peers_pump(service);
    attnd_sched_retry(service->scheduler);
}

static void pages_freed(struct attnd_service *service, struct attnd_pool *pool)
{
    attnd_pages_freed(service, pool);
    attnd_peers_pump(service);
}

static const struct attnd_supervisor_events supervisor_events = {.up = worker_up,
                                                                 .lost = worker_lost,
                                                                 .imports_lost = attnd_memory_lost,
                                                                 .mapped = attnd_memory_mapped,
                                                                 .unmapped = attnd_memory_unmapped,
                                                                 .copied = attnd_tier_copied,
                                                                 .brought = attnd_transfer_brought,
                                                                 .heard = worker_heard};

static const struct attnd_memory_events memory_events = {.released = attnd_memory_released};

static const struct attnd_tier_events tier_events = {.arrived = attnd_sched_wake,
                                                     .freed = pages_freed};

static void pages_arrived(struct attnd_service *service)
{
    attnd_sched_arrived(service->scheduler);
}

static const struct attnd_peer_events peer_events = {
    .fits = attnd_claim_fits, .ended = attnd_claim_ended, .arrived = pages_arrived};

static const struct attnd_ticket_events ticket_events = {.grown = attnd_guest_grown,
                                                         .broken = attnd_guest_broken};

static const struct attnd_prepared_events prepared_events = {.answered = attnd_prepared_answered,
                                                             .unwatched = attnd_client_kill};

static const struct attnd_sched_events sched_events = {.drained = attnd_client_drained,
                                                       .broken = attnd_client_kill};

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

int attnd_data_new(struct attnd_service *service, struct attnd_fault *fault)
{
    service->memory_events = &memory_events;
    service->tier_events = &tier_events;
    service->ticket_events = &ticket_events;
    int rc = attnd_queue_new(service->options.heap_bytes, !attnd_loop_has_futex(service->loop),
                             &service->queue, fault);
    if (rc < 0) {
        attnd_log(ATTND_LOG_ERROR, "no segment for plans of --heap %" PRIu64 " bytes",
                  service->options.heap_bytes);
        return rc;
    }
    attnd_queue_rates(service->queue, &service->options.rates);
    rc = attnd_supervisor_new(service, &supervisor_events, &service->supervisor);
    if (rc == 0)
        rc = attnd_prepared_new(service, &service->supervisor->maps, &prepared_events,
                                &service->prepared_runs);
    if (rc == 0)
        rc = attnd_sched_new(service, &service->supervisor->maps, &sched_events,
                             &service->scheduler);
    return rc < 0 ? attnd_fault_set(fault, rc, ATTND_F_NONE, 0, 0, 0) : 0;
}

int attnd_data_start(struct attnd_service *service, struct attnd_fault *fault)
{
    int rc = attnd_data_new(service, fault);
    if (rc == 0)
        rc = attnd_supervisor_watch_retires(service->supervisor, fault);
    if (rc == 0)
        rc = attnd_supervisor_start(service->supervisor, START_TIMEOUT_NS, fault);
    if (rc == 0 && strcmp(service->queue->info.backend, "cuda") == 0)
        open_device(service);
    if (rc == 0) {
        rc = attnd_peers_start(service, &peer_events);
        if (rc < 0) {
            attnd_fault_set(fault, rc, ATTND_F_PEER, 0, 0, 0);
            attnd_supervisor_stop(service->supervisor, 0);
        }
    }
    if (rc < 0) {
        if (service->supervisor)
            attnd_supervisor_unwatch_retires(service->supervisor);
        attnd_data_free(service);
    }
    return rc;
}

void attnd_data_stop(struct attnd_service *service, uint64_t timeout_ns)
{
    struct attnd_scheduler *scheduler = service->scheduler;
    if (!scheduler)
        return;
    uint64_t deadline_ns = attnd_clock_ns() + timeout_ns;
    attnd_sched_drain(scheduler, deadline_ns);
    uint64_t now_ns = attnd_clock_ns();
    attnd_supervisor_stop(service->supervisor, deadline_ns > now_ns ? deadline_ns - now_ns : 0);
    attnd_deadline_stop(scheduler);
    attnd_supervisor_unwatch_retires(service->supervisor);
}

void attnd_data_free(struct attnd_service *service)
{
    attnd_peers_end(service);
    if (service->wake) { /* no worker is left to let go of it */
        close(service->wake->fd);
        service->memories[service->wake->index] = NULL;
        free(service->wake);
        service->wake = NULL;
    }
    attnd_sched_free(service->scheduler);
    attnd_prepared_free(service->prepared_runs);
    attnd_supervisor_free(service->supervisor);
    attnd_queue_free(service->queue);
    service->scheduler = NULL;
    service->prepared_runs = NULL;
    service->supervisor = NULL;
    service->queue = NULL;
    attnd_device_close(service->device);
    service->device = NULL;
}
