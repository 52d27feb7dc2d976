/*
 * test_device_memory.c - memory of the GPU as the control plane handles it; a stand-in makes memfds
 * where the driver would make memory.
 */
#include "service/control.h"
#include "service/device.h"
#include "tests/support/data_stub.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define DEVICE_PAGE_BYTES (2u << 20)

/* ---- the stand-in: these definitions take the place of device.c ---- */

struct attnd_device {
    int make_rc;
    uint32_t made;
    uint64_t last_bytes;
};

static struct attnd_device gpu;

int attnd_device_open(struct attnd_device **out, struct attnd_fault *fault)
{
    (void)fault;
    *out = &gpu;
    return 0;
}

void attnd_device_close(struct attnd_device *device)
{
    (void)device;
}

uint64_t attnd_device_page_bytes(const struct attnd_device *device)
{
    (void)device;
    return DEVICE_PAGE_BYTES;
}

int attnd_device_make(const struct attnd_device *device, uint64_t size_bytes, int *fd,
                      struct attnd_fault *fault)
{
    (void)device;
    gpu.made++;
    gpu.last_bytes = size_bytes;
    if (gpu.make_rc < 0)
        return attnd_fault_set(fault, gpu.make_rc, ATTND_F_SIZE, 0, (int64_t)size_bytes, 0);
    return attnd_shm_create_unmapped("gpu", 4096, fd, fault);
}

/* ---- one call at a time, without the socket ---- */

static struct {
    struct attnd_service service;
    struct attnd_client *client;
    struct attnd_fault fault;
    Attnd__Request request;
    Attnd__Reply reply;
    struct attnd_call call;
} rig;

static int setup(void **state)
{
    (void)state;
    memset(&rig, 0, sizeof(rig));
    memset(&gpu, 0, sizeof(gpu));
    rig.service.options.memory_max_bytes = 16 * (uint64_t)DEVICE_PAGE_BYTES;
    rig.service.device = &gpu;
    assert_int_equal(attnd_data_start(&rig.service, &rig.fault), 0);
    assert_int_equal(attnd_control_new(&rig.service), 0);
    rig.client = calloc(1, sizeof(*rig.client));
    assert_non_null(rig.client);
    rig.client->service = &rig.service;
    rig.client->id = 1;
    rig.service.clients[0] = rig.client;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (uint32_t h = 1; h <= ATTND_HANDLES_MAX; h++)
        if (rig.client->attachments[h - 1])
            attnd_client_detach(rig.client, h);
    for (uint32_t h = 1; h <= ATTND_HANDLES_MAX; h++)
        if (rig.client->memories[h - 1])
            attnd_memory_unbind(rig.client, h);
    assert_int_equal(rig.client->memory_bytes, 0);
    free(rig.client);
    attnd_control_free(&rig.service);
    attnd_data_free(&rig.service);
    return 0;
}

static struct attnd_call *begin(void)
{
    memset(&rig.fault, 0, sizeof(rig.fault));
    attnd__request__init(&rig.request);
    attnd__reply__init(&rig.reply);
    attnd_control_reset(&rig.service);
    rig.call = (struct attnd_call){.service = &rig.service,
                                   .client = rig.client,
                                   .request = &rig.request,
                                   .reply = &rig.reply,
                                   .fault = &rig.fault};
    return &rig.call;
}

static int make(uint32_t kind, uint64_t size_bytes)
{
    static Attnd__MemoryRegister message;
    struct attnd_call *call = begin();

    attnd__memory_register__init(&message);
    message.size_bytes = size_bytes;
    message.has_memory_kind = 1;
    message.memory_kind = (Attnd__MemoryKind)kind;
    rig.request.memory_register = &message;
    return attnd_call_memory_register(call);
}

static int make_pool(Attnd__PoolCreate *desc)
{
    struct attnd_call *call = begin();

    attnd__pool_create__init(desc);
    desc->layers = 1;
    desc->pages = 4;
    desc->page_size = 16;
    desc->heads_kv = 2;
    desc->dim_qk = desc->dim_vo = 64;
    desc->dtype = ATTND_BF16;
    desc->page_owner = ATTND__PAGE_OWNER__OWNER_ENGINE;
    desc->has_memory_kind = 1;
    desc->memory_kind = ATTND__MEMORY_KIND__MEMORY_DEVICE;
    rig.request.pool_create = desc;
    return attnd_call_pool_create(call);
}

/* ---- claims ---- */

