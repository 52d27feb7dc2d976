/* test_discard.c - closing takes nobody's time, whatever the file does when it is closed. */
#include "ipc/discard.h"
#include "ipc/wake.h"
#include "tests/support/harness/slow_file.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static int is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void a_socket_that_lingers_makes_nobody_wait(void **state)
{
    (void)state;
    int listener, fd = slow_lingering(&listener);
    if (fd < 0)
        skip(); /* no network, not even to ourselves */
    uint64_t begin_ns = attnd_clock_ns();
    attnd_discard(1, &fd, 1);
    assert_true(attnd_clock_ns() - begin_ns < SLOW_LINGER_S * UINT64_C(500000000));
    close(listener); /* it takes the connection with it, and the wait ends */
    for (int i = 0; i < 10000 && is_open(fd); i++)
        usleep(1000);
    assert_false(is_open(fd));
}

static void a_socket_that_travels_in_another_does_not_linger(void **state)
{
    (void)state;
    int listener, slow = slow_nested(&listener), behind = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (slow < 0)
        skip();
    uint64_t begin_ns = attnd_clock_ns();
    attnd_discard(1, &slow, 1);
    attnd_discard(1, &behind, 1);
    for (int i = 0; i < 10000 && is_open(behind); i++)
        usleep(1000);
    assert_false(is_open(behind));
    assert_true(attnd_clock_ns() - begin_ns < SLOW_LINGER_S * UINT64_C(500000000));
    close(listener);
}

static void all_of_them_are_closed(void **state)
{
    (void)state;
    int fds[5];
    for (int i = 0; i < 5; i++) {
        fds[i] = open("/dev/null", O_RDWR | O_CLOEXEC);
        assert_true(fds[i] >= 0);
    }
    attnd_discard(1, fds, 4);
    for (int i = 0; i < 10000 && (is_open(fds[0]) || is_open(fds[3])); i++)
        usleep(1000);
    for (int i = 0; i < 4; i++)
        assert_false(is_open(fds[i]));
    assert_true(is_open(fds[4]));
    close(fds[4]);
}

/* Descriptors that come behind other words of a datagram are found, too: SO_PASSCRED puts the
 * sender's name in front of them. */
static void what_travels_behind_the_senders_name_is_closed(void **state)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    int ends[2], sockets[2];
    const int yes = 1;
    char byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    (void)state;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    assert_int_equal(setsockopt(sockets[0], SOL_SOCKET, SO_PASSCRED, &yes, sizeof(yes)), 0);
#ifdef SO_PASSPIDFD
    (void)setsockopt(sockets[0], SOL_SOCKET, SO_PASSPIDFD, &yes, sizeof(yes));
#endif
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &ends[1], sizeof(int));
    assert_int_equal(sendmsg(sockets[1], &message, 0), 1);
    close(ends[1]);
    close(sockets[1]);
    attnd_discard(1, &sockets[0], 1);
    struct pollfd hung_up = {.fd = ends[0]};
    assert_int_equal(poll(&hung_up, 1, 10000), 1); /* nobody has the other end any more */
    assert_true(hung_up.revents & POLLHUP);
    close(ends[0]);
}

static int null_device(void)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void a_file_that_never_closes_holds_up_its_owner_and_nobody_else(void **state)
{
    (void)state;
    int listener, slow = slow_file(&listener);
    if (slow < 0)
        skip();
    int behind = null_device(), other = null_device();
    attnd_discard(1, &slow, 1);
    for (int i = 0; i < 10000 && is_open(slow); i++)
        usleep(1000);
    assert_false(is_open(slow)); /* its number is free, and the thread is in close() */
    attnd_discard(1, &behind, 1);
    attnd_discard(2, &other, 1);
    for (int i = 0; i < 10000 && is_open(other); i++)
        usleep(1000);
    assert_false(is_open(other));
    assert_true(is_open(behind));
    close(listener);
    for (int i = 0; i < 10000 && is_open(behind); i++)
        usleep(1000);
    assert_false(is_open(behind));
}

static void an_owner_is_full_when_too_many_of_its_files_wait(void **state)
{
    (void)state;
    int listener, slow = slow_file(&listener), last = -1;
    if (slow < 0)
        skip();
    attnd_discard(1, &slow, 1);
    for (int i = 0; i < 10000 && is_open(slow); i++)
        usleep(1000);
    for (uint32_t i = 0; i < ATTND_DISCARD_WAITING_MAX; i++) {
        assert_false(attnd_discard_full(1));
        last = null_device();
        attnd_discard(1, &last, 1);
    }
    assert_true(attnd_discard_full(1));
    assert_false(attnd_discard_full(2));
    close(listener);
    for (int i = 0; i < 10000 && is_open(last); i++)
        usleep(1000);
    assert_false(is_open(last));
    assert_false(attnd_discard_full(1));
}

/* Connections of one whose queue is full end, too: those sockets do not pile up. */
static void what_its_owner_has_no_room_for_is_closed_all_the_same(void **state)
{
    (void)state;
    int listener, slow = slow_file(&listener), last = -1;
    if (slow < 0)
        skip();
    attnd_discard(1, &slow, 1);
    for (int i = 0; i < 10000 && is_open(slow); i++)
        usleep(1000);
    for (uint32_t i = 0; i < 2 * ATTND_DISCARD_WAITING_MAX; i++) {
        last = null_device();
        attnd_discard(1, &last, 1);
    }
    for (int i = 0; i < 10000 && is_open(last); i++)
        usleep(1000);
    assert_false(is_open(last));
    assert_true(attnd_discard_full(1));
    close(listener);
    for (int i = 0; i < 10000 && attnd_discard_full(1); i++)
        usleep(1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_socket_that_lingers_makes_nobody_wait),
        cmocka_unit_test(a_socket_that_travels_in_another_does_not_linger),
        cmocka_unit_test(all_of_them_are_closed),
        cmocka_unit_test(what_travels_behind_the_senders_name_is_closed),
        cmocka_unit_test(a_file_that_never_closes_holds_up_its_owner_and_nobody_else),
        cmocka_unit_test(an_owner_is_full_when_too_many_of_its_files_wait),
        cmocka_unit_test(what_its_owner_has_no_room_for_is_closed_all_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
