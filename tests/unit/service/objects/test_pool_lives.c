/* test_pool_lives.c - who keeps a pool and its memory alive, who may write, who pays. */
#include "tests/support/rigs/pool_rig.h"

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

static int release_memory(uint32_t who, uint32_t memory)
{
    Attnd__MemoryRelease message = ATTND__MEMORY_RELEASE__INIT;
    struct attnd_call *call = pool_rig_begin(who);
    message.memory = memory;
    pool_rig.request.memory_release = &message;
    return attnd_call_memory_release(call);
}

static int release_pool(uint32_t who, uint32_t pool)
{
    Attnd__PoolRelease message = ATTND__POOL_RELEASE__INIT;
    struct attnd_call *call = pool_rig_begin(who);
    message.pool = pool;
    pool_rig.request.pool_release = &message;
    return attnd_call_pool_release(call);
}

static int share(uint32_t who, uint32_t pool, int writable, uint8_t *token)
{
    Attnd__PoolShare message = ATTND__POOL_SHARE__INIT;
    struct attnd_call *call = pool_rig_begin(who);
    message.pool = pool;
    message.writable = writable;
    pool_rig.request.pool_share = &message;
    int rc = attnd_call_pool_share(call);
    if (rc == 0)
        memcpy(token, pool_rig.reply.token->token.data, ATTND_SECRET_BYTES);
    return rc;
}

static int attach(uint32_t who, const uint8_t *token, size_t bytes)
{
    Attnd__PoolAttach message = ATTND__POOL_ATTACH__INIT;
    struct attnd_call *call = pool_rig_begin(who);
    uint8_t copy[2 * ATTND_SECRET_BYTES] = {0};
    memcpy(copy, token, bytes);
    message.token.data = copy;
    message.token.len = bytes;
    pool_rig.request.pool_attach = &message;
    return attnd_call_pool_attach(call);
}

/* ---- lives ---- */

static void a_pool_lives_until_the_last_session_lets_it_go(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = pool_rig_good_desc();
    uint8_t token[ATTND_SECRET_BYTES];
    assert_int_equal(pool_rig_create(0, &desc), 0);
    uint32_t made = pool_rig.reply.pool->pool;
    assert_int_equal(share(0, made, 0, token), 0);
    assert_int_equal(attach(1, token, sizeof(token)), 0);
    uint32_t attached = pool_rig.reply.pool->pool;
    assert_false(pool_rig.reply.pool->writable);
    assert_int_equal(pool_rig.call.reply_fds_count, 1);
    assert_true(pool_rig.reply.pool->memory > 0);
    assert_int_equal(pool_rig.reply.pool->desc->k[0]->memory, pool_rig.reply.pool->memory);

    assert_int_equal(release_pool(0, made), 0);
    assert_int_equal(release_pool(0, made), -ATTND_E_UNKNOWN);
    assert_int_equal(pool_rig.service.pools_count, 1);
    assert_int_equal(data_stub.unmaps, 0);
    assert_true(pool_rig.clients[0]->used[ATTND_QUOTA_HOST] >
                0); /* who made it pays while it lives */
    assert_int_equal(release_pool(1, attached), 0);
    assert_int_equal(pool_rig.service.pools_count, 0);
    assert_int_equal(data_stub.unmaps, 1);
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_HOST], 0);
}

static void reading_rights_cannot_be_made_writing_ones(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = pool_rig_good_desc();
    uint8_t reading[ATTND_SECRET_BYTES], writing[ATTND_SECRET_BYTES], again[ATTND_SECRET_BYTES];
    assert_int_equal(pool_rig_create(0, &desc), 0);
    uint32_t made = pool_rig.reply.pool->pool;
    assert_int_equal(share(0, made, 0, reading), 0);
    assert_int_equal(share(0, made, 1, writing), 0);
    assert_memory_not_equal(reading, writing, sizeof(reading));
    assert_int_equal(share(0, made, 1, again), 0);
    assert_memory_equal(again, writing, sizeof(again));

    assert_int_equal(attach(1, reading, sizeof(reading)), 0);
    uint32_t attached = pool_rig.reply.pool->pool;
    assert_int_equal(share(1, attached, 1, again), -ATTND_E_PERMISSION);
    assert_int_equal(share(1, attached, 0, again), 0);
    assert_memory_equal(again, reading, sizeof(again));
    assert_int_equal(attach(1, writing, sizeof(writing)), 0);
    assert_true(pool_rig.reply.pool->writable);
}

