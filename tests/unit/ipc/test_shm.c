/* test_shm.c - seals hold, and what is not sealed is not let in. */
#include "ipc/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define BYTES 8192u

static struct attnd_shm make(void)
{
    struct attnd_shm shm;
    struct attnd_fault fault = {0};
    assert_int_equal(attnd_shm_create("attnd-test", BYTES, &shm, &fault), 0);
    return shm;
}

static int writable_mapping_works(int fd)
{
    void *address = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED)
        return 0;
    munmap(address, BYTES);
    return 1;
}

static void a_size_is_rounded_up_to_pages(void **state)
{
    (void)state;
    struct attnd_shm shm;
    struct attnd_fault fault = {0};
    struct stat file;
    assert_int_equal(attnd_shm_create("attnd-test", 4097, &shm, &fault), 0);
    assert_int_equal(fstat(shm.fd, &file), 0);
    assert_int_equal(file.st_size, 8192);
    assert_int_equal(shm.size_bytes, 8192);
    assert_true(fcntl(shm.fd, F_GETFD) & FD_CLOEXEC);
    attnd_shm_unmap(&shm);
    assert_int_equal(shm.fd, -1);
    attnd_shm_unmap(&shm); /* harmless twice */
}

static void impossible_sizes_are_refused(void **state)
{
    (void)state;
    const uint64_t sizes[] = {0, UINT64_MAX, (uint64_t)INT64_MAX, (uint64_t)INT64_MAX - 4095};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct attnd_fault fault = {0};
        struct attnd_shm shm;
        int fd;
        assert_int_equal(attnd_shm_create("attnd-test", sizes[i], &shm, &fault), -ATTND_E_SYSTEM);
        assert_int_equal(fault.value, EFBIG);
        assert_int_equal(attnd_shm_create_unmapped("attnd-test", sizes[i], &fd, NULL),
                         -ATTND_E_SYSTEM);
    }
}

static void every_seal_fixes_the_size(void **state)
{
    (void)state;
    for (int seal = ATTND_SEAL_POOL; seal <= ATTND_SEAL_COMPLETION; seal++) {
        struct attnd_shm shm = make();
        assert_int_equal(attnd_shm_seal(shm.fd, (enum attnd_shm_seal)seal), 0);
        assert_int_equal(ftruncate(shm.fd, 4096), -1);
        assert_int_equal(errno, EPERM);
        assert_int_equal(ftruncate(shm.fd, 16384), -1);
        assert_int_equal(errno, EPERM);
        /* and for good: no seal can be added to or taken from it */
        assert_int_equal(attnd_shm_seal(shm.fd, (enum attnd_shm_seal)seal), -ATTND_E_SYSTEM);
        attnd_shm_unmap(&shm);
    }
}

static void after_future_write_only_old_mappings_write(void **state)
{
    (void)state;
    struct attnd_shm daemon = make(), client;
    struct attnd_fault fault = {0};
    int fd = dup(daemon.fd);
    assert_int_equal(attnd_shm_map(fd, BYTES, 1, &client, &fault), 0);
    assert_int_equal(attnd_shm_seal(daemon.fd, ATTND_SEAL_SUBMISSION), 0);

    ((volatile char *)client.address)[5] = 42; /* mapped before the seal */
    assert_int_equal(((volatile char *)daemon.address)[5], 42);
    assert_false(writable_mapping_works(daemon.fd));
    char byte = 1;
    assert_int_equal(pwrite(daemon.fd, &byte, 1, 0), -1);
    /* nor can the client punch a hole under the daemon */
    assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
    assert_int_equal(errno, EPERM);
    attnd_shm_unmap(&client);
    attnd_shm_unmap(&daemon);
}

static void a_completion_segment_is_read_only_for_the_client(void **state)
{
    (void)state;
    struct attnd_shm daemon = make(), client;
    struct attnd_fault fault = {0};
    assert_int_equal(attnd_shm_seal(daemon.fd, ATTND_SEAL_COMPLETION), 0);
    int fd = dup(daemon.fd);
    assert_int_equal(attnd_shm_map(fd, BYTES, 1, &client, &fault), -ATTND_E_SYSTEM);
    assert_int_equal(fault.value, EPERM);
    assert_int_equal(attnd_shm_map(fd, BYTES, 0, &client, &fault), 0);
    ((volatile char *)daemon.address)[7] = 9;
    assert_int_equal(((volatile char *)client.address)[7], 9);
    assert_int_equal(mprotect(client.address, BYTES, PROT_READ | PROT_WRITE), -1);
    attnd_shm_unmap(&client);
    attnd_shm_unmap(&daemon);
}

