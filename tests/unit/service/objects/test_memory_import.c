/* test_memory_import.c - memory that engines bring: what the worker has to say to it, and when it
 * is let go. */
#include "tests/support/rigs/device_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

static uint8_t handle[ATTND_IPC_HANDLE_BYTES] = "a handle of the driver's";

/* With @fds descriptors and the first @handle_bytes of handle. The daemon takes what it keeps. */
static int bring(uint32_t kind, int fds, size_t handle_bytes)
{
    static Attnd__MemoryRegister message;
    int fd[2] = {-1, -1};
    struct attnd_call *call = device_rig_begin();

    for (int i = 0; i < fds; i++)
        assert_int_equal(attnd_shm_create_unmapped("own", 4096, &fd[i], &device_rig.fault), 0);
    attnd__memory_register__init(&message);
    message.size_bytes = 4096;
    message.has_memory_kind = 1;
    message.memory_kind = (Attnd__MemoryKind)kind;
    message.has_handle = handle_bytes > 0;
    message.handle = (ProtobufCBinaryData){.len = handle_bytes, .data = handle};
    device_rig.request.id = 77;
    device_rig.request.memory_register = &message;
    call->fds = fd;
    call->fds_count = fds;
    int rc = attnd_call_memory_register(call);
    for (int i = 0; i < fds; i++)
        if (fd[i] >= 0)
            close(fd[i]);
    call->fds = NULL;
    return rc;
}

/* A memfd as it is to be. */
static int bring_host(void)
{
    static Attnd__MemoryRegister message;
    struct attnd_call *call = device_rig_begin();
    int fd = -1;

    assert_int_equal(attnd_shm_create_unmapped("own", 4096, &fd, &device_rig.fault), 0);
    assert_int_equal(attnd_shm_seal(fd, ATTND_SEAL_POOL), 0);
    attnd__memory_register__init(&message);
    message.size_bytes = 4096;
    device_rig.request.id = 77;
    device_rig.request.memory_register = &message;
    call->fds = &fd;
    call->fds_count = 1;
    int rc = attnd_call_memory_register(call);
    if (fd >= 0)
        close(fd);
    call->fds = NULL;
    return rc;
}

static void *allocate(void *data, size_t bytes)
{
    (void)data;
    return calloc(1, bytes);
}

static void release(void *data, void *memory)
{
    (void)data;
    free(memory);
}

/* The one reply that lies in the socket; attnd__reply__free_unpacked() by the caller. */
static Attnd__Reply *read_reply(void)
{
    uint8_t bytes[4096];
    ProtobufCAllocator allocator = {allocate, release, NULL};
    ssize_t got = recv(device_rig.peer, bytes, sizeof(bytes), MSG_DONTWAIT);

    assert_true(got > 0);
    Attnd__Reply *reply = attnd__reply__unpack(&allocator, (size_t)got, bytes);
    assert_non_null(reply);
    assert_int_equal(reply->id, 77);
    return reply;
}

static void free_reply(Attnd__Reply *reply)
{
    ProtobufCAllocator allocator = {allocate, release, NULL};
    attnd__reply__free_unpacked(reply, &allocator);
}

static int answered(void)
{
    uint8_t byte;
    return recv(device_rig.peer, &byte, 1, MSG_DONTWAIT | MSG_PEEK) > 0;
}

static void an_import_is_answered_when_the_worker_has_it(void **state)
{
    static const struct attnd_fault none = {0};
    (void)state;
    device_stub.fds_are_memory = 1;
    device_rig.service.options.trust = 1;
    for (uint32_t kind = ATTND_KIND_DEVICE; kind <= ATTND_KIND_IPC; kind++) {
        int fds = kind != ATTND_KIND_IPC;
        size_t handle_bytes = kind == ATTND_KIND_DEVICE ? 0 : sizeof(handle);
        assert_int_equal(bring(kind, fds, handle_bytes), ATTND_CALL_LATER);
        const struct attnd_memory *memory =
            device_rig.client->memories[device_rig.client->import - 1];
        assert_int_equal(memory->kind, kind);
        assert_int_equal(memory->fd >= 0, fds);
        assert_int_equal(memcmp(memory->handle, handle, handle_bytes), 0);
        assert_false(answered());
        attnd_memory_mapped(&device_rig.service, memory->index, &none);
        Attnd__Reply *reply = read_reply();
        assert_int_equal(reply->code, 0);
        assert_ptr_equal(attnd_client_memory(device_rig.client, reply->memory->memory), memory);
        assert_int_equal(reply->memory->size_bytes, 4096);
        assert_int_equal(device_rig.client->import, 0);
        free_reply(reply);
        attnd_memory_mapped(&device_rig.service, memory->index, &none); /* again, after a restart */
        assert_false(answered());
    }
    assert_int_equal(device_rig.client->device_memory_bytes,
                     0); /* the engine's own is not counted */
}