static void a_guessed_token_attaches_nothing(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = pool_rig_good_desc();
    uint8_t token[ATTND_SECRET_BYTES + 1] = {0};
    assert_int_equal(pool_rig_create(0, &desc), 0); /* never shared: its tokens are all zero */
    assert_int_equal(attach(1, token, ATTND_SECRET_BYTES), -ATTND_E_UNKNOWN);
    assert_int_equal(attach(1, token, 0), -ATTND_E_UNKNOWN);
    uint32_t made = pool_rig.service.pools->id;
    assert_int_equal(share(0, made, 1, token), 0);
    assert_int_equal(attach(1, token, ATTND_SECRET_BYTES - 1), -ATTND_E_UNKNOWN);
    assert_int_equal(attach(1, token, ATTND_SECRET_BYTES + 1), -ATTND_E_UNKNOWN);
    token[15] ^= 1;
    assert_int_equal(attach(1, token, ATTND_SECRET_BYTES), -ATTND_E_UNKNOWN);
}

static void memory_that_a_pool_lies_in_is_busy(void **state)
{
    (void)state;
    uint32_t memory = pool_rig_make_memory(0, MEMORY_BYTES);
    Attnd__Plane plane = pool_rig_good_plane(memory);
    assert_int_equal(pool_rig_create_in(&plane, 2), 0);
    uint32_t pool = pool_rig.reply.pool->pool;
    assert_int_equal(pool_rig.reply.pool->memory, memory);
    assert_int_equal(release_memory(0, memory), -ATTND_E_BUSY);
    assert_int_equal(release_pool(0, pool), 0);
    assert_int_equal(release_memory(0, memory), 0); /* the session's own handle stays until here */
    assert_int_equal(release_memory(0, memory), -ATTND_E_UNKNOWN);
}

static void the_handle_that_came_with_a_pool_goes_with_the_last_of_it(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = pool_rig_good_desc();
    uint8_t token[ATTND_SECRET_BYTES];
    assert_int_equal(pool_rig_create(0, &desc), 0);
    assert_int_equal(share(0, pool_rig.reply.pool->pool, 1, token), 0);
    assert_int_equal(attach(1, token, sizeof(token)), 0);
    uint32_t first = pool_rig.reply.pool->pool, memory = pool_rig.reply.pool->memory;
    assert_int_equal(attach(1, token, sizeof(token)), 0);
    uint32_t second = pool_rig.reply.pool->pool;
    assert_int_equal(pool_rig.reply.pool->memory, memory);
    assert_int_equal(release_pool(1, first), 0);
    assert_non_null(attnd_client_memory(pool_rig.clients[1], memory));
    assert_int_equal(release_pool(1, second), 0);
    assert_null(attnd_client_memory(pool_rig.clients[1], memory));
}

static void a_pool_with_plans_is_busy(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = pool_rig_good_desc();
    Attnd__PlanCreate plan = ATTND__PLAN_CREATE__INIT;
    Attnd__PlanDestroy destroy = ATTND__PLAN_DESTROY__INIT;
    assert_int_equal(pool_rig_create(0, &desc), 0);
    uint32_t pool = pool_rig.reply.pool->pool;
    struct attnd_call *call = pool_rig_begin(0);
    plan.pool = pool;
    plan.requests = plan.rows = plan.pages = plan.levels = 1;
    plan.heads_q = 8;
    pool_rig.request.plan_create = &plan;
    assert_int_equal(attnd_call_plan_create(call), 0);
    destroy.plan = pool_rig.reply.plan->plan;
    assert_int_equal(release_pool(0, pool), -ATTND_E_BUSY);

    pool_rig.clients[0]->plans[destroy.plan - 1]->in_flight = 1;
    call = pool_rig_begin(0);
    pool_rig.request.plan_destroy = &destroy;
    assert_int_equal(attnd_call_plan_destroy(call), -ATTND_E_BUSY);
    assert_int_equal(pool_rig.fault.value, destroy.plan);
    pool_rig.clients[0]->plans[destroy.plan - 1]->in_flight = 0;
    assert_int_equal(attnd_call_plan_destroy(call), 0);
    assert_int_equal(attnd_call_plan_destroy(call), -ATTND_E_UNKNOWN);
    assert_int_equal(release_pool(0, pool), 0);
    assert_int_equal(data_stub.plans, 0);
}

