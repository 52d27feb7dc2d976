/* test_prepared.c - what the worker is told of prepared runs, in which order, and what waits for
 * its answers. */
#include "service/prepared/internal.h"
#include "service/rpc/calls.h"
#include "service/sched/lane.h"
#include "tests/support/harness/check.h"
#include "tests/support/rigs/prepared_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define LANE 3u

static struct attnd_fault fault;

/* Return: its number. */
static uint32_t prepare(uint32_t plan, uint32_t layer)
{
    const struct attnd_sqe_run wish = prepared_rig_wish(layer);
    uint32_t prepared;
    int code;
    CHECK_EQUAL(attnd_prepared_add(client.daemon, 2, plan, LANE, &wish, &fault), 1);
    struct attnd_command command = prepared_rig_expect(ATTND_COMMAND_PREPARED);
    prepared_rig_retire(&command, 0);
    CHECK_EQUAL(prepared_rig_answer(prepared_rig_peer, &code, &prepared), 1);
    CHECK_EQUAL(code, 0);
    CHECK_EQUAL(prepared, attnd_doorbell_number(command.run, command.body.serial));
    return prepared;
}

static void submit(struct attnd_sqe sqe)
{
    CHECK_EQUAL(stage_submit(&client, &sqe), 0);
    stage_sweep(&stage);
}

/* ---- calls ---- */

static void a_mailbox_is_known_when_it_is_watched(void **state)
{
    (void)state;
    CHECK_EQUAL(attnd_prepared_open(client.daemon, 1, 0, 0, &fault), 1);
    prepared_rig_expect_none(); /* the worker has not mapped its memory */
    stage_memory_mapped(&stage);
    attnd_lane_retry(stage.service.scheduler);
    struct attnd_command command = prepared_rig_expect(ATTND_COMMAND_MAILBOX);
    const struct attnd_mailbox_slot *slot = &stage.service.queue->mailboxes[command.run];
    CHECK_EQUAL(slot->session, client.daemon->id);
    CHECK_EQUAL(slot->fresh, 1);
    prepared_rig_expect_no_answer();
    CHECK_EQUAL(attnd_prepared_open(client.daemon, 2, 0, 0, &fault), -ATTND_E_BUSY);
    prepared_rig_retire(&command, 0);
    prepared_rig_expect_answer(0);
    CHECK_EQUAL(slot->fresh, 0);
}

static void a_mailbox_that_cannot_be_watched_leaves_room_for_another(void **state)
{
    (void)state;
    CHECK_EQUAL(attnd_prepared_open(client.daemon, 1, 0, 0, &fault), 1);
    stage_memory_mapped(&stage);
    attnd_lane_retry(stage.service.scheduler);
    struct attnd_command command = prepared_rig_expect(ATTND_COMMAND_MAILBOX);
    const struct attnd_mailbox_slot *slot = &stage.service.queue->mailboxes[command.run];
    uint64_t before_bytes = client.daemon->used[ATTND_QUOTA_HOST];
    prepared_rig_retire(&command, -ATTND_E_UNKNOWN);
    prepared_rig_expect_answer(-ATTND_E_UNKNOWN);
    CHECK(client.daemon->mail == NULL);
    CHECK_EQUAL(slot->memory, ATTND_NONE);
    CHECK(client.daemon->used[ATTND_QUOTA_HOST] < before_bytes);
    prepared_rig_open_mailbox();
    CHECK(client.daemon->mail != NULL);
}

static void a_worker_without_mailboxes_is_said_to_be_one(void **state)
{
    (void)state;
    stage.service.queue->info.mailbox_kind = 0;
    CHECK_EQUAL(attnd_prepared_open(client.daemon, 1, 0, 0, &fault), -ATTND_E_UNSUPPORTED);
    CHECK_EQUAL(fault.field, ATTND_F_MAILBOX);
}

