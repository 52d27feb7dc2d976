/*
 * data_status.c - how the worker and its queue are, for everybody who asks.
 */
#include "service/rpc/data_status.h"

#include "schemas/atomics.h"
#include "service/sched/sched.h"
#include "service/supervise/supervise.h"

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

static const char *rates_source_name(uint32_t source)
{
    switch (source) {
    case ATTND_RATES_GIVEN:
        return "given";
    case ATTND_RATES_MEASURED:
        return "measured";
    case ATTND_RATES_DERIVED:
        return "derived";
    default:
        return NULL;
    }
}

/* Of a service whose worker is under MPS now it says nothing. */
static uint32_t switch_cost_us(const struct attnd_queue *queue)
{
    const int turns = queue->info.residency != 0 && queue->info.mps != 1;

    return turns && queue->switch_cost_us != ATTND_SWITCH_COST_UNKNOWN ? queue->switch_cost_us : 0;
}

void attnd_data_status(const struct attnd_service *service, struct attnd_data_status *status)
{
    const struct attnd_supervisor *supervisor = service->supervisor;
    const struct attnd_worker_info *info = &service->queue->info;
    *status = (struct attnd_data_status){
        .backend = service->queue->info.backend,
        .isa = service->queue->info.isa,
        .worker_state = attnd_supervisor_state_name(supervisor),
        .worker_pid = supervisor->process.pid,
        .worker_restarts = supervisor->restarts,
        .tile_workers = service->queue->info.tile_workers,
        .worker_heartbeat = attnd_observe32(&service->queue->head->heartbeat),
        .worker_last_end = supervisor->last_end[0] ? supervisor->last_end : NULL,
        .residency = residency_name(info->residency),
        .sms = info->sms,
        .sms_resident = info->sms_resident,
        .launches = attnd_peek32(&service->queue->head->launches),
        .plan_bytes = attnd_observe64(&service->queue->head->plan_bytes),
        .twin_runs = attnd_observe64(&service->queue->head->twin_runs),
        .mps = info->mps == 1,
        .rates_source = rates_source_name(service->queue->rates.source),
        .rates = service->queue->rates,
        .switch_cost_us = switch_cost_us(service->queue)};
    attnd_sched_counts(service->scheduler, &status->queue_runs, &status->queue_waiting);
}
