/*
 * on_device.h - what tests have in common that lay out an engine's arrays in device memory
 * themselves.
 */
#ifndef ATTND_TESTS_GPU_SUPPORT_ON_DEVICE_H
#define ATTND_TESTS_GPU_SUPPORT_ON_DEVICE_H

#include "tests/support/random/prng.h"

#include <stdint.h>

struct attnd_session;

/** on_device_line() - @bytes up to the next place where an array may begin. */
uint64_t on_device_line(uint64_t bytes);
/** on_device_host() - zeros on the host, for what goes there; free() frees them. */
void *on_device_host(uint64_t count, uint64_t bytes);
/** on_device_fill() - numbers of about -2 to 2, of an ATTND_DTYPE_* of 16 bits. */
void on_device_fill(uint32_t dtype, uint16_t *to, uint64_t count, struct prng *prng);
/** on_device_await() - the one operation that was submitted ends, and ends well. */
void on_device_await(struct attnd_session *session);

#endif
