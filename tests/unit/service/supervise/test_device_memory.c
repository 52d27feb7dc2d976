/* test_device_memory.c - memory of the GPU that the service makes. */
#include "ipc/closer.h"
#include "tests/support/rigs/device_rig.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static int make_pool(Attnd__PoolCreate *desc)
{
    struct attnd_call *call = device_rig_begin();

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
    device_rig.request.pool_create = desc;
    return attnd_call_pool_create(call);
}

/* ---- claims ---- */

static void it_is_made_in_pages_of_the_device_and_paid_for(void **state)
{
    (void)state;
    assert_int_equal(device_rig_make(ATTND_KIND_DEVICE, 5000), 0);
    const struct attnd_memory *memory =
        device_rig.client->memories[device_rig.reply.memory->memory - 1];
    assert_int_equal(memory->kind, ATTND_KIND_DEVICE);
    assert_int_equal(device_stub.last_bytes, DEVICE_PAGE_BYTES);
    assert_int_equal(memory->size_bytes, DEVICE_PAGE_BYTES);
    assert_int_equal(device_rig.reply.memory->size_bytes, DEVICE_PAGE_BYTES);
    assert_int_equal(device_rig.client->device_memory_bytes, DEVICE_PAGE_BYTES);
    assert_int_equal(device_rig.call.reply_fds_count, 1);
    assert_int_equal(device_rig.call.reply_fds[0], memory->fd);
    assert_int_equal(device_rig.client->used[ATTND_QUOTA_HOST], 0);
}

/* A GPU may have more memory than the machine around it. */
static void the_hosts_budgets_do_not_bound_it(void **state)
{
    const uint64_t much_bytes = 1024 * (uint64_t)DEVICE_PAGE_BYTES;
    (void)state;
    assert_true(much_bytes > device_rig.service.options.memory_max_bytes);
    assert_true(much_bytes > device_rig.service.options.host_memory_max_bytes);
    assert_int_equal(device_rig_make(ATTND_KIND_DEVICE, much_bytes), 0);
    assert_int_equal(device_rig_make(ATTND_KIND_DEVICE, much_bytes), 0);
    assert_int_equal(device_rig.service.used[ATTND_QUOTA_HOST], 0);
    assert_int_equal(device_rig_make(ATTND_KIND_HOST, DEVICE_PAGE_BYTES),
                     0); /* all of that is left */
    assert_int_equal(device_rig_make(ATTND_KIND_HOST, 4096), -ATTND_E_NO_MEMORY);
    assert_int_equal(device_rig.fault.limit, 0);
}

static void its_own_budget_bounds_it_where_one_is_given(void **state)
{
    (void)state;
    device_rig.service.options.device_memory_max_bytes = 3 * (uint64_t)DEVICE_PAGE_BYTES;
    assert_int_equal(device_rig_make(ATTND_KIND_DEVICE, DEVICE_PAGE_BYTES), 0);
    uint32_t first = device_rig.reply.memory->memory;
    assert_int_equal(device_rig_make(ATTND_KIND_DEVICE, 3 * (uint64_t)DEVICE_PAGE_BYTES),
                     -ATTND_E_NO_MEMORY);
    assert_int_equal(device_rig.fault.field, ATTND_F_SIZE);
    assert_int_equal(device_rig.fault.limit, 2 * DEVICE_PAGE_BYTES);
    assert_int_equal(device_stub.made, 1); /* the budget, before the device is asked */
    attnd_memory_unbind(device_rig.client, first);
    assert_int_equal(device_rig_make(ATTND_KIND_DEVICE, 3 * (uint64_t)DEVICE_PAGE_BYTES), 0);
}

static void its_descriptor_is_closed_with_the_last_reference(void **state)
{
    (void)state;
    assert_int_equal(device_rig_make(ATTND_KIND_DEVICE, 1), 0);
    uint32_t handle = device_rig.reply.memory->memory;
    int fd = device_rig.call.reply_fds[0];
    assert_true(fcntl(fd, F_GETFD) >= 0);
    attnd_memory_unbind(device_rig.client, handle);
    while (attnd_closer_held().count)
        ;
    assert_true(fcntl(fd, F_GETFD) < 0);
}

static void without_a_device_it_is_refused_by_name(void **state)
{
    Attnd__PoolCreate desc;
    (void)state;
    device_rig.service.device = NULL;
    assert_int_equal(device_rig_make(ATTND_KIND_DEVICE, 4096), -ATTND_E_UNSUPPORTED);
    assert_int_equal(device_rig.fault.field, ATTND_F_MEMORY_KIND);
    assert_int_equal(make_pool(&desc), -ATTND_E_UNSUPPORTED);
    assert_int_equal(device_rig.fault.field, ATTND_F_MEMORY_KIND);
    assert_int_equal(device_rig_make(ATTND_KIND_HOST, 4096), 0);
}

static void a_kind_that_is_none_is_refused(void **state)
{
    (void)state;
    const uint32_t kinds[] = {0, 3, UINT32_MAX};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(device_rig_make(kinds[i], 4096), -ATTND_E_INVALID);
        assert_int_equal(device_rig.fault.field, ATTND_F_MEMORY_KIND);
    }
}

static void a_device_that_is_full_leaves_no_trace(void **state)
{
    (void)state;
    device_stub.make_rc = -ATTND_E_NO_MEMORY;
    assert_int_equal(device_rig_make(ATTND_KIND_DEVICE, 4096), -ATTND_E_NO_MEMORY);
    assert_int_equal(device_rig.client->device_memory_bytes, 0);
    assert_int_equal(data_stub.maps, data_stub.unmaps);
}

/* ---- pools ---- */

static void a_pool_in_it_says_so(void **state)
{
    Attnd__PoolCreate desc;
    (void)state;
    assert_int_equal(make_pool(&desc), 0);
    const Attnd__PoolReply *reply = device_rig.reply.pool;
    assert_int_equal(reply->desc->memory_kind, ATTND__MEMORY_KIND__MEMORY_DEVICE);
    assert_int_equal(reply->memory_bytes, DEVICE_PAGE_BYTES);
    assert_int_equal(device_rig.client->memories[reply->memory - 1]->kind, ATTND_KIND_DEVICE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, device_rig_setup, device_rig_teardown)
        TEST(it_is_made_in_pages_of_the_device_and_paid_for),
        TEST(the_hosts_budgets_do_not_bound_it),
        TEST(its_own_budget_bounds_it_where_one_is_given),
        TEST(its_descriptor_is_closed_with_the_last_reference),
        TEST(without_a_device_it_is_refused_by_name),
        TEST(a_kind_that_is_none_is_refused),
        TEST(a_device_that_is_full_leaves_no_trace),
        TEST(a_pool_in_it_says_so),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
