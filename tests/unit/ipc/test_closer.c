/* test_closer.c - our own is let go of on another thread, all of it, and is counted until then. */
#include "ipc/closer.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define MANY 2000u

struct file {
    struct attnd_closing closing;
    int fd;
};

static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER;

/* The first of them waits until the test lets it go on. */
static void close_file(struct attnd_closing *closing)
{
    struct file *file = (struct file *)(void *)closing;

    pthread_mutex_lock(&door);
    pthread_mutex_unlock(&door);
    close(file->fd);
    free(file);
}

static void until_nothing_is_held(void)
{
    while (attnd_closer_held().count)
        usleep(1000);
}

static void more_than_any_queue_holds_is_closed_and_counted_until_then(void **state)
{
    static int fds[MANY];
    struct rlimit limit;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    pthread_mutex_lock(&door);
    for (uint32_t i = 0; i < MANY; i++) {
        struct file *file = calloc(1, sizeof(*file));
        assert_non_null(file);
        file->fd = fds[i] = memfd_create("closer", MFD_CLOEXEC);
        assert_true(fds[i] >= 0);
        file->closing = (struct attnd_closing){.close = close_file, .bytes = 10};
        attnd_closer_take(&file->closing);
    }
    assert_int_equal(attnd_closer_held().count, MANY);
    assert_int_equal(attnd_closer_held().bytes, 10 * MANY);
    assert_true(fcntl(fds[0], F_GETFD) >= 0);
    pthread_mutex_unlock(&door);
    until_nothing_is_held();
    assert_int_equal(attnd_closer_held().bytes, 0);
    for (uint32_t i = 0; i < MANY; i++)
        assert_true(fcntl(fds[i], F_GETFD) < 0);
}

static void large_memory_is_freed_there_and_small_memory_here(void **state)
{
    (void)state;
    pthread_mutex_lock(&door);
    struct file *file = calloc(1, sizeof(*file));
    assert_non_null(file);
    file->fd = -1;
    file->closing.close = close_file;
    attnd_closer_take(&file->closing); /* in front of what comes */
    attnd_closer_free(NULL, 0);
    attnd_closer_free(malloc(64), 64);
    assert_int_equal(attnd_closer_held().count, 1);
    attnd_closer_free(malloc(64u << 20), 64u << 20);
    assert_int_equal(attnd_closer_held().count, 2);
    assert_int_equal(attnd_closer_held().bytes, 64u << 20);
    pthread_mutex_unlock(&door);
    until_nothing_is_held();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_than_any_queue_holds_is_closed_and_counted_until_then),
        cmocka_unit_test(large_memory_is_freed_there_and_small_memory_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