/* ---- memory ---- */

static void an_index_is_not_reused_before_the_worker_let_go(void **state)
{
    (void)state;
    uint32_t memory = pool_rig_make_memory(0, 4096);
    uint32_t index = pool_rig.clients[0]->memories[memory - 1]->index;
    data_stub.unmaps_answered = 0;
    assert_int_equal(release_memory(0, memory), 0);
    assert_int_equal(data_stub.last_unmapped, index);
    uint32_t other = pool_rig_make_memory(0, 4096);
    assert_int_not_equal(pool_rig.clients[0]->memories[other - 1]->index, index);
    data_stub.unmaps_answered = 1;
    attnd_memory_unmapped(&pool_rig.service, index);
    uint32_t third = pool_rig_make_memory(0, 4096);
    assert_int_equal(pool_rig.clients[0]->memories[third - 1]->index, index);
}

static void a_session_has_a_budget(void **state)
{
    (void)state;
    Attnd__MemoryRegister message = ATTND__MEMORY_REGISTER__INIT;
    uint32_t memory = pool_rig_make_memory(0, 8 * MEMORY_BYTES - 1); /* rounded up to pages */
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_HOST], 8 * MEMORY_BYTES);
    const uint64_t sizes[] = {1, MEMORY_BYTES, UINT64_MAX, INT64_MAX, 0};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct attnd_call *call = pool_rig_begin(0);
        message.size_bytes = sizes[i];
        pool_rig.request.memory_register = &message;
        assert_true(attnd_call_memory_register(call) < 0);
        assert_int_equal(pool_rig.fault.field, ATTND_F_SIZE);
    }
    (void)pool_rig_make_memory(1, 4096); /* another's is its own */
    assert_int_equal(release_memory(0, memory), 0);
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_HOST], 0);
}

static int import_of(uint32_t who, int fd, uint64_t size_bytes, int *left)
{
    Attnd__MemoryRegister message = ATTND__MEMORY_REGISTER__INIT;
    struct attnd_call *call = pool_rig_begin(who);
    int fds[] = {fd};
    message.size_bytes = size_bytes;
    pool_rig.request.memory_register = &message;
    call->fds = fds;
    call->fds_count = 1;
    int rc = attnd_call_memory_register(call);
    *left = fds[0];
    return rc;
}

static int import(int fd, uint64_t size_bytes, int *left)
{
    return import_of(0, fd, size_bytes, left);
}

static int memfd_of(uint64_t size_bytes, int seals)
{
    int fd = memfd_create("attnd-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size_bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static int memfd(int seals)
{
    return memfd_of(4096, seals);
}

/* Client @who registers a memfd of which not one page exists. */
static int register_sparse(uint32_t who, uint64_t size_bytes)
{
    int left, fd = memfd_of(size_bytes, F_SEAL_SHRINK);
    int rc = import_of(who, fd, size_bytes, &left);
    if (left >= 0)
        close(left);
    return rc;
}

static void expect_left(uint64_t value_bytes, uint64_t left_bytes)
{
    assert_int_equal(pool_rig.fault.field, ATTND_F_SIZE);
    assert_int_equal(pool_rig.fault.value, value_bytes);
    assert_int_equal(pool_rig.fault.limit, left_bytes);
}

static void memory_that_is_registered_costs_what_made_memory_costs(void **state)
{
    (void)state;
    const uint64_t enormous_bytes = (uint64_t)1 << 40;
    uint32_t made = pool_rig_make_memory(0, 5 * MEMORY_BYTES);
    assert_int_equal(register_sparse(0, enormous_bytes), -ATTND_E_NO_MEMORY);
    expect_left(enormous_bytes, 3 * MEMORY_BYTES);
    assert_int_equal(data_stub.maps, 1); /* the worker never heard of it */
    assert_int_equal(register_sparse(0, 3 * MEMORY_BYTES), 0);
    uint32_t registered = pool_rig.reply.memory->memory;
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_HOST], 8 * MEMORY_BYTES);
    assert_int_equal(register_sparse(0, 4096), -ATTND_E_NO_MEMORY);
    assert_int_equal(release_memory(0, registered), 0);
    assert_int_equal(register_sparse(0, 3 * MEMORY_BYTES), 0);
    assert_int_equal(release_memory(0, made), 0);
}

