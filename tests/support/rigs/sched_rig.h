/*
 * sched_rig.h - the scheduler between one played client and a played worker: the fixture of its
 * tests. Included by a test program, once.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_SCHED_RIG_H
#define ATTND_TESTS_SUPPORT_RIGS_SCHED_RIG_H

#include "tests/support/harness/check.h"
#include "tests/support/trial/stage.h"

static struct stage stage;
static struct stage_client client;

/* @ring_entries of the client: few of them are full sooner. */
static inline int sched_rig_begin(uint32_t ring_entries)
{
    stage_start(&stage);
    stage_connect(&stage, &client, ring_entries, 1);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    stage_stop(&stage);
    return 0;
}

/* A plan with one request: 4 new tokens of 6, on pages 0 and 1, two more reserved. */
static inline uint32_t filled_plan(void)
{
    uint32_t plan = stage_plan(&client);
    struct attnd_sqe set = stage_batch(&client, plan, 0, 4, 6, 0, 2);
    CHECK_EQUAL(stage_submit(&client, &set), 0);
    CHECK_EQUAL(stage_sweep(&stage), 1);
    stage_expect(&client, 0, 0);
    return plan;
}

static inline void submit(struct attnd_sqe sqe)
{
    CHECK_EQUAL(stage_submit(&client, &sqe), 0);
}

static inline struct attnd_run *must_command(void)
{
    struct attnd_run *run = stage_command(&stage);
    CHECK(run != NULL);
    return run;
}

#endif
