/*
 * pool_rig.h - calls about memory and pools, made as the control plane makes them: one at a time,
 * by two clients, without loop and socket.
 *
 * Included by the one .c file of a test program, as data_stub.h is.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_POOL_RIG_H
#define ATTND_TESTS_SUPPORT_RIGS_POOL_RIG_H

#include "service/objects/lease.h"
#include "service/objects/pool.h"
#include "service/objects/pool_check.h"
#include "service/objects/ticket.h"
#include "service/rpc/calls.h"
#include "tests/support/rigs/data_stub.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

static inline struct attnd_client *client_new(uint32_t slot)
{
    struct attnd_client *client = calloc(1, sizeof(*client));
    client->service = &rig.service;
    client->id = slot + 1;
    client->state = ATTND_SESSION_OPEN;
    client->allowed = 1;
    rig.service.clients[slot] = client;
    return client;
}

static inline int setup(void **state)
{
    (void)state;
    memset(&rig, 0, sizeof(rig));
    memset(&stub, 0, sizeof(stub));
    stub.unmaps_answered = 1;
    stub_worker = stub_worker_able;
    rig.service.options.memory_max_bytes = 8 * MEMORY_BYTES;
    rig.service.options.host_memory_max_bytes = 12 * MEMORY_BYTES;
    assert_int_equal(attnd_data_start(&rig.service, &rig.fault), 0);
    assert_int_equal(attnd_control_new(&rig.service), 0);
    for (uint32_t i = 0; i < 2; i++)
        rig.clients[i] = client_new(i);
    return 0;
}

/* As a session ends, without a loop and without a socket. */
static inline void client_end(struct attnd_client *client)
{
    for (uint32_t h = 1; h <= ATTND_HANDLES_MAX; h++)
        if (client->attachments[h - 1])
            attnd_client_detach(client, h);
    for (uint32_t h = 1; h <= ATTND_HANDLES_MAX; h++)
        if (client->memories[h - 1])
            attnd_memory_unbind(client, h);
}

static inline int teardown(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++)
        client_end(rig.clients[i]);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(
            rig.clients[i]->used[ATTND_QUOTA_HOST] + rig.clients[i]->device_memory_bytes, 0);
    for (uint32_t kind = 0; kind < ATTND_QUOTA_KINDS; kind++) {
        assert_int_equal(rig.service.used[kind], 0);
        assert_int_equal(rig.clients[0]->used[kind] + rig.clients[1]->used[kind], 0);
    }
    assert_null(rig.service.pools);
    assert_int_equal(rig.service.pools_count, 0);
    assert_int_equal(stub_heap.used_bytes, 0);
    assert_int_equal(stub.maps, stub.unmaps);
    for (uint32_t i = 0; i < ATTND_MEMORIES_MAX; i++)
        assert_null(rig.service.memories[i]);
    for (uint32_t i = 0; i < 2; i++)
        free(rig.clients[i]);
    attnd_control_free(&rig.service);
    attnd_data_free(&rig.service);
    return 0;
}

/* The same with a loop, which never runs: for timers, and for what is said of it. */
static inline int loop_sweep(void *context)
{
    (void)context;
    return 0;
}

static inline void loop_asleep(void *context, int asleep)
{
    (void)context;
    (void)asleep;
}

static inline int setup_with_loop(void **state)
{
    const struct attnd_loop_hooks hooks = {.sweep = loop_sweep, .asleep = loop_asleep};
    (void)setup(state);
    return attnd_loop_new(ATTND_LOOP_EPOLL, 0, &hooks, &rig.service.loop, &rig.fault);
}

static inline int teardown_with_loop(void **state)
{
    (void)teardown(state);
    attnd_loop_free(rig.service.loop);
    return 0;
}

/* Begins a call of client @who; the fields of rig.request are the caller's to set. */
static inline struct attnd_call *begin(uint32_t who)
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

static inline Attnd__PoolCreate good_desc(void)
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

static inline int create(uint32_t who, Attnd__PoolCreate *desc)
{
    struct attnd_call *call = begin(who);
    rig.request.pool_create = desc;
    return attnd_call_pool_create(call);
}

static inline uint32_t make_memory(uint32_t who, uint64_t size_bytes)
{
    Attnd__MemoryRegister message = ATTND__MEMORY_REGISTER__INIT;
    struct attnd_call *call = begin(who);
    message.size_bytes = size_bytes;
    rig.request.memory_register = &message;
    assert_int_equal(attnd_call_memory_register(call), 0);
    assert_int_equal(call->reply_fds_count, 1);
    return rig.reply.memory->memory;
}

/* A pool whose planes all are @plane, of one layer. */
static inline int create_in(Attnd__Plane *plane, uint32_t page_owner)
{
    Attnd__PoolCreate desc = good_desc();
    Attnd__Plane *list[] = {plane};
    desc.layers = 1;
    desc.page_owner = (Attnd__PageOwner)page_owner;
    desc.n_k = desc.n_v = 1;
    desc.k = desc.v = list;
    return create(0, &desc);
}

static inline Attnd__Plane good_plane(uint32_t memory)
{
    Attnd__Plane plane = ATTND__PLANE__INIT;
    plane.memory = memory;
    plane.stride_page = 16 * 2 * 64;
    plane.stride_token = 2 * 64;
    plane.stride_head = 64;
    return plane;
}

#endif
