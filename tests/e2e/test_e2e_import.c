/*
 * test_e2e_import.c - memory that an engine brings: what the service takes and what it refuses, by
 * name and without a trace. What the worker of a GPU does with what is taken is tests/gpu's.
 */
#include "tests/support/harness/e2e.h"

#include "client/attnd.h"
#include "schemas/abi.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define BYTES 65536u

static int make_memfd(int seals)
{
    int fd = memfd_create("import", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK(fd >= 0 && ftruncate(fd, BYTES) == 0);
    CHECK_EQUAL(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static struct attnd_memory_desc describe(uint32_t kind, int fd)
{
    return (struct attnd_memory_desc){.size = sizeof(struct attnd_memory_desc),
                                      .memory_kind = kind,
                                      .fd = kind == ATTND_MEMORY_IPC ? -1 : fd,
                                      .size_bytes = BYTES};
}

static void refuse(struct attnd_session *session, const struct attnd_memory_desc *desc, int error,
                   uint32_t field)
{
    struct attnd_fault fault;
    uint32_t memory = 0;

    CHECK_ERROR(attnd_memory_import(session, desc, &memory), error);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, field);
    CHECK_EQUAL(memory, 0);
}

/* How many memory objects the session has: handles are the lowest that are free. */
static uint32_t next_handle(struct attnd_session *session)
{
    uint32_t memory;

    CHECK_OK(attnd_memory_create(session, 1, &memory, NULL));
    CHECK_OK(attnd_memory_release(session, memory));
    return memory;
}

static void host_memory_is_imported_as_it_is_registered(void **state)
{
    struct attnd_session *session = e2e_open(*state);
    int fd = make_memfd(F_SEAL_SHRINK);
    const struct attnd_memory_desc desc = describe(ATTND_MEMORY_HOST, fd);
    struct attnd_memory_info info = {.size = sizeof(info)};
    uint32_t imported, registered;

    CHECK_OK(attnd_memory_import(session, &desc, &imported));
    CHECK_OK(attnd_memory_register(session, fd, BYTES, &registered));
    close(fd);
    CHECK(imported != registered);
    CHECK_OK(attnd_memory_info(session, imported, &info));
    CHECK_EQUAL(info.memory_kind, ATTND_MEMORY_HOST);
    CHECK_EQUAL(info.size_bytes, BYTES);
    CHECK(info.address == NULL);
    CHECK_OK(attnd_memory_release(session, imported));
    CHECK_OK(attnd_memory_release(session, registered));
    attnd_close(session);
}

static void without_trust_handles_are_refused_by_kind(void **state)
{
    struct attnd_session *session = e2e_open(*state);
    int fd = make_memfd(F_SEAL_SHRINK);
    struct attnd_fault fault;

    for (uint32_t kind = ATTND_MEMORY_POOL; kind <= ATTND_MEMORY_IPC; kind++) {
        const struct attnd_memory_desc desc = describe(kind, fd);
        refuse(session, &desc, ATTND_E_PERMISSION, ATTND_F_MEMORY_KIND);
        attnd_last_fault(&fault);
        CHECK_EQUAL(fault.value, kind);
        CHECK_EQUAL(fault.limit, ATTND_MEMORY_DEVICE);
    }
    CHECK_EQUAL(next_handle(session), 1);
    close(fd);
    attnd_close(session);
}

static void a_worker_without_a_gpu_takes_none_of_its_memory(void **state)
{
    struct attnd_session *session = e2e_open(*state);
    int fd = make_memfd(F_SEAL_SHRINK);

    for (uint32_t kind = ATTND_MEMORY_DEVICE; kind <= ATTND_MEMORY_IPC && !e2e_on_gpu(); kind++) {
        const struct attnd_memory_desc desc = describe(kind, fd);
        refuse(session, &desc, ATTND_E_UNSUPPORTED, ATTND_F_MEMORY_KIND);
    }
    CHECK_EQUAL(next_handle(session), 1);
    close(fd);
    attnd_close(session);
}

static void descriptors_that_cannot_be_memory_are_refused(void **state)
{
    struct attnd_session *session = e2e_open(*state);
    const int device_error = e2e_on_gpu() ? ATTND_E_INVALID : ATTND_E_UNSUPPORTED;
    const uint32_t device_field = e2e_on_gpu() ? ATTND_F_MEMORY : ATTND_F_MEMORY_KIND;
    int pair[2], pipes[2];

    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    CHECK_EQUAL(pipe(pipes), 0);
    const int fds[] = {make_memfd(0),
                       pair[0],
                       pipes[0],
                       open("/dev/null", O_RDWR),
                       open("/", O_RDONLY | O_DIRECTORY),
                       open("/proc/self/status", O_RDONLY)};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        struct attnd_memory_desc desc = describe(ATTND_MEMORY_DEVICE, fds[i]);
        CHECK(fds[i] >= 0);
        refuse(session, &desc, device_error, device_field);
        desc.memory_kind = ATTND_MEMORY_HOST;
        refuse(session, &desc, ATTND_E_PERMISSION, ATTND_F_SEALS);
        close(fds[i]);
    }
    CHECK_EQUAL(next_handle(session), 1);
    attnd_close(session);
}

static void sizes_that_cannot_be_are_refused(void **state)
{
    struct attnd_session *session = e2e_open(*state);
    int fd = make_memfd(F_SEAL_SHRINK);
    const uint64_t sizes[] = {0, BYTES + 1, (uint64_t)INT64_MAX + 1, UINT64_MAX};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct attnd_memory_desc desc = describe(ATTND_MEMORY_HOST, fd);
        desc.size_bytes = sizes[i];
        refuse(session, &desc, ATTND_E_RANGE, ATTND_F_SIZE);
    }
    CHECK_EQUAL(next_handle(session), 1);
    close(fd);
    attnd_close(session);
}