static void a_prepared_run_carries_all_that_a_ring_needs(void **state)
{
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    const struct attnd_plan_object *object = client.daemon->plans[0];
    const struct attnd_sqe_run wish = prepared_rig_wish(1);
    CHECK_EQUAL(attnd_prepared_add(client.daemon, 2, plan, LANE, &wish, &fault), 1);
    struct attnd_command command = prepared_rig_expect(ATTND_COMMAND_PREPARED);
    CHECK(command.run >= ATTND_QUEUE_RUNS);
    CHECK_EQUAL(command.set_version, object->set_version);
    CHECK_EQUAL(command.page_size, STAGE_PAGE_SIZE);
    const struct attnd_run *body = &command.body;
    CHECK_EQUAL(body->kind, ATTND_RUN_ATTEND);
    CHECK_EQUAL(body->plan_offset_bytes, object->heap_offset_bytes);
    CHECK_EQUAL(body->layer, 1);
    CHECK_EQUAL(body->lane, LANE);
    CHECK_EQUAL(body->session, client.daemon->id);
    CHECK_EQUAL(body->code, 0);
    CHECK_EQUAL(body->items, object->tile_items);
    CHECK_EQUAL(memcmp(body, &stage.service.queue->runs[command.run], sizeof(*body)), 0);
    prepared_rig_expect_no_answer();
    prepared_rig_retire(&command, 0);
    prepared_rig_expect_answer(0);
}

/* The CUDA worker counts a run's items in its doorbell: one that would not fit is said to be so
 * when it is prepared, and to its rings when a later set makes it so. */
static void a_run_of_more_items_than_a_doorbell_counts_is_refused_by_name(void **state)
{
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    struct attnd_plan_object *object = client.daemon->plans[plan - 1];
    const struct attnd_sqe_run wish = prepared_rig_wish(0);
    const uint32_t items = object->tile_items;
    object->tile_items = ATTND_DOORBELL_ITEMS_MAX + 1;
    CHECK_EQUAL(attnd_prepared_add(client.daemon, 2, plan, LANE, &wish, &fault),
                -ATTND_E_UNSUPPORTED);
    CHECK_EQUAL(fault.field, ATTND_F_ITEMS);
    CHECK_EQUAL(fault.value, ATTND_DOORBELL_ITEMS_MAX + 1);
    CHECK_EQUAL(fault.limit, ATTND_DOORBELL_ITEMS_MAX);
    CHECK_EQUAL(object->prepared, 0);
    object->tile_items = ATTND_DOORBELL_ITEMS_MAX;
    uint32_t run = prepare(plan, 0) % ATTND_DOORBELL_SLOTS;
    struct attnd_prepared_runs *stream = stage.service.prepared_runs;
    object->tile_items = ATTND_DOORBELL_ITEMS_MAX + 1;
    CHECK_EQUAL(attnd_prepared_fill(stream, &stream->prepared[run - ATTND_QUEUE_RUNS]), 1);
    CHECK_EQUAL(stage.service.queue->runs[run].code, ATTND_E_UNSUPPORTED);
    object->tile_items = items;
}

static void what_the_worker_refuses_is_answered_so_and_holds_nothing(void **state)
{
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    const struct attnd_sqe_run wish = prepared_rig_wish(0);
    CHECK_EQUAL(attnd_prepared_add(client.daemon, 2, plan, LANE, &wish, &fault), 1);
    struct attnd_command command = prepared_rig_expect(ATTND_COMMAND_PREPARED);
    prepared_rig_retire(&command, -ATTND_E_UNSUPPORTED);
    prepared_rig_expect_answer(-ATTND_E_UNSUPPORTED);
    struct attnd_command empty = prepared_rig_expect(ATTND_COMMAND_PREPARED);
    CHECK_EQUAL(empty.run, command.run);
    CHECK_EQUAL(empty.body.kind, 0);
    CHECK_EQUAL(client.daemon->plans[0]->prepared, 1);
    prepared_rig_retire(&empty, 0);
    CHECK_EQUAL(client.daemon->plans[0]->prepared, 0);
}

