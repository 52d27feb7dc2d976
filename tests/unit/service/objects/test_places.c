/* test_places.c - where a run may read and write: extents, alignment, overlaps, other people's
 * pools. */
#include "service/objects/places.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MEMORY_BYTES 65536u
#define Q_BYTES 4096u
#define O_BYTES 2048u
#define LSE_BYTES 100u
#define PLANE_BYTES 8192u /* 4 pages of 16 tokens of 64 elements */

/* Handle h is memories[h - 1]. The pool lies in the third: K at 0, a gap of as much, V behind. */
enum { FIRST = 1, SECOND, POOLS };

static struct {
    struct attnd_service service;
    struct attnd_client client;
    struct attnd_memory memories[3];
    struct attnd_memory *lies_in[1];
    struct attnd_pool pool;
    struct {
        struct attnd_heap_pool shape;
        struct attnd_heap_plane planes[2];
    } heap;
    struct attnd_interval intervals[2];
    uint32_t intervals_end;
    struct attnd_plan_object plan;
    struct {
        struct attnd_sqe sqe;
        struct attnd_memory *memories[ATTND_RUN_PLACES];
    } op;
    struct attnd_run run;
    struct attnd_fault fault;
} rig;

static void make_pool(void)
{
    const struct attnd_heap_plane plane = {
        .memory = 12, .stride_page = 16 * 64, .stride_token = 64, .stride_head = 64};
    rig.heap.shape = (struct attnd_heap_pool){
        .layers = 1, .pages = 4, .page_size = 16, .heads_kv = 1, .dim_qk = 64, .dim_vo = 64};
    rig.heap.planes[0] = rig.heap.planes[1] = plane;
    rig.heap.planes[1].offset_bytes = 2 * PLANE_BYTES;
    rig.lies_in[0] = &rig.memories[POOLS - 1];
    rig.pool = (struct attnd_pool){.shape = rig.heap.shape,
                                   .heap = &rig.heap.shape,
                                   .memories_count = 1,
                                   .memories = rig.lies_in,
                                   .intervals = rig.intervals,
                                   .intervals_end = &rig.intervals_end};
    attnd_pool_occupy(&rig.pool);
    rig.service.pools = &rig.pool;
    rig.memories[POOLS - 1].pools = 1;
}

static int setup(void **state)
{
    (void)state;
    memset(&rig, 0, sizeof(rig));
    rig.client.service = &rig.service;
    for (uint32_t i = 0; i < 3; i++) {
        rig.memories[i] =
            (struct attnd_memory){.index = 10 + i, .refs = 1, .size_bytes = MEMORY_BYTES};
        rig.client.memories[i] = &rig.memories[i];
    }
    make_pool();
    rig.plan.extents = (struct attnd_extents){.q_bytes = Q_BYTES,
                                              .o_bytes = O_BYTES,
                                              .lse_bytes = LSE_BYTES,
                                              .k_bytes = Q_BYTES,
                                              .v_bytes = Q_BYTES};
    rig.op.sqe.opcode = ATTND_OP_RUN;
    rig.op.sqe.u.run = (struct attnd_sqe_run){.q_memory = FIRST,
                                              .o_memory = FIRST,
                                              .lse_memory = SECOND,
                                              .o_offset_bytes = Q_BYTES,
                                              .lse_offset_bytes = 4};
    return 0;
}

/* Every reference that was taken is given back. */
static int teardown(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(rig.memories[i].refs, 1);
    return 0;
}

static int check(void)
{
    if (rig.op.sqe.opcode == ATTND_OP_APPEND)
        return attnd_places_append(&rig.plan, &rig.op.sqe.u.append, rig.op.memories, &rig.run,
                                   &rig.fault);
    return attnd_places_attend(&rig.service, &rig.plan, &rig.op.sqe.u.run, rig.op.memories,
                               &rig.run, &rig.fault);
}

/* The step of the operation as it stands. Return: 0 or the fault's code. */
static int resolve(void)
{
    memset(&rig.fault, 0, sizeof(rig.fault));
    rig.run = (struct attnd_run){0};
    attnd_places_take(&rig.client, &rig.op.sqe, rig.op.memories);
    int rc = check();
    attnd_places_release(&rig.service, rig.op.memories);
    return rc;
}

static void refused(int error, uint32_t field, int64_t value, int64_t limit)
{
    assert_int_equal(resolve(), -error);
    assert_int_equal(rig.fault.field, field);
    assert_int_equal(rig.fault.value, value);
    assert_int_equal(rig.fault.limit, limit);
}

/* ---- runs ---- */

static void a_place_is_the_memory_as_the_worker_knows_it(void **state)
{
    (void)state;
    assert_int_equal(resolve(), 0);
    assert_int_equal(rig.run.q.memory, 10);
    assert_int_equal(rig.run.o.memory, 10);
    assert_int_equal(rig.run.o.offset_bytes, Q_BYTES);
    assert_int_equal(rig.run.lse.memory, 11);
    assert_int_equal(rig.run.lse.offset_bytes, 4);
    assert_int_equal(rig.run.k.memory, ATTND_NONE);
    rig.op.sqe.u.run.lse_memory = 0;
    assert_int_equal(resolve(), 0);
    assert_int_equal(rig.run.lse.memory, ATTND_NONE);
}