/* 64 TiB of which not one page exists: a worker that pins it would be killed for memory. */
static void more_than_the_machine_has_is_refused_with_what_is_left(void **state)
{
    const struct harness *harness = *state;
    struct attnd_session *session = e2e_open(harness);
    const uint64_t enormous_bytes = (uint64_t)1 << 46;
    int fd = make_memfd(0);
    pid_t worker = harness_worker(harness);
    struct attnd_fault fault;
    uint32_t memory;

    CHECK_EQUAL(ftruncate(fd, (off_t)enormous_bytes), 0);
    CHECK_EQUAL(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    CHECK_ERROR(attnd_memory_register(session, fd, enormous_bytes, &memory), ATTND_E_NO_MEMORY);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_SIZE);
    CHECK_EQUAL(fault.value, enormous_bytes);
    CHECK(fault.limit > 0 && (uint64_t)fault.limit < enormous_bytes);
    close(fd);
    attnd_close(session);
    CHECK_EQUAL(harness_worker(harness), worker);
}

static void huge_pages_are_refused_by_name(void **state)
{
    struct attnd_session *session = e2e_open(*state);
    int fd = memfd_create("import", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);

    if (fd >= 0) {
        const struct attnd_memory_desc desc = describe(ATTND_MEMORY_HOST, fd);
        CHECK_EQUAL(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        refuse(session, &desc, ATTND_E_UNSUPPORTED, ATTND_F_MEMORY);
        close(fd);
    }
    CHECK_EQUAL(next_handle(session), 1);
    attnd_close(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(host_memory_is_imported_as_it_is_registered),
        E2E_TEST(without_trust_handles_are_refused_by_kind),
        E2E_TRUST_TEST(a_worker_without_a_gpu_takes_none_of_its_memory),
        E2E_TRUST_TEST(descriptors_that_cannot_be_memory_are_refused),
        E2E_TEST(sizes_that_cannot_be_are_refused),
        E2E_TEST(more_than_the_machine_has_is_refused_with_what_is_left),
        E2E_TEST(huge_pages_are_refused_by_name),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