static void a_slot_is_not_given_out_again_before_every_answer_about_it(void **state)
{
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    uint32_t first = prepare(plan, 0);
    submit(stage_batch(&client, plan, 0, 8, 9, 0, 0)); /* other extents: it is told of again */
    struct attnd_command hold = prepared_rig_expect(ATTND_COMMAND_HOLD);
    prepared_rig_retire(&hold, 0);
    struct attnd_command show = prepared_rig_expect(ATTND_COMMAND_PUBLISH);
    prepared_rig_retire(&show, 0);
    stage_expect(&client, 0, 0);

    CHECK_EQUAL(attnd_prepared_remove(client.daemon, 3, first, &fault), 1);
    CHECK_EQUAL(attnd_prepared_remove(client.daemon, 4, first, &fault), -ATTND_E_BUSY);
    struct attnd_command empty = prepared_rig_expect(ATTND_COMMAND_PREPARED);
    prepared_rig_expect_no_answer();
    CHECK(stage.service.prepared_runs->free_last != first - ATTND_QUEUE_RUNS);
    prepared_rig_retire(&empty, 0);
    prepared_rig_expect_answer(0);
    CHECK_EQUAL(stage.service.prepared_runs->free_last, first - ATTND_QUEUE_RUNS);
}

/* ---- scratch ---- */

#define BLOCK_BYTES 2240u /* of scratch, of each run below */

/* Return: lanes from @first on that runs of @plan got scratch for, one each. */
static uint32_t prepare_lanes(struct stage_client *of, int peer, uint32_t plan, uint32_t first,
                              uint32_t prepared[ATTND_LANES_MAX])
{
    const struct attnd_sqe_run wish = prepared_rig_wish(0);
    uint32_t lane = first;
    int code;

    for (; lane < ATTND_LANES_MAX; lane++) {
        if (attnd_prepared_add(of->daemon, 2, plan, lane, &wish, &fault) != 1)
            break;
        struct attnd_command command = prepared_rig_expect(ATTND_COMMAND_PREPARED);
        prepared_rig_retire(&command, 0);
        CHECK_EQUAL(prepared_rig_answer(peer, &code, &prepared[lane]), 1);
    }
    return lane - first;
}

static void prepared_runs_of_a_session_get_half_of_the_scratch_there_is_for_them(void **state)
{
    uint32_t prepared[ATTND_LANES_MAX], code_prepared;
    struct attnd_prepared_runs *stream = stage.service.prepared_runs;
    int code;
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    client.daemon->plans[plan - 1]->scratch_bytes = BLOCK_BYTES; /* its keys are too few to split */
    const uint64_t share_bytes = stream->scratch.bytes / 2;

    uint32_t lanes = prepare_lanes(&client, prepared_rig_peer, plan, 0, prepared);
    CHECK_EQUAL(lanes, share_bytes / BLOCK_BYTES);
    CHECK_EQUAL(fault.code, -ATTND_E_NO_SPACE);
    CHECK_EQUAL(fault.field, ATTND_F_PARTIALS);
    CHECK_EQUAL(fault.value, BLOCK_BYTES);
    CHECK_EQUAL(fault.limit, share_bytes - lanes * BLOCK_BYTES);
    CHECK_EQUAL(client.daemon->mail->scratch_bytes, lanes * BLOCK_BYTES);

    CHECK_EQUAL(attnd_prepared_remove(client.daemon, 3, prepared[0], &fault), 1);
    struct attnd_command empty = prepared_rig_expect(ATTND_COMMAND_PREPARED);
    prepared_rig_retire(&empty, 0);
    CHECK_EQUAL(prepared_rig_answer(prepared_rig_peer, &code, &code_prepared), 1);
    CHECK_EQUAL(prepare_lanes(&client, prepared_rig_peer, plan, lanes, prepared), 1);

    prepared_rig_new_worker(); /* all is counted again, from nothing */
    CHECK_EQUAL(client.daemon->mail->scratch_bytes, lanes * BLOCK_BYTES);
    CHECK_EQUAL(stream->scratch.used_bytes, lanes * BLOCK_BYTES);
}

