/* on_device.c - see on_device.h. */
#include "tests/gpu/support/on_device.h"

#include "client/attnd.h"
#include "tests/support/harness/check.h"
#include "tests/support/trial/trial.h"

#include <stdlib.h>

uint64_t on_device_line(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

void *on_device_host(uint64_t count, uint64_t bytes)
{
    void *memory = calloc(count, bytes);

    CHECK(memory != NULL);
    return memory;
}

void on_device_fill(uint32_t dtype, uint16_t *to, uint64_t count, struct prng *prng)
{
    const uint32_t low = dtype == ATTND_DTYPE_FP16 ? 0x3000u : 0x3e00u;
    const uint32_t span = dtype == ATTND_DTYPE_FP16 ? 0x1000u : 0x200u;

    for (uint64_t i = 0; i < count; i++) {
        const uint64_t bits = prng_next(prng);
        to[i] = (uint16_t)((bits >> 16 & 0x8000u) | (low + (bits >> 32) % span));
    }
}

void on_device_await(struct attnd_session *session)
{
    struct attnd_completion done;

    CHECK_EQUAL(attnd_wait(session, &done, 1, TRIAL_WAIT_NS), 1);
    CHECK_EQUAL(done.fault.code, 0);
}
