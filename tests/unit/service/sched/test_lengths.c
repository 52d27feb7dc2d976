/* test_lengths.c - which lengths an operation reads: those that its plan had when it was submitted,
 * and behind a set or an advance in its lane those that this left. */
#include "service/sched/lane.h"
#include "tests/support/rigs/sched_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define LANE_OF_ADVANCES 60

static int setup(void **state)
{
    (void)state;
    return sched_rig_begin(32);
}

static void submit_advance(uint32_t plan, uint16_t lane, int32_t tokens)
{
    struct attnd_sqe advance = stage_advance(&client, plan, 0, tokens);
    advance.lane = lane;
    advance.user_data = 99;
    sched_rig_submit(advance);
    stage_sweep(&stage);
}

static void advance_to(uint32_t plan, int32_t tokens)
{
    submit_advance(plan, LANE_OF_ADVANCES, tokens);
    stage_expect(&client, 99, 0);
}

static const struct attnd_plan_object *object(uint32_t plan)
{
    return client.daemon->plans[plan - 1];
}

static void end(const struct attnd_run *run, uint64_t user_data)
{
    stage_retire(&stage, run, 0);
    stage_sweep(&stage);
    stage_expect(&client, user_data, 0);
}

static void let_runs_go(void)
{
    stage.service.queue->accepting = 1;
    attnd_lane_retry(stage.service.scheduler);
}

static void runs_keep_the_generation_they_started_with(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    (void)state;
    sched_rig_submit(stage_run(plan, 1, 1));
    sched_rig_submit(stage_advance(&client, plan, 0, 7));
    sched_rig_submit(stage_run(plan, 2, 2));
    stage_sweep(&stage);
    stage_expect(&client, 0, 0);
    const struct attnd_run *before = sched_rig_must_command(), *after = sched_rig_must_command();
    CHECK_EQUAL(before->generation, 0);
    CHECK(after->generation != before->generation);
    stage_retire(&stage, before, 0);
    stage_retire(&stage, after, 0);
    stage_sweep(&stage);
    stage_expect(&client, 1, 0);
    stage_expect(&client, 2, 0);
}

static void an_advance_waits_for_a_generation_and_holds_nobody_up(void **state)
{
    uint32_t plan = sched_rig_filled_plan(), other = sched_rig_filled_plan();
    const struct attnd_run *runs[ATTND_GENERATIONS];
    struct attnd_sqe advance;
    (void)state;
    for (uint16_t g = 0; g < ATTND_GENERATIONS; g++) {
        sched_rig_submit(stage_run(plan, g, g));
        stage_sweep(&stage);
        runs[g] = sched_rig_must_command();
        advance = stage_advance(&client, plan, 0, 4 + g % 4);
        advance.lane = 60;
        advance.user_data = 99;
        sched_rig_submit(advance);
        stage_sweep(&stage);
        if (g + 1 < (int)ATTND_GENERATIONS)
            stage_expect(&client, 99, 0);
    }
    sched_rig_submit(stage_run(other, 61, 100));
    stage_sweep(&stage);
    memset(client.arena, 0xff, 64); /* its data were copied */
    stage_expect_none(&client);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    stage_expect(&client, 100, 0);
    stage_retire(&stage, runs[5], 0);
    stage_sweep(&stage);
    stage_expect(&client, 5, 0);
    stage_expect(&client, 99, 0);
    CHECK_EQUAL(client.daemon->plans[0]->generation, runs[5]->generation);
}

static void blocked_lanes_go_on_by_turns_when_the_piece_is_over(void **state)
{
    struct attnd_client_lanes *session = client.daemon->lanes;
    struct attnd_works *works = &stage.service.works;
    uint32_t plan = sched_rig_filled_plan();
    (void)state;
    client.daemon->plans[0]->planning = 1;
    for (uint16_t lane = 0; lane < 3; lane++)
        sched_rig_submit(stage_run(plan, lane, lane));
    stage_sweep(&stage);
    CHECK_EQUAL(session->blocked.count, 3);
    client.daemon->plans[0]->planning = 0;
    struct attnd_account *before = attnd_work_enter(works, &client.daemon->account);
    works->piece_ns = 1; /* it began long ago */
    CHECK_EQUAL(attnd_lane_retry_go(&session->retry_work), 0);
    (void)attnd_work_leave(works, before);
    CHECK_EQUAL(session->blocked.count, 0);
    CHECK_EQUAL(session->ready.count, 3);
    stage_sweep(&stage);
    CHECK_EQUAL(session->ready.count, 0);
    for (uint16_t lane = 0; lane < 3; lane++)
        end(sched_rig_must_command(), lane);
}

