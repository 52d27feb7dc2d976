/*
 * data_status.h - how the worker and its queue are.
 */
#ifndef ATTND_SERVICE_RPC_DATA_STATUS_H
#define ATTND_SERVICE_RPC_DATA_STATUS_H

#include "schemas/abi.h"

#include <sys/types.h>

struct attnd_service;

struct attnd_data_status {
    const char *backend, *isa, *worker_state;
    pid_t worker_pid;
    uint32_t worker_restarts, tile_workers, queue_runs, queue_waiting;
    uint32_t worker_heartbeat;   /* counts while the worker moves */
    const char *worker_last_end; /* of the worker before; NULL: this is the first */
    const char *residency;       /* NULL: no GPU */
    uint32_t sms, sms_resident, launches;
    uint64_t plan_bytes, twin_runs;
    int mps;
    const char *rates_source; /* "given", "measured", "derived"; NULL: a processor's ratios */
    struct attnd_rates rates;
    uint32_t switch_cost_us; /* as Status has it; 0: absent */
};
/** attnd_data_status() - how worker and queue are; strings live as long as the service. */
void attnd_data_status(const struct attnd_service *service, struct attnd_data_status *status);

#endif