static void an_import_that_fails_says_why_and_leaves_no_trace(void **state)
{
    const struct attnd_fault fault = {
        .code = -ATTND_E_RANGE, .field = ATTND_F_SIZE, .value = 4096, .limit = 64};
    (void)state;
    device_stub.fds_are_memory = 1;
    assert_int_equal(bring(ATTND_KIND_DEVICE, 1, 0), ATTND_CALL_LATER);
    uint32_t import = device_rig.client->import;
    attnd_memory_mapped(&device_rig.service, device_rig.client->memories[import - 1]->index,
                        &fault);
    Attnd__Reply *reply = read_reply();
    assert_int_equal(reply->code, -ATTND_E_RANGE);
    assert_int_equal(reply->field, ATTND_F_SIZE);
    assert_int_equal(reply->value, 4096);
    assert_int_equal(reply->limit, 64);
    free_reply(reply);
    assert_null(attnd_client_memory(device_rig.client, import));
    assert_int_equal(device_rig.client->import, 0);
    assert_int_equal(data_stub.maps, data_stub.unmaps);
}

/* To pin it may take seconds, and be more than the machine allows. */
static void host_memory_is_tried_where_the_worker_has_to_pin_it(void **state)
{
    static const struct attnd_fault none = {0};
    static const struct attnd_fault fault = {.code = -ATTND_E_NO_MEMORY, .field = ATTND_F_MEMORY};
    (void)state;
    assert_int_equal(device_rig_make(ATTND_KIND_HOST, 4096),
                     0); /* by processors it is mapped, no more */
    stub_worker.memory_kinds |= ATTND_KIND_TRIED(ATTND_KIND_HOST);

    assert_int_equal(bring_host(), ATTND_CALL_LATER);
    uint32_t import = device_rig.client->import;
    assert_false(answered());
    assert_int_equal(bring_host(), -ATTND_E_BUSY);
    attnd_memory_mapped(&device_rig.service, device_rig.client->memories[import - 1]->index,
                        &fault);
    Attnd__Reply *reply = read_reply();
    assert_int_equal(reply->code, -ATTND_E_NO_MEMORY);
    assert_int_equal(reply->field, ATTND_F_MEMORY);
    free_reply(reply);
    assert_null(attnd_client_memory(device_rig.client, import));
    assert_int_equal(device_rig.client->used[ATTND_QUOTA_HOST], 4096); /* of the first */

    assert_int_equal(bring_host(), ATTND_CALL_LATER);
    attnd_memory_mapped(&device_rig.service,
                        device_rig.client->memories[device_rig.client->import - 1]->index, &none);
    reply = read_reply();
    assert_int_equal(reply->code, 0);
    assert_int_equal(reply->memory->size_bytes, 4096);
    free_reply(reply);

    data_stub.down = 1; /* nobody tries, and nobody has to wait */
    assert_int_equal(bring_host(), 0);
    data_stub.down = 0;
}

static void host_memory_that_is_made_is_handed_out_when_it_is_pinned(void **state)
{
    static const struct attnd_fault none = {0};
    char control[CMSG_SPACE(sizeof(int))], byte;
    struct iovec bytes = {&byte, 1};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    (void)state;
    stub_worker.memory_kinds |= ATTND_KIND_TRIED(ATTND_KIND_HOST);
    assert_int_equal(device_rig_make(ATTND_KIND_HOST, 4096), ATTND_CALL_LATER);
    attnd_memory_mapped(&device_rig.service,
                        device_rig.client->memories[device_rig.client->import - 1]->index, &none);
    assert_true(recvmsg(device_rig.peer, &message, MSG_DONTWAIT) > 0);
    const struct cmsghdr *passed = CMSG_FIRSTHDR(&message);
    int fd;
    assert_non_null(passed);
    assert_int_equal(passed->cmsg_type, SCM_RIGHTS);
    memcpy(&fd, CMSG_DATA(passed), sizeof(fd));
    close(fd);
}

/* ---- pools in memory that is made for them ---- */

