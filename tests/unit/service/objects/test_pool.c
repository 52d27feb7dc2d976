/* test_pool.c - what a pool and its plans may look like, and what is said of one that may not. */
#include "tests/support/rigs/pool_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void a_made_pool_lies_contiguously_in_one_memory(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = pool_rig_good_desc();
    assert_int_equal(pool_rig_create(0, &desc), 0);
    const Attnd__PoolReply *reply = pool_rig.reply.pool;
    const uint64_t plane_bytes = 4 * 16 * 2 * 64 * 2;
    assert_true(reply->writable);
    assert_int_equal(reply->memory_bytes, 4 * plane_bytes);
    assert_int_equal(pool_rig.call.reply_fds_count, 1);
    assert_int_equal(reply->desc->n_k, 2);
    assert_int_equal(reply->desc->v[0]->offset_bytes, plane_bytes);
    assert_int_equal(reply->desc->k[1]->offset_bytes, 2 * plane_bytes);
    assert_int_equal(reply->desc->v[1]->offset_bytes, 3 * plane_bytes);
    assert_int_equal(reply->desc->k[1]->memory, reply->memory);
    assert_int_equal(reply->desc->k[1]->stride_page, 16 * 2 * 64);
    assert_int_equal(reply->desc->k[1]->stride_token, 2 * 64);
    assert_int_equal(reply->desc->k[1]->stride_head, 64);
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_HOST], 4 * plane_bytes);
}

static void the_worker_reads_what_was_described(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = pool_rig_good_desc();
    assert_int_equal(pool_rig_create(0, &desc), 0);
    const struct attnd_pool *pool = pool_rig.service.pools;
    const struct attnd_heap_pool *heap =
        attnd_heap_at(pool_rig.service.queue, pool->heap_offset_bytes);
    const struct attnd_heap_plane *planes = (const struct attnd_heap_plane *)(heap + 1);
    assert_int_equal(heap->layers, 2);
    assert_int_equal(heap->page_size, 16);
    assert_int_equal(heap->dtype, ATTND_BF16);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(planes[i].memory, pool->memories[0]->index);
    assert_int_equal(planes[3].offset_bytes, 3 * 4 * 16 * 2 * 64 * 2);
}

static void each_bad_scalar_is_named(void **state)
{
    (void)state;
    const struct {
        size_t offset;
        uint32_t value;
        int code;
        uint32_t field;
        int64_t limit;
    } cases[] = {
#define FIELD(name) offsetof(Attnd__PoolCreate, name)
        {FIELD(layers), 0, -ATTND_E_RANGE, ATTND_F_LAYERS, 1},
        {FIELD(layers), ATTND_LAYERS_MAX + 1, -ATTND_E_RANGE, ATTND_F_LAYERS, ATTND_LAYERS_MAX},
        {FIELD(pages), 0, -ATTND_E_RANGE, ATTND_F_PAGES, 1},
        {FIELD(pages), UINT32_MAX, -ATTND_E_RANGE, ATTND_F_PAGES, 1 << 24},
        {FIELD(page_size), 0, -ATTND_E_RANGE, ATTND_F_PAGE_SIZE, 1},
        {FIELD(page_size), UINT32_MAX, -ATTND_E_RANGE, ATTND_F_PAGE_SIZE, 1 << 20},
        {FIELD(heads_kv), 0, -ATTND_E_RANGE, ATTND_F_HEADS_KV, 1},
        {FIELD(heads_kv), 1025, -ATTND_E_RANGE, ATTND_F_HEADS_KV, 1024},
        {FIELD(dim_qk), 100, -ATTND_E_UNSUPPORTED, ATTND_F_HEAD_DIM, 256},
        {FIELD(dim_vo), 128, -ATTND_E_UNSUPPORTED, ATTND_F_DIM_VO, 64},
        {FIELD(dtype), 0, -ATTND_E_UNSUPPORTED, ATTND_F_DTYPE, ATTND_FP16},
        {FIELD(dtype), ATTND_FP8_E4M3, -ATTND_E_UNSUPPORTED, ATTND_F_DTYPE, ATTND_BF16},
        {FIELD(dtype), ATTND_DTYPES_END, -ATTND_E_UNSUPPORTED, ATTND_F_DTYPE, ATTND_FP8_E5M2},
        {FIELD(page_owner), 0, -ATTND_E_INVALID, ATTND_F_PAGE_OWNER, 2},
#undef FIELD
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Attnd__PoolCreate desc = pool_rig_good_desc();
        memcpy((char *)&desc + cases[i].offset, &cases[i].value, sizeof(uint32_t));
        assert_int_equal(pool_rig_create(0, &desc), cases[i].code);
        assert_int_equal(pool_rig.fault.field, cases[i].field);
        assert_int_equal(pool_rig.fault.value, cases[i].value);
        assert_int_equal(pool_rig.fault.limit, cases[i].limit);
    }
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = pool_rig_good_desc();
    desc.layers = 1024;
    desc.pages = 1 << 24;
    desc.page_size = 1 << 20;
    desc.heads_kv = 1024;
    desc.dim_qk = desc.dim_vo = 256;
    assert_int_equal(pool_rig_create(0, &desc), -ATTND_E_RANGE);
    assert_int_equal(pool_rig.fault.field, ATTND_F_SIZE);
    desc = pool_rig_good_desc();
    desc.pages = 1 << 20;
    assert_int_equal(pool_rig_create(0, &desc), -ATTND_E_NO_MEMORY);
    assert_int_equal(pool_rig.fault.limit, 8 * MEMORY_BYTES);
}