/* ---- sets and advances ---- */

static void
a_set_changes_nothing_before_the_plan_is_held_nor_completes_before_it_is_shown(void **state)
{
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    prepare(plan, 0);
    const struct attnd_plan_object *object = client.daemon->plans[0];
    const struct attnd_plan_head *head = attnd_plan_head(object->plan);
    uint64_t version = object->set_version;
    submit(stage_batch(&client, plan, 0, 4, 12, 0, 0));
    struct attnd_command hold = prepared_rig_expect(ATTND_COMMAND_HOLD);
    CHECK_EQUAL(hold.body.plan_offset_bytes, object->heap_offset_bytes);
    CHECK_EQUAL(head->set_version, version);
    memset(client.arena, 0xff, 4096); /* the batch has been copied */

    submit(stage_run(plan, 1, 42)); /* a run that is submitted waits as well */
    prepared_rig_expect_none();
    prepared_rig_retire(&hold, 0);
    CHECK(head->set_version != version);
    struct attnd_command show = prepared_rig_expect(ATTND_COMMAND_PUBLISH);
    CHECK_EQUAL(show.set_version, head->set_version);
    CHECK_EQUAL(show.body.generation, 0);
    CHECK_EQUAL(show.body.items, object->tile_items);
    prepared_rig_expect_none();
    stage_expect_none(&client);
    prepared_rig_retire(&show, 0);
    stage_expect(&client, 0, 0);
    struct attnd_command run = prepared_rig_expect(ATTND_COMMAND_RUN);
    prepared_rig_retire(&run, 0);
    stage_expect(&client, 42, 0);
}

static void an_advance_is_shown_and_holds_when_no_lengths_are_left(void **state)
{
    uint32_t holds = 0;
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    prepare(plan, 0);
    const struct attnd_plan_object *object = client.daemon->plans[0];
    uint32_t since = 1u << object->generation; /* shown since the last hold */
    for (uint32_t step = 0; step < 3 * ATTND_GENERATIONS; step++) {
        uint32_t before = object->generation;
        submit(stage_advance(&client, plan, 0, 5 + (int32_t)(step % 2)));
        struct attnd_command command;
        CHECK(prepared_rig_take(&command));
        if (command.kind == ATTND_COMMAND_HOLD) {
            CHECK_EQUAL(object->generation, before);
            holds++;
            since = 1u << before;
            prepared_rig_retire(&command, 0);
            CHECK(prepared_rig_take(&command));
        }
        CHECK_EQUAL(command.kind, ATTND_COMMAND_PUBLISH);
        CHECK_EQUAL(command.body.generation, object->generation);
        CHECK(!(since >> object->generation & 1)); /* nobody can be reading what was written */
        since |= 1u << object->generation;
        stage_expect_none(&client);
        prepared_rig_retire(&command, 0);
        stage_expect(&client, 0, 0);
    }
    CHECK_EQUAL(holds, 3);
}

/* A set holds the plan, and the advance of another lane waits for it. Its slot is free meanwhile,
 * and the client reuses its arena. */
static void an_advance_that_waits_for_a_set_under_way_keeps_what_was_submitted(void **state)
{
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    prepare(plan, 0);
    const struct attnd_plan_object *object = client.daemon->plans[0];
    submit(stage_batch(&client, plan, 0, 4, 6, 0, 2));
    struct attnd_command hold = prepared_rig_expect(ATTND_COMMAND_HOLD);
    struct attnd_sqe advance = stage_advance(&client, plan, 2048, 7);
    advance.lane = 60;
    advance.user_data = 99;
    submit(advance);
    memset(client.arena, 0xff, 4096);

    prepared_rig_retire(&hold, 0);
    prepared_rig_ack_all();
    stage_expect(&client, 0, 0);
    stage_expect(&client, 99, 0);
    CHECK_EQUAL(object->kv_len[object->generation * object->kv_len_stride], 7);
}