static void all_sessions_together_have_a_budget_of_the_hosts_memory(void **state)
{
    (void)state;
    assert_int_equal(register_sparse(0, 8 * MEMORY_BYTES), 0);
    assert_int_equal(register_sparse(1, 4 * MEMORY_BYTES + 1), -ATTND_E_NO_MEMORY);
    expect_left(4 * MEMORY_BYTES + 1, 4 * MEMORY_BYTES);
    (void)pool_rig_make_memory(1, 4 * MEMORY_BYTES);
    assert_int_equal(register_sparse(1, 1), -ATTND_E_NO_MEMORY); /* half of its own is left */
    expect_left(1, 0);
    pool_rig_client_end(pool_rig.clients[0]);
    assert_int_equal(pool_rig.service.used[ATTND_QUOTA_HOST], 4 * MEMORY_BYTES);
    assert_int_equal(register_sparse(1, 4 * MEMORY_BYTES), 0);
}

static void memory_of_the_gone_counts_while_a_pool_lies_in_it(void **state)
{
    (void)state;
    uint8_t token[ATTND_SECRET_BYTES];
    assert_int_equal(register_sparse(0, 8 * MEMORY_BYTES), 0);
    Attnd__Plane plane = pool_rig_good_plane(pool_rig.reply.memory->memory);
    assert_int_equal(pool_rig_create_in(&plane, ATTND__PAGE_OWNER__OWNER_ENGINE), 0);
    assert_int_equal(share(0, pool_rig.reply.pool->pool, 1, token), 0);
    assert_int_equal(attach(1, token, sizeof(token)), 0);
    uint32_t attached = pool_rig.reply.pool->pool;
    assert_int_equal(pool_rig.reply.pool->memory,
                     0); /* its descriptor is its maker's to give away */
    assert_int_equal(pool_rig.call.reply_fds_count, 0);
    pool_rig_client_end(pool_rig.clients[0]);
    pool_rig.service.clients[0] = NULL;
    assert_int_equal(pool_rig.service.used[ATTND_QUOTA_HOST], 8 * MEMORY_BYTES);
    assert_int_equal(register_sparse(1, 8 * MEMORY_BYTES), -ATTND_E_NO_MEMORY);
    assert_int_equal(release_pool(1, attached), 0);
    assert_int_equal(pool_rig.service.used[ATTND_QUOTA_HOST], 0);
    assert_int_equal(register_sparse(1, 8 * MEMORY_BYTES), 0);
    memset(pool_rig.clients[0]->used, 0,
           sizeof(pool_rig.clients[0]->used)); /* it was gone before that */
}

static void only_memory_that_cannot_shrink_and_can_be_written_is_imported(void **state)
{
    (void)state;
    int left, fd = memfd(0);
    assert_int_equal(import(fd, 4096, &left), -ATTND_E_PERMISSION);
    assert_int_equal(pool_rig.fault.field, ATTND_F_SEALS);
    assert_int_equal(left, fd); /* still the caller's to close */
    close(fd);

    fd = memfd(F_SEAL_SHRINK | F_SEAL_WRITE);
    assert_int_equal(import(fd, 4096, &left), -ATTND_E_PERMISSION);
    close(fd);

    fd = memfd(F_SEAL_SHRINK);
    assert_int_equal(import(fd, 8192, &left), -ATTND_E_RANGE);
    assert_int_equal(pool_rig.fault.field, ATTND_F_SIZE);
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int reading = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(import(reading, 4096, &left), -ATTND_E_PERMISSION);
    close(reading);
    assert_int_equal(import(fd, 4096, &left), 0);
    assert_int_equal(left, -1);
    assert_int_equal(pool_rig.call.reply_fds_count, 0);
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_HOST], 4096);
}

