/* test_sched.c - lanes, operations and runs, with a worker and clients played by the test. */
#include "schemas/atomics.h"
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

/* ---- the way of a run ---- */

static void a_run_goes_to_the_worker_and_comes_back(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    (void)state;
    sched_rig_submit(stage_run(plan, 3, 42));
    CHECK_EQUAL(stage_sweep(&stage), 1);
    const struct attnd_run *run = sched_rig_must_command();
    CHECK_EQUAL(run->kind, ATTND_RUN_ATTEND);
    CHECK_EQUAL(run->plan_offset_bytes, client.daemon->plans[0]->heap_offset_bytes);
    CHECK_EQUAL(run->o.offset_bytes, 16384);
    CHECK_EQUAL(run->k.memory, ATTND_NONE);
    CHECK(run->items > 0);
    stage_expect_none(&client);
    stage_retire(&stage, run, 0);
    CHECK_EQUAL(stage_sweep(&stage), 1);
    struct attnd_cqe cqe = stage_expect(&client, 42, 0);
    CHECK_EQUAL(cqe.lane, 3);
    CHECK_EQUAL(cqe.opcode, ATTND_OP_RUN);
    CHECK_EQUAL(client.daemon->stats.runs, 1);
    CHECK_EQUAL(client.daemon->stats.kv_bytes, 100);
}

static void an_empty_batch_never_reaches_the_worker(void **state)
{
    uint32_t plan = stage_plan(&client);
    (void)state;
    sched_rig_submit(stage_batch(&client, plan, 0, 0, 6, 0, 0));
    sched_rig_submit(stage_run(plan, 0, 1));
    sched_rig_submit(stage_append(plan, 0, 2));
    CHECK_EQUAL(stage_sweep(&stage), 3);
    CHECK(stage_command(&stage) == NULL);
    stage_expect(&client, 0, 0);
    stage_expect(&client, 1, 0);
    stage_expect(&client, 2, 0);
}

static void operations_of_a_lane_take_effect_in_order(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    (void)state;
    sched_rig_submit(stage_append(plan, 0, 1));
    sched_rig_submit(stage_run(plan, 0, 2));
    sched_rig_submit(stage_run(plan, 0, 3));
    stage_sweep(&stage);
    for (uint64_t user_data = 1; user_data <= 3; user_data++) {
        const struct attnd_run *run = sched_rig_must_command();
        CHECK_EQUAL(run->kind, user_data == 1 ? ATTND_RUN_APPEND : ATTND_RUN_ATTEND);
        CHECK(stage_command(&stage) == NULL);
        stage_retire(&stage, run, 0);
        stage_sweep(&stage);
        stage_expect(&client, user_data, 0);
    }
}

static void lanes_do_not_wait_for_each_other(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    (void)state;
    sched_rig_submit(stage_run(plan, 0, 1));
    sched_rig_submit(stage_run(plan, 1, 2));
    stage_sweep(&stage);
    const struct attnd_run *first = sched_rig_must_command(), *second = sched_rig_must_command();
    stage_retire(&stage, second, 0);
    stage_sweep(&stage);
    stage_expect(&client, 2, 0);
    stage_retire(&stage, first, 0);
    stage_sweep(&stage);
    stage_expect(&client, 1, 0);
}

static void success_can_be_silent_and_failure_cannot(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    struct attnd_sqe quiet = stage_run(plan, 0, 1), loud = stage_run(plan, 0, 2);
    (void)state;
    quiet.flags = loud.flags = ATTND_OP_SKIP_SUCCESS;
    loud.u.run.q_memory = 77;
    sched_rig_submit(quiet);
    sched_rig_submit(loud);
    stage_sweep(&stage);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    struct attnd_cqe cqe = stage_expect(&client, 2, -ATTND_E_UNKNOWN);
    CHECK_EQUAL(cqe.field, ATTND_F_Q);
    CHECK_EQUAL(cqe.value, 77);
}

/* ---- ends that come early ---- */

static void cancel_ends_what_is_queued_and_asks_what_runs(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    (void)state;
    sched_rig_submit(stage_run(plan, 0, 7));
    sched_rig_submit(stage_run(plan, 0, 7));
    sched_rig_submit(stage_run(plan, 0, 8));
    sched_rig_submit(stage_cancel(7));
    stage_sweep(&stage);
    stage_expect(&client, 7, -ATTND_E_CANCELLED);
    stage_expect_none(&client);
    const struct attnd_run *run = sched_rig_must_command();
    CHECK_EQUAL(run->cancel, 1);
    stage_retire(&stage, run, -ATTND_E_CANCELLED);
    stage_sweep(&stage);
    stage_expect(&client, 7, -ATTND_E_CANCELLED);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    stage_expect(&client, 8, 0);
}

