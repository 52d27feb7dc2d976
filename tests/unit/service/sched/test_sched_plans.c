/* test_sched_plans.c - plans, their sets, appends and pages; batches that wait. */
#include "service/sched/lane.h"
#include "tests/support/rigs/sched_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int setup(void **state)
{
    (void)state;
    return sched_rig_begin(16);
}

static void a_batch_that_waits_is_not_harmed_by_reuse_of_the_arena(void **state)
{
    uint32_t plan = sched_rig_filled_plan(), other = stage_plan(&client);
    (void)state;
    sched_rig_submit(stage_run(plan, 0, 1));
    sched_rig_submit(stage_batch(&client, other, 4096, 4, 6, 0, 0));
    sched_rig_submit(stage_run(other, 0, 2));
    CHECK_EQUAL(stage_sweep(&stage), 3);
    CHECK_EQUAL(attnd_producer_space(&client.sq), 16); /* consumed: the arena is the client's */
    memset(client.arena + 4096, 0xff, 4096);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    stage_expect(&client, 1, 0);
    stage_expect(&client, 0, 0);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    stage_expect(&client, 2, 0);
    CHECK_EQUAL(client.daemon->lanes->admitted_bytes, 0);
}

/* Else a client that sends batches behind one long run would have the daemon hold all of them. */
static void batches_that_wait_take_no_more_memory_than_about_an_arena(void **state)
{
    enum { BATCHES = 12 };
    uint32_t plan = sched_rig_filled_plan(), other = stage_plan(&client);
    (void)state;
    sched_rig_submit(stage_run(plan, 0, 1));
    for (int i = 0; i < BATCHES; i++)
        sched_rig_submit(stage_batch(&client, other, 4096, 4, 6, 0, 0));
    CHECK(stage_sweep(&stage) < 1 + BATCHES);
    CHECK(client.daemon->lanes->admitted_bytes >= client.daemon->arena_bytes);
    CHECK_EQUAL(stage_sweep(&stage), 0);
    stage_retire(&stage, sched_rig_must_command(), 0);
    while (stage_sweep(&stage) > 0)
        ;
    stage_expect(&client, 1, 0);
    for (int i = 0; i < BATCHES; i++)
        stage_expect(&client, 0, 0);
    CHECK_EQUAL(client.daemon->lanes->admitted_bytes, 0);
}

static void a_batch_is_copied_as_far_as_the_share_of_its_session_goes(void **state)
{
    const uint32_t plan = stage_plan(&client);
    const uint64_t *used = &client.daemon->used[ATTND_QUOTA_DAEMON];
    uint64_t *all = &stage.service.options.daemon_memory_max_bytes;
    struct attnd_cqe cqe;
    int refused = -1;
    (void)state;
    *all = 2 * *used; /* half is a session's */
    do {
        sched_rig_submit(stage_batch(&client, plan, 0, 4, 6, 0, 0));
        (void)stage_sweep(&stage);
        CHECK_EQUAL(stage_completion(&client, &cqe), 1);
        if (cqe.code)
            CHECK_EQUAL(cqe.field, ATTND_F_DAEMON_MEMORY);
        CHECK(*used <= *all / 2);
        *all += 128;
        refused++;
    } while (cqe.code == -ATTND_E_NO_MEMORY);
    CHECK_EQUAL(cqe.code, 0);
    CHECK(refused > 0);
}

static void plan_set_is_busy_while_another_lane_uses_the_plan(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    struct attnd_sqe set = stage_batch(&client, plan, 0, 4, 8, 0, 0);
    (void)state;
    sched_rig_submit(stage_run(plan, 1, 1));
    set.user_data = 2;
    sched_rig_submit(set);
    stage_sweep(&stage);
    struct attnd_cqe cqe = stage_expect(&client, 2, -ATTND_E_BUSY);
    CHECK_EQUAL(cqe.field, ATTND_F_PLAN);
    CHECK_EQUAL(cqe.value, plan);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    stage_expect(&client, 1, 0);
    sched_rig_submit(set);
    stage_sweep(&stage);
    stage_expect(&client, 2, 0);
}

static void plan_set_in_the_lane_of_its_runs_waits_for_them(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    struct attnd_sqe set = stage_batch(&client, plan, 0, 4, 8, 0, 0);
    (void)state;
    set.user_data = 2;
    sched_rig_submit(stage_run(plan, 1, 1));
    set.lane = 1;
    sched_rig_submit(set);
    sched_rig_submit(stage_run(plan, 1, 3));
    stage_sweep(&stage);
    stage_expect_none(&client);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    stage_expect(&client, 1, 0);
    stage_expect(&client, 2, 0);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    stage_expect(&client, 3, 0);
}