static void a_worker_that_has_no_room_refuses_memory_without_a_trace(void **state)
{
    (void)state;
    Attnd__MemoryRegister message = ATTND__MEMORY_REGISTER__INIT;
    struct attnd_call *call = pool_rig_begin(0);
    message.size_bytes = 4096;
    pool_rig.request.memory_register = &message;
    data_stub.map_rc = -ATTND_E_NO_MEMORY;
    assert_int_equal(attnd_call_memory_register(call), -ATTND_E_NO_MEMORY);
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_HOST], 0);
    Attnd__PoolCreate desc = pool_rig_good_desc();
    assert_int_equal(pool_rig_create(0, &desc), -ATTND_E_NO_MEMORY);
    data_stub.map_rc = 0;
}

/* ---- what a session may have of what all share ---- */

#define HALF_MEMORIES (ATTND_MEMORIES_MAX / 2)
#define HALF_POOLS (ATTND_POOLS_MAX / 2)

static int try_memory(uint32_t who)
{
    Attnd__MemoryRegister message = ATTND__MEMORY_REGISTER__INIT;
    struct attnd_call *call = pool_rig_begin(who);
    message.size_bytes = 4096;
    pool_rig.request.memory_register = &message;
    return attnd_call_memory_register(call);
}

static void expect_share(enum attnd_field field, uint64_t limit)
{
    assert_int_equal(pool_rig.fault.field, field);
    assert_int_equal(pool_rig.fault.value, limit + 1);
    assert_int_equal(pool_rig.fault.limit, limit);
}

/* As many as it may have but one, of which only the count is there. */
static void a_session_may_have_half_of_the_memory_table(void **state)
{
    (void)state;
    const uint64_t others = HALF_MEMORIES - 1;
    assert_int_equal(
        attnd_quota_take(pool_rig.clients[0], ATTND_QUOTA_MEMORIES, others, &pool_rig.fault), 0);
    uint32_t last = pool_rig_make_memory(0, 4096);
    assert_int_equal(try_memory(0), -ATTND_E_NO_MEMORY);
    expect_share(ATTND_F_MEMORY, HALF_MEMORIES);
    Attnd__PoolCreate desc = pool_rig_good_desc();
    assert_int_equal(pool_rig_create(0, &desc), -ATTND_E_NO_MEMORY); /* nor for a pool */
    assert_int_equal(pool_rig.fault.field, ATTND_F_MEMORY);
    assert_int_equal(try_memory(1), 0); /* another's share is another's */
    assert_int_equal(release_memory(0, last), 0);
    assert_int_equal(try_memory(0), 0);
    attnd_quota_give(&pool_rig.service, attnd_quota_payer(pool_rig.clients[0]),
                     ATTND_QUOTA_MEMORIES, others);
}

static void an_entry_counts_until_the_worker_let_go_of_it(void **state)
{
    (void)state;
    data_stub.unmaps_answered = 0;
    uint32_t memory = pool_rig_make_memory(0, 4096);
    assert_int_equal(release_memory(0, memory), 0);
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_HOST], 0);
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_MEMORIES], 1);
    attnd_memory_unmapped(&pool_rig.service, data_stub.last_unmapped);
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_MEMORIES], 0);
}

