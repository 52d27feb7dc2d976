/* test_complete.c - the end of an operation: what the client is told, what is counted, and that all
 * it held is given back. */
#include "service/objects/quota.h"
#include "service/sched/complete.h"
#include "service/sched/flush.h"
#include "tests/support/rigs/sched_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define RING_ENTRIES 8u

static struct attnd_client_lanes *session;

static int setup(void **state)
{
    (void)state;
    (void)sched_rig_begin(RING_ENTRIES);
    session = client.daemon->lanes;
    return 0;
}

/* An operation in lane 3, as the way in makes it. */
static struct attnd_sched_op *op_of(uint8_t opcode, uint8_t flags)
{
    const struct attnd_sqe sqe = {
        .opcode = opcode, .flags = flags, .lane = 3, .user_data = 0xabcdef0123456789u};
    struct attnd_sched_op *op = attnd_op_new(session, &sqe);
    op->lane = &session->lane[3];
    return op;
}

static uint32_t free_ops(void)
{
    uint32_t count = session->client->ring_entries - session->fresh_op;
    for (const struct attnd_sched_op *op = session->free_ops; op; op = op->next)
        count++;
    return count;
}

/* ---- what the client is told ---- */

static void a_completion_repeats_the_operation_and_says_what_was_wrong(void **state)
{
    struct attnd_cqe cqe;
    (void)state;
    struct attnd_sched_op *op = op_of(ATTND_OP_APPEND, 0);
    attnd_fault_set(&op->fault, -ATTND_E_RANGE, ATTND_F_KV_LEN, 7, -5, INT64_MAX);
    attnd_complete(op, 100, 250);
    CHECK_EQUAL(stage_completion(&client, &cqe), 1);
    CHECK_EQUAL(cqe.user_data, 0xabcdef0123456789u);
    CHECK_EQUAL(cqe.opcode, ATTND_OP_APPEND);
    CHECK_EQUAL(cqe.lane, 3);
    CHECK_EQUAL(cqe.code, -ATTND_E_RANGE);
    CHECK_EQUAL(cqe.field, ATTND_F_KV_LEN);
    CHECK_EQUAL(cqe.index, 7);
    CHECK_EQUAL(cqe.value, -5);
    CHECK_EQUAL(cqe.limit, INT64_MAX);
    CHECK_EQUAL(cqe.begin_ns, 100);
    CHECK_EQUAL(cqe.end_ns, 250);
    stage_expect_none(&client);
}

static void success_can_be_silent_and_failure_cannot(void **state)
{
    struct attnd_cqe cqe;
    (void)state;
    attnd_complete(op_of(ATTND_OP_RUN, ATTND_OP_SKIP_SUCCESS), 1, 2);
    stage_expect_none(&client);
    struct attnd_sched_op *op = op_of(ATTND_OP_RUN, ATTND_OP_SKIP_SUCCESS);
    attnd_fault_set(&op->fault, -ATTND_E_CANCELLED, ATTND_F_NONE, 0, 0, 0);
    attnd_complete(op, 1, 2);
    CHECK_EQUAL(stage_completion(&client, &cqe), 1);
    CHECK_EQUAL(cqe.code, -ATTND_E_CANCELLED);
}

static void each_completion_takes_one_place_and_is_told_by_the_next_flush(void **state)
{
    (void)state;
    uint32_t room = session->cq_room;
    CHECK_EQUAL(session->dirty, 0);
    attnd_complete(op_of(ATTND_OP_RUN, 0), 1, 2);
    attnd_complete(op_of(ATTND_OP_RUN, 0), 1, 2);
    CHECK_EQUAL(session->cq_room, room - 2);
    CHECK_EQUAL(session->dirty, 1);
    CHECK_EQUAL(stage.service.scheduler->dirty_count, 1); /* once, however many */
    attnd_sched_flush(stage.service.scheduler);
    CHECK_EQUAL(session->dirty, 0);
    CHECK_EQUAL(stage.service.scheduler->dirty_count, 0);
}

static void a_session_that_ends_is_told_nothing_more(void **state)
{
    (void)state;
    session->closing = 1;
    attnd_complete(op_of(ATTND_OP_RUN, 0), 1, 2);
    session->closing = 0;
    stage_expect_none(&client);
    CHECK_EQUAL(session->dirty, 0);
}

/* Operations are taken in only while there is room for their completions. So a full ring means that
 * the client took back what it had said of its head. */