/* They wait for runs, and others' calls must find room beside them. */
static void a_session_holds_so_many_plans_at_once_and_the_rest_in_turn(void **state)
{
    enum { SETS = ATTND_HOLDS_SESSION_MAX + 2 };
    struct attnd_command hold[SETS], command;
    uint32_t plans[SETS], held = 0;
    (void)state;
    prepared_rig_open_mailbox();
    for (uint32_t i = 0; i < SETS; i++) {
        plans[i] = prepared_rig_filled_plan();
        (void)prepare(plans[i], 0);
    }
    client.daemon->arena_bytes *= SETS; /* or it would be what bounds them */
    for (uint32_t i = 0; i < SETS; i++) {
        struct attnd_sqe set = stage_batch(&client, plans[i], 0, 4, 6, 0, 2);
        set.lane = (uint16_t)(1 + i); /* lane 0 is for what goes past them */
        submit(set);
    }
    while (prepared_rig_take(&command))
        hold[held++] = command;
    CHECK_EQUAL(held, ATTND_HOLDS_SESSION_MAX);
    /* Another call goes past those that wait. */
    const struct attnd_sqe_run wish = prepared_rig_wish(1);
    uint32_t other = prepared_rig_filled_plan();
    CHECK_EQUAL(attnd_prepared_add(client.daemon, 2, other, LANE, &wish, &fault), 1);
    command = prepared_rig_expect(ATTND_COMMAND_PREPARED);
    prepared_rig_retire(&command, 0);
    prepared_rig_expect_answer(0);
    for (uint32_t done = 0; done < SETS; done++) {
        prepared_rig_retire(&hold[done], 0);
        while (prepared_rig_take(&command)) {
            if (command.kind == ATTND_COMMAND_HOLD)
                hold[held++] = command;
            else /* its plan is shown */
                prepared_rig_retire(&command, 0);
        }
        CHECK(held <= ATTND_HOLDS_SESSION_MAX + done + 1);
        stage_expect(&client, 0, 0);
    }
    CHECK_EQUAL(held, SETS);
    stage_expect_none(&client);
}

static void a_set_that_is_refused_on_the_way_in_changes_nothing(void **state)
{
    struct attnd_command command;
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    uint32_t prepared = prepare(plan, 0);
    const struct attnd_run before = stage.service.queue->runs[prepared % ATTND_DOORBELL_SLOTS];
    const uint64_t version = client.daemon->plans[plan - 1]->set_version;
    submit(stage_batch(&client, plan, 0, 4, 6, STAGE_PAGES, 0)); /* pages that are not there */
    CHECK(!prepared_rig_take(&command));
    stage_expect(&client, 0, -ATTND_E_RANGE);
    CHECK_EQUAL(client.daemon->plans[plan - 1]->filled, 1);
    CHECK_EQUAL(client.daemon->plans[plan - 1]->set_version, version);
    CHECK(memcmp(&before, &stage.service.queue->runs[prepared % ATTND_DOORBELL_SLOTS],
                 sizeof(before)) == 0);
}

static void a_cancel_comes_too_late_for_a_set_that_the_worker_is_told_of(void **state)
{
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    prepare(plan, 0);
    submit(stage_batch(&client, plan, 0, 4, 6, 0, 0));
    submit(stage_cancel(0));
    struct attnd_command hold = prepared_rig_expect(ATTND_COMMAND_HOLD);
    stage_expect_none(&client);
    prepared_rig_retire(&hold, 0);
    struct attnd_command show = prepared_rig_expect(ATTND_COMMAND_PUBLISH);
    prepared_rig_retire(&show, 0);
    stage_expect(&client, 0, 0);
}

