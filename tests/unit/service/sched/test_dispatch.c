/* test_dispatch.c - the step of a run: what it is told, what it must wait for, what it takes and
 * gives back. */
#include "service/sched/complete.h"
#include "service/sched/dispatch.h"
#include "tests/support/rigs/sched_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct attnd_scheduler *scheduler;
static struct attnd_plan_object *plan;
static struct attnd_sched_op *op; /* one whose step has not come; NULL: the worker has it */

/* The way in, up to the operation's step. */
static struct attnd_sched_op *op_of(struct attnd_sqe sqe)
{
    struct attnd_client_lanes *session = client.daemon->lanes;
    struct attnd_sched_op *made = attnd_op_new(session, &sqe);
    made->lane = &session->lane[sqe.lane];
    made->plan = plan;
    plan->in_flight++;
    attnd_places_take(client.daemon, &sqe, made->memories);
    return made;
}

static int setup(void **state)
{
    (void)state;
    (void)sched_rig_begin(16);
    scheduler = stage.service.scheduler;
    plan = client.daemon->plans[sched_rig_filled_plan() - 1];
    op = op_of(stage_run(1, 2, 42));
    return 0;
}

static int drop_and_teardown(void **state)
{
    if (op)
        attnd_op_free(op);
    CHECK_EQUAL(scheduler->dispatched, 0);
    CHECK_EQUAL(scheduler->scratch.used_bytes, 0);
    return sched_rig_teardown(state);
}

/* It is told so at its step, and has taken nothing. */
static void refused(int error, uint32_t field)
{
    CHECK_EQUAL(attnd_dispatch_run(op, 1), ATTND_STEP_DONE);
    CHECK_EQUAL(op->fault.code, -error);
    CHECK_EQUAL(op->fault.field, field);
    CHECK_EQUAL(scheduler->dispatched, 0);
    CHECK(stage_command(&stage) == NULL);
}

static void waits(enum attnd_step step)
{
    CHECK_EQUAL(attnd_dispatch_run(op, 1), step);
    CHECK_EQUAL(op->fault.code, 0);
    CHECK_EQUAL(scheduler->dispatched, 0);
    CHECK(stage_command(&stage) == NULL);
}

/* The worker gets it. */
static void goes(void)
{
    CHECK_EQUAL(attnd_dispatch_run(op, 1), ATTND_STEP_DISPATCHED);
    CHECK_EQUAL(scheduler->dispatched, 1);
}

/* And is done with it, as far as the scheduler holds anything for it. */
static void comes_back(void)
{
    attnd_dispatch_release(scheduler, op->run);
    CHECK(stage_command(&stage) != NULL);
    CHECK_EQUAL(scheduler->dispatched, 0);
}

/* ---- what it is told ---- */

static void a_run_of_an_empty_plan_is_refused(void **state)
{
    (void)state;
    plan->filled = 0;
    refused(ATTND_E_INVALID, ATTND_F_PLAN);
}

static void a_run_without_items_is_done_on_the_spot(void **state)
{
    (void)state;
    plan->tile_items = 0;
    refused(0, ATTND_F_NONE);
}

static void a_place_that_is_too_small_for_the_batch_is_found_at_the_turn(void **state)
{
    (void)state;
    plan->extents.q_bytes = STAGE_TENSOR_BYTES + 1;
    refused(ATTND_E_RANGE, ATTND_F_Q);
}

static void a_reader_of_the_pool_does_not_append(void **state)
{
    (void)state;
    attnd_op_free(op);
    op = op_of(stage_append(1, 2, 42));
    client.daemon->attachments[0]->writable = 0;
    refused(ATTND_E_PERMISSION, ATTND_F_POOL);
}

/* ---- what it waits for ---- */

static void a_plan_that_another_operation_changes_keeps_its_runs_waiting(void **state)
{
    struct attnd_plan_change other = {.plan = plan};
    struct attnd_plan_prepared taken = {.taken = &other};
    (void)state;
    plan->prepared_runs = &taken;
    waits(ATTND_STEP_BLOCKED);
    plan->prepared_runs = NULL;
    goes();
    comes_back();
}

static void without_a_worker_or_a_slot_it_stands_in_line(void **state)
{
    (void)state;
    scheduler->queue->accepting = 0;
    waits(ATTND_STEP_WAIT);
    scheduler->queue->accepting = 1;
    scheduler->slots_free = 0;
    waits(ATTND_STEP_WAIT);
    scheduler->slots_free = ATTND_QUEUE_RUNS;
    goes();
    comes_back();
}