static void a_session_may_have_half_of_the_pools(void **state)
{
    (void)state;
    const uint64_t others = HALF_POOLS - 1;
    assert_int_equal(
        attnd_quota_take(pool_rig.clients[0], ATTND_QUOTA_POOLS, others, &pool_rig.fault), 0);
    Attnd__PoolCreate desc = pool_rig_good_desc();
    assert_int_equal(pool_rig_create(0, &desc), 0);
    uint32_t last = pool_rig.reply.pool->pool;
    uint64_t bytes = pool_rig.clients[0]->used[ATTND_QUOTA_HOST];
    assert_int_equal(pool_rig_create(0, &desc), -ATTND_E_NO_MEMORY);
    expect_share(ATTND_F_POOL, HALF_POOLS);
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_HOST],
                     bytes); /* nothing is left of it */
    assert_int_equal(pool_rig_create(1, &desc), 0);
    assert_int_equal(release_pool(1, pool_rig.reply.pool->pool), 0);
    assert_int_equal(release_pool(0, last), 0);
    attnd_quota_give(&pool_rig.service, attnd_quota_payer(pool_rig.clients[0]), ATTND_QUOTA_POOLS,
                     others);
}

static void a_session_may_have_half_of_the_heap(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = pool_rig_good_desc();
    const uint64_t bytes =
        sizeof(struct attnd_heap_pool) + 2 * desc.layers * sizeof(struct attnd_heap_plane);
    pool_rig.service.queue->heap.bytes = 4 * bytes - 2; /* one short of two for a session */
    assert_int_equal(pool_rig_create(0, &desc), 0);
    uint32_t pool = pool_rig.reply.pool->pool;
    assert_int_equal(pool_rig_create(0, &desc), -ATTND_E_NO_MEMORY);
    assert_int_equal(pool_rig.fault.field, ATTND_F_HEAP);
    assert_int_equal(pool_rig.fault.value, 2 * bytes);
    assert_int_equal(pool_rig.fault.limit, 2 * bytes - 1);
    assert_int_equal(pool_rig_create(1, &desc), 0);
    assert_int_equal(release_pool(1, pool_rig.reply.pool->pool), 0);
    assert_int_equal(release_pool(0, pool), 0);
    assert_int_equal(pool_rig_create(0, &desc), 0);
    assert_int_equal(release_pool(0, pool_rig.reply.pool->pool), 0);
}

/* ---- memory of the daemon's own ---- */

/* What a pool costs does not depend on how little memory its planes are. */
static void what_the_daemon_keeps_of_a_pool_counts_before_it_is_there(void **state)
{
    (void)state;
    Attnd__PoolCreate desc = pool_rig_good_desc();
    const uint64_t page_bytes = sizeof(uint16_t) + sizeof(int32_t); /* leases, free pages */
    assert_int_equal(pool_rig_create(0, &desc), 0);
    uint32_t pool = pool_rig.reply.pool->pool;
    const uint64_t bytes = pool_rig.clients[0]->used[ATTND_QUOTA_DAEMON];
    assert_true(bytes >= desc.pages * (page_bytes + sizeof(int16_t))); /* and what it holds */
    assert_int_equal(release_pool(0, pool), 0);
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_DAEMON], 0);

    pool_rig.service.options.daemon_memory_max_bytes = 2 * bytes - 2;
    assert_int_equal(pool_rig_create(0, &desc), -ATTND_E_NO_MEMORY);
    assert_int_equal(pool_rig.fault.field, ATTND_F_DAEMON_MEMORY);
    assert_int_equal(pool_rig.fault.value, bytes);
    assert_int_equal(pool_rig.fault.limit, bytes - 1);
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_DAEMON], 0);
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_POOLS], 0);
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_HOST], 0);
    pool_rig.service.options.daemon_memory_max_bytes = 2 * bytes;
    assert_int_equal(pool_rig_create(0, &desc), 0);
    assert_int_equal(release_pool(0, pool_rig.reply.pool->pool), 0);
}

