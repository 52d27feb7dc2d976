/* test_pool.c - what a pool may look like, and who keeps it and its memory alive. */
#include "service/control.h"
#include "tests/support/data_stub.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define MEMORY_BYTES (1u << 20)

/* One call at a time, as the control plane makes it, without the socket. */
static struct {
    struct attnd_service service;
    struct attnd_client *clients[2];
    struct attnd_fault fault;
    Attnd__Request request;
    Attnd__Reply reply;
    struct attnd_call call;
} rig;

static struct attnd_client *client_new(uint32_t slot)
{
    struct attnd_client *client = calloc(1, sizeof(*client));
    client->service = &rig.service;
    client->id = slot + 1;
    client->state = ATTND_SESSION_OPEN;
    client->allowed = 1;
    rig.service.clients[slot] = client;
    return client;
}

static int setup(void **state)
{
    (void)state;
    memset(&rig, 0, sizeof(rig));
    memset(&stub, 0, sizeof(stub));
    stub.unmaps_answered = 1;
    rig.service.options.memory_max_bytes = 8 * MEMORY_BYTES;
    assert_int_equal(attnd_data_start(&rig.service, &rig.fault), 0);
    assert_int_equal(attnd_control_new(&rig.service), 0);
    for (uint32_t i = 0; i < 2; i++)
        rig.clients[i] = client_new(i);
    return 0;
}

/* As a session ends, without a loop and without a socket. */
static void client_end(struct attnd_client *client)
{
    for (uint32_t h = 1; h <= ATTND_HANDLES_MAX; h++)
        if (client->attachments[h - 1])
            attnd_client_detach(client, h);
    for (uint32_t h = 1; h <= ATTND_HANDLES_MAX; h++)
        if (client->memories[h - 1])
            attnd_memory_unbind(client, h);
}

static int teardown(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++)
        client_end(rig.clients[i]);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(rig.clients[i]->memory_bytes, 0);
    assert_null(rig.service.pools);
    assert_int_equal(rig.service.pools_count, 0);
    assert_int_equal(rig.service.queue->used_bytes, 0);
    assert_int_equal(stub.maps, stub.unmaps);
    for (uint32_t i = 0; i < ATTND_MEMORIES_MAX; i++)
        assert_null(rig.service.memories[i]);
    for (uint32_t i = 0; i < 2; i++)
        free(rig.clients[i]);
    attnd_control_free(&rig.service);
    attnd_data_free(&rig.service);
    return 0;
}

/* Begins a call of client @who; the fields of rig.request are the caller's to set. */
static struct attnd_call *begin(uint32_t who)
{
    memset(&rig.fault, 0, sizeof(rig.fault));
    attnd__request__init(&rig.request);
    attnd__reply__init(&rig.reply);
    attnd_control_reset(&rig.service);
    rig.call = (struct attnd_call){.service = &rig.service,
                                   .client = rig.clients[who],
                                   .request = &rig.request,
                                   .reply = &rig.reply,
                                   .fault = &rig.fault};
    return &rig.call;
}

static Attnd__PoolCreate good_desc(void)
{
    Attnd__PoolCreate desc = ATTND__POOL_CREATE__INIT;
    desc.layers = 2;
    desc.pages = 4;
    desc.page_size = 16;
    desc.heads_kv = 2;
    desc.dim_qk = desc.dim_vo = 64;
    desc.dtype = ATTND_BF16;
    desc.page_owner = ATTND__PAGE_OWNER__OWNER_SERVICE;
    return desc;
}

static int create(uint32_t who, Attnd__PoolCreate *desc)
{
    struct attnd_call *call = begin(who);
    rig.request.pool_create = desc;
    return attnd_call_pool_create(call);
}

static uint32_t make_memory(uint32_t who, uint64_t size_bytes)
{
    Attnd__MemoryRegister message = ATTND__MEMORY_REGISTER__INIT;
    struct attnd_call *call = begin(who);
    message.size_bytes = size_bytes;
    rig.request.memory_register = &message;
    assert_int_equal(attnd_call_memory_register(call), 0);
    assert_int_equal(call->reply_fds_count, 1);
    return rig.reply.memory->memory;
}

