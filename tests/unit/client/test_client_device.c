/* test_client_device.c - device memory in libattnd: a descriptor that is kept and handed on. */
#include "client/internal.h"
#include "schemas/abi.h"
#include "tests/support/harness/check.h"
#include "tests/support/harness/fake_daemon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVICE_BYTES (2u << 20)

/* The reply says what was made. */
static enum fake_verdict rounds_up(struct fake_daemon *fake, const Attnd__Request *request,
                                   struct fake_reply *reply)
{
    uint32_t *kind = fake->context;
    if (request->call_case == ATTND__REQUEST__CALL_MEMORY_REGISTER) {
        *kind = (uint32_t)request->memory_register->memory_kind;
        reply->message.memory->has_size_bytes = 1;
        reply->message.memory->size_bytes = DEVICE_BYTES;
    }
    return FAKE_REPLY;
}

static ino_t inode(int fd)
{
    struct stat status;
    CHECK_EQUAL(fstat(fd, &status), 0);
    return status.st_ino;
}

static void its_descriptor_can_be_had_as_often_as_wanted(void **state)
{
    (void)state;
    uint32_t kind = 0, memory;
    struct fake_daemon fake = {.spoil = rounds_up, .context = &kind};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_memory_info info = {.size = sizeof(info)};
    CHECK_OK(attnd_memory_create_device(session, 5000, &memory));
    CHECK_EQUAL(kind, ATTND_KIND_DEVICE);
    CHECK(attnd_memory_address(session, memory) == NULL);
    CHECK_OK(attnd_memory_info(session, memory, &info));
    CHECK_EQUAL(info.memory_kind, ATTND_MEMORY_DEVICE);
    CHECK_EQUAL(info.size_bytes, DEVICE_BYTES);
    CHECK(info.address == NULL);
    int first = attnd_memory_fd(session, memory), second = attnd_memory_fd(session, memory);
    CHECK(first >= 0 && second >= 0 && first != second);
    CHECK_EQUAL(inode(first), inode(fake.memory_fd));
    CHECK_EQUAL(fcntl(first, F_GETFD), FD_CLOEXEC);
    close(second);
    CHECK_OK(attnd_memory_release(session, memory));
    CHECK_ERROR(attnd_memory_fd(session, memory), ATTND_E_UNKNOWN);
    CHECK_ERROR(attnd_memory_info(session, memory, &info), ATTND_E_UNKNOWN);
    CHECK_EQUAL(inode(first), inode(fake.memory_fd)); /* what was handed on stays */
    close(first);
    attnd_close(session);
    fake_stop(&fake);
}

static void host_memory_has_an_address_instead(void **state)
{
    (void)state;
    uint32_t kind = 0, memory;
    struct fake_daemon fake = {.spoil = rounds_up, .context = &kind};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_memory_info info = {.size = sizeof(info)};
    void *address;
    CHECK_OK(attnd_memory_create(session, 5000, &memory, &address));
    CHECK_EQUAL(kind, ATTND_KIND_HOST);
    CHECK_ERROR(attnd_memory_fd(session, memory), ATTND_E_UNSUPPORTED);
    CHECK_OK(attnd_memory_info(session, memory, &info));
    CHECK_EQUAL(info.memory_kind, ATTND_MEMORY_HOST);
    CHECK(info.address == address);
    attnd_close(session);
    fake_stop(&fake);
}

static void a_refusal_is_passed_on(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    CHECK_ERROR(attnd_memory_create_device(session, 5000, NULL), ATTND_E_INVALID);
    CHECK_ERROR(attnd_memory_fd(session, 77), ATTND_E_UNKNOWN);
    attnd_close(session);
    fake_stop(&fake);
}

/* ---- the engine's own ---- */

struct sent {
    uint32_t kind;
    uint64_t size_bytes;
    int fds, has_handle;
    uint8_t handle[ATTND_MEMORY_HANDLE_BYTES];
    int refuse;
    struct attnd_fault fault;
};

static enum fake_verdict notes_import(struct fake_daemon *fake, const Attnd__Request *request,
                                      struct fake_reply *reply)
{
    struct sent *sent = fake->context;
    const Attnd__MemoryRegister *message = request->memory_register;
    if (request->call_case != ATTND__REQUEST__CALL_MEMORY_REGISTER)
        return FAKE_REPLY;
    sent->kind = (uint32_t)message->memory_kind;
    sent->size_bytes = message->size_bytes;
    sent->fds = fake->received_fds;
    sent->has_handle = message->has_handle;
    CHECK(message->handle.len == (message->has_handle ? sizeof(sent->handle) : 0));
    if (message->has_handle)
        memcpy(sent->handle, message->handle.data, sizeof(sent->handle));
    if (sent->refuse) {
        reply->message.code = -ATTND_E_RANGE;
        reply->message.has_field = reply->message.has_limit = 1;
        reply->message.field = ATTND_F_SIZE;
        reply->message.limit = 64;
        reply->message.result_case = ATTND__REPLY__RESULT__NOT_SET;
    }
    return FAKE_REPLY;
}

