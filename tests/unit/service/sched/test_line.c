/* test_line.c - run slots and the line for them, between sessions. */
#include "schemas/atomics.h"
#include "tests/support/rigs/sched_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct stage_client other;
static struct attnd_scheduler *scheduler;
static uint32_t plan, others_plan;

static int setup(void **state)
{
    (void)state;
    sched_rig_begin(64);
    scheduler = stage.service.scheduler;
    plan = sched_rig_filled_plan();
    return 0;
}

/* The pages are the first session's, so its rows see no keys. */
static void connect_other(void)
{
    stage_connect(&stage, &other, 64, 1);
    stage_memory_mapped(&stage);
    others_plan = stage_plan(&other);
    struct attnd_sqe set = stage_batch(&other, others_plan, 0, 4, 0, 0, 0);
    CHECK_EQUAL(stage_submit(&other, &set), 0);
    stage_sweep(&stage);
    stage_expect(&other, 0, 0);
}

/* The worker has been given all others already. */
static void leave_slots(uint32_t slots)
{
    scheduler->slots_free = slots;
}

/* Runs on lanes of their own, as many. */
static void flood(struct stage_client *who, uint32_t of, uint32_t runs)
{
    for (uint32_t lane = 0; lane < runs; lane++) {
        const struct attnd_sqe run = stage_run(of, (uint16_t)lane, 100u + lane);
        CHECK_EQUAL(stage_submit(who, &run), 0);
    }
    stage_sweep(&stage);
}

static struct attnd_run *must_command_of(const struct stage_client *who)
{
    struct attnd_run *run = sched_rig_must_command();
    CHECK_EQUAL(run->session, who->daemon->id);
    return run;
}

static void retire(const struct attnd_run *run)
{
    stage_retire(&stage, run, 0);
    stage_sweep(&stage);
}

static void alone_a_session_may_have_every_slot(void **state)
{
    (void)state;
    leave_slots(5);
    flood(&client, plan, 6);
    for (uint32_t i = 0; i < 5; i++)
        (void)sched_rig_must_command();
    CHECK(stage_command(&stage) == NULL);
    CHECK_EQUAL(scheduler->waiting_count, 1);
}

static void a_slot_is_kept_for_each_session_that_has_none(void **state)
{
    (void)state;
    connect_other();
    leave_slots(3);
    flood(&client, plan, 6);
    (void)must_command_of(&client);
    (void)must_command_of(&client);
    CHECK(stage_command(&stage) == NULL); /* one is the other's */
    flood(&other, others_plan, 2);
    (void)must_command_of(&other); /* at once, in front of four that wait */
    CHECK(stage_command(&stage) == NULL);
    CHECK_EQUAL(scheduler->waiting_count, 5);
}

static void a_slot_that_comes_free_is_of_the_session_that_has_the_fewest(void **state)
{
    (void)state;
    connect_other();
    leave_slots(5);
    flood(&client, plan, 8);
    struct attnd_run *first = must_command_of(&client);
    for (uint32_t i = 0; i < 3; i++)
        (void)must_command_of(&client);
    flood(&other, others_plan, 3);
    (void)must_command_of(&other);
    CHECK(stage_command(&stage) == NULL);
    retire(first); /* 3 against 1 */
    (void)must_command_of(&other);
    CHECK(stage_command(&stage) == NULL);
}

static void weights_count_there_too(void **state)
{
    (void)state;
    connect_other();
    client.daemon->weight = 10;
    leave_slots(5);
    flood(&client, plan, 8);
    struct attnd_run *first = must_command_of(&client);
    CHECK_EQUAL(first->weight, 10);
    for (uint32_t i = 0; i < 3; i++)
        (void)must_command_of(&client);
    flood(&other, others_plan, 3);
    (void)must_command_of(&other);
    retire(first); /* 3 tenths against 1 */
    (void)must_command_of(&client);
    CHECK(stage_command(&stage) == NULL);
}

static void what_was_kept_is_free_when_its_session_ends(void **state)
{
    (void)state;
    connect_other();
    leave_slots(2);
    flood(&client, plan, 3);
    (void)must_command_of(&client);
    CHECK(stage_command(&stage) == NULL);
    attnd_client_end(other.daemon);
    stage_sweep(&stage);
    (void)must_command_of(&client);
    CHECK(stage_command(&stage) == NULL);
}

static void a_session_that_ends_with_runs_leaves_the_counts_right(void **state)
{
    (void)state;
    connect_other();
    const uint32_t all = scheduler->slots_free;
    flood(&other, others_plan, 3);
    struct attnd_run *runs[] = {sched_rig_must_command(), sched_rig_must_command(),
                                sched_rig_must_command()};
    CHECK_EQUAL(scheduler->open_busy, 1);
    attnd_client_end(other.daemon);
    CHECK_EQUAL(scheduler->open_busy, 0);
    for (uint32_t i = 0; i < 3; i++)
        retire(runs[i]);
    CHECK_EQUAL(scheduler->open_busy, 0);
    CHECK_EQUAL(scheduler->slots_free, all);
    flood(&client, plan, 1);
    CHECK_EQUAL(scheduler->open_busy, 1);
    retire(sched_rig_must_command());
    CHECK_EQUAL(scheduler->open_busy, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, sched_rig_teardown)
        TEST(alone_a_session_may_have_every_slot),
        TEST(a_slot_is_kept_for_each_session_that_has_none),
        TEST(a_slot_that_comes_free_is_of_the_session_that_has_the_fewest),
        TEST(weights_count_there_too),
        TEST(what_was_kept_is_free_when_its_session_ends),
        TEST(a_session_that_ends_with_runs_leaves_the_counts_right),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
