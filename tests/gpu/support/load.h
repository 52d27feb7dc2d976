/*
 * load.h - an engine that keeps the service busy, in a process of its own.
 */
#ifndef ATTND_TESTS_GPU_SUPPORT_LOAD_H
#define ATTND_TESTS_GPU_SUPPORT_LOAD_H

#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/harness.h"

#define LOAD_IN_FLIGHT 16u

struct load {
    const struct harness *harness;
    int on_device;     /* where q, o and the keys are; else in host memory, and no CUDA context */
    uint32_t pause_us; /* between a look for answers and the next runs; 0: the GPU is never idle */
    uint32_t began, stop, answered, restarted;
};

/** load_collect() - wait for completions and count them; of others than success and
 * WORKER_RESTARTED, or if none comes, the test fails. Return: how many came. */
uint32_t load_collect(struct engine *engine, struct load *load);

/** load_keep_up() - for harness_fork(), @context is a shared struct load: runs on all lanes until
 * `stop`, every one of them collected. */
int load_keep_up(void *context);

/** load_reserves() - do services of this run reserve SMs where a test says nothing about that? */
int load_reserves(void);

#endif