static void attaching_counts_against_the_one_that_attaches(void **state)
{
    (void)state;
    uint8_t token[ATTND_SECRET_BYTES];
    Attnd__PoolCreate desc = pool_rig_good_desc();
    assert_int_equal(pool_rig_create(0, &desc), 0);
    uint32_t pool = pool_rig.reply.pool->pool;
    const uint64_t before = pool_rig.clients[0]->used[ATTND_QUOTA_DAEMON];
    assert_int_equal(share(0, pool, 1, token), 0);
    assert_int_equal(attach(1, token, sizeof(token)), 0);
    const uint64_t bytes = pool_rig.clients[1]->used[ATTND_QUOTA_DAEMON];
    assert_true(bytes >= desc.pages * sizeof(int16_t));
    assert_int_equal(pool_rig.clients[0]->used[ATTND_QUOTA_DAEMON], before);
    pool_rig.service.options.daemon_memory_max_bytes = 4 * bytes - 2;
    assert_int_equal(attach(1, token, sizeof(token)), -ATTND_E_NO_MEMORY);
    assert_int_equal(pool_rig.fault.field, ATTND_F_DAEMON_MEMORY);
    assert_int_equal(pool_rig.fault.value, 2 * bytes);
    pool_rig.service.options.daemon_memory_max_bytes = 1u << 30;
    assert_int_equal(attach(1, token, sizeof(token)), 0);
    assert_int_equal(pool_rig.clients[1]->used[ATTND_QUOTA_DAEMON], 2 * bytes);
}

/* Its maker is gone, so it is its user's, and nobody's when it goes. */
static void a_pool_that_outlives_its_session_is_its_users(void **state)
{
    (void)state;
    uint8_t token[ATTND_SECRET_BYTES];
    Attnd__PoolCreate desc = pool_rig_good_desc();
    assert_int_equal(pool_rig_create(0, &desc), 0);
    assert_int_equal(share(0, pool_rig.reply.pool->pool, 1, token), 0);
    assert_int_equal(attach(1, token, sizeof(token)), 0);
    uint32_t attached = pool_rig.reply.pool->pool;
    const uint64_t bytes = pool_rig.service.used[ATTND_QUOTA_DAEMON];
    const uint64_t held = pool_rig.clients[1]->used[ATTND_QUOTA_DAEMON];
    pool_rig_client_end(pool_rig.clients[0]);
    assert_int_equal(pool_rig.service.used[ATTND_QUOTA_DAEMON], bytes - held);
    assert_int_equal(pool_rig.service.user_used[0][ATTND_QUOTA_POOLS], 1);
    pool_rig.service.clients[0] = NULL;
    assert_int_equal(release_pool(1, attached), 0);
    assert_int_equal(pool_rig.service.used[ATTND_QUOTA_DAEMON], 0);
    assert_int_equal(pool_rig.service.user_used[0][ATTND_QUOTA_POOLS], 0);
    memset(pool_rig.clients[0]->used, 0, sizeof(pool_rig.clients[0]->used)); /* it was not told */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, pool_rig_setup, pool_rig_teardown)
        TEST(a_pool_lives_until_the_last_session_lets_it_go),
        TEST(reading_rights_cannot_be_made_writing_ones),
        TEST(a_guessed_token_attaches_nothing),
        TEST(memory_that_a_pool_lies_in_is_busy),
        TEST(the_handle_that_came_with_a_pool_goes_with_the_last_of_it),
        TEST(a_pool_with_plans_is_busy),
        TEST(an_index_is_not_reused_before_the_worker_let_go),
        TEST(a_session_has_a_budget),
        TEST(memory_that_is_registered_costs_what_made_memory_costs),
        TEST(all_sessions_together_have_a_budget_of_the_hosts_memory),
        TEST(memory_of_the_gone_counts_while_a_pool_lies_in_it),
        TEST(only_memory_that_cannot_shrink_and_can_be_written_is_imported),
        TEST(a_worker_that_has_no_room_refuses_memory_without_a_trace),
        TEST(a_session_may_have_half_of_the_memory_table),
        TEST(an_entry_counts_until_the_worker_let_go_of_it),
        TEST(a_session_may_have_half_of_the_pools),
        TEST(a_session_may_have_half_of_the_heap),
        TEST(what_the_daemon_keeps_of_a_pool_counts_before_it_is_there),
        TEST(attaching_counts_against_the_one_that_attaches),
        TEST(a_pool_that_outlives_its_session_is_its_users),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
