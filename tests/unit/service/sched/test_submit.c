/* test_submit.c - whatever a slot says wrong is named: field, index, value and limit. */
#include "tests/support/harness/check.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"
#include "tests/support/trial/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct stage stage;
static struct stage_client client;
static uint32_t plan; /* 4 rows of one head of 64: q and o are 512 bytes, lse 16 */

static int setup(void **state)
{
    (void)state;
    stage_start(&stage);
    stage_connect(&stage, &client, 64, 1);
    plan = stage_plan(&client);
    struct attnd_sqe set = stage_batch(&client, plan, 0, 4, 6, 0, 0);
    CHECK_EQUAL(stage_submit(&client, &set), 0);
    CHECK_EQUAL(stage_sweep(&stage), 1);
    stage_expect(&client, 0, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    stage_stop(&stage);
    return 0;
}

static void expect_fault(const struct attnd_sqe *sqe, const struct attnd_fault *want)
{
    CHECK_EQUAL(stage_submit(&client, sqe), 0);
    CHECK_EQUAL(stage_sweep(&stage), 1);
    CHECK(stage_command(&stage) == NULL);
    struct attnd_cqe cqe = stage_expect(&client, sqe->user_data, want->code);
    CHECK_EQUAL(cqe.field, want->field);
    CHECK_EQUAL(cqe.index, want->index);
    CHECK_EQUAL(cqe.value, want->value);
    CHECK_EQUAL(cqe.limit, want->limit);
    CHECK_EQUAL(client.daemon->in_flight, 0);
}

#define EXPECT(sqe, ...) expect_fault(&(sqe), &(struct attnd_fault){__VA_ARGS__})

static void a_slot_without_meaning_is_refused(void **state)
{
    struct attnd_sqe sqe = stage_run(plan, 0, 1);
    (void)state;
    sqe.opcode = 0;
    EXPECT(sqe, -ATTND_E_INVALID, ATTND_F_OPCODE, 0, 0, ATTND_OP_LAST);
    sqe.opcode = 200;
    EXPECT(sqe, -ATTND_E_INVALID, ATTND_F_OPCODE, 0, 200, ATTND_OP_LAST);
    sqe = stage_run(plan, 0, 1);
    sqe.flags = 0x81;
    EXPECT(sqe, -ATTND_E_INVALID, ATTND_F_FLAGS, 0, 0x81, ATTND_OP_FLAGS);
    sqe = stage_run(plan, ATTND_LANES_MAX, 1);
    EXPECT(sqe, -ATTND_E_RANGE, ATTND_F_LANE, 0, ATTND_LANES_MAX, ATTND_LANES_MAX - 1);
}

static struct attnd_sqe merge_at(uint64_t offset_bytes)
{
    return (struct attnd_sqe){.opcode = ATTND_OP_MERGE,
                              .plan = plan,
                              .user_data = 1,
                              .u.merge = {.places_offset_bytes = offset_bytes}};
}

static void reserved_words_are_zero(void **state)
{
    struct attnd_sqe sqe = stage_append(plan, 0, 1);
    (void)state;
    sqe.u.append.zero0 = 5;
    EXPECT(sqe, -ATTND_E_INVALID, ATTND_F_RESERVED, 0, 5, 0);
    sqe = stage_append(plan, 0, 1);
    sqe.u.append.zero = 6;
    EXPECT(sqe, -ATTND_E_INVALID, ATTND_F_RESERVED, 0, 6, 0);
    sqe = stage_batch(&client, plan, 0, 4, 6, 0, 0);
    sqe.u.set.zero[3] = 7;
    EXPECT(sqe, -ATTND_E_INVALID, ATTND_F_RESERVED, 3, 7, 0);
    sqe = stage_advance(&client, plan, 0, 6);
    sqe.u.advance.zero[0] = 8;
    EXPECT(sqe, -ATTND_E_INVALID, ATTND_F_RESERVED, 0, 8, 0);
    sqe = stage_cancel(1);
    sqe.u.cancel.zero[4] = 9;
    EXPECT(sqe, -ATTND_E_INVALID, ATTND_F_RESERVED, 4, 9, 0);
    sqe = merge_at(0);
    sqe.u.merge.zero[2] = 10;
    EXPECT(sqe, -ATTND_E_INVALID, ATTND_F_RESERVED, 2, 10, 0);
}

/* The arena has 64 KiB; what is refused on the way in reaches no step. */
static void places_of_a_merge_lie_in_the_arena(void **state)
{
    struct attnd_merge_place places[ATTND_MERGE_PLACES] = {{.memory = STAGE_TENSORS}};
    struct attnd_sqe sqe = merge_at(65536 - sizeof(places) + 8);
    (void)state;
    EXPECT(sqe, -ATTND_E_RANGE, ATTND_F_ARENA, 0, 65536 - sizeof(places) + 8,
           65536 - sizeof(places));
    sqe = merge_at(4);
    EXPECT(sqe, -ATTND_E_INVALID, ATTND_F_ARENA, 0, 4, 0);
    places[3].zero = 7;
    memcpy(client.arena, places, sizeof(places));
    sqe = merge_at(0);
    EXPECT(sqe, -ATTND_E_INVALID, ATTND_F_RESERVED, 3, 7, 0);
    places[3].zero = 0;
    memcpy(client.arena, places, sizeof(places));
    EXPECT(sqe, -ATTND_E_UNKNOWN, ATTND_F_LSE_A, 0, 0, 0);
}

static void plans_and_layers_exist(void **state)
{
    struct attnd_sqe sqe = stage_run(0, 0, 1);
    (void)state;
    EXPECT(sqe, -ATTND_E_UNKNOWN, ATTND_F_PLAN, 0, 0, 0);
    sqe.plan = UINT32_MAX;
    EXPECT(sqe, -ATTND_E_UNKNOWN, ATTND_F_PLAN, 0, UINT32_MAX, 0);
    sqe = stage_run(plan, 0, 1);
    sqe.u.run.layer = STAGE_LAYERS;
    EXPECT(sqe, -ATTND_E_RANGE, ATTND_F_LAYER, 0, STAGE_LAYERS, STAGE_LAYERS - 1);
    sqe = stage_append(plan, 0, 1);
    sqe.u.append.layer = UINT32_MAX;
    EXPECT(sqe, -ATTND_E_RANGE, ATTND_F_LAYER, 0, UINT32_MAX, STAGE_LAYERS - 1);
    sqe = stage_run(stage_plan(&client), 0, 1); /* never set */
    EXPECT(sqe, -ATTND_E_INVALID, ATTND_F_PLAN, 0, sqe.plan, 0);
}

static void tensors_lie_in_their_memory_and_are_aligned(void **state)
{
    struct attnd_sqe sqe = stage_run(plan, 0, 1);
    (void)state;
    sqe.u.run.q_memory = 0;
    EXPECT(sqe, -ATTND_E_UNKNOWN, ATTND_F_Q, 0, 0, 0);
    sqe = stage_run(plan, 0, 1);
    sqe.u.run.q_offset_bytes = 8;
    EXPECT(sqe, -ATTND_E_INVALID, ATTND_F_Q, 0, 8, 16);
    sqe = stage_run(plan, 0, 1);
    sqe.u.run.o_offset_bytes = STAGE_TENSOR_BYTES - 496;
    EXPECT(sqe, -ATTND_E_RANGE, ATTND_F_O, 0, STAGE_TENSOR_BYTES + 16, STAGE_TENSOR_BYTES);
    sqe.u.run.o_offset_bytes = UINT64_MAX - 15;
    EXPECT(sqe, -ATTND_E_RANGE, ATTND_F_O, 0, INT64_MAX, STAGE_TENSOR_BYTES);
    sqe = stage_run(plan, 0, 1);
    sqe.u.run.lse_offset_bytes = 2;
    EXPECT(sqe, -ATTND_E_INVALID, ATTND_F_LSE, 0, 2, 4);
    sqe = stage_run(plan, 0, 1);
    sqe.u.run.lse_offset_bytes = STAGE_TENSOR_BYTES - 12;
    EXPECT(sqe, -ATTND_E_RANGE, ATTND_F_LSE, 0, STAGE_TENSOR_BYTES + 4, STAGE_TENSOR_BYTES);
    sqe = stage_append(plan, 0, 1);
    sqe.u.append.v_memory = ATTND_HANDLES_MAX + 1;
    EXPECT(sqe, -ATTND_E_UNKNOWN, ATTND_F_V, 0, ATTND_HANDLES_MAX + 1, 0);
}

static void outputs_overlap_nothing(void **state)
{
    const int64_t plane_2 = INT64_C(2) * 2 * STAGE_PAGES * STAGE_PAGE_SIZE * STAGE_DIM;
    struct attnd_sqe sqe = stage_run(plan, 0, 1);
    uint32_t twin;
    struct attnd_fault fault = {0};
    (void)state;
    sqe.u.run.o_offset_bytes = 496;
    EXPECT(sqe, -ATTND_E_OVERLAP, ATTND_F_O, 0, 496, 0);
    sqe.u.run.o_offset_bytes = 512; /* right behind q */
    sqe.u.run.lse_offset_bytes = 1020;
    EXPECT(sqe, -ATTND_E_OVERLAP, ATTND_F_LSE, 0, 1020, 512);
    attnd_memory_ref(client.daemon->memories[STAGE_TENSORS - 1]);
    CHECK_EQUAL(
        attnd_memory_bind(client.daemon, client.daemon->memories[STAGE_TENSORS - 1], &twin, &fault),
        0);
    sqe.u.run.o_memory = twin; /* another handle of the same bytes */
    sqe.u.run.o_offset_bytes = 16;
    EXPECT(sqe, -ATTND_E_OVERLAP, ATTND_F_O, 0, 16, 0);
    sqe = stage_run(plan, 0, 1);
    sqe.u.run.o_memory = 1; /* the pool */
    sqe.u.run.o_offset_bytes = (uint64_t)plane_2;
    EXPECT(sqe, -ATTND_E_OVERLAP, ATTND_F_O, 0, plane_2, plane_2);
    sqe = stage_append(plan, 0, 1);
    sqe.u.append.k_memory = 1;
    EXPECT(sqe, -ATTND_E_OVERLAP, ATTND_F_K, 0, 0, 0);
}

static void an_append_needs_room_for_its_rows(void **state)
{
    struct attnd_sqe sqe = stage_advance(&client, plan, 0, 3);
    (void)state;
    CHECK_EQUAL(stage_submit(&client, &sqe), 0);
    stage_sweep(&stage);
    stage_expect(&client, 0, 0);
    sqe = stage_append(plan, 0, 1); /* 4 rows of a request of 3 tokens */
    EXPECT(sqe, -ATTND_E_RANGE, ATTND_F_KV_LEN, 0, 3, 4);
}

static void faults_of_a_lane_keep_its_order(void **state)
{
    struct attnd_sqe good = stage_run(plan, 0, 1), bad = stage_run(99, 0, 2);
    (void)state;
    CHECK_EQUAL(stage_submit(&client, &good), 0);
    CHECK_EQUAL(stage_submit(&client, &bad), 0);
    CHECK_EQUAL(stage_sweep(&stage), 2);
    stage_expect_none(&client);
    struct attnd_run *run = stage_command(&stage);
    CHECK(run != NULL);
    stage_retire(&stage, run, 0);
    stage_sweep(&stage);
    stage_expect(&client, 1, 0);
    stage_expect(&client, 2, -ATTND_E_UNKNOWN);
}

/* The planner's thread has a batch of the session. To copy and check another takes the loop's time,
 * so it stays in the ring, behind the run that is taken. */
static void the_next_batch_waits_in_the_ring_while_one_is_planned(void **state)
{
    struct attnd_sqe run = stage_run(plan, 0, 1), set = stage_batch(&client, plan, 256, 4, 6, 0, 0);
    (void)state;
    set.lane = 1;
    set.user_data = 2;
    client.daemon->lanes->planning = 1;
    CHECK_EQUAL(stage_submit(&client, &run), 0);
    CHECK_EQUAL(stage_submit(&client, &set), 0);
    CHECK_EQUAL(stage_sweep(&stage), 1); /* the run */
    CHECK_EQUAL(client.daemon->in_flight, 1);
    CHECK_EQUAL(client.daemon->lanes->admitted_bytes, 0);
    struct attnd_run *begun = stage_command(&stage);
    CHECK(begun != NULL);
    stage_retire(&stage, begun, 0);
    client.daemon->lanes->planning = 0;
    stage_sweep(&stage);
    stage_expect(&client, 1, 0);
    stage_sweep(&stage);
    stage_expect(&client, 2, 0);
}

/* Half sense, half noise: whatever comes, it is answered or dispatched, and nothing is left over.
 */
static void noise_in_slots_and_arena_is_survived(void **state)
{
    struct prng prng = prng_fork(test_seed(), 0);
    (void)state;
    for (uint32_t round = 0; round < 20000; round++) {
        struct attnd_sqe sqe;
        struct attnd_cqe cqe;
        uint16_t lane = (uint16_t)prng_below(&prng, 4);
        switch (prng_below(&prng, 5)) {
        case 0:
            sqe = stage_batch(&client, plan, 256 * prng_below(&prng, 8),
                              (int32_t)prng_below(&prng, 8), (int32_t)prng_below(&prng, 60),
                              (int32_t)prng_below(&prng, 4), prng_below(&prng, 3));
            break;
        case 1:
            sqe = stage_advance(&client, plan, 4096, (int32_t)prng_below(&prng, 70) - 2);
            break;
        case 2:
            sqe = stage_append(plan, lane, round);
            break;
        default:
            sqe = stage_run(plan, lane, round);
        }
        if (prng_percent(&prng, 30))
            ((uint8_t *)&sqe)[prng_below(&prng, sizeof(sqe))] = (uint8_t)prng_next(&prng);
        if (prng_percent(&prng, 20))
            client.arena[prng_below(&prng, 4096)] = (char)prng_next(&prng);
        (void)stage_submit(&client, &sqe);
        if (prng_percent(&prng, 50))
            stage_sweep(&stage);
        struct attnd_run *run = prng_percent(&prng, 60) ? stage_command(&stage) : NULL;
        if (run)
            stage_retire(&stage, run, 0);
        while (stage_completion(&client, &cqe) > 0)
            ;
    }
    for (int i = 0; i < 200; i++) {
        struct attnd_cqe cqe;
        struct attnd_run *run = stage_command(&stage);
        if (run)
            stage_retire(&stage, run, 0);
        stage_sweep(&stage);
        while (stage_completion(&client, &cqe) > 0)
            ;
    }
    CHECK_EQUAL(client.daemon->in_flight, 0);
    CHECK_EQUAL(client.daemon->lanes->admitted_bytes, 0);
    CHECK_EQUAL(stage.service.scheduler->dispatched, 0);
    CHECK_EQUAL(stage.service.scheduler->scratch.used_bytes, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_slot_without_meaning_is_refused),
        CASE(reserved_words_are_zero),
        CASE(places_of_a_merge_lie_in_the_arena),
        CASE(plans_and_layers_exist),
        CASE(tensors_lie_in_their_memory_and_are_aligned),
        CASE(outputs_overlap_nothing),
        CASE(an_append_needs_room_for_its_rows),
        CASE(faults_of_a_lane_keep_its_order),
        CASE(the_next_batch_waits_in_the_ring_while_one_is_planned),
        CASE(noise_in_slots_and_arena_is_survived),
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
