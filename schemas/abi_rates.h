/*
 * abi_rates.h - the part of abi.h that says how fast a worker is, and its GPU. Included by abi.h.
 */
#ifndef ATTND_SCHEMAS_ABI_RATES_H
#define ATTND_SCHEMAS_ABI_RATES_H

#include "schemas/abi_assert.h"

#include <stdint.h>

/* The head of the queue segment has rates and switch_cost_us. The daemon writes them before the
 * worker starts, where it has them of an option or of an earlier worker. Where there are none the
 * worker measures them, before it reports RUNNING. */

/* Where rates are from. */
enum attnd_rates_source {
    ATTND_RATES_NONE = 0,     /* nowhere: all 0 */
    ATTND_RATES_GIVEN = 1,    /* an option of the daemon */
    ATTND_RATES_MEASURED = 2, /* a worker of this daemon, at its start */
    ATTND_RATES_DERIVED = 3   /* clocks of the GPU: measuring failed */
};

/* What the planner reckons with; all 0: as for a processor. 10^9 operations and bytes a second. */
struct attnd_rates {
    uint32_t worker_gflops;  /* the products of one worker */
    uint16_t worker_gbps;    /* what one worker reads of the memory if it need not wait */
    uint16_t worker_l2_gbps; /* and of the L2, where all read the same keys */
    uint16_t memory_gbps;    /* what all workers read of the memory together */
    uint16_t source;         /* enum attnd_rates_source */
};
ATTND_ASSERT_SIZE(attnd_rates, 12);

/* attnd_queue_head.switch_cost_us: what a run in an engine's stream costs because contexts take
 * turns on the GPU, in microseconds: it goes to the worker and comes back. 0: nobody has measured
 * it. This: it was tried in vain, and is not tried again. */
#define ATTND_SWITCH_COST_UNKNOWN UINT32_MAX

#endif