static void nobody_overtakes_those_in_line_but_the_first_of_them_goes(void **state)
{
    struct attnd_client_lanes *session = op->lane->session;
    struct attnd_lane somebody = {.session = session};
    (void)state;
    session->waiting.head = &somebody;
    scheduler->waiting_count = 1;
    waits(ATTND_STEP_WAIT);
    CHECK_EQUAL(attnd_dispatch_run(op, 0), ATTND_STEP_DISPATCHED);
    session->waiting.head = NULL;
    scheduler->waiting_count = 0;
    comes_back();
}

static void memory_that_the_worker_has_not_mapped_is_waited_for_apart(void **state)
{
    struct attnd_maps *maps = &stage.service.supervisor->maps;
    static uint32_t freed[ATTND_MEMORIES_MAX];
    (void)state;
    (void)attnd_maps_lost(maps, freed); /* another worker: all is to be mapped again */
    waits(ATTND_STEP_BLOCKED);
    stage_memory_mapped(&stage);
    goes();
    comes_back();
}

static void a_table_of_the_variant_that_is_not_mapped_is_waited_for_too(void **state)
{
    struct attnd_maps *maps = &stage.service.supervisor->maps;
    struct attnd_memory table = {.index = ATTND_MEMORIES_MAX - 1};
    (void)state;
    attnd_maps_add(maps, table.index);
    plan->tables[0] = &table;
    waits(ATTND_STEP_BLOCKED);
    stage_memory_mapped(&stage);
    goes();
    comes_back();
    plan->tables[0] = NULL;
}

static void memory_that_cannot_be_mapped_fails_what_names_it_with_the_workers_words(void **state)
{
    struct attnd_maps *maps = &stage.service.supervisor->maps;
    static uint32_t freed[ATTND_MEMORIES_MAX];
    struct attnd_memory *memory = client.daemon->memories[STAGE_TENSORS - 1];
    uint32_t index;
    (void)state;
    (void)attnd_maps_lost(maps, freed);
    while (attnd_maps_due(maps, &index)) {
        attnd_maps_sent(maps);
        CHECK_EQUAL(attnd_maps_mapped(maps, index, index == memory->index ? -ATTND_E_DEVICE : 0),
                    1);
    }
    memory->fault = (struct attnd_fault){
        .code = -ATTND_E_DEVICE, .field = ATTND_F_MEMORY, .value = 201, .limit = 0};
    refused(ATTND_E_DEVICE, ATTND_F_MEMORY);
    CHECK_EQUAL(op->fault.value, 201);
}

/* ---- what it takes ---- */

static void the_command_says_all_that_the_worker_needs(void **state)
{
    struct attnd_command command;
    const struct attnd_heap_plane *planes = attnd_pool_planes(stage.pool);
    (void)state;
    op->sqe.u.run.layer = 1;
    uint32_t slot = scheduler->free_slot;
    goes();
    CHECK_EQUAL(op->run, slot);
    CHECK(stage.worker.port.next(stage.worker.port.context, &command));
    CHECK_EQUAL(command.kind, ATTND_COMMAND_RUN);
    CHECK_EQUAL(command.run, slot);
    CHECK_EQUAL(command.set_version, plan->set_version);
    CHECK_EQUAL(command.pages, STAGE_PAGES);
    CHECK_EQUAL(command.page_size, STAGE_PAGE_SIZE);
    CHECK_EQUAL(command.body.layer, 1);
    CHECK_EQUAL(command.body.items, plan->tile_items);
    CHECK_EQUAL(command.body.plan_offset_bytes, plan->heap_offset_bytes);
    CHECK_EQUAL(command.body.session, client.daemon->id);
    CHECK_EQUAL(command.body.mailbox, ATTND_NONE);
    CHECK_EQUAL(memcmp(&command.k, &planes[1], sizeof(command.k)), 0);
    CHECK_EQUAL(memcmp(&command.v, &planes[STAGE_LAYERS + 1], sizeof(command.v)), 0);
    CHECK_EQUAL(memcmp(&command.body, &stage.service.queue->runs[slot], sizeof(command.body)), 0);
    attnd_dispatch_release(scheduler, slot);
}

static void a_generation_is_in_use_until_its_run_is_back(void **state)
{
    (void)state;
    plan->generation = 3;
    goes();
    CHECK_EQUAL(plan->generation_pins[3], 1);
    plan->generation = 4; /* advanced meanwhile */
    comes_back();
    attnd_op_free(op);
    op = NULL;
    CHECK_EQUAL(plan->generation_pins[3], 0);
    CHECK_EQUAL(plan->generation_pins[4], 0);
}

