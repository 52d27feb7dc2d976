/*
 * long_run.h - a prepared run that keeps the workers busy for some 100 ms, in many items: something
 * to do other things beside. Its keys are one page again and again.
 */
#ifndef ATTND_TESTS_GPU_SUPPORT_LONG_RUN_H
#define ATTND_TESTS_GPU_SUPPORT_LONG_RUN_H

#include "tests/gpu/support/gpu.h"

struct long_run {
    struct attnd_session *session; /* the caller's */
    uint32_t memory, pool, plan;
    CUdeviceptr address, mailbox; /* mailbox 0: the session executes its launched runs itself */
    CUstream stream;
    uint32_t lane, prepared;
};

/** long_open() - memory, pool, plan, and the run prepared for @lane. */
void long_open(struct long_run *run, struct attnd_session *session, uint32_t lane);
void long_close(struct long_run *run);

/** long_prepare() - one more of the same plan. Return: as attnd_prepare(). */
int long_prepare(const struct long_run *run, uint32_t lane, uint32_t *prepared);

/** long_submit() - the same batch by the ring; the caller collects its completion. */
void long_submit(const struct long_run *run, uint16_t lane);

/** long_ring() - in its stream. long_await_taken() - until a worker has begun it. long_runs() - it
 * is not over. long_await() - Return: what became of it, as attnd_cuda_lane_error(). */
void long_ring(const struct long_run *run);
void long_await_taken(struct long_run *run);
int long_runs(const struct long_run *run);
int long_await(const struct long_run *run);

#endif