/* ---- ends ---- */

static void a_dead_session_keeps_its_memory_until_its_mailbox_is_let_go(void **state)
{
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    uint32_t prepared = prepare(plan, 0);
    attnd_client_end(client.daemon);
    CHECK_EQUAL(client.daemon->state, ATTND_CLIENT_DYING);
    CHECK(client.daemon->mail != NULL);
    CHECK_EQUAL(stage.service.queue->runs[prepared % ATTND_DOORBELL_SLOTS].cancel, 1);
    struct attnd_command stop = prepared_rig_expect(ATTND_COMMAND_MAILBOX);
    CHECK_EQUAL(stage.service.queue->mailboxes[stop.run].memory, ATTND_NONE);
    CHECK(stage.service.clients[0] == client.daemon);
    prepared_rig_retire(&stop, 0);
    CHECK(stage.service.clients[0] == NULL);
    CHECK_EQUAL(stage.service.queue->runs[prepared % ATTND_DOORBELL_SLOTS].mailbox, ATTND_NONE);
}

static void a_plan_that_a_dead_session_had_held_is_shown(void **state)
{
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    prepare(plan, 0);
    submit(stage_batch(&client, plan, 0, 4, 6, 0, 0));
    struct attnd_command hold = prepared_rig_expect(ATTND_COMMAND_HOLD);
    attnd_client_end(client.daemon);
    struct attnd_command stop = prepared_rig_expect(ATTND_COMMAND_MAILBOX);
    prepared_rig_retire(&stop, 0);
    CHECK(stage.service.clients[0] != NULL);
    prepared_rig_retire(&hold, 0);
    struct attnd_command show = prepared_rig_expect(ATTND_COMMAND_PUBLISH);
    CHECK(stage.service.clients[0] != NULL);
    prepared_rig_retire(&show, 0);
    CHECK(stage.service.clients[0] == NULL);
}

static void a_new_worker_hears_of_runs_before_their_mailbox(void **state)
{
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    prepare(plan, 0);
    prepare(plan, 1);
    submit(stage_batch(&client, plan, 0, 4, 12, 0, 0));
    (void)prepared_rig_expect(ATTND_COMMAND_HOLD);
    prepared_rig_new_worker(); /* the old one dies with it */
    stage_expect(&client, 0, 0);
    struct attnd_command first = prepared_rig_expect(ATTND_COMMAND_PREPARED);
    struct attnd_command second = prepared_rig_expect(ATTND_COMMAND_PREPARED);
    CHECK(first.run != second.run);
    CHECK_EQUAL(first.set_version, client.daemon->plans[0]->set_version);
    struct attnd_command mailbox = prepared_rig_expect(ATTND_COMMAND_MAILBOX);
    CHECK_EQUAL(stage.service.queue->mailboxes[mailbox.run].fresh, 0);
    prepared_rig_expect_none();
    prepared_rig_retire(&mailbox, 0);
    prepared_rig_retire(&second, 0);
    prepared_rig_retire(&first, 0);
    prepared_rig_expect_no_answer();
}

static void what_waits_for_memory_has_the_lengths_of_the_advance_that_overtook_it(void **state)
{
    static uint32_t freed[ATTND_MEMORIES_MAX];
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    prepare(plan, 0);
    const struct attnd_plan_object *object = client.daemon->plans[0];
    uint32_t before = object->generation;
    stage_lose_worker(&stage);
    attnd_worker_port_init(&stage.worker, stage.service.queue->head, -1);
    CHECK_EQUAL(attnd_maps_lost(&stage.service.supervisor->maps, freed), 0);
    CHECK_EQUAL(attnd_sched_resume(stage.service.scheduler, STAGE_SCRATCH_BYTES), 0);
    prepared_rig_expect_none(); /* nothing is mapped */

    submit(stage_advance(&client, plan, 0, 6));
    struct attnd_command show = prepared_rig_expect(ATTND_COMMAND_PUBLISH);
    prepared_rig_retire(&show, 0);
    stage_expect(&client, 0, 0);
    CHECK(object->generation != before);
    stage_memory_mapped(&stage);
    attnd_lane_retry(stage.service.scheduler);
    struct attnd_command prepared = prepared_rig_expect(ATTND_COMMAND_PREPARED);
    CHECK_EQUAL(prepared.body.generation, object->generation);
    CHECK_EQUAL(prepared.body.items, object->tile_items);
}

