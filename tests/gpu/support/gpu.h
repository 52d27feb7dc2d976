/*
 * gpu.h - engine processes with a CUDA context of their own, and what they have in device memory.
 *
 * CUDA does not survive fork(): the test program itself never initialises it, only clients it forks
 * do, by gpu_open().
 */
#ifndef ATTND_TESTS_GPU_SUPPORT_GPU_H
#define ATTND_TESTS_GPU_SUPPORT_GPU_H

#include "client/cuda/attnd_cuda.h"
#include "tests/support/harness/engine.h"

#define GPU_SKIPPED 77

/** gpu_there() - is there a GPU that a process can have a context on? Asked in a child. */
int gpu_there(void);

/** gpu_await() - until a process can have a context: after a death MPS takes none for a while. One
 * that it has turned away is turned away for good, so children ask. */
void gpu_await(void);

/** gpu_under_mps() - is this run of the tests under MPS? */
int gpu_under_mps(void);

/** gpu_try() - a context for this process, current. Return: the driver's result. */
CUresult gpu_try(void);
/** gpu_open() - the same or the test fails. */
void gpu_open(void);
/** gpu_open_on() - on the GPU of this number; may be called again for another one. */
void gpu_open_on(int number);

/** gpu_engine_open() - an engine (tests/support/harness/engine.h) whose planes and rows lie in
 * device memory; in a process that called gpu_open(). */
void gpu_engine_open(struct engine *engine, const char *socket_path, const char *name);

/** gpu_engine_open_own() - the same in memory of its own that @make allocates and registers; trials
 * with pools of the service are not for it. One such engine at a time. */
void gpu_engine_open_own(struct engine *engine, const char *socket_path, const char *name,
                         uint32_t (*make)(struct attnd_session *session, uint64_t bytes),
                         uint64_t (*address_of)(struct attnd_session *session, uint32_t memory));

#define CHECK_CUDA(call) CHECK_EQUAL((call), CUDA_SUCCESS)

#endif