static void what_stands_for_memory_is_sent_by_its_kind(void **state)
{
    (void)state;
    struct sent sent = {.kind = 0};
    struct fake_daemon fake = {.spoil = notes_import, .context = &sent};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_memory_desc desc = {.size = sizeof(desc), .size_bytes = 12345};
    struct attnd_memory_info info = {.size = sizeof(info)};
    memset(desc.handle, 0x5a, sizeof(desc.handle));
    for (uint32_t kind = ATTND_MEMORY_HOST; kind <= ATTND_MEMORY_IPC; kind++) {
        uint32_t memory = 0;
        desc.memory_kind = kind;
        desc.fd = kind == ATTND_MEMORY_IPC ? -1 : fcntl(fake.listener, F_DUPFD_CLOEXEC, 0);
        CHECK_OK(attnd_memory_import(session, &desc, &memory));
        CHECK_EQUAL(sent.kind, kind);
        CHECK_EQUAL(sent.size_bytes, 12345);
        CHECK_EQUAL(sent.fds, kind != ATTND_MEMORY_IPC);
        CHECK_EQUAL(sent.has_handle, kind > ATTND_MEMORY_DEVICE);
        CHECK(!sent.has_handle || memcmp(sent.handle, desc.handle, sizeof(sent.handle)) == 0);
        CHECK_OK(attnd_memory_info(session, memory, &info));
        CHECK_EQUAL(info.memory_kind, kind);
        CHECK_EQUAL(info.size_bytes, 12345);
        CHECK_ERROR(attnd_memory_fd(session, memory), ATTND_E_UNSUPPORTED);
        CHECK_OK(attnd_memory_release(session, memory));
        CHECK_ERROR(attnd_memory_info(session, memory, &info), ATTND_E_UNKNOWN);
        if (desc.fd >= 0)
            CHECK_EQUAL(close(desc.fd), 0); /* still the caller's */
    }
    attnd_close(session);
    fake_stop(&fake);
}

static void an_import_that_makes_no_sense_is_not_sent(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    const struct attnd_memory_desc good = {.size = sizeof(good),
                                           .memory_kind = ATTND_MEMORY_DEVICE,
                                           .fd = fake.listener,
                                           .size_bytes = 4096};
    struct attnd_memory_desc desc = good;
    uint32_t memory, calls = fake.calls;
    CHECK_ERROR(attnd_memory_import(session, &good, NULL), ATTND_E_INVALID);
    CHECK_ERROR(attnd_memory_import(session, NULL, &memory), ATTND_E_INVALID);
    desc.fd = -1;
    CHECK_ERROR(attnd_memory_import(session, &desc, &memory), ATTND_E_INVALID);
    desc = good;
    desc.memory_kind = ATTND_MEMORY_IPC; /* has no descriptor */
    CHECK_ERROR(attnd_memory_import(session, &desc, &memory), ATTND_E_INVALID);
    desc = good;
    desc.memory_kind = ATTND_MEMORY_IPC + 1;
    CHECK_ERROR(attnd_memory_import(session, &desc, &memory), ATTND_E_INVALID);
    desc = good;
    desc.reserved = 1;
    CHECK_ERROR(attnd_memory_import(session, &desc, &memory), ATTND_E_INVALID);
    CHECK_EQUAL(fake.calls, calls);
    attnd_close(session);
    fake_stop(&fake);
}

static void an_import_that_is_refused_is_no_memory(void **state)
{
    (void)state;
    struct sent sent = {.refuse = 1};
    struct fake_daemon fake = {.spoil = notes_import, .context = &sent};
    struct attnd_session *session = fake_open(&fake);
    const struct attnd_memory_desc desc = {
        .size = sizeof(desc), .memory_kind = ATTND_MEMORY_IPC, .fd = -1, .size_bytes = 4096};
    struct attnd_memory_info info = {.size = sizeof(info)};
    struct attnd_fault fault;
    uint32_t memory = 0;
    CHECK_ERROR(attnd_memory_import(session, &desc, &memory), ATTND_E_RANGE);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_SIZE);
    CHECK_EQUAL(fault.limit, 64);
    CHECK_EQUAL(memory, 0);
    CHECK_ERROR(attnd_memory_info(session, 1, &info), ATTND_E_UNKNOWN);
    attnd_close(session);
    fake_stop(&fake);
}