static void a_plane_must_end_inside_its_memory(void **state)
{
    (void)state;
    const uint64_t plane_bytes = 4 * 16 * 2 * 64 * 2;
    Attnd__Plane plane = pool_rig_good_plane(pool_rig_make_memory(0, MEMORY_BYTES));
    plane.offset_bytes = MEMORY_BYTES - plane_bytes;
    assert_int_equal(pool_rig_create_in(&plane, 1), 0);
    plane.offset_bytes += 2;
    assert_int_equal(pool_rig_create_in(&plane, 1), -ATTND_E_RANGE);
    assert_int_equal(pool_rig.fault.field, ATTND_F_K);
    assert_int_equal(pool_rig.fault.value, MEMORY_BYTES + 2);
    assert_int_equal(pool_rig.fault.limit, MEMORY_BYTES);
    plane.offset_bytes = UINT64_MAX - 1;
    assert_int_equal(pool_rig_create_in(&plane, 1), -ATTND_E_RANGE);
    plane.offset_bytes = 1;
    assert_int_equal(pool_rig_create_in(&plane, 1), -ATTND_E_INVALID);
    assert_int_equal(pool_rig.fault.field, ATTND_F_OFFSET);
}

static void strides_are_bounded_and_not_negative(void **state)
{
    (void)state;
    const int64_t bad[] = {-1, INT64_MIN, INT64_MAX, ((int64_t)1 << 38) + 1};
    uint32_t memory = pool_rig_make_memory(0, MEMORY_BYTES);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        Attnd__Plane plane = pool_rig_good_plane(memory);
        plane.stride_head = bad[i];
        assert_int_equal(pool_rig_create_in(&plane, 1), -ATTND_E_RANGE);
        assert_int_equal(pool_rig.fault.field, ATTND_F_STRIDE);
        assert_int_equal(pool_rig.fault.value, bad[i]);
    }
    Attnd__Plane plane = pool_rig_good_plane(memory);
    plane.stride_page = (int64_t)1 << 38;
    assert_int_equal(pool_rig_create_in(&plane, 1), -ATTND_E_RANGE);
    assert_int_equal(pool_rig.fault.field, ATTND_F_K);
}

/* Four pages of 16 tokens, 2 heads of 64: what engines have, and what shares elements of pages. */
static void pages_may_lie_in_any_order_but_not_in_each_other(void **state)
{
    enum { DIM = 64, HEADS = 2, TOKENS = 16, PAGES = 4, PAGE = TOKENS * HEADS * DIM };
    const struct {
        int64_t stride_page, stride_token, stride_head;
        int64_t value, limit; /* 0: legal */
    } cases[] = {
        {PAGE, HEADS * DIM, DIM, 0, 0},                  /* NHD: vLLM, SGLang, FlashInfer */
        {2 * PAGE, HEADS * DIM, DIM, 0, 0},              /* K and V of a page side by side */
        {2 * PAGE, 2 * HEADS * DIM, DIM, 0, 0},          /* of a token */
        {PAGE, DIM, TOKENS * DIM, 0, 0},                 /* HND */
        {TOKENS * DIM, DIM, PAGES * TOKENS * DIM, 0, 0}, /* heads outside the pages */
        {HEADS * DIM, PAGES * HEADS * DIM, DIM, 0, 0},   /* tokens outside the pages */
        {TOKENS * DIM, DIM, 0, 0, 0},                    /* one K for all heads */
        {DIM, 0, 0, 0, 0},                               /* one key for all tokens of a page */
        {0, HEADS * DIM, DIM, 0, PAGE},
        {PAGE - 1, HEADS * DIM, DIM, PAGE - 1, PAGE},
        {DIM, HEADS * DIM, DIM, DIM, PAGE}, /* pages in the heads' places */
        {TOKENS * DIM, DIM, PAGES * TOKENS * DIM - 1, PAGES * TOKENS * DIM - 1,
         PAGES * TOKENS * DIM},
        {DIM - 1, 0, 0, DIM - 1, DIM},
        {0, 0, 0, 0, DIM},
    };
    uint32_t memory = pool_rig_make_memory(0, MEMORY_BYTES);
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Attnd__Plane plane = pool_rig_good_plane(memory);
        plane.stride_page = cases[i].stride_page;
        plane.stride_token = cases[i].stride_token;
        plane.stride_head = cases[i].stride_head;
        assert_int_equal(pool_rig_create_in(&plane, 1), cases[i].limit ? -ATTND_E_RANGE : 0);
        if (!cases[i].limit)
            continue;
        assert_int_equal(pool_rig.fault.field, ATTND_F_STRIDE);
        assert_int_equal(pool_rig.fault.value, cases[i].value);
        assert_int_equal(pool_rig.fault.limit, cases[i].limit);
    }
}

