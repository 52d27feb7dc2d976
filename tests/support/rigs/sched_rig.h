/*
 * sched_rig.h - the scheduler between one played client and a played worker: the fixture of its
 * tests.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_SCHED_RIG_H
#define ATTND_TESTS_SUPPORT_RIGS_SCHED_RIG_H

#include "tests/support/harness/check.h"
#include "tests/support/rigs/stage_rig.h"

/* @ring_entries of the client: few of them are full sooner. */
int sched_rig_begin(uint32_t ring_entries);
int sched_rig_teardown(void **state);
/* A plan with one request: 4 new tokens of 6, on pages 0 and 1, two more reserved. */
uint32_t sched_rig_filled_plan(void);
void sched_rig_submit(struct attnd_sqe sqe);
struct attnd_run *sched_rig_must_command(void);

#endif