static void a_pool_lets_a_second_writer_in(void **state)
{
    (void)state;
    struct attnd_fault fault = {0};
    struct attnd_shm writer;
    int fd;
    assert_int_equal(attnd_shm_create_unmapped("attnd-test", BYTES, &fd, &fault), 0);
    assert_int_equal(attnd_shm_seal(fd, ATTND_SEAL_POOL), 0);
    assert_int_equal(attnd_shm_check_import(fd, BYTES, &fault), 0);
    assert_true(writable_mapping_works(fd));
    assert_int_equal(attnd_shm_map(fd, BYTES, 1, &writer, &fault), 0);
    attnd_shm_unmap(&writer);
}

static void an_import_without_shrink_is_refused(void **state)
{
    (void)state;
    struct attnd_fault fault = {0};
    struct attnd_shm shm = make();
    assert_int_equal(attnd_shm_check_import(shm.fd, BYTES, &fault), -ATTND_E_PERMISSION);
    assert_int_equal(fault.field, ATTND_F_SEALS);
    assert_int_equal(fcntl(shm.fd, F_ADD_SEALS, F_SEAL_GROW), 0);
    assert_int_equal(attnd_shm_check_import(shm.fd, BYTES, &fault), -ATTND_E_PERMISSION);
    assert_int_equal(fcntl(shm.fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_int_equal(attnd_shm_check_import(shm.fd, BYTES, &fault), 0);
    attnd_shm_unmap(&shm);
}

static void a_short_import_is_refused(void **state)
{
    (void)state;
    struct attnd_fault fault = {0};
    struct attnd_shm shm = make(), mapped;
    assert_int_equal(attnd_shm_seal(shm.fd, ATTND_SEAL_POOL), 0);
    assert_int_equal(attnd_shm_check_import(shm.fd, BYTES + 1, &fault), -ATTND_E_RANGE);
    assert_int_equal(fault.field, ATTND_F_SIZE);
    assert_int_equal(fault.value, BYTES + 1);
    assert_int_equal(fault.limit, BYTES);
    assert_int_equal(attnd_shm_check_import(shm.fd, UINT64_MAX, &fault), -ATTND_E_RANGE);
    assert_int_equal(attnd_shm_check_import(shm.fd, 0, &fault), -ATTND_E_RANGE);
    assert_int_equal(attnd_shm_map(shm.fd, BYTES + 1, 0, &mapped, &fault), -ATTND_E_RANGE);
    attnd_shm_unmap(&shm);
}

static void what_is_not_a_memfd_is_refused(void **state)
{
    (void)state;
    struct attnd_fault fault = {0};
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    const int fds[] = {null, pipes[0], -1};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        assert_int_equal(attnd_shm_check_import(fds[i], BYTES, &fault), -ATTND_E_PERMISSION);
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    close(pipes[1]);
}

/* A reader of a hole in it needs a page of the pool, which may be empty: SIGBUS. */
static void huge_pages_are_refused_by_name(void **state)
{
    (void)state;
    struct attnd_fault fault = {0};
    int huge = memfd_create("attnd-test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (huge < 0)
        skip(); /* this kernel has none */
    assert_int_equal(fcntl(huge, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    assert_int_equal(attnd_shm_check_import(huge, BYTES, &fault), -ATTND_E_UNSUPPORTED);
    assert_int_equal(fault.field, ATTND_F_MEMORY);
    close(huge);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_size_is_rounded_up_to_pages),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(every_seal_fixes_the_size),
        cmocka_unit_test(after_future_write_only_old_mappings_write),
        cmocka_unit_test(a_completion_segment_is_read_only_for_the_client),
        cmocka_unit_test(a_pool_lets_a_second_writer_in),
        cmocka_unit_test(an_import_without_shrink_is_refused),
        cmocka_unit_test(a_short_import_is_refused),
        cmocka_unit_test(what_is_not_a_memfd_is_refused),
        cmocka_unit_test(huge_pages_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