static void what_is_named_is_held_until_it_is_released(void **state)
{
    (void)state;
    attnd_places_take(&rig.client, &rig.op.sqe, rig.op.memories);
    assert_int_equal(rig.memories[0].refs, 3); /* q and o */
    assert_int_equal(rig.memories[1].refs, 2);
    rig.client.memories[FIRST - 1] = &rig.memories[1]; /* the handle is given out again */
    assert_int_equal(check(), 0);
    assert_int_equal(rig.run.q.memory, 10);
    attnd_places_release(&rig.service, rig.op.memories);
}

static void a_handle_of_nothing_is_named(void **state)
{
    struct attnd_sqe_run *run = &rig.op.sqe.u.run;
    (void)state;
    run->q_memory = 77;
    refused(ATTND_E_UNKNOWN, ATTND_F_Q, 77, 0);
    run->q_memory = FIRST;
    run->o_memory = 0;
    refused(ATTND_E_UNKNOWN, ATTND_F_O, 0, 0);
    run->o_memory = FIRST;
    run->lse_memory = UINT32_MAX;
    refused(ATTND_E_UNKNOWN, ATTND_F_LSE, UINT32_MAX, 0);
}

static void rows_begin_where_they_are_aligned(void **state)
{
    struct attnd_sqe_run *run = &rig.op.sqe.u.run;
    (void)state;
    run->q_offset_bytes = 8;
    refused(ATTND_E_INVALID, ATTND_F_Q, 8, 16);
    run->q_offset_bytes = 0;
    run->o_offset_bytes += 8;
    refused(ATTND_E_INVALID, ATTND_F_O, Q_BYTES + 8, 16);
    run->o_offset_bytes -= 8;
    run->lse_offset_bytes = 2;
    refused(ATTND_E_INVALID, ATTND_F_LSE, 2, 4);
}

static void an_extent_may_reach_the_end_and_not_a_byte_further(void **state)
{
    struct attnd_sqe_run *run = &rig.op.sqe.u.run;
    (void)state;
    run->q_memory = SECOND;
    run->lse_memory = 0;
    run->q_offset_bytes = MEMORY_BYTES - Q_BYTES;
    assert_int_equal(resolve(), 0);
    run->q_offset_bytes += 16;
    refused(ATTND_E_RANGE, ATTND_F_Q, MEMORY_BYTES + 16, MEMORY_BYTES);
    run->q_offset_bytes = UINT64_MAX - 15; /* the end comes round to a small number */
    refused(ATTND_E_RANGE, ATTND_F_Q, INT64_MAX, MEMORY_BYTES);
    run->q_offset_bytes = (uint64_t)INT64_MAX + 1;
    refused(ATTND_E_RANGE, ATTND_F_Q, INT64_MAX, MEMORY_BYTES);
}

static void an_output_touches_no_other_place(void **state)
{
    struct attnd_sqe_run *run = &rig.op.sqe.u.run;
    (void)state;
    run->o_offset_bytes = Q_BYTES - 16;
    refused(ATTND_E_OVERLAP, ATTND_F_O, Q_BYTES - 16, 0);
    run->o_memory = SECOND; /* the same bytes of another memory */
    run->lse_memory = 0;
    assert_int_equal(resolve(), 0);
    run->lse_memory = SECOND;
    run->lse_offset_bytes = run->o_offset_bytes + O_BYTES - 4;
    refused(ATTND_E_OVERLAP, ATTND_F_LSE, Q_BYTES - 16 + O_BYTES - 4, Q_BYTES - 16);
    run->lse_offset_bytes += 4;
    assert_int_equal(resolve(), 0);
    run->lse_memory = FIRST;
    run->lse_offset_bytes = 0;
    refused(ATTND_E_OVERLAP, ATTND_F_LSE, 0, 0); /* q */
    run->lse_memory = 0;
    run->o_memory = FIRST; /* right before q */
    run->o_offset_bytes = 0;
    run->q_offset_bytes = O_BYTES;
    assert_int_equal(resolve(), 0);
    run->q_offset_bytes = O_BYTES - 16;
    refused(ATTND_E_OVERLAP, ATTND_F_O, 0, O_BYTES - 16);
}

static void two_handles_of_one_memory_are_one_memory(void **state)
{
    struct attnd_sqe_run *run = &rig.op.sqe.u.run;
    (void)state;
    rig.client.memories[9] = &rig.memories[FIRST - 1];
    run->o_memory = 10;
    run->o_offset_bytes = 0;
    refused(ATTND_E_OVERLAP, ATTND_F_O, 0, 0);
}

/* ---- pools ---- */