static void scratch_is_the_runs_own_until_it_is_back(void **state)
{
    (void)state;
    uint64_t others;
    plan->scratch_bytes = STAGE_SCRATCH_BYTES / 2 + ATTND_CACHE_LINE;
    goes();
    CHECK_EQUAL(scheduler->scratch.used_bytes, plan->scratch_bytes);
    CHECK(attnd_heap_take(&scheduler->scratch, plan->scratch_bytes, &others) < 0);
    comes_back();
    CHECK_EQUAL(attnd_heap_take(&scheduler->scratch, plan->scratch_bytes, &others), 0);
    waits(ATTND_STEP_WAIT); /* others have it now */
    attnd_heap_give(&scheduler->scratch, others, plan->scratch_bytes);
    goes();
    comes_back();
}

/* Else large runs would starve beside a stream of small ones. */
static void who_waits_for_scratch_is_not_overtaken_by_who_needs_less(void **state)
{
    struct attnd_plan_object *const *plans = client.daemon->plans;
    uint32_t half = sched_rig_filled_plan(), eighth = sched_rig_filled_plan(),
             all = sched_rig_filled_plan();
    const struct attnd_run *runs[3];
    (void)state;
    plans[half - 1]->scratch_bytes = STAGE_SCRATCH_BYTES / 2;
    plans[eighth - 1]->scratch_bytes = STAGE_SCRATCH_BYTES / 8;
    plans[all - 1]->scratch_bytes = STAGE_SCRATCH_BYTES;
    sched_rig_submit(stage_run(half, 0, 0));
    sched_rig_submit(stage_run(eighth, 1, 1));
    sched_rig_submit(stage_run(eighth, 2, 2));
    sched_rig_submit(stage_run(all, 3, 3));
    sched_rig_submit(stage_run(eighth, 4, 4)); /* there is room for it all the time */
    stage_sweep(&stage);
    for (int i = 0; i < 3; i++)
        runs[i] = sched_rig_must_command();
    for (int i = 2; i >= 0; i--) {
        CHECK(stage_command(&stage) == NULL);
        stage_retire(&stage, runs[i], 0);
        stage_sweep(&stage);
        stage_expect(&client, (uint64_t)i, 0);
    }
    for (uint64_t i = 3; i <= 4; i++) {
        const struct attnd_run *run = sched_rig_must_command();
        CHECK(stage_command(&stage) == NULL);
        stage_retire(&stage, run, 0);
        stage_sweep(&stage);
        stage_expect(&client, i, 0);
    }
}

static void more_scratch_than_the_worker_has_is_refused_and_not_waited_for(void **state)
{
    (void)state;
    plan->scratch_bytes = STAGE_SCRATCH_BYTES + ATTND_CACHE_LINE;
    refused(ATTND_E_NO_SPACE, ATTND_F_PARTIALS);
    CHECK_EQUAL(op->fault.value, plan->scratch_bytes);
    CHECK_EQUAL(op->fault.limit, STAGE_SCRATCH_BYTES);
}

static void an_append_needs_no_scratch(void **state)
{
    (void)state;
    attnd_op_free(op);
    op = op_of(stage_append(1, 2, 42));
    plan->scratch_bytes = STAGE_SCRATCH_BYTES + ATTND_CACHE_LINE;
    goes();
    CHECK_EQUAL(scheduler->scratch.used_bytes, 0);
    comes_back();
}

static void a_slot_that_came_back_is_the_next_to_be_given_out(void **state)
{
    (void)state;
    goes();
    uint32_t slot = op->run;
    comes_back();
    goes();
    CHECK_EQUAL(op->run, slot);
    comes_back();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, drop_and_teardown)
        TEST(a_run_of_an_empty_plan_is_refused),
        TEST(a_run_without_items_is_done_on_the_spot),
        TEST(a_place_that_is_too_small_for_the_batch_is_found_at_the_turn),
        TEST(a_reader_of_the_pool_does_not_append),
        TEST(a_plan_that_another_operation_changes_keeps_its_runs_waiting),
        TEST(without_a_worker_or_a_slot_it_stands_in_line),
        TEST(nobody_overtakes_those_in_line_but_the_first_of_them_goes),
        TEST(memory_that_the_worker_has_not_mapped_is_waited_for_apart),
        TEST(a_table_of_the_variant_that_is_not_mapped_is_waited_for_too),
        TEST(memory_that_cannot_be_mapped_fails_what_names_it_with_the_workers_words),
        TEST(the_command_says_all_that_the_worker_needs),
        TEST(a_generation_is_in_use_until_its_run_is_back),
        TEST(scratch_is_the_runs_own_until_it_is_back),
        TEST(who_waits_for_scratch_is_not_overtaken_by_who_needs_less),
        TEST(more_scratch_than_the_worker_has_is_refused_and_not_waited_for),
        TEST(an_append_needs_no_scratch),
        TEST(a_slot_that_came_back_is_the_next_to_be_given_out),
#undef TEST
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