static int make_pool(void)
{
    static Attnd__PoolCreate desc;
    struct attnd_call *call = device_rig_begin();

    attnd__pool_create__init(&desc);
    desc.layers = 1;
    desc.pages = 4;
    desc.page_size = 16;
    desc.heads_kv = 2;
    desc.dim_qk = desc.dim_vo = 64;
    desc.dtype = ATTND_BF16;
    desc.page_owner = ATTND__PAGE_OWNER__OWNER_SERVICE;
    device_rig.request.id = 77;
    device_rig.request.pool_create = &desc;
    return attnd_call_pool_create(call);
}

static int release_pool(uint32_t pool)
{
    static Attnd__PoolRelease message;
    struct attnd_call *call = device_rig_begin();

    attnd__pool_release__init(&message);
    message.pool = pool;
    device_rig.request.pool_release = &message;
    return attnd_call_pool_release(call);
}

static uint32_t tried_index(void)
{
    return device_rig.client->memories[device_rig.client->import - 1]->index;
}

static void a_pool_is_there_when_its_memory_is_pinned(void **state)
{
    static const struct attnd_fault none = {0};
    (void)state;
    stub_worker.memory_kinds |= ATTND_KIND_TRIED(ATTND_KIND_HOST);
    assert_int_equal(make_pool(), ATTND_CALL_LATER);
    uint32_t memory = device_rig.client->import;
    assert_false(answered());
    assert_int_equal(make_pool(), -ATTND_E_BUSY);
    attnd_memory_mapped(&device_rig.service, tried_index(), &none);
    Attnd__Reply *reply = read_reply();
    assert_int_equal(reply->code, 0);
    assert_int_equal(reply->pool->memory, memory);
    assert_int_equal(reply->pool->desc->pages, 4);
    assert_non_null(attnd_client_attachment(device_rig.client, reply->pool->pool));
    assert_int_equal(release_pool(reply->pool->pool), 0);
    assert_null(attnd_client_memory(device_rig.client, memory));
    free_reply(reply);
}

static void a_pool_whose_memory_cannot_be_pinned_is_none(void **state)
{
    static const struct attnd_fault fault = {.code = -ATTND_E_NO_MEMORY, .field = ATTND_F_SIZE};
    (void)state;
    stub_worker.memory_kinds |= ATTND_KIND_TRIED(ATTND_KIND_HOST);
    assert_int_equal(make_pool(), ATTND_CALL_LATER);
    attnd_memory_mapped(&device_rig.service, tried_index(), &fault);
    Attnd__Reply *reply = read_reply();
    assert_int_equal(reply->code, -ATTND_E_NO_MEMORY);
    assert_int_equal(reply->field, ATTND_F_SIZE);
    assert_int_equal(reply->result_case, ATTND__REPLY__RESULT__NOT_SET);
    free_reply(reply);
    assert_int_equal(device_rig.client->import, 0);
    assert_int_equal(device_rig.client->used[ATTND_QUOTA_HOST], 0);
    assert_int_equal(device_rig.service.pools_count, 0);
    assert_int_equal(data_stub.maps, data_stub.unmaps);
}

/* It may go again, and nothing of the session's may depend on it then. */
static void while_its_memory_is_tried_a_pool_cannot_be_named(void **state)
{
    static const struct attnd_fault fault = {.code = -ATTND_E_NO_MEMORY, .field = ATTND_F_SIZE};
    (void)state;
    stub_worker.memory_kinds |= ATTND_KIND_TRIED(ATTND_KIND_HOST);
    assert_int_equal(make_pool(), ATTND_CALL_LATER);
    uint32_t pool = device_rig.client->import_pool;
    assert_non_null(device_rig.client->attachments[pool - 1]);
    assert_null(attnd_client_attachment(device_rig.client, pool));
    assert_int_equal(release_pool(pool), -ATTND_E_UNKNOWN);
    attnd_memory_mapped(&device_rig.service, tried_index(), &fault);
    free_reply(read_reply());
    assert_null(device_rig.client->attachments[pool - 1]);
}

static void a_pool_outlives_the_worker_that_was_pinning_its_memory(void **state)
{
    (void)state;
    stub_worker.memory_kinds |= ATTND_KIND_TRIED(ATTND_KIND_HOST);
    assert_int_equal(make_pool(), ATTND_CALL_LATER);
    attnd_memory_lost(&device_rig.service);
    Attnd__Reply *reply = read_reply();
    assert_int_equal(reply->code, 0);
    assert_non_null(attnd_client_attachment(device_rig.client, reply->pool->pool));
    free_reply(reply);
    data_stub.down = 1; /* nobody tries, and nobody has to wait */
    assert_int_equal(make_pool(), 0);
    data_stub.down = 0;
}

