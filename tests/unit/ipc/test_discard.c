/* test_discard.c - closing takes nobody's time, whatever the file does when it is closed. */
#include "ipc/discard.h"
#include "ipc/wake.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define LINGER_S 20

/* A connection whose close() waits: it has unsent data, and the other end does not read. */
static int lingering_socket(int *listener)
{
    static const char data[65536];
    const struct linger linger = {.l_onoff = 1, .l_linger = LINGER_S};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);

    *listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*listener < 0 || fd < 0 || bind(*listener, (struct sockaddr *)&address, bytes) < 0 ||
        listen(*listener, 1) < 0 ||
        getsockname(*listener, (struct sockaddr *)&address, &bytes) < 0 ||
        connect(fd, (struct sockaddr *)&address, bytes) < 0)
        return -1;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    while (write(fd, data, sizeof(data)) > 0)
        ;
    assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
    return fd;
}

static int is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void a_socket_that_lingers_makes_nobody_wait(void **state)
{
    (void)state;
    int listener, fd = lingering_socket(&listener);
    if (fd < 0)
        skip(); /* no network, not even to ourselves */
    uint64_t begin_ns = attnd_clock_ns();
    attnd_discard(1, &fd, 1);
    assert_true(attnd_clock_ns() - begin_ns < LINGER_S * UINT64_C(500000000));
    close(listener); /* it takes the connection with it, and the wait ends */
    for (int i = 0; i < 10000 && is_open(fd); i++)
        usleep(1000);
    assert_false(is_open(fd));
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

/* A socket that cannot be closed for LINGER_S: another one, which lingers, travels in it. */
static int slow_to_close(int *listener)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)),
                            .cmsg_level = SOL_SOCKET,
                            .cmsg_type = SCM_RIGHTS}};
    char byte = 1;
    struct iovec part = {&byte, 1};
    const struct msghdr message = {.msg_iov = &part,
                                   .msg_iovlen = 1,
                                   .msg_control = control.bytes,
                                   .msg_controllen = sizeof(control.bytes)};
    int pair[2], inner = lingering_socket(listener);

    if (inner < 0)
        return -1;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    memcpy(CMSG_DATA(&control.header), &inner, sizeof(inner));
    assert_int_equal(sendmsg(pair[0], &message, 0), 1);
    close(inner);
    close(pair[0]);
    return pair[1];
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
    int listener, slow = slow_to_close(&listener);
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
    int listener, slow = slow_to_close(&listener), last = -1;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_socket_that_lingers_makes_nobody_wait),
        cmocka_unit_test(all_of_them_are_closed),
        cmocka_unit_test(a_file_that_never_closes_holds_up_its_owner_and_nobody_else),
        cmocka_unit_test(an_owner_is_full_when_too_many_of_its_files_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