static void the_second_list_of_planes_is_checked_too(void **state)
{
    (void)state;
    Attnd__Plane good = pool_rig_good_plane(pool_rig_make_memory(0, MEMORY_BYTES));
    Attnd__Plane bad = good;
    Attnd__Plane *k[] = {&good, &good}, *v[] = {&good, &bad};
    Attnd__PoolCreate desc = pool_rig_good_desc();
    bad.memory = 77;
    desc.n_k = desc.n_v = 2;
    desc.k = k;
    desc.v = v;
    assert_int_equal(pool_rig_create(0, &desc), -ATTND_E_UNKNOWN);
    assert_int_equal(pool_rig.fault.field, ATTND_F_MEMORY);
    assert_int_equal(pool_rig.fault.index, 1);
    assert_int_equal(pool_rig.fault.value, 77);
    bad = good;
    bad.offset_bytes = MEMORY_BYTES;
    assert_int_equal(pool_rig_create(0, &desc), -ATTND_E_RANGE);
    assert_int_equal(pool_rig.fault.field, ATTND_F_V);
    assert_int_equal(pool_rig.fault.index, 1);
    desc.n_v = 1;
    assert_int_equal(pool_rig_create(0, &desc), -ATTND_E_INVALID);
    assert_int_equal(pool_rig.fault.value, 1);
    assert_int_equal(pool_rig.fault.limit, 2);
}

static void plans_have_limits(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = pool_rig_good_desc();
    assert_int_equal(pool_rig_create(0, &desc), 0);
    uint32_t pool = pool_rig.reply.pool->pool;
    const struct {
        uint32_t requests, rows, pages, levels, heads_q;
        int code;
        uint32_t field;
    } cases[] = {
        {0, 1, 1, 1, 2, -ATTND_E_RANGE, ATTND_F_REQUESTS},
        {1, 0, 1, 1, 2, -ATTND_E_RANGE, ATTND_F_ROWS},
        {1, 1, 0, 1, 2, -ATTND_E_RANGE, ATTND_F_PAGES},
        {1, 1, 1, 9, 2, -ATTND_E_RANGE, ATTND_F_LEVELS},
        {1, 1, 1, 1, 3, -ATTND_E_INVALID, ATTND_F_HEADS_Q},
        {1, 1, 1, 1, 512, -ATTND_E_RANGE, ATTND_F_HEADS_Q},
        {UINT32_MAX, 1, 1, 1, 2, -ATTND_E_RANGE, ATTND_F_REQUESTS},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Attnd__PlanCreate plan = ATTND__PLAN_CREATE__INIT;
        struct attnd_call *call = pool_rig_begin(0);
        plan.pool = pool;
        plan.requests = cases[i].requests;
        plan.rows = cases[i].rows;
        plan.pages = cases[i].pages;
        plan.levels = cases[i].levels;
        plan.heads_q = cases[i].heads_q;
        pool_rig.request.plan_create = &plan;
        assert_int_equal(attnd_call_plan_create(call), cases[i].code);
        assert_int_equal(pool_rig.fault.field, cases[i].field);
    }
}

static int plan_on(uint32_t pool)
{
    Attnd__PlanCreate plan = ATTND__PLAN_CREATE__INIT;
    struct attnd_call *call = pool_rig_begin(0);
    plan.pool = pool;
    plan.requests = plan.rows = plan.pages = plan.levels = 1;
    plan.heads_q = 2;
    pool_rig.request.plan_create = &plan;
    return attnd_call_plan_create(call);
}

