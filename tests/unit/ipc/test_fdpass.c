/* test_fdpass.c - descriptors arrive whole or not at all, and none is left open by a refusal. */
#include "ipc/fdpass.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static int pair[2];

static int open_pair(void **state)
{
    (void)state;
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair);
}

static int close_pair(void **state)
{
    (void)state;
    if (pair[0] >= 0)
        close(pair[0]);
    if (pair[1] >= 0)
        close(pair[1]);
    return 0;
}

static int open_fds(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;
    assert_non_null(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

/* What send() refuses by contract, a hostile peer does by hand. */
static void send_raw(size_t bytes, int fd_count)
{
    char data[64] = {0};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(32 * sizeof(int))] = {0};
    struct iovec part = {.iov_base = data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = CMSG_SPACE((size_t)fd_count * sizeof(int))};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN((size_t)fd_count * sizeof(int));
    for (int i = 0; i < fd_count; i++)
        memcpy(CMSG_DATA(header) + (size_t)i * sizeof(int), &pair[0], sizeof(int));
    assert_int_equal(sendmsg(pair[0], &message, MSG_NOSIGNAL), (ssize_t)bytes);
}

static void descriptors_arrive_and_are_close_on_exec(void **state)
{
    (void)state;
    int sent[ATTND_FDS_MAX], got[ATTND_FDS_MAX], count = -1;
    char data[16];
    for (int i = 0; i < ATTND_FDS_MAX; i++) {
        sent[i] = eventfd((unsigned)i + 1, 0);
        assert_true(sent[i] >= 0);
    }
    assert_int_equal(attnd_fdpass_send(pair[0], "hello", 5, sent, ATTND_FDS_MAX), 0);
    assert_int_equal(attnd_fdpass_recv(pair[1], data, sizeof(data), got, &count), 5);
    assert_memory_equal(data, "hello", 5);
    assert_int_equal(count, ATTND_FDS_MAX);
    for (int i = 0; i < count; i++) {
        uint64_t value = 0;
        assert_true(fcntl(got[i], F_GETFD) & FD_CLOEXEC);
        assert_false(fcntl(sent[i], F_GETFD) & FD_CLOEXEC); /* still ours, untouched */
        assert_int_equal(read(got[i], &value, sizeof(value)), sizeof(value));
        assert_int_equal(value, i + 1);
    }
    attnd_fdpass_close(got, count);
    attnd_fdpass_close(sent, ATTND_FDS_MAX);
}

static void a_datagram_without_descriptors_says_none(void **state)
{
    (void)state;
    int got[ATTND_FDS_MAX], count = -1;
    char data[16];
    assert_int_equal(attnd_fdpass_send(pair[0], "x", 1, NULL, 0), 0);
    assert_int_equal(attnd_fdpass_recv(pair[1], data, sizeof(data), got, &count), 1);
    assert_int_equal(count, 0);
}

static void the_largest_datagram_passes(void **state)
{
    (void)state;
    static char out[ATTND_DATAGRAM_BYTES_MAX], in[ATTND_DATAGRAM_BYTES_MAX];
    int got[ATTND_FDS_MAX], count;
    memset(out, 0x5a, sizeof(out));
    assert_int_equal(attnd_fdpass_send(pair[0], out, sizeof(out), &pair[0], 1), 0);
    assert_int_equal(attnd_fdpass_recv(pair[1], in, sizeof(in), got, &count), (long)sizeof(in));
    assert_memory_equal(in, out, sizeof(in));
    attnd_fdpass_close(got, count);
}

static void nothing_to_receive_is_zero(void **state)
{
    (void)state;
    int got[ATTND_FDS_MAX], count = -1;
    char data[16];
    assert_int_equal(attnd_fdpass_recv(pair[1], data, sizeof(data), got, &count), 0);
    assert_int_equal(count, 0);
}

static void a_full_socket_says_full(void **state)
{
    (void)state;
    static const char data[4096];
    int rc = 0;
    for (int i = 0; i < 100000 && rc == 0; i++)
        rc = attnd_fdpass_send(pair[0], data, sizeof(data), NULL, 0);
    assert_int_equal(rc, -ATTND_E_FULL);
}

/* Discarding may take a thread. */
static void must_come_back_to(int before)
{
    for (int i = 0; i < 2000 && open_fds() != before; i++)
        usleep(1000);
    assert_int_equal(open_fds(), before);
}

static void a_truncated_datagram_closes_its_descriptors(void **state)
{
    (void)state;
    int got[ATTND_FDS_MAX], count = -1, before = open_fds();
    char data[4];
    send_raw(8, 3);
    assert_int_equal(attnd_fdpass_recv(pair[1], data, sizeof(data), got, &count),
                     -ATTND_E_PROTOCOL);
    assert_int_equal(count, 0);
    must_come_back_to(before);
}

static void more_descriptors_than_fit_close_them_all(void **state)
{
    (void)state;
    int got[ATTND_FDS_MAX], count = -1, before = open_fds();
    char data[16];
    for (int too_many = ATTND_FDS_MAX + 1; too_many <= 32; too_many++) {
        send_raw(8, too_many);
        assert_int_equal(attnd_fdpass_recv(pair[1], data, sizeof(data), got, &count),
                         -ATTND_E_PROTOCOL);
        assert_int_equal(count, 0);
        must_come_back_to(before);
    }
    /* the socket still works */
    assert_int_equal(attnd_fdpass_send(pair[0], "x", 1, NULL, 0), 0);
    assert_int_equal(attnd_fdpass_recv(pair[1], data, sizeof(data), got, &count), 1);
}

static void an_empty_datagram_smuggles_nothing_in(void **state)
{
    (void)state;
    int got[ATTND_FDS_MAX], count = -1, before = open_fds();
    char data[16];
    send_raw(0, 2);
    assert_int_equal(attnd_fdpass_recv(pair[1], data, sizeof(data), got, &count),
                     -ATTND_E_DISCONNECTED);
    assert_int_equal(count, 0);
    must_come_back_to(before);
}

static void a_look_takes_neither_the_datagram_nor_its_descriptors(void **state)
{
    (void)state;
    int got[ATTND_FDS_MAX], count = -1, before = open_fds();
    char data[16];
    assert_false(attnd_fdpass_carries(pair[1]));
    send_raw(8, 3);
    assert_true(attnd_fdpass_carries(pair[1]));
    assert_int_equal(open_fds(), before);
    assert_int_equal(attnd_fdpass_recv(pair[1], data, sizeof(data), got, &count), 8);
    assert_int_equal(count, 3);
    attnd_fdpass_close(got, count);
    send_raw(8, 0);
    assert_false(attnd_fdpass_carries(pair[1]));
}

static void a_peer_that_may_send_no_descriptors_cannot(void **state)
{
    (void)state;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (attnd_fdpass_allow(pair[1], 0) == -ATTND_E_UNSUPPORTED) {
        close(null);
        skip(); /* Linux before 6.16 */
    }
    assert_int_equal(attnd_fdpass_send(pair[0], "x", 1, &null, 1), -ATTND_E_SYSTEM);
    assert_int_equal(attnd_fdpass_send(pair[0], "x", 1, NULL, 0), 0);
    assert_int_equal(attnd_fdpass_allow(pair[1], 1), 0);
    assert_int_equal(attnd_fdpass_send(pair[0], "x", 1, &null, 1), 0);
    close(null);
}

static void there_is_room_until_descriptors_run_low(void **state)
{
    (void)state;
    struct rlimit limit, low;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(attnd_fdpass_room());
    low = limit;
    low.rlim_cur = (rlim_t)open_fds() + ATTND_FDS_MAX;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    assert_false(attnd_fdpass_room());
    low.rlim_cur += 16;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    assert_true(attnd_fdpass_room());
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void a_closed_peer_is_disconnected_without_a_signal(void **state)
{
    (void)state;
    int got[ATTND_FDS_MAX], count = -1;
    char data[16];
    close(pair[0]);
    pair[0] = -1;
    assert_int_equal(attnd_fdpass_recv(pair[1], data, sizeof(data), got, &count),
                     -ATTND_E_DISCONNECTED);
    assert_int_equal(attnd_fdpass_send(pair[1], "x", 1, NULL, 0), -ATTND_E_DISCONNECTED);
}

static void what_was_sent_before_the_close_still_arrives(void **state)
{
    (void)state;
    int got[ATTND_FDS_MAX], count = -1;
    char data[16];
    assert_int_equal(attnd_fdpass_send(pair[0], "last", 4, &pair[1], 1), 0);
    close(pair[0]);
    pair[0] = -1;
    assert_int_equal(attnd_fdpass_recv(pair[1], data, sizeof(data), got, &count), 4);
    assert_int_equal(count, 1);
    attnd_fdpass_close(got, count);
    assert_int_equal(attnd_fdpass_recv(pair[1], data, sizeof(data), got, &count),
                     -ATTND_E_DISCONNECTED);
}

static void what_is_not_a_socket_is_a_system_error(void **state)
{
    (void)state;
    int got[ATTND_FDS_MAX], count = -1;
    char data[16];
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_int_equal(attnd_fdpass_recv(null, data, sizeof(data), got, &count), -ATTND_E_SYSTEM);
    assert_int_equal(errno, ENOTSOCK);
    assert_int_equal(attnd_fdpass_send(null, "x", 1, NULL, 0), -ATTND_E_SYSTEM);
    close(null);
}

#define CLAIM(name) cmocka_unit_test_setup_teardown(name, open_pair, close_pair)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLAIM(descriptors_arrive_and_are_close_on_exec),
        CLAIM(a_datagram_without_descriptors_says_none),
        CLAIM(the_largest_datagram_passes),
        CLAIM(nothing_to_receive_is_zero),
        CLAIM(a_full_socket_says_full),
        CLAIM(a_truncated_datagram_closes_its_descriptors),
        CLAIM(more_descriptors_than_fit_close_them_all),
        CLAIM(an_empty_datagram_smuggles_nothing_in),
        CLAIM(a_look_takes_neither_the_datagram_nor_its_descriptors),
        CLAIM(a_peer_that_may_send_no_descriptors_cannot),
        CLAIM(there_is_room_until_descriptors_run_low),
        CLAIM(a_closed_peer_is_disconnected_without_a_signal),
        CLAIM(what_was_sent_before_the_close_still_arrives),
        CLAIM(what_is_not_a_socket_is_a_system_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
