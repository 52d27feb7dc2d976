/*
 * data_stub.h - what a data plane without a worker was asked to do, and how it answers.
 */
#ifndef ATTND_TESTS_SUPPORT_STUBS_DATA_STUB_H
#define ATTND_TESTS_SUPPORT_STUBS_DATA_STUB_H

#include "schemas/abi.h"

struct data_stub {
    int map_rc;          /* what attnd_supervisor_map() returns */
    int unmaps_answered; /* 0: indices stay taken */
    int down;            /* 1: no worker runs */
    uint32_t maps, unmaps, plans, sessions, sweeps;
    uint32_t last_unmapped;
    const char *residency; /* NULL: it is no GPU's */
    uint32_t switch_cost_us;
};
extern struct data_stub data_stub;

/* The worker that is not there: it can do whatever the CUDA one can. */
extern const struct attnd_worker_info stub_worker_able;
extern struct attnd_worker_info stub_worker;

uint64_t data_stub_heap_used(void);

#endif