static void what_comes_behind_a_cancelled_operation_goes_on(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    (void)state;
    sched_rig_submit(stage_run(plan, 0, 1));
    sched_rig_submit(stage_run(plan, 0, 7)); /* the last of its lane */
    sched_rig_submit(stage_cancel(7));
    stage_sweep(&stage);
    stage_expect(&client, 7, -ATTND_E_CANCELLED);
    sched_rig_submit(stage_run(plan, 0, 2));
    stage_sweep(&stage);
    for (uint64_t i = 1; i <= 2; i++) {
        stage_retire(&stage, sched_rig_must_command(), 0);
        stage_sweep(&stage);
        stage_expect(&client, i, 0);
    }
}

static void let_the_timer_fire(void *context)
{
    (void)context;
    attnd_loop_stop(stage.service.loop);
}

static void a_deadline_ends_queued_and_running_operations(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    struct attnd_sqe first = stage_run(plan, 0, 1), second = stage_run(plan, 0, 2);
    struct attnd_fault fault = {0};
    (void)state;
    first.u.run.timeout_us = second.u.run.timeout_us = 1000;
    sched_rig_submit(first);
    sched_rig_submit(second);
    sched_rig_submit(stage_run(plan, 0, 3));
    stage_sweep(&stage);
    stage_expect_none(&client);
    attnd_loop_watch_timer(stage.service.loop, attnd_clock_ns() + 20000000, let_the_timer_fire,
                           NULL);
    CHECK_EQUAL(attnd_loop_run(stage.service.loop, &fault), 0);
    struct attnd_cqe cqe = stage_expect(&client, 2, -ATTND_E_TIMEOUT);
    CHECK_EQUAL(cqe.field, ATTND_F_TIMEOUT);
    CHECK_EQUAL(cqe.value, 1000);
    const struct attnd_run *run = sched_rig_must_command();
    CHECK_EQUAL(run->cancel, 1);
    stage_retire(&stage, run, -ATTND_E_CANCELLED);
    stage_sweep(&stage);
    stage_expect(&client, 1, -ATTND_E_TIMEOUT);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    stage_expect(&client, 3, 0);
}

static void a_lost_worker_answers_its_lanes_and_spares_the_others(void **state)
{
    uint32_t plan = sched_rig_filled_plan(), other = sched_rig_filled_plan();
    struct attnd_fault fault = {0};
    uint32_t freed[ATTND_MEMORIES_MAX];
    (void)state;
    sched_rig_submit(stage_run(plan, 0, 1));
    sched_rig_submit(stage_run(plan, 0, 2));
    sched_rig_submit(stage_run(other, 1, 3));
    stage_sweep(&stage);
    stage_retire(&stage, sched_rig_must_command(),
                 0); /* 1 is done before the worker dies, 2 is next */
    stage_lose_worker(&stage);
    CHECK_EQUAL(attnd_maps_lost(&stage.service.supervisor->maps, freed), 0);
    stage_expect(&client, 1, 0);
    stage_expect(&client, 3, -ATTND_E_WORKER_RESTARTED);
    sched_rig_submit(stage_run(other, 1, 4));
    stage_sweep(&stage);
    stage_expect_none(&client);
    CHECK_EQUAL(stage.service.scheduler->waiting_count, 2);

    attnd_worker_port_init(&stage.worker, stage.service.queue->head, -1);
    CHECK_EQUAL(attnd_sched_resume(stage.service.scheduler, STAGE_SCRATCH_BYTES), 0);
    CHECK(stage_command(&stage) == NULL); /* nothing is mapped yet */
    stage_memory_mapped(&stage);
    attnd_lane_retry(stage.service.scheduler);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    stage_expect(&client, 2, 0);
    stage_expect(&client, 4, 0);
    (void)fault;
}

static void a_dead_client_is_freed_when_its_runs_are_retired(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    (void)state;
    sched_rig_submit(stage_run(plan, 0, 1));
    sched_rig_submit(stage_run(plan, 0, 2));
    sched_rig_submit(stage_run(plan, 1, 3));
    stage_sweep(&stage);
    const struct attnd_run *first = sched_rig_must_command(), *second = sched_rig_must_command();
    attnd_client_end(client.daemon);
    CHECK_EQUAL(first->cancel, 1);
    CHECK_EQUAL(second->cancel, 1);
    CHECK(stage.service.clients[0] == client.daemon);
    stage_retire(&stage, first, -ATTND_E_CANCELLED);
    stage_sweep(&stage);
    CHECK(stage.service.clients[0] == client.daemon);
    stage_retire(&stage, second, 0);
    stage_sweep(&stage);
    CHECK(stage.service.clients[0] == NULL);
    CHECK(stage_command(&stage) == NULL);
}

/* ---- limits ---- */