static void an_allocation_is_found_again_by_address_and_number(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_memory_desc desc = {
        .size = sizeof(desc), .memory_kind = ATTND_MEMORY_IPC, .fd = -1, .size_bytes = 4096};
    const struct attnd_origin first = {0x7f0000, 11}, again = {0x7f0000, 12},
                              nameless = {0x7f0000, 0};
    uint32_t a, b, c;
    CHECK_OK(attnd_import(session, &desc, &first, &a));
    CHECK_EQUAL(attnd_import_find(session, &first), a);
    CHECK_EQUAL(attnd_import_find(session, &again), 0); /* freed, and the address used again */
    CHECK_OK(attnd_import(session, &desc, &again, &b));
    CHECK_EQUAL(attnd_import_find(session, &again), b);
    CHECK_OK(attnd_import(session, &desc, &nameless, &c));
    CHECK_EQUAL(attnd_import_find(session, &nameless), 0);
    CHECK_OK(attnd_memory_release(session, a));
    CHECK_EQUAL(attnd_import_find(session, &first), 0);
    attnd_close(session);
    fake_stop(&fake);
}

static void memory_that_lay_where_another_allocation_lies_is_told_as_gone(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_memory_desc desc = {
        .size = sizeof(desc), .memory_kind = ATTND_MEMORY_IPC, .fd = -1, .size_bytes = 4096};
    const struct attnd_origin first = {0x10000, 11}, same = {0x10000, 12}, inside = {0x10800, 13},
                              around = {0xf000, 14}, before = {0xf000, 15}, behind = {0x11000, 16},
                              nameless = {0x10000, 0};
    uint32_t a;
    CHECK_OK(attnd_import(session, &desc, &first, &a));
    CHECK_EQUAL(attnd_import_stale(session, &first, 4096), 0);
    CHECK_EQUAL(attnd_import_stale(session, &same, 64), a);
    CHECK_EQUAL(attnd_import_stale(session, &inside, 64), a);
    CHECK_EQUAL(attnd_import_stale(session, &around, 4097), a);
    CHECK_EQUAL(attnd_import_stale(session, &before, 4096), 0);
    CHECK_EQUAL(attnd_import_stale(session, &behind, 4096), 0);
    CHECK_EQUAL(attnd_import_stale(session, &nameless, 4096), 0);
    CHECK_OK(attnd_memory_release(session, a));
    CHECK_EQUAL(attnd_import_stale(session, &same, 64), 0);
    attnd_close(session);
    fake_stop(&fake);
}

/* ---- the end of a memory ---- */

/* What the session's hook was told. */
static struct {
    struct attnd_session *session;
    uint8_t *mapped; /* or NULL */
    uint32_t count;
    uint64_t serial;
} told;

static void memory_ends(struct attnd_stream_launcher *launcher, uint64_t serial)
{
    CHECK(launcher == (void *)&told);
    CHECK_EQUAL(pthread_mutex_trylock(&told.session->call_lock), 0); /* it may make calls */
    pthread_mutex_unlock(&told.session->call_lock);
    if (told.mapped)
        told.mapped[0]++;
    told.count++;
    told.serial = serial;
}

static void tell(struct attnd_session *session)
{
    memset(&told, 0, sizeof(told));
    told.session = session;
    session->launcher = (void *)&told;
    session->memory_ends = memory_ends;
}

static void close_told(struct attnd_session *session)
{
    session->launcher = NULL;
    attnd_close(session);
}

/* The first time. */
static enum fake_verdict refuses_release(struct fake_daemon *fake, const Attnd__Request *request,
                                         struct fake_reply *reply)
{
    int *refused = fake->context;
    if (request->call_case == ATTND__REQUEST__CALL_MEMORY_RELEASE && !(*refused)++)
        reply->message.code = -ATTND_E_BUSY;
    return FAKE_REPLY;
}

static void the_end_of_a_memory_is_told_by_serial_while_it_is_mapped(void **state)
{
    (void)state;
    int refused = 0;
    struct fake_daemon fake = {.spoil = refuses_release, .context = &refused};
    struct attnd_session *session = fake_open(&fake);
    uint32_t memory;
    void *address;
    tell(session);
    CHECK_OK(attnd_memory_create(session, 5000, &memory, &address));
    told.mapped = address;
    const uint64_t serial = session->objects_added;
    CHECK_ERROR(attnd_memory_release(session, memory), ATTND_E_BUSY);
    CHECK_EQUAL(told.count, 0);
    CHECK_OK(attnd_memory_release(session, memory));
    CHECK_EQUAL(told.count, 1);
    CHECK_EQUAL(told.serial, serial);
    close_told(session);
    fake_stop(&fake);
}

