/*
 * gpu.h - engine processes with a CUDA context of their own, and what they have in device memory.
 *
 * CUDA does not survive fork(): the test program itself never initialises it, only clients it forks
 * do, by gpu_open().
 */
#ifndef ATTND_TESTS_GPU_SUPPORT_GPU_H
#define ATTND_TESTS_GPU_SUPPORT_GPU_H

#include "client/cuda/attnd_cuda.h"
#include "tests/support/engine.h"

#define GPU_SKIPPED 77

/** gpu_there() - is there a GPU that a process can have a context on? Asked in a child. */
int gpu_there(void);

/** gpu_try() - a context for this process, current. Return: the driver's result. */
CUresult gpu_try(void);
/** gpu_open() - the same or the test fails. */
void gpu_open(void);

/** gpu_engine_open() - an engine (tests/support/engine.h) whose planes and rows lie in device
 * memory; in a process that called gpu_open(). */
void gpu_engine_open(struct engine *engine, const char *socket_path, const char *name);

#define CHECK_CUDA(call) CHECK_EQUAL((call), CUDA_SUCCESS)

#endif