static void an_impossible_ring_breaks_the_session_and_ends_it_later(void **state)
{
    struct attnd_cqe cqe;
    (void)state;
    for (uint32_t i = 0; i < RING_ENTRIES; i++)
        attnd_complete(op_of(ATTND_OP_RUN, 0), 1, 2);
    CHECK_EQUAL(session->broken, 0);
    attnd_complete(op_of(ATTND_OP_RUN, 0), 1, 2);
    CHECK_EQUAL(session->broken, 1);
    CHECK_EQUAL(client.daemon->state, ATTND_CLIENT_OPEN); /* not in the middle of a sweep */
    for (uint32_t i = 0; i < RING_ENTRIES; i++)
        CHECK_EQUAL(stage_completion(&client, &cqe), 1);
    attnd_complete(op_of(ATTND_OP_RUN, 0), 1, 2);
    stage_expect_none(&client); /* nor is it told anything from here on, room or not */
    attnd_sched_flush(stage.service.scheduler);
    (void)stage_sweep(&stage); /* what one turn had no time for */
    CHECK(stage.service.clients[0] == NULL);
}

/* ---- what is counted ---- */

static void runs_and_appends_that_succeed_are_counted_and_nothing_else(void **state)
{
    static const uint8_t opcodes[] = {ATTND_OP_RUN, ATTND_OP_RUN, ATTND_OP_APPEND,
                                      ATTND_OP_PLAN_SET, ATTND_OP_PLAN_ADVANCE};
    const struct attnd_work_stats *own = &client.daemon->stats;
    (void)state;
    for (size_t i = 0; i < sizeof(opcodes); i++) {
        attnd_complete(op_of(opcodes[i], ATTND_OP_SKIP_SUCCESS), 1, 2);
        struct attnd_sched_op *failed = op_of(opcodes[i], 0);
        failed->fault.code = -ATTND_E_TIMEOUT;
        attnd_complete(failed, 1, 2);
    }
    CHECK_EQUAL(own->runs, 2);
    CHECK_EQUAL(own->appends, 1);
    CHECK_EQUAL(stage.service.totals.runs, 2);
    CHECK_EQUAL(stage.service.totals.appends, 1);
}

/* ---- what is given back ---- */

static void all_that_an_operation_held_is_given_back(void **state)
{
    struct attnd_memory *memory = client.daemon->memories[STAGE_TENSORS - 1];
    (void)state;
    uint32_t refs = memory->refs, room = free_ops();
    uint32_t plan = stage_plan(&client);
    struct attnd_plan_object *object = client.daemon->plans[plan - 1];

    struct attnd_sched_op *op = op_of(ATTND_OP_RUN, 0);
    CHECK_EQUAL(client.daemon->in_flight, 1);
    CHECK_EQUAL(free_ops(), room - 1);
    op->plan = object;
    object->in_flight++;
    op->memories[0] = op->memories[2] = memory;
    memory->refs += 2;
    op->admitted = calloc(1, sizeof(*op->admitted));
    CHECK(op->admitted != NULL);
    op->admitted->staging.words = calloc(100, sizeof(int32_t));
    op->admitted->staging.words_max = 100;
    session->admitted_bytes = 5 + attnd_admitted_bytes(op->admitted);
    const struct attnd_admitted *admitted = op->admitted;
    CHECK_EQUAL(
        attnd_quota_charge(client.daemon, sizeof(*admitted) + attnd_admitted_bytes(admitted), NULL),
        0);
    attnd_complete(op, 1, 2);

    CHECK_EQUAL(client.daemon->in_flight, 0);
    CHECK_EQUAL(free_ops(), room);
    CHECK_EQUAL(object->in_flight, 0);
    CHECK_EQUAL(memory->refs, refs);
    CHECK_EQUAL(session->admitted_bytes, 5);
    CHECK(session->spare == admitted); /* still charged: the next one uses it */
    session->admitted_bytes = 0;
}

static void an_operation_begins_with_nothing_of_the_one_before(void **state)
{
    (void)state;
    struct attnd_sched_op *op = op_of(ATTND_OP_RUN, 0);
    op->verdict = -ATTND_E_CANCELLED;
    op->change.sent = ATTND_COMMAND_HOLD;
    op->deadline_ns = 1;
    op->fault.code = -ATTND_E_RANGE;
    attnd_op_free(op);
    struct attnd_sched_op *next = op_of(ATTND_OP_RUN, 0);
    CHECK(next == op);
    CHECK_EQUAL(next->verdict, 0);
    CHECK_EQUAL(next->change.sent, 0);
    CHECK_EQUAL(next->deadline_ns, 0);
    CHECK_EQUAL(next->fault.code, 0);
    CHECK(next->plan == NULL && next->admitted == NULL);
    attnd_op_free(next);
    stage_expect_none(&client); /* freeing posts nothing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, sched_rig_teardown)
        TEST(a_completion_repeats_the_operation_and_says_what_was_wrong),
        TEST(success_can_be_silent_and_failure_cannot),
        TEST(each_completion_takes_one_place_and_is_told_by_the_next_flush),
        TEST(a_session_that_ends_is_told_nothing_more),
        TEST(an_impossible_ring_breaks_the_session_and_ends_it_later),
        TEST(runs_and_appends_that_succeed_are_counted_and_nothing_else),
        TEST(all_that_an_operation_held_is_given_back),
        TEST(an_operation_begins_with_nothing_of_the_one_before),
#undef TEST
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