static void a_plan_that_failed_to_set_is_not_run(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    const int32_t last = (int32_t)STAGE_PAGES - 1; /* and the one behind it */
    struct attnd_sqe set = stage_batch(&client, plan, 0, 4, 6, last, 0);
    (void)state;
    set.user_data = 1;
    sched_rig_submit(set);
    sched_rig_submit(stage_run(plan, 0, 2));
    stage_sweep(&stage);
    struct attnd_cqe cqe = stage_expect(&client, 1, -ATTND_E_RANGE);
    CHECK_EQUAL(cqe.field, ATTND_F_KV_INDICES);
    CHECK_EQUAL(cqe.index, 1);
    CHECK_EQUAL(cqe.value, STAGE_PAGES);
    cqe = stage_expect(&client, 2, -ATTND_E_INVALID);
    CHECK_EQUAL(cqe.field, ATTND_F_PLAN);
}

static void shared_pages_are_not_appended_to(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    const int32_t page = 1;
    struct attnd_fault fault = {0};
    (void)state;
    CHECK_EQUAL(attnd_lease_share(client.daemon->attachments[0], &page, 1, &fault), 0);
    sched_rig_submit(stage_append(plan, 0, 1));
    sched_rig_submit(stage_run(plan, 0, 2));
    stage_sweep(&stage);
    struct attnd_cqe cqe = stage_expect(&client, 1, -ATTND_E_SHARED_PAGE);
    CHECK_EQUAL(cqe.value, page);
    stage_retire(&stage, sched_rig_must_command(),
                 0); /* reading it is fine, and the lane goes on */
    stage_sweep(&stage);
    stage_expect(&client, 2, 0);
}

static void pages_given_away_since_are_not_appended_to(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    const int32_t page = 1;
    struct attnd_fault fault = {0};
    (void)state;
    CHECK_EQUAL(attnd_lease_free(client.daemon->attachments[0], &page, 1, &fault), 0);
    sched_rig_submit(stage_append(plan, 0, 1));
    stage_sweep(&stage);
    struct attnd_cqe cqe = stage_expect(&client, 1, -ATTND_E_NOT_LEASED);
    CHECK_EQUAL(cqe.field, ATTND_F_KV_INDICES);
    CHECK_EQUAL(cqe.value, page);
}

static void pages_without_a_lease_are_refused(void **state)
{
    const int32_t page = 1;
    struct attnd_fault fault = {0};
    uint32_t plan = stage_plan(&client);
    (void)state;
    CHECK_EQUAL(attnd_lease_free(client.daemon->attachments[0], &page, 1, &fault), 0);
    sched_rig_submit(stage_batch(&client, plan, 0, 4, 6, 0, 0));
    stage_sweep(&stage);
    struct attnd_cqe cqe = stage_expect(&client, 0, -ATTND_E_NOT_LEASED);
    CHECK_EQUAL(cqe.field, ATTND_F_KV_INDICES);
    CHECK_EQUAL(cqe.value, page);
}

static void a_reader_of_a_pool_may_not_append_nor_write_to_it_by_a_run(void **state)
{
    struct stage_client reader;
    struct attnd_fault fault = {0};
    int32_t pages[] = {0, 1};
    (void)state;
    stage_connect(&stage, &reader, 16, 0);
    CHECK_EQUAL(attnd_lease_free(client.daemon->attachments[0], pages, 2, &fault), 0);
    CHECK_EQUAL(attnd_lease_alloc(reader.daemon->attachments[0], 2, pages, &fault), 0);
    uint32_t plan = stage_plan(&reader);
    int32_t first = pages[0] < pages[1] ? pages[0] : pages[1];
    struct attnd_sqe sqe = stage_batch(&reader, plan, 0, 4, 6, first, 0);
    CHECK_EQUAL(stage_submit(&reader, &sqe), 0);
    sqe = stage_append(plan, 0, 1);
    CHECK_EQUAL(stage_submit(&reader, &sqe), 0);
    sqe = stage_run(plan, 0, 2);
    sqe.u.run.o_memory = 1;
    CHECK_EQUAL(stage_submit(&reader, &sqe), 0);
    stage_sweep(&stage);
    stage_expect(&reader, 0, 0);
    stage_expect(&reader, 1, -ATTND_E_PERMISSION);
    CHECK_EQUAL(stage_expect(&reader, 2, -ATTND_E_OVERLAP).field, ATTND_F_O);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, sched_rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_batch_that_waits_is_not_harmed_by_reuse_of_the_arena),
        CASE(batches_that_wait_take_no_more_memory_than_about_an_arena),
        CASE(a_batch_is_copied_as_far_as_the_share_of_its_session_goes),
        CASE(plan_set_is_busy_while_another_lane_uses_the_plan),
        CASE(plan_set_in_the_lane_of_its_runs_waits_for_them),
        CASE(a_plan_that_failed_to_set_is_not_run),
        CASE(shared_pages_are_not_appended_to),
        CASE(pages_given_away_since_are_not_appended_to),
        CASE(pages_without_a_lease_are_refused),
        CASE(a_reader_of_a_pool_may_not_append_nor_write_to_it_by_a_run),
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