/* ---- deaths ---- */

/* It may have died of what it was given: that is not given to the next one. */
static void a_worker_that_dies_over_an_import_does_not_get_it_again(void **state)
{
    (void)state;
    device_stub.fds_are_memory = 1;
    assert_int_equal(bring(ATTND_KIND_DEVICE, 1, 0), ATTND_CALL_LATER);
    uint32_t import = device_rig.client->import;
    attnd_memory_lost(&device_rig.service);
    Attnd__Reply *reply = read_reply();
    assert_int_equal(reply->code, -ATTND_E_WORKER_RESTARTED);
    free_reply(reply);
    assert_null(attnd_client_memory(device_rig.client, import));
    assert_int_equal(data_stub.maps, data_stub.unmaps);
}

/* Its maker could do nothing about a death, and the next worker gets all host memory anyway. */
static void host_memory_outlives_the_worker_that_was_pinning_it(void **state)
{
    (void)state;
    stub_worker.memory_kinds |= ATTND_KIND_TRIED(ATTND_KIND_HOST);
    assert_int_equal(bring_host(), ATTND_CALL_LATER);
    uint32_t import = device_rig.client->import;
    attnd_memory_lost(&device_rig.service);
    Attnd__Reply *reply = read_reply();
    assert_int_equal(reply->code, 0);
    assert_int_equal(reply->memory->memory, import);
    free_reply(reply);
    assert_int_equal(device_rig.client->import, 0);
    assert_non_null(attnd_client_memory(device_rig.client, import));
    assert_int_equal(data_stub.unmaps, 0);
}

static void while_no_worker_runs_an_import_is_not_begun(void **state)
{
    (void)state;
    device_stub.fds_are_memory = 1;
    data_stub.down = 1;
    assert_int_equal(bring(ATTND_KIND_DEVICE, 1, 0), -ATTND_E_WORKER_RESTARTED);
    assert_int_equal(device_rig.client->import, 0);
    assert_int_equal(data_stub.maps, 0);
    data_stub.down = 0;
    assert_int_equal(bring(ATTND_KIND_DEVICE, 1, 0), ATTND_CALL_LATER);
}

static void only_trusted_engines_bring_handles(void **state)
{
    (void)state;
    device_stub.fds_are_memory = 1;
    assert_int_equal(bring(ATTND_KIND_POOL, 1, sizeof(handle)), -ATTND_E_PERMISSION);
    assert_int_equal(device_rig.fault.field, ATTND_F_MEMORY_KIND);
    assert_int_equal(device_rig.fault.value, ATTND_KIND_POOL);
    assert_int_equal(device_rig.fault.limit, ATTND_KIND_DEVICE);
    assert_int_equal(bring(ATTND_KIND_IPC, 0, sizeof(handle)), -ATTND_E_PERMISSION);
    assert_int_equal(bring(ATTND_KIND_DEVICE, 1, 0), ATTND_CALL_LATER);
}

static void a_kind_that_the_worker_cannot_map_is_refused_by_name(void **state)
{
    (void)state;
    device_stub.fds_are_memory = 1;
    stub_worker.memory_kinds = 1u << ATTND_KIND_HOST;
    assert_int_equal(bring(ATTND_KIND_DEVICE, 1, 0), -ATTND_E_UNSUPPORTED);
    assert_int_equal(device_rig.fault.field, ATTND_F_MEMORY_KIND);
    assert_int_equal(device_rig.fault.value, ATTND_KIND_DEVICE);
    assert_int_equal(bring(ATTND_KIND_IPC + 1, 1, 0), -ATTND_E_INVALID);
    assert_int_equal(device_rig.fault.field, ATTND_F_MEMORY_KIND);
}

static void an_import_of_the_wrong_form_is_refused(void **state)
{
    static const struct {
        uint32_t kind;
        int fds;
        size_t handle_bytes;
        enum attnd_field field;
    } rows[] = {
        {ATTND_KIND_DEVICE, 2, 0, ATTND_F_COUNT},  {ATTND_KIND_DEVICE, 1, 64, ATTND_F_MEMORY},
        {ATTND_KIND_DEVICE, 0, 64, ATTND_F_COUNT}, {ATTND_KIND_POOL, 1, 0, ATTND_F_MEMORY},
        {ATTND_KIND_POOL, 1, 63, ATTND_F_MEMORY},  {ATTND_KIND_POOL, 0, 64, ATTND_F_COUNT},
        {ATTND_KIND_IPC, 1, 64, ATTND_F_COUNT},    {ATTND_KIND_IPC, 0, 1, ATTND_F_MEMORY},
        {ATTND_KIND_HOST, 1, 64, ATTND_F_MEMORY},
    };
    (void)state;
    device_stub.fds_are_memory = 1;
    device_rig.service.options.trust = 1;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(bring(rows[i].kind, rows[i].fds, rows[i].handle_bytes), -ATTND_E_INVALID);
        assert_int_equal(device_rig.fault.field, rows[i].field);
    }
    assert_int_equal(data_stub.maps, 0);
}