/* ---- pools ---- */

struct pool {
    Attnd__PoolReply reply;
    Attnd__PoolCreate desc;
    Attnd__Plane plane[2];
    Attnd__Plane *k[1], *v[1];
    uint32_t asked_kind;
};

static enum fake_verdict device_pool(struct fake_daemon *fake, const Attnd__Request *request,
                                     struct fake_reply *reply)
{
    struct pool *pool = fake->context;
    if (request->call_case != ATTND__REQUEST__CALL_POOL_CREATE &&
        request->call_case != ATTND__REQUEST__CALL_POOL_ATTACH)
        return FAKE_REPLY;
    if (request->call_case == ATTND__REQUEST__CALL_POOL_CREATE)
        pool->asked_kind = (uint32_t)request->pool_create->memory_kind;
    attnd__pool_create__init(&pool->desc);
    pool->desc.layers = 1;
    for (int i = 0; i < 2; i++) {
        attnd__plane__init(&pool->plane[i]);
        pool->plane[i].memory = 40;
    }
    pool->k[0] = &pool->plane[0];
    pool->v[0] = &pool->plane[1];
    pool->desc.n_k = pool->desc.n_v = 1;
    pool->desc.k = pool->k;
    pool->desc.v = pool->v;
    pool->desc.has_memory_kind = 1;
    pool->desc.memory_kind = ATTND__MEMORY_KIND__MEMORY_DEVICE;
    attnd__pool_reply__init(&pool->reply);
    pool->reply.pool = ++fake->next_handle;
    pool->reply.desc = &pool->desc;
    pool->reply.memory = 40;
    pool->reply.memory_bytes = DEVICE_BYTES;
    reply->message.result_case = ATTND__REPLY__RESULT_POOL;
    reply->message.pool = &pool->reply;
    if (fake->memory_fd < 0) /* smaller than it says: nobody may map it */
        CHECK_EQUAL(attnd_shm_create_unmapped("pool", 4096, &fake->memory_fd, NULL), 0);
    reply->fds[reply->fd_count++] = fake->memory_fd;
    return FAKE_REPLY;
}

static void a_pool_in_device_memory_is_not_mapped_and_its_descriptor_kept_once(void **state)
{
    (void)state;
    struct pool pool = {.asked_kind = 0};
    struct fake_daemon fake = {.spoil = device_pool, .context = &pool};
    struct attnd_session *session = fake_open(&fake);
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .page_owner = ATTND_PAGES_OF_ENGINE,
                                         .memory_kind = ATTND_MEMORY_DEVICE};
    struct attnd_pool_info info = {.size = sizeof(info)};
    struct attnd_token token;
    uint32_t created, attached;
    tell(session);
    CHECK_OK(attnd_pool_create(session, &desc, &created));
    CHECK_EQUAL(pool.asked_kind, ATTND_KIND_DEVICE);
    CHECK_OK(attnd_pool_share(session, created, 1, &token));
    CHECK_OK(attnd_pool_attach(session, &token, &attached));
    CHECK_OK(attnd_pool_info(session, created, &info));
    CHECK_EQUAL(info.desc.memory_kind, ATTND_MEMORY_DEVICE);
    CHECK(info.address == NULL);
    CHECK_OK(attnd_pool_release(session, created));
    int fd = attnd_memory_fd(session, 40); /* the other pool lies in it as well */
    CHECK(fd >= 0);
    CHECK_EQUAL(inode(fd), inode(fake.memory_fd));
    close(fd);
    CHECK_EQUAL(told.count, 0);
    CHECK_OK(attnd_pool_release(session, attached));
    CHECK_ERROR(attnd_memory_fd(session, 40), ATTND_E_UNKNOWN);
    CHECK_EQUAL(told.count, 1);
    close_told(session);
    fake_stop(&fake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_descriptor_can_be_had_as_often_as_wanted),
        cmocka_unit_test(host_memory_has_an_address_instead),
        cmocka_unit_test(a_refusal_is_passed_on),
        cmocka_unit_test(what_stands_for_memory_is_sent_by_its_kind),
        cmocka_unit_test(an_import_that_makes_no_sense_is_not_sent),
        cmocka_unit_test(an_import_that_is_refused_is_no_memory),
        cmocka_unit_test(an_allocation_is_found_again_by_address_and_number),
        cmocka_unit_test(memory_that_lay_where_another_allocation_lies_is_told_as_gone),
        cmocka_unit_test(the_end_of_a_memory_is_told_by_serial_while_it_is_mapped),
        cmocka_unit_test(a_pool_in_device_memory_is_not_mapped_and_its_descriptor_kept_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