static int release_memory(uint32_t who, uint32_t memory)
{
    Attnd__MemoryRelease message = ATTND__MEMORY_RELEASE__INIT;
    struct attnd_call *call = begin(who);
    message.memory = memory;
    rig.request.memory_release = &message;
    return attnd_call_memory_release(call);
}

static int release_pool(uint32_t who, uint32_t pool)
{
    Attnd__PoolRelease message = ATTND__POOL_RELEASE__INIT;
    struct attnd_call *call = begin(who);
    message.pool = pool;
    rig.request.pool_release = &message;
    return attnd_call_pool_release(call);
}

static int share(uint32_t who, uint32_t pool, int writable, uint8_t *token)
{
    Attnd__PoolShare message = ATTND__POOL_SHARE__INIT;
    struct attnd_call *call = begin(who);
    message.pool = pool;
    message.writable = writable;
    rig.request.pool_share = &message;
    int rc = attnd_call_pool_share(call);
    if (rc == 0)
        memcpy(token, rig.reply.token->token.data, ATTND_SECRET_BYTES);
    return rc;
}

static int attach(uint32_t who, const uint8_t *token, size_t bytes)
{
    Attnd__PoolAttach message = ATTND__POOL_ATTACH__INIT;
    struct attnd_call *call = begin(who);
    uint8_t copy[2 * ATTND_SECRET_BYTES] = {0};
    memcpy(copy, token, bytes);
    message.token.data = copy;
    message.token.len = bytes;
    rig.request.pool_attach = &message;
    return attnd_call_pool_attach(call);
}

/* ---- descriptions ---- */

static void a_made_pool_lies_contiguously_in_one_memory(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = good_desc();
    assert_int_equal(create(0, &desc), 0);
    const Attnd__PoolReply *reply = rig.reply.pool;
    const uint64_t plane_bytes = 4 * 16 * 2 * 64 * 2;
    assert_true(reply->writable);
    assert_int_equal(reply->memory_bytes, 4 * plane_bytes);
    assert_int_equal(rig.call.reply_fds_count, 1);
    assert_int_equal(reply->desc->n_k, 2);
    assert_int_equal(reply->desc->v[0]->offset_bytes, plane_bytes);
    assert_int_equal(reply->desc->k[1]->offset_bytes, 2 * plane_bytes);
    assert_int_equal(reply->desc->v[1]->offset_bytes, 3 * plane_bytes);
    assert_int_equal(reply->desc->k[1]->memory, reply->memory);
    assert_int_equal(reply->desc->k[1]->stride_page, 16 * 2 * 64);
    assert_int_equal(reply->desc->k[1]->stride_token, 2 * 64);
    assert_int_equal(reply->desc->k[1]->stride_head, 64);
    assert_int_equal(rig.clients[0]->memory_bytes, 4 * plane_bytes);
}

static void the_worker_reads_what_was_described(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = good_desc();
    assert_int_equal(create(0, &desc), 0);
    const struct attnd_pool *pool = rig.service.pools;
    const struct attnd_heap_pool *heap = attnd_heap_at(rig.service.queue, pool->heap_offset_bytes);
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
        {FIELD(dim_qk), 96, -ATTND_E_UNSUPPORTED, ATTND_F_HEAD_DIM, 256},
        {FIELD(dim_vo), 128, -ATTND_E_UNSUPPORTED, ATTND_F_HEAD_DIM, 64},
        {FIELD(dtype), 3, -ATTND_E_UNSUPPORTED, ATTND_F_DTYPE, ATTND_BF16},
        {FIELD(page_owner), 0, -ATTND_E_INVALID, ATTND_F_PAGE_OWNER, 2},
#undef FIELD
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Attnd__PoolCreate desc = good_desc();
        memcpy((char *)&desc + cases[i].offset, &cases[i].value, sizeof(uint32_t));
        assert_int_equal(create(0, &desc), cases[i].code);
        assert_int_equal(rig.fault.field, cases[i].field);
        assert_int_equal(rig.fault.value, cases[i].value);
        assert_int_equal(rig.fault.limit, cases[i].limit);
    }
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = good_desc();
    desc.layers = 1024;
    desc.pages = 1 << 24;
    desc.page_size = 1 << 20;
    desc.heads_kv = 1024;
    desc.dim_qk = desc.dim_vo = 256;
    assert_int_equal(create(0, &desc), -ATTND_E_RANGE);
    assert_int_equal(rig.fault.field, ATTND_F_SIZE);
    desc = good_desc();
    desc.pages = 1 << 20;
    assert_int_equal(create(0, &desc), -ATTND_E_NO_MEMORY);
    assert_int_equal(rig.fault.limit, 8 * MEMORY_BYTES);
}