static void what_the_worker_has_no_variant_for_is_refused_by_name(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = pool_rig_good_desc(); /* bf16, 64 */
    Attnd__PlanDestroy destroy = ATTND__PLAN_DESTROY__INIT;
    assert_int_equal(pool_rig_create(0, &desc), 0);
    uint32_t pool = pool_rig.reply.pool->pool;

    /* Another worker has come since. */
    stub_worker.head_dims[ATTND_BF16] = attnd_head_dim_bit(128) | attnd_head_dim_bit(256);
    assert_int_equal(plan_on(pool), -ATTND_E_UNSUPPORTED);
    assert_int_equal(pool_rig.fault.field, ATTND_F_HEAD_DIM);
    assert_int_equal(pool_rig.fault.value, 64);
    assert_int_equal(pool_rig.fault.limit, 128);
    assert_int_equal(pool_rig_create(0, &desc), -ATTND_E_UNSUPPORTED);
    assert_int_equal(pool_rig.fault.field, ATTND_F_HEAD_DIM);
    stub_worker.head_dims[ATTND_BF16] = attnd_head_dim_bit(64);
    assert_int_equal(plan_on(pool), 0);
    destroy.plan = pool_rig.reply.plan->plan;
    struct attnd_call *call = pool_rig_begin(0);
    pool_rig.request.plan_destroy = &destroy;
    assert_int_equal(attnd_call_plan_destroy(call), 0);
    desc.dim_qk = desc.dim_vo = 128;
    assert_int_equal(pool_rig_create(0, &desc), -ATTND_E_UNSUPPORTED);
    assert_int_equal(pool_rig.fault.value, 128);
    assert_int_equal(pool_rig.fault.limit, 64);

    stub_worker.head_dims[ATTND_BF16] = 0;
    assert_int_equal(pool_rig_create(0, &desc), -ATTND_E_UNSUPPORTED);
    assert_int_equal(pool_rig.fault.field, ATTND_F_DTYPE);
    assert_int_equal(pool_rig.fault.value, ATTND_BF16);
    assert_int_equal(pool_rig.fault.limit, ATTND_FP16);
}

static void elements_of_fp8_take_a_byte_each(void **state)
{
    (void)state;
    const uint64_t plane_bytes = 4 * 16 * 2 * 64;
    Attnd__PoolCreate desc = pool_rig_good_desc();
    desc.dtype = ATTND_FP8_E4M3;
    stub_worker.head_dims[0] = attnd_head_dim_bit(64);
    assert_int_equal(pool_rig_create(0, &desc), 0);
    assert_int_equal(pool_rig.reply.pool->desc->dtype, ATTND_FP8_E4M3);
    assert_int_equal(pool_rig.reply.pool->desc->v[0]->offset_bytes, plane_bytes);
    assert_int_equal(pool_rig.reply.pool->desc->v[0]->stride_page, 16 * 2 * 64);

    const uint32_t memory = pool_rig_make_memory(0, MEMORY_BYTES);
    Attnd__Plane plane = pool_rig_good_plane(memory), *planes[] = {&plane};
    plane.offset_bytes = MEMORY_BYTES - plane_bytes; /* odd is as good as even */
    desc.layers = 1;
    desc.n_k = desc.n_v = 1;
    desc.k = desc.v = planes;
    plane.offset_bytes -= 1;
    assert_int_equal(pool_rig_create(0, &desc), 0);
    plane.offset_bytes += 2;
    assert_int_equal(pool_rig_create(0, &desc), -ATTND_E_RANGE);
    assert_int_equal(pool_rig.fault.field, ATTND_F_K);
    assert_int_equal(pool_rig.fault.value, MEMORY_BYTES + 1);
}

static void dimensions_that_differ_are_asked_for_with_fp8_on_their_own(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = pool_rig_good_desc();
    desc.dim_qk = 192;
    desc.dim_vo = 128;
    desc.dtype = ATTND_FP8_E5M2;
    stub_worker.head_dims[0] = attnd_head_dim_bit(64);
    stub_worker.options |= ATTND_OPTION_DIMS_192_128;
    assert_int_equal(pool_rig_create(0, &desc), -ATTND_E_UNSUPPORTED);
    assert_int_equal(pool_rig.fault.field, ATTND_F_HEAD_DIM);
    assert_int_equal(pool_rig.fault.limit, 64);
    stub_worker.options |= ATTND_OPTION_DIMS_FP8;
    assert_int_equal(pool_rig_create(0, &desc), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, pool_rig_setup, pool_rig_teardown)
        TEST(a_made_pool_lies_contiguously_in_one_memory),
        TEST(the_worker_reads_what_was_described),
        TEST(each_bad_scalar_is_named),
        TEST(sizes_that_overflow_are_refused),
        TEST(a_plane_must_end_inside_its_memory),
        TEST(strides_are_bounded_and_not_negative),
        TEST(pages_may_lie_in_any_order_but_not_in_each_other),
        TEST(the_second_list_of_planes_is_checked_too),
        TEST(plans_have_limits),
        TEST(what_the_worker_has_no_variant_for_is_refused_by_name),
        TEST(elements_of_fp8_take_a_byte_each),
        TEST(dimensions_that_differ_are_asked_for_with_fp8_on_their_own),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