static void a_run_that_waits_for_the_worker_keeps_the_lengths_it_was_submitted_with(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    const uint32_t before = object(plan)->generation;
    const uint32_t version = object(plan)->advance_version;
    struct attnd_command command;
    (void)state;
    attnd_sched_pause(stage.service.scheduler);
    sched_rig_submit(stage_run(plan, 1, 1));
    stage_sweep(&stage);
    for (uint16_t step = 0; step < 3 * ATTND_GENERATIONS; step++)
        advance_to(plan, 4 + step % 4);
    CHECK(object(plan)->generation != before);
    let_runs_go();
    CHECK_EQUAL(stage.worker.port.next(stage.worker.port.context, &command), 1);
    CHECK_EQUAL(command.body.generation, before);
    CHECK_EQUAL(command.advance_version, version);
    end(&stage.service.queue->runs[command.run], 1);
}

static void a_run_behind_another_keeps_the_lengths_it_was_submitted_with(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    const uint32_t before = object(plan)->generation;
    (void)state;
    sched_rig_submit(stage_run(plan, 1, 1));
    sched_rig_submit(stage_run(plan, 1, 2));
    stage_sweep(&stage);
    const struct attnd_run *first = sched_rig_must_command();
    advance_to(plan, 7);
    end(first, 1);
    const struct attnd_run *second = sched_rig_must_command();
    CHECK_EQUAL(second->generation, before);
    end(second, 2);
}

static void a_run_behind_an_advance_in_its_lane_reads_what_that_leaves(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    (void)state;
    sched_rig_submit(stage_run(plan, 1, 1));
    stage_sweep(&stage);
    submit_advance(plan, 1, 7);
    sched_rig_submit(stage_run(plan, 1, 2));
    sched_rig_submit(stage_run(plan, 1, 3));
    stage_sweep(&stage);
    const struct attnd_run *run = sched_rig_must_command();
    const uint32_t before = run->generation;
    stage_expect_none(&client);
    end(run, 1);
    stage_expect(&client, 99, 0);
    const uint32_t after = object(plan)->generation;
    CHECK(after != before);
    run = sched_rig_must_command();
    CHECK_EQUAL(run->generation, after);
    advance_to(plan, 5); /* the third has its lengths since the advance in its lane was over */
    end(run, 2);
    run = sched_rig_must_command();
    CHECK_EQUAL(run->generation, after);
    end(run, 3);
}

static void an_append_that_waits_stores_where_its_own_lengths_put_it(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    const uint32_t before = object(plan)->generation;
    (void)state;
    attnd_sched_pause(stage.service.scheduler);
    sched_rig_submit(stage_append(plan, 1, 1));
    stage_sweep(&stage);
    advance_to(plan, 3); /* its four rows would not fit */
    let_runs_go();
    const struct attnd_run *run = sched_rig_must_command();
    CHECK_EQUAL(run->generation, before);
    end(run, 1);
}

static void a_run_that_never_goes_gives_its_lengths_back(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    (void)state;
    attnd_sched_pause(stage.service.scheduler);
    for (uint16_t g = 0; g < ATTND_GENERATIONS; g++) {
        sched_rig_submit(stage_run(plan, g, g));
        submit_advance(plan, LANE_OF_ADVANCES, 4 + g % 4);
        if (g + 1 < (int)ATTND_GENERATIONS)
            stage_expect(&client, 99, 0);
    }
    stage_expect_none(&client); /* the last advance has no generation */
    sched_rig_submit(stage_cancel(3));
    stage_sweep(&stage);
    stage_expect(&client, 3, -ATTND_E_CANCELLED);
    stage_expect(&client, 99, 0);
    for (uint32_t g = 0; g < ATTND_GENERATIONS; g++)
        CHECK_EQUAL(object(plan)->generation_pins[g], g != object(plan)->generation);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, sched_rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(runs_keep_the_generation_they_started_with),
        CASE(an_advance_waits_for_a_generation_and_holds_nobody_up),
        CASE(blocked_lanes_go_on_by_turns_when_the_piece_is_over),
        CASE(a_run_that_waits_for_the_worker_keeps_the_lengths_it_was_submitted_with),
        CASE(a_run_behind_another_keeps_the_lengths_it_was_submitted_with),
        CASE(a_run_behind_an_advance_in_its_lane_reads_what_that_leaves),
        CASE(an_append_that_waits_stores_where_its_own_lengths_put_it),
        CASE(a_run_that_never_goes_gives_its_lengths_back),
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