/* A pool whose planes all are @plane, of one layer. */
static int create_in(Attnd__Plane *plane, uint32_t page_owner)
{
    Attnd__PoolCreate desc = good_desc();
    Attnd__Plane *list[] = {plane};
    desc.layers = 1;
    desc.page_owner = (Attnd__PageOwner)page_owner;
    desc.n_k = desc.n_v = 1;
    desc.k = desc.v = list;
    return create(0, &desc);
}

static Attnd__Plane good_plane(uint32_t memory)
{
    Attnd__Plane plane = ATTND__PLANE__INIT;
    plane.memory = memory;
    plane.stride_page = 16 * 2 * 64;
    plane.stride_token = 2 * 64;
    plane.stride_head = 64;
    return plane;
}

static void a_plane_must_end_inside_its_memory(void **state)
{
    (void)state;
    const uint64_t plane_bytes = 4 * 16 * 2 * 64 * 2;
    Attnd__Plane plane = good_plane(make_memory(0, MEMORY_BYTES));
    plane.offset_bytes = MEMORY_BYTES - plane_bytes;
    assert_int_equal(create_in(&plane, 1), 0);
    plane.offset_bytes += 2;
    assert_int_equal(create_in(&plane, 1), -ATTND_E_RANGE);
    assert_int_equal(rig.fault.field, ATTND_F_K);
    assert_int_equal(rig.fault.value, MEMORY_BYTES + 2);
    assert_int_equal(rig.fault.limit, MEMORY_BYTES);
    plane.offset_bytes = UINT64_MAX - 1;
    assert_int_equal(create_in(&plane, 1), -ATTND_E_RANGE);
    plane.offset_bytes = 1;
    assert_int_equal(create_in(&plane, 1), -ATTND_E_INVALID);
    assert_int_equal(rig.fault.field, ATTND_F_OFFSET);
}

static void strides_are_bounded_and_not_negative(void **state)
{
    (void)state;
    const int64_t bad[] = {-1, INT64_MIN, INT64_MAX, ((int64_t)1 << 38) + 1};
    uint32_t memory = make_memory(0, MEMORY_BYTES);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        Attnd__Plane plane = good_plane(memory);
        plane.stride_head = bad[i];
        assert_int_equal(create_in(&plane, 1), -ATTND_E_RANGE);
        assert_int_equal(rig.fault.field, ATTND_F_STRIDE);
        assert_int_equal(rig.fault.value, bad[i]);
    }
    Attnd__Plane plane = good_plane(memory);
    plane.stride_page = (int64_t)1 << 38;
    assert_int_equal(create_in(&plane, 1), -ATTND_E_RANGE);
    assert_int_equal(rig.fault.field, ATTND_F_K);
    plane.stride_page = 0; /* every page is the same: odd, and legal */
    assert_int_equal(create_in(&plane, 1), 0);
}

static void the_second_list_of_planes_is_checked_too(void **state)
{
    (void)state;
    Attnd__Plane good = good_plane(make_memory(0, MEMORY_BYTES));
    Attnd__Plane bad = good;
    Attnd__Plane *k[] = {&good, &good}, *v[] = {&good, &bad};
    Attnd__PoolCreate desc = good_desc();
    bad.memory = 77;
    desc.n_k = desc.n_v = 2;
    desc.k = k;
    desc.v = v;
    assert_int_equal(create(0, &desc), -ATTND_E_UNKNOWN);
    assert_int_equal(rig.fault.field, ATTND_F_MEMORY);
    assert_int_equal(rig.fault.index, 1);
    assert_int_equal(rig.fault.value, 77);
    bad = good;
    bad.offset_bytes = MEMORY_BYTES;
    assert_int_equal(create(0, &desc), -ATTND_E_RANGE);
    assert_int_equal(rig.fault.field, ATTND_F_V);
    assert_int_equal(rig.fault.index, 1);
    desc.n_v = 1;
    assert_int_equal(create(0, &desc), -ATTND_E_INVALID);
    assert_int_equal(rig.fault.value, 1);
    assert_int_equal(rig.fault.limit, 2);
}

