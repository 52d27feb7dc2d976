/*
 * abi_rates.h - the part of abi.h that says how fast a worker is. Included by abi.h.
 */
#ifndef ATTND_SCHEMAS_ABI_RATES_H
#define ATTND_SCHEMAS_ABI_RATES_H

#include "schemas/abi_assert.h"

#include <stdint.h>

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

#endif