static void no_output_lies_in_a_plane_of_any_pool(void **state)
{
    struct attnd_sqe_run *run = &rig.op.sqe.u.run;
    (void)state;
    run->o_memory = POOLS;
    run->o_offset_bytes = PLANE_BYTES - 16;
    refused(ATTND_E_OVERLAP, ATTND_F_O, PLANE_BYTES - 16, 0);
    run->o_offset_bytes = 2 * PLANE_BYTES - O_BYTES + 16;
    refused(ATTND_E_OVERLAP, ATTND_F_O, 2 * PLANE_BYTES - O_BYTES + 16, 2 * PLANE_BYTES);
    run->o_offset_bytes = PLANE_BYTES; /* between the planes */
    assert_int_equal(resolve(), 0);
    run->o_offset_bytes = 3 * PLANE_BYTES; /* behind them */
    assert_int_equal(resolve(), 0);
    run->lse_memory = POOLS;
    run->lse_offset_bytes = 2 * PLANE_BYTES + 4;
    refused(ATTND_E_OVERLAP, ATTND_F_LSE, 2 * PLANE_BYTES + 4, 2 * PLANE_BYTES);
}

/* K in one memory and V in another, whose index is the lower one. */
static void planes_of_two_memories_are_each_found_in_theirs(void **state)
{
    struct attnd_sqe_run *run = &rig.op.sqe.u.run;
    struct attnd_memory *lies_in[] = {&rig.memories[POOLS - 2], &rig.memories[POOLS - 1]};
    struct attnd_interval intervals[2];
    uint32_t ends[2];
    (void)state;
    rig.memories[POOLS - 1].planes = NULL;
    rig.heap.planes[1].memory = lies_in[0]->index;
    rig.pool.memories = lies_in;
    rig.pool.memories_count = 2;
    rig.pool.intervals = intervals;
    rig.pool.intervals_end = ends;
    attnd_pool_occupy(&rig.pool);
    assert_int_equal(ends[0], 1);
    assert_int_equal(ends[1], 2);
    run->o_memory = POOLS;
    run->o_offset_bytes = 0;
    refused(ATTND_E_OVERLAP, ATTND_F_O, 0, 0);
    run->o_offset_bytes = 2 * PLANE_BYTES;
    assert_int_equal(resolve(), 0);
    run->o_memory = POOLS - 1;
    refused(ATTND_E_OVERLAP, ATTND_F_O, 2 * PLANE_BYTES, 2 * PLANE_BYTES);
    run->o_offset_bytes = PLANE_BYTES;
    assert_int_equal(resolve(), 0);
}

static void rows_that_are_read_may_lie_in_a_pool(void **state)
{
    (void)state;
    rig.op.sqe.u.run.q_memory = POOLS;
    assert_int_equal(resolve(), 0);
}

static void pools_are_not_looked_at_where_they_were_before(void **state)
{
    struct attnd_memory *memories[] = {&rig.memories[0], &rig.memories[POOLS - 1],
                                       &rig.memories[1]};
    (void)state;
    rig.op.sqe.u.run.o_offset_bytes = 0;
    assert_int_equal(attnd_places_attend(&rig.service, &rig.plan, &rig.op.sqe.u.run, memories,
                                         &rig.run, &rig.fault),
                     -ATTND_E_OVERLAP);
    assert_int_equal(
        attnd_places_attend(NULL, &rig.plan, &rig.op.sqe.u.run, memories, &rig.run, &rig.fault), 0);
}

/* ---- appends ---- */

static void an_append_does_not_read_what_it_writes(void **state)
{
    struct attnd_sqe_append *append = &rig.op.sqe.u.append;
    (void)state;
    rig.op.sqe.opcode = ATTND_OP_APPEND;
    *append = (struct attnd_sqe_append){.k_memory = FIRST, .v_memory = FIRST};
    assert_int_equal(resolve(), 0); /* k and v may share rows */
    assert_int_equal(rig.run.k.memory, 10);
    assert_int_equal(rig.run.v.memory, 10);
    assert_int_equal(rig.run.q.memory, ATTND_NONE);
    append->v_memory = POOLS;
    append->v_offset_bytes = 2 * PLANE_BYTES;
    refused(ATTND_E_OVERLAP, ATTND_F_V, 2 * PLANE_BYTES, 2 * PLANE_BYTES);
    append->k_memory = POOLS;
    append->v_memory = FIRST;
    append->v_offset_bytes = 0;
    refused(ATTND_E_OVERLAP, ATTND_F_K, 0, 0);
    append->k_offset_bytes = MEMORY_BYTES - Q_BYTES + 16;
    refused(ATTND_E_RANGE, ATTND_F_K, MEMORY_BYTES + 16, MEMORY_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(a_place_is_the_memory_as_the_worker_knows_it),
        TEST(what_is_named_is_held_until_it_is_released),
        TEST(a_handle_of_nothing_is_named),
        TEST(rows_begin_where_they_are_aligned),
        TEST(an_extent_may_reach_the_end_and_not_a_byte_further),
        TEST(an_output_touches_no_other_place),
        TEST(two_handles_of_one_memory_are_one_memory),
        TEST(no_output_lies_in_a_plane_of_any_pool),
        TEST(planes_of_two_memories_are_each_found_in_theirs),
        TEST(rows_that_are_read_may_lie_in_a_pool),
        TEST(pools_are_not_looked_at_where_they_were_before),
        TEST(an_append_does_not_read_what_it_writes),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