static void a_descriptor_that_is_not_the_drivers_is_refused(void **state)
{
    (void)state;
    assert_int_equal(bring(ATTND_KIND_DEVICE, 1, 0), -ATTND_E_INVALID);
    assert_int_equal(device_rig.fault.field, ATTND_F_MEMORY);
    assert_int_equal(data_stub.maps, 0);
}

static int release_memory(uint32_t released)
{
    static Attnd__MemoryRelease message;
    struct attnd_call *call = device_rig_begin();
    attnd__memory_release__init(&message);
    message.memory = released;
    device_rig.request.id = 77;
    device_rig.request.memory_release = &message;
    return attnd_call_memory_release(call);
}

/* The session that made it frees it next. */
static void a_release_waits_for_the_worker_where_nothing_else_holds_the_memory(void **state)
{
    static const struct attnd_fault none = {0};
    (void)state;
    device_stub.fds_are_memory = 1;
    device_rig.service.options.trust = 1;
    for (uint32_t kind = ATTND_KIND_DEVICE; kind <= ATTND_KIND_IPC; kind++) {
        (void)bring(kind, kind != ATTND_KIND_IPC, kind == ATTND_KIND_DEVICE ? 0 : sizeof(handle));
        uint32_t imported = device_rig.client->import;
        uint32_t index = device_rig.client->memories[imported - 1]->index;
        attnd_memory_mapped(&device_rig.service, index, &none);
        free_reply(read_reply());
        data_stub.unmaps_answered = 0;
        assert_int_equal(release_memory(imported),
                         kind == ATTND_KIND_DEVICE ? 0 : ATTND_CALL_LATER);
        assert_null(attnd_client_memory(device_rig.client, imported));
        assert_false(answered());
        data_stub.unmaps_answered = 1;
        attnd_memory_unmapped(&device_rig.service, index);
        assert_int_equal(answered(), kind != ATTND_KIND_DEVICE);
        if (kind == ATTND_KIND_DEVICE)
            continue;
        Attnd__Reply *reply = read_reply();
        assert_int_equal(reply->code, 0);
        assert_int_equal(reply->result_case, ATTND__REPLY__RESULT__NOT_SET);
        free_reply(reply);
    }
}

static void while_one_import_is_tried_the_session_is_busy(void **state)
{
    (void)state;
    device_stub.fds_are_memory = 1;
    assert_int_equal(bring(ATTND_KIND_DEVICE, 1, 0), ATTND_CALL_LATER);
    assert_int_equal(bring(ATTND_KIND_DEVICE, 1, 0), -ATTND_E_BUSY);
    assert_int_equal(release_memory(device_rig.client->import), -ATTND_E_BUSY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, device_rig_setup, device_rig_teardown)
        TEST(an_import_is_answered_when_the_worker_has_it),
        TEST(an_import_that_fails_says_why_and_leaves_no_trace),
        TEST(host_memory_is_tried_where_the_worker_has_to_pin_it),
        TEST(host_memory_that_is_made_is_handed_out_when_it_is_pinned),
        TEST(a_pool_is_there_when_its_memory_is_pinned),
        TEST(a_pool_whose_memory_cannot_be_pinned_is_none),
        TEST(while_its_memory_is_tried_a_pool_cannot_be_named),
        TEST(a_pool_outlives_the_worker_that_was_pinning_its_memory),
        TEST(a_worker_that_dies_over_an_import_does_not_get_it_again),
        TEST(host_memory_outlives_the_worker_that_was_pinning_it),
        TEST(while_no_worker_runs_an_import_is_not_begun),
        TEST(only_trusted_engines_bring_handles),
        TEST(a_kind_that_the_worker_cannot_map_is_refused_by_name),
        TEST(an_import_of_the_wrong_form_is_refused),
        TEST(a_descriptor_that_is_not_the_drivers_is_refused),
        TEST(a_release_waits_for_the_worker_where_nothing_else_holds_the_memory),
        TEST(while_one_import_is_tried_the_session_is_busy),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
