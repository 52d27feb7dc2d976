/* test_drain.c - the service ends while large batches are planned and wait for that. */
#include "tests/support/rigs/sched_rig.h"

#include "schemas/attnd.pb-c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define REQUESTS 4200u /* more than is planned on the spot */
#define HEADER_AT 32768u

static int setup(void **state)
{
    (void)state;
    return sched_rig_begin(32);
}

static uint32_t large_plan(void)
{
    struct attnd_client *daemon = client.daemon;
    struct attnd_fault fault = {0};
    struct attnd_batch_limits limits = client.daemon->plans[0]->limits;
    const uint32_t handle = attnd_client_vacant((void *const *)daemon->plans);

    limits.requests = REQUESTS;
    CHECK_EQUAL(attnd_planobj_create(daemon, daemon->attachments[0], &limits,
                                     &daemon->plans[handle - 1], &fault),
                0);
    daemon->attachments[0]->plans++;
    return handle;
}

/* Of requests without rows and keys: the arena begins with zeros. */
static struct attnd_sqe large_set(uint32_t plan, uint64_t user_data)
{
    Attnd__Level level = ATTND__LEVEL__INIT;
    Attnd__Level *levels[] = {&level};
    Attnd__Batch batch = ATTND__BATCH__INIT;

    level.entries = REQUESTS;
    batch.heads_q = 1;
    batch.dtype = ATTND_FP16;
    batch.n_level = 1;
    batch.level = levels;
    memset(client.arena, 0, HEADER_AT);
    const size_t bytes = attnd__batch__pack(&batch, (uint8_t *)client.arena + HEADER_AT);
    return (struct attnd_sqe){
        .opcode = ATTND_OP_PLAN_SET,
        .plan = plan,
        .user_data = user_data,
        .u.set = {.header_offset_bytes = HEADER_AT, .header_bytes = (uint32_t)bytes}};
}

static void what_waits_for_the_planner_ends_with_it(void **state)
{
    const uint32_t small = sched_rig_filled_plan(), large = large_plan();
    (void)state;
    sched_rig_submit(stage_run(small, 0, 1));
    for (uint64_t i = 0; i < 2; i++)
        sched_rig_submit(large_set(large, 2 + i));
    stage_sweep(&stage);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    stage_expect(&client, 1, 0);
    CHECK_EQUAL(client.daemon->lanes->planning, 1);
    attnd_sched_drain(stage.service.scheduler, 0);
    CHECK_EQUAL(client.daemon->lanes->planning, 0);
    CHECK_EQUAL(client.daemon->in_flight, 0);
    struct attnd_cqe cqe;
    CHECK_EQUAL(stage_completion(&client, &cqe), 1); /* the thread may have had it */
    CHECK(cqe.code == 0 || cqe.code == -ATTND_E_CANCELLED);
    stage_expect(&client, 3, -ATTND_E_CANCELLED);
    CHECK(stage.service.scheduler->planner == NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_waits_for_the_planner_ends_with_it, setup,
                                        sched_rig_teardown),
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
