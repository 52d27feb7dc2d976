/* pool_rig.c - calls about memory and pools, made as the control plane makes them: one at a time,
 * by two clients, without loop and socket. */
#include "tests/support/rigs/pool_rig.h"
#include "service/daemon/data.h"
#include "tests/support/harness/quiet_loop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct pool_rig pool_rig;

/* One call at a time, as the control plane makes it, without the socket. */

static struct attnd_client *client_new(uint32_t slot)
{
    struct attnd_client *client = calloc(1, sizeof(*client));
    client->service = &pool_rig.service;
    client->id = slot + 1;
    client->state = ATTND_CLIENT_OPEN;
    client->allowed = 1;
    pool_rig.service.clients[slot] = client;
    return client;
}

int pool_rig_setup(void **state)
{
    (void)state;
    memset(&pool_rig, 0, sizeof(pool_rig));
    memset(&data_stub, 0, sizeof(data_stub));
    data_stub.unmaps_answered = 1;
    stub_worker = stub_worker_able;
    pool_rig.service.options.memory_max_bytes = 8 * MEMORY_BYTES;
    pool_rig.service.options.host_memory_max_bytes = 12 * MEMORY_BYTES;
    assert_int_equal(attnd_data_start(&pool_rig.service, &pool_rig.fault), 0);
    assert_int_equal(attnd_control_new(&pool_rig.service), 0);
    for (uint32_t i = 0; i < 2; i++)
        pool_rig.clients[i] = client_new(i);
    return 0;
}

void pool_rig_client_end(struct attnd_client *client)
{
    for (uint32_t h = 1; h <= ATTND_HANDLES_MAX; h++)
        if (client->attachments[h - 1])
            attnd_client_detach(client, h);
    for (uint32_t h = 1; h <= ATTND_HANDLES_MAX; h++)
        if (client->memories[h - 1])
            attnd_memory_unbind(client, h);
}

int pool_rig_teardown(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++)
        pool_rig_client_end(pool_rig.clients[i]);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(pool_rig.clients[i]->used[ATTND_QUOTA_HOST] +
                             pool_rig.clients[i]->device_memory_bytes,
                         0);
    for (uint32_t kind = 0; kind < ATTND_QUOTA_KINDS; kind++) {
        assert_int_equal(pool_rig.service.used[kind], 0);
        assert_int_equal(pool_rig.clients[0]->used[kind] + pool_rig.clients[1]->used[kind], 0);
    }
    assert_null(pool_rig.service.pools);
    assert_int_equal(pool_rig.service.pools_count, 0);
    assert_int_equal(data_stub_heap_used(), 0);
    assert_int_equal(data_stub.maps, data_stub.unmaps);
    for (uint32_t i = 0; i < ATTND_MEMORIES_MAX; i++)
        assert_null(pool_rig.service.memories[i]);
    for (uint32_t i = 0; i < 2; i++)
        free(pool_rig.clients[i]);
    attnd_control_free(&pool_rig.service);
    attnd_data_free(&pool_rig.service);
    return 0;
}

/* The same with a loop, which never runs: for timers, and for what is said of it. */
int pool_rig_setup_with_loop(void **state)
{
    (void)pool_rig_setup(state);
    return quiet_loop_new(ATTND_LOOP_EPOLL, &pool_rig.service.loop);
}

int pool_rig_teardown_with_loop(void **state)
{
    (void)pool_rig_teardown(state);
    attnd_loop_free(pool_rig.service.loop);
    return 0;
}

/* Begins a call of client @who; the fields of pool_rig.request are the caller's to set. */
struct attnd_call *pool_rig_begin(uint32_t who)
{
    memset(&pool_rig.fault, 0, sizeof(pool_rig.fault));
    attnd__request__init(&pool_rig.request);
    attnd__reply__init(&pool_rig.reply);
    attnd_control_reset(&pool_rig.service);
    pool_rig.call = (struct attnd_call){.service = &pool_rig.service,
                                        .client = pool_rig.clients[who],
                                        .request = &pool_rig.request,
                                        .reply = &pool_rig.reply,
                                        .fault = &pool_rig.fault};
    return &pool_rig.call;
}

Attnd__PoolCreate pool_rig_good_desc(void)
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

int pool_rig_create(uint32_t who, Attnd__PoolCreate *desc)
{
    struct attnd_call *call = pool_rig_begin(who);
    pool_rig.request.pool_create = desc;
    return attnd_call_pool_create(call);
}

uint32_t pool_rig_make_memory(uint32_t who, uint64_t size_bytes)
{
    Attnd__MemoryRegister message = ATTND__MEMORY_REGISTER__INIT;
    struct attnd_call *call = pool_rig_begin(who);
    message.size_bytes = size_bytes;
    pool_rig.request.memory_register = &message;
    assert_int_equal(attnd_call_memory_register(call), 0);
    assert_int_equal(call->reply_fds_count, 1);
    return pool_rig.reply.memory->memory;
}

int pool_rig_create_in(Attnd__Plane *plane, uint32_t page_owner)
{
    Attnd__PoolCreate desc = pool_rig_good_desc();
    Attnd__Plane *list[] = {plane};
    desc.layers = 1;
    desc.page_owner = (Attnd__PageOwner)page_owner;
    desc.n_k = desc.n_v = 1;
    desc.k = desc.v = list;
    return pool_rig_create(0, &desc);
}

Attnd__Plane pool_rig_good_plane(uint32_t memory)
{
    Attnd__Plane plane = ATTND__PLANE__INIT;
    plane.memory = memory;
    plane.stride_page = 16 * 2 * 64;
    plane.stride_token = 2 * 64;
    plane.stride_head = 64;
    return plane;
}