static void a_full_completion_ring_holds_submissions_back(void **state)
{
    struct stage_client small;
    (void)state;
    stage_connect(&stage, &small, 8, 1);
    const struct attnd_sqe bad = stage_run(99, 0, 5);
    for (int i = 0; i < 8; i++)
        CHECK_EQUAL(stage_submit(&small, &bad), 0);
    CHECK_EQUAL(stage_sweep(&stage), 8);
    for (int i = 0; i < 8; i++)
        CHECK_EQUAL(stage_submit(&small, &bad), 0);
    CHECK_EQUAL(stage_sweep(&stage), 0);
    CHECK_EQUAL(stage_submit(&small, &bad), -ATTND_E_FULL);
    stage_expect(&small, 5, -ATTND_E_UNKNOWN);
    CHECK_EQUAL(stage_sweep(&stage), 1);
    for (int i = 0; i < 8; i++)
        stage_expect(&small, 5, -ATTND_E_UNKNOWN);
    CHECK_EQUAL(stage_sweep(&stage), 7);
}

static void runs_in_flight_reserve_their_completions(void **state)
{
    struct stage_client small;
    (void)state;
    stage_connect(&stage, &small, 8, 1);
    uint32_t plan = stage_plan(&small);
    struct attnd_fault fault = {0};
    const int32_t pages[] = {0, 1};
    CHECK_EQUAL(attnd_lease_give(client.daemon->attachments[0], pages, 2, &fault), 0);
    attnd_lease_take(small.daemon->attachments[0], pages, 2);
    struct attnd_sqe sqe = stage_batch(&small, plan, 0, 4, 6, 0, 0);
    CHECK_EQUAL(stage_submit(&small, &sqe), 0);
    stage_sweep(&stage);
    stage_expect(&small, 0, 0);
    for (uint16_t i = 0; i < 8; i++) {
        sqe = stage_run(plan, i, i);
        CHECK_EQUAL(stage_submit(&small, &sqe), 0);
    }
    CHECK_EQUAL(stage_sweep(&stage), 8);
    CHECK_EQUAL(stage_submit(&small, &sqe), 0);
    CHECK_EQUAL(stage_sweep(&stage), 0);
    CHECK_EQUAL(stage.service.scheduler->dispatched, 8);
    stage_retire(&stage, sched_rig_must_command(), 0);
    CHECK_EQUAL(stage_sweep(&stage), 1); /* the retire; its completion is not read yet */
    stage_expect(&small, 0, 0);
    CHECK_EQUAL(stage_sweep(&stage), 1);
}

static void an_impossible_index_ends_its_session_alone(void **state)
{
    struct stage_client liar;
    uint32_t plan = sched_rig_filled_plan();
    (void)state;
    stage_connect(&stage, &liar, 8, 1);
    struct attnd_submit_head *head = liar.daemon->submission.address;
    attnd_publish32(&head->sq_tail, 1000);
    sched_rig_submit(stage_run(plan, 0, 1));
    stage_sweep(&stage);
    CHECK(stage.service.clients[1] == NULL);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    stage_expect(&client, 1, 0);
}

static void a_sleeping_client_is_notified_once_a_sweep(void **state)
{
    struct attnd_submit_head *head = client.daemon->submission.address;
    uint64_t rings = 0;
    (void)state;
    sched_rig_submit(stage_run(99, 0, 1));
    stage_sweep(&stage);
    CHECK(read(client.daemon->notify_fd, &rings, sizeof(rings)) < 0);
    attnd_poke32(&head->cq_need, 1);
    sched_rig_submit(stage_run(99, 0, 2));
    sched_rig_submit(stage_run(99, 0, 3));
    stage_sweep(&stage);
    CHECK_EQUAL(read(client.daemon->notify_fd, &rings, sizeof(rings)), sizeof(rings));
    CHECK_EQUAL(rings, 1);
}

static void sleep_is_announced_to_everybody(void **state)
{
    const struct attnd_complete_head *head = client.daemon->completion.address;
    (void)state;
    attnd_sched_asleep(&stage.service, 1);
    CHECK_EQUAL(head->sq_need, 1);
    CHECK_EQUAL(stage.service.queue->head->retire_need, 1);
    attnd_sched_asleep(&stage.service, 0);
    CHECK_EQUAL(head->sq_need, 0);
    CHECK_EQUAL(stage.service.queue->head->retire_need, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, sched_rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_run_goes_to_the_worker_and_comes_back),
        CASE(an_empty_batch_never_reaches_the_worker),
        CASE(operations_of_a_lane_take_effect_in_order),
        CASE(lanes_do_not_wait_for_each_other),
        CASE(success_can_be_silent_and_failure_cannot),
        CASE(cancel_ends_what_is_queued_and_asks_what_runs),
        CASE(what_comes_behind_a_cancelled_operation_goes_on),
        CASE(a_deadline_ends_queued_and_running_operations),
        CASE(a_lost_worker_answers_its_lanes_and_spares_the_others),
        CASE(a_dead_client_is_freed_when_its_runs_are_retired),
        CASE(a_full_completion_ring_holds_submissions_back),
        CASE(runs_in_flight_reserve_their_completions),
        CASE(an_impossible_index_ends_its_session_alone),
        CASE(a_sleeping_client_is_notified_once_a_sweep),
        CASE(sleep_is_announced_to_everybody),
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