/* ---- lives ---- */

static void a_pool_lives_until_the_last_session_lets_it_go(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = good_desc();
    uint8_t token[ATTND_SECRET_BYTES];
    assert_int_equal(create(0, &desc), 0);
    uint32_t made = rig.reply.pool->pool;
    assert_int_equal(share(0, made, 0, token), 0);
    assert_int_equal(attach(1, token, sizeof(token)), 0);
    uint32_t attached = rig.reply.pool->pool;
    assert_false(rig.reply.pool->writable);
    assert_int_equal(rig.call.reply_fds_count, 1);
    assert_true(rig.reply.pool->memory > 0);
    assert_int_equal(rig.reply.pool->desc->k[0]->memory, rig.reply.pool->memory);

    assert_int_equal(release_pool(0, made), 0);
    assert_int_equal(release_pool(0, made), -ATTND_E_UNKNOWN);
    assert_int_equal(rig.service.pools_count, 1);
    assert_int_equal(stub.unmaps, 0);
    assert_true(rig.clients[0]->memory_bytes > 0); /* who made it pays while it lives */
    assert_int_equal(release_pool(1, attached), 0);
    assert_int_equal(rig.service.pools_count, 0);
    assert_int_equal(stub.unmaps, 1);
    assert_int_equal(rig.clients[0]->memory_bytes, 0);
}

static void reading_rights_cannot_be_made_writing_ones(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = good_desc();
    uint8_t reading[ATTND_SECRET_BYTES], writing[ATTND_SECRET_BYTES], again[ATTND_SECRET_BYTES];
    assert_int_equal(create(0, &desc), 0);
    uint32_t made = rig.reply.pool->pool;
    assert_int_equal(share(0, made, 0, reading), 0);
    assert_int_equal(share(0, made, 1, writing), 0);
    assert_memory_not_equal(reading, writing, sizeof(reading));
    assert_int_equal(share(0, made, 1, again), 0);
    assert_memory_equal(again, writing, sizeof(again));

    assert_int_equal(attach(1, reading, sizeof(reading)), 0);
    uint32_t attached = rig.reply.pool->pool;
    assert_int_equal(share(1, attached, 1, again), -ATTND_E_PERMISSION);
    assert_int_equal(share(1, attached, 0, again), 0);
    assert_memory_equal(again, reading, sizeof(again));
    assert_int_equal(attach(1, writing, sizeof(writing)), 0);
    assert_true(rig.reply.pool->writable);
}

static void a_guessed_token_attaches_nothing(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = good_desc();
    uint8_t token[ATTND_SECRET_BYTES + 1] = {0};
    assert_int_equal(create(0, &desc), 0); /* never shared: its tokens are all zero */
    assert_int_equal(attach(1, token, ATTND_SECRET_BYTES), -ATTND_E_UNKNOWN);
    assert_int_equal(attach(1, token, 0), -ATTND_E_UNKNOWN);
    uint32_t made = rig.service.pools->id;
    assert_int_equal(share(0, made, 1, token), 0);
    assert_int_equal(attach(1, token, ATTND_SECRET_BYTES - 1), -ATTND_E_UNKNOWN);
    assert_int_equal(attach(1, token, ATTND_SECRET_BYTES + 1), -ATTND_E_UNKNOWN);
    token[15] ^= 1;
    assert_int_equal(attach(1, token, ATTND_SECRET_BYTES), -ATTND_E_UNKNOWN);
}

static void memory_that_a_pool_lies_in_is_busy(void **state)
{
    (void)state;
    uint32_t memory = make_memory(0, MEMORY_BYTES);
    Attnd__Plane plane = good_plane(memory);
    assert_int_equal(create_in(&plane, 2), 0);
    uint32_t pool = rig.reply.pool->pool;
    assert_int_equal(rig.reply.pool->memory, memory);
    assert_int_equal(release_memory(0, memory), -ATTND_E_BUSY);
    assert_int_equal(release_pool(0, pool), 0);
    assert_int_equal(release_memory(0, memory), 0); /* the session's own handle stays until here */
    assert_int_equal(release_memory(0, memory), -ATTND_E_UNKNOWN);
}

