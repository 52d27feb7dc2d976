/* sched_rig.c - the scheduler between one played client and a played worker: the fixture of its
 * tests. */
#include "tests/support/rigs/sched_rig.h"

int sched_rig_begin(uint32_t ring_entries)
{
    stage_start(&stage);
    stage_connect(&stage, &client, ring_entries, 1);
    return 0;
}

int sched_rig_teardown(void **state)
{
    (void)state;
    stage_stop(&stage);
    return 0;
}

uint32_t sched_rig_filled_plan(void)
{
    uint32_t plan = stage_plan(&client);
    struct attnd_sqe set = stage_batch(&client, plan, 0, 4, 6, 0, 2);
    CHECK_EQUAL(stage_submit(&client, &set), 0);
    CHECK_EQUAL(stage_sweep(&stage), 1);
    stage_expect(&client, 0, 0);
    return plan;
}

void sched_rig_submit(struct attnd_sqe sqe)
{
    CHECK_EQUAL(stage_submit(&client, &sqe), 0);
}

struct attnd_run *sched_rig_must_command(void)
{
    struct attnd_run *run = stage_command(&stage);
    CHECK(run != NULL);
    return run;
}