static void it_is_made_in_pages_of_the_device_and_paid_for(void **state)
{
    (void)state;
    assert_int_equal(make(ATTND_KIND_DEVICE, 5000), 0);
    const struct attnd_memory *memory = rig.client->memories[rig.reply.memory->memory - 1];
    assert_int_equal(memory->kind, ATTND_KIND_DEVICE);
    assert_int_equal(gpu.last_bytes, DEVICE_PAGE_BYTES);
    assert_int_equal(memory->size_bytes, DEVICE_PAGE_BYTES);
    assert_int_equal(rig.reply.memory->size_bytes, DEVICE_PAGE_BYTES);
    assert_int_equal(rig.client->memory_bytes, DEVICE_PAGE_BYTES);
    assert_int_equal(rig.call.reply_fds_count, 1);
    assert_int_equal(rig.call.reply_fds[0], memory->fd);
    assert_int_equal(make(ATTND_KIND_DEVICE, 16 * (uint64_t)DEVICE_PAGE_BYTES),
                     -ATTND_E_NO_MEMORY); /* the budget, before the device is asked */
    assert_int_equal(gpu.made, 1);
}

static void its_descriptor_is_closed_with_the_last_reference(void **state)
{
    (void)state;
    assert_int_equal(make(ATTND_KIND_DEVICE, 1), 0);
    uint32_t handle = rig.reply.memory->memory;
    int fd = rig.call.reply_fds[0];
    assert_true(fcntl(fd, F_GETFD) >= 0);
    attnd_memory_unbind(rig.client, handle);
    assert_true(fcntl(fd, F_GETFD) < 0);
}

static void without_a_device_it_is_refused_by_name(void **state)
{
    Attnd__PoolCreate desc;
    (void)state;
    rig.service.device = NULL;
    assert_int_equal(make(ATTND_KIND_DEVICE, 4096), -ATTND_E_UNSUPPORTED);
    assert_int_equal(rig.fault.field, ATTND_F_MEMORY_KIND);
    assert_int_equal(make_pool(&desc), -ATTND_E_UNSUPPORTED);
    assert_int_equal(rig.fault.field, ATTND_F_MEMORY_KIND);
    assert_int_equal(make(ATTND_KIND_HOST, 4096), 0);
}

static void a_kind_that_is_none_is_refused(void **state)
{
    (void)state;
    const uint32_t kinds[] = {0, 3, UINT32_MAX};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(make(kinds[i], 4096), -ATTND_E_INVALID);
        assert_int_equal(rig.fault.field, ATTND_F_MEMORY_KIND);
    }
}

static void a_device_that_is_full_leaves_no_trace(void **state)
{
    (void)state;
    gpu.make_rc = -ATTND_E_NO_MEMORY;
    assert_int_equal(make(ATTND_KIND_DEVICE, 4096), -ATTND_E_NO_MEMORY);
    assert_int_equal(rig.client->memory_bytes, 0);
    assert_int_equal(stub.maps, stub.unmaps);
}

static void what_an_engine_brings_is_host_memory(void **state)
{
    (void)state;
    struct attnd_shm shm;
    static Attnd__MemoryRegister message;
    assert_int_equal(attnd_shm_create("own", 4096, &shm, &rig.fault), 0);
    struct attnd_call *call = begin();
    attnd__memory_register__init(&message);
    message.size_bytes = 4096;
    message.has_memory_kind = 1;
    message.memory_kind = ATTND__MEMORY_KIND__MEMORY_DEVICE;
    rig.request.memory_register = &message;
    call->fds = &shm.fd;
    call->fds_count = 1;
    assert_int_equal(attnd_call_memory_register(call), -ATTND_E_UNSUPPORTED);
    assert_int_equal(rig.fault.field, ATTND_F_MEMORY_KIND);
    attnd_shm_unmap(&shm);
}

static void a_pool_in_it_says_so(void **state)
{
    Attnd__PoolCreate desc;
    (void)state;
    assert_int_equal(make_pool(&desc), 0);
    const Attnd__PoolReply *reply = rig.reply.pool;
    assert_int_equal(reply->desc->memory_kind, ATTND__MEMORY_KIND__MEMORY_DEVICE);
    assert_int_equal(reply->memory_bytes, DEVICE_PAGE_BYTES);
    assert_int_equal(rig.client->memories[reply->memory - 1]->kind, ATTND_KIND_DEVICE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(it_is_made_in_pages_of_the_device_and_paid_for),
        TEST(its_descriptor_is_closed_with_the_last_reference),
        TEST(without_a_device_it_is_refused_by_name),
        TEST(a_kind_that_is_none_is_refused),
        TEST(a_device_that_is_full_leaves_no_trace),
        TEST(what_an_engine_brings_is_host_memory),
        TEST(a_pool_in_it_says_so),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