/* Memory that the daemon has made on the GPU is named by a set before the worker has mapped it. */
static void a_set_is_published_when_its_tables_are_mapped(void **state)
{
    struct attnd_maps *maps = &stage.service.supervisor->maps;
    struct attnd_memory *table = client.daemon->memories[STAGE_TENSORS - 1];
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    prepare(plan, 0);
    struct attnd_plan_object *object = client.daemon->plans[plan - 1];
    object->tables[0] = table;
    maps->state[table->index] = ATTND_MAP_MAPPING;
    maps->not_mapped++;
    submit(stage_advance(&client, plan, 0, 6));
    prepared_rig_expect_none();
    stage_expect_none(&client);
    CHECK_EQUAL(attnd_maps_mapped(maps, table->index, 0), 1);
    attnd_lane_retry(stage.service.scheduler);
    struct attnd_command publish = prepared_rig_expect(ATTND_COMMAND_PUBLISH);
    object->tables[0] = NULL;
    prepared_rig_retire(&publish, 0);
    stage_expect(&client, 0, 0);
}

static void the_number_of_a_run_that_is_gone_is_not_the_next_runs(void **state)
{
    int code;
    uint32_t none;
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    uint32_t gone = prepare(plan, 0);
    CHECK_EQUAL(attnd_prepared_remove(client.daemon, 3, gone, &fault), 1);
    struct attnd_command command = prepared_rig_expect(ATTND_COMMAND_PREPARED);
    prepared_rig_retire(&command, 0);
    CHECK_EQUAL(prepared_rig_answer(prepared_rig_peer, &code, &none), 1);
    for (uint32_t i = 0; i < 64; i++)
        CHECK(prepare(plan, 0) != gone);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, prepared_rig_setup, prepared_rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_mailbox_is_known_when_it_is_watched),
        CASE(a_set_is_published_when_its_tables_are_mapped),
        CASE(the_number_of_a_run_that_is_gone_is_not_the_next_runs),
        CASE(a_mailbox_that_cannot_be_watched_leaves_room_for_another),
        CASE(a_worker_without_mailboxes_is_said_to_be_one),
        CASE(a_prepared_run_carries_all_that_a_ring_needs),
        CASE(a_run_of_more_items_than_a_doorbell_counts_is_refused_by_name),
        CASE(what_the_worker_refuses_is_answered_so_and_holds_nothing),
        CASE(a_slot_is_not_given_out_again_before_every_answer_about_it),
        CASE(prepared_runs_of_a_session_get_half_of_the_scratch_there_is_for_them),
        CASE(a_set_changes_nothing_before_the_plan_is_held_nor_completes_before_it_is_shown),
        CASE(an_advance_is_shown_and_holds_when_no_lengths_are_left),
        CASE(an_advance_that_waits_for_a_set_under_way_keeps_what_was_submitted),
        CASE(a_session_holds_so_many_plans_at_once_and_the_rest_in_turn),
        CASE(a_set_that_is_refused_on_the_way_in_changes_nothing),
        CASE(a_cancel_comes_too_late_for_a_set_that_the_worker_is_told_of),
        CASE(a_dead_session_keeps_its_memory_until_its_mailbox_is_let_go),
        CASE(a_plan_that_a_dead_session_had_held_is_shown),
        CASE(a_new_worker_hears_of_runs_before_their_mailbox),
        CASE(what_waits_for_memory_has_the_lengths_of_the_advance_that_overtook_it),
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