static void the_handle_that_came_with_a_pool_goes_with_the_last_of_it(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = good_desc();
    uint8_t token[ATTND_SECRET_BYTES];
    assert_int_equal(create(0, &desc), 0);
    assert_int_equal(share(0, rig.reply.pool->pool, 1, token), 0);
    assert_int_equal(attach(1, token, sizeof(token)), 0);
    uint32_t first = rig.reply.pool->pool, memory = rig.reply.pool->memory;
    assert_int_equal(attach(1, token, sizeof(token)), 0);
    uint32_t second = rig.reply.pool->pool;
    assert_int_equal(rig.reply.pool->memory, memory);
    assert_int_equal(release_pool(1, first), 0);
    assert_non_null(attnd_client_memory(rig.clients[1], memory));
    assert_int_equal(release_pool(1, second), 0);
    assert_null(attnd_client_memory(rig.clients[1], memory));
}

static void a_pool_with_plans_is_busy(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = good_desc();
    Attnd__PlanCreate plan = ATTND__PLAN_CREATE__INIT;
    Attnd__PlanDestroy destroy = ATTND__PLAN_DESTROY__INIT;
    assert_int_equal(create(0, &desc), 0);
    uint32_t pool = rig.reply.pool->pool;
    struct attnd_call *call = begin(0);
    plan.pool = pool;
    plan.requests = plan.rows = plan.pages = plan.levels = 1;
    plan.heads_q = 8;
    rig.request.plan_create = &plan;
    assert_int_equal(attnd_call_plan_create(call), 0);
    destroy.plan = rig.reply.plan->plan;
    assert_int_equal(release_pool(0, pool), -ATTND_E_BUSY);

    rig.clients[0]->plans[destroy.plan - 1]->in_flight = 1;
    call = begin(0);
    rig.request.plan_destroy = &destroy;
    assert_int_equal(attnd_call_plan_destroy(call), -ATTND_E_BUSY);
    rig.clients[0]->plans[destroy.plan - 1]->in_flight = 0;
    assert_int_equal(attnd_call_plan_destroy(call), 0);
    assert_int_equal(attnd_call_plan_destroy(call), -ATTND_E_UNKNOWN);
    assert_int_equal(release_pool(0, pool), 0);
    assert_int_equal(stub.plans, 0);
}

static void plans_have_limits(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = good_desc();
    assert_int_equal(create(0, &desc), 0);
    uint32_t pool = rig.reply.pool->pool;
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
        struct attnd_call *call = begin(0);
        plan.pool = pool;
        plan.requests = cases[i].requests;
        plan.rows = cases[i].rows;
        plan.pages = cases[i].pages;
        plan.levels = cases[i].levels;
        plan.heads_q = cases[i].heads_q;
        rig.request.plan_create = &plan;
        assert_int_equal(attnd_call_plan_create(call), cases[i].code);
        assert_int_equal(rig.fault.field, cases[i].field);
    }
}

/* ---- memory ---- */

static void an_index_is_not_reused_before_the_worker_let_go(void **state)
{
    (void)state;
    uint32_t memory = make_memory(0, 4096);
    uint32_t index = rig.clients[0]->memories[memory - 1]->index;
    stub.unmaps_answered = 0;
    assert_int_equal(release_memory(0, memory), 0);
    assert_int_equal(stub.last_unmapped, index);
    uint32_t other = make_memory(0, 4096);
    assert_int_not_equal(rig.clients[0]->memories[other - 1]->index, index);
    stub.unmaps_answered = 1;
    attnd_memory_unmapped(&rig.service, index);
    uint32_t third = make_memory(0, 4096);
    assert_int_equal(rig.clients[0]->memories[third - 1]->index, index);
}

static void a_session_has_a_budget(void **state)
{
    (void)state;
    Attnd__MemoryRegister message = ATTND__MEMORY_REGISTER__INIT;
    uint32_t memory = make_memory(0, 8 * MEMORY_BYTES - 1); /* rounded up to pages */
    assert_int_equal(rig.clients[0]->memory_bytes, 8 * MEMORY_BYTES);
    const uint64_t sizes[] = {1, MEMORY_BYTES, UINT64_MAX, INT64_MAX, 0};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct attnd_call *call = begin(0);
        message.size_bytes = sizes[i];
        rig.request.memory_register = &message;
        assert_true(attnd_call_memory_register(call) < 0);
        assert_int_equal(rig.fault.field, ATTND_F_SIZE);
    }
    (void)make_memory(1, 4096); /* another's is its own */
    assert_int_equal(release_memory(0, memory), 0);
    assert_int_equal(rig.clients[0]->memory_bytes, 0);
}

static int import(int fd, uint64_t size_bytes, int *left)
{
    Attnd__MemoryRegister message = ATTND__MEMORY_REGISTER__INIT;
    struct attnd_call *call = begin(0);
    int fds[] = {fd};
    message.size_bytes = size_bytes;
    rig.request.memory_register = &message;
    call->fds = fds;
    call->fds_count = 1;
    int rc = attnd_call_memory_register(call);
    *left = fds[0];
    return rc;
}

static int memfd(int seals)
{
    int fd = memfd_create("attnd-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void only_memory_that_cannot_shrink_and_can_be_written_is_imported(void **state)
{
    (void)state;
    int left, fd = memfd(0);
    assert_int_equal(import(fd, 4096, &left), -ATTND_E_PERMISSION);
    assert_int_equal(rig.fault.field, ATTND_F_SEALS);
    assert_int_equal(left, fd); /* still the caller's to close */
    close(fd);

    fd = memfd(F_SEAL_SHRINK | F_SEAL_WRITE);
    assert_int_equal(import(fd, 4096, &left), -ATTND_E_PERMISSION);
    close(fd);

    fd = memfd(F_SEAL_SHRINK);
    assert_int_equal(import(fd, 8192, &left), -ATTND_E_RANGE);
    assert_int_equal(rig.fault.field, ATTND_F_SIZE);
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int reading = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(import(reading, 4096, &left), -ATTND_E_PERMISSION);
    close(reading);
    assert_int_equal(import(fd, 4096, &left), 0);
    assert_int_equal(left, -1);
    assert_int_equal(rig.call.reply_fds_count, 0);
    assert_int_equal(rig.clients[0]->memory_bytes, 0);
}

static void a_worker_that_has_no_room_refuses_memory_without_a_trace(void **state)
{
    (void)state;
    Attnd__MemoryRegister message = ATTND__MEMORY_REGISTER__INIT;
    struct attnd_call *call = begin(0);
    message.size_bytes = 4096;
    rig.request.memory_register = &message;
    stub.map_rc = -ATTND_E_NO_MEMORY;
    assert_int_equal(attnd_call_memory_register(call), -ATTND_E_NO_MEMORY);
    assert_int_equal(rig.clients[0]->memory_bytes, 0);
    Attnd__PoolCreate desc = good_desc();
    assert_int_equal(create(0, &desc), -ATTND_E_NO_MEMORY);
    stub.map_rc = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(a_made_pool_lies_contiguously_in_one_memory),
        TEST(the_worker_reads_what_was_described),
        TEST(each_bad_scalar_is_named),
        TEST(sizes_that_overflow_are_refused),
        TEST(a_plane_must_end_inside_its_memory),
        TEST(strides_are_bounded_and_not_negative),
        TEST(the_second_list_of_planes_is_checked_too),
        TEST(a_pool_lives_until_the_last_session_lets_it_go),
        TEST(reading_rights_cannot_be_made_writing_ones),
        TEST(a_guessed_token_attaches_nothing),
        TEST(memory_that_a_pool_lies_in_is_busy),
        TEST(the_handle_that_came_with_a_pool_goes_with_the_last_of_it),
        TEST(a_pool_with_plans_is_busy),
        TEST(plans_have_limits),
        TEST(an_index_is_not_reused_before_the_worker_let_go),
        TEST(a_session_has_a_budget),
        TEST(only_memory_that_cannot_shrink_and_can_be_written_is_imported),
        TEST(a_worker_that_has_no_room_refuses_memory_without_a_trace),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
