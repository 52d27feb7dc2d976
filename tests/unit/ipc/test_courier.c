/* test_courier.c - what a courier is given arrives, in order, and holds up nobody else's. */
#include "ipc/courier.h"
#include "ipc/fdpass.h"
#include "ipc/wake.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define LETTERS 100u

static void make_pair(int ends[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends),
                     0);
}

static void until_readable(int fd)
{
    struct pollfd source = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&source, 1, 30000), 1);
}

static void letters_arrive_in_order_with_their_descriptors(void **state)
{
    int ends[2], event = eventfd(7, EFD_CLOEXEC | EFD_NONBLOCK);
    (void)state;
    make_pair(ends);
    struct attnd_courier_line *line = attnd_courier_new(1, ends[0]);
    assert_non_null(line);
    for (uint32_t i = 0; i < LETTERS; i++)
        assert_int_equal(attnd_courier_send(line, &i, sizeof(i), &event, i == 50), 0);
    close(event); /* the letter has one of its own */
    for (uint32_t i = 0; i < LETTERS; i++) {
        int fds[ATTND_FDS_MAX], fds_count = 0;
        uint32_t got = 0;
        uint64_t value = 0;
        until_readable(ends[1]);
        assert_int_equal(attnd_fdpass_recv(ends[1], &got, sizeof(got), fds, &fds_count),
                         sizeof(got));
        assert_int_equal(got, i);
        assert_int_equal(fds_count, i == 50);
        if (fds_count) {
            assert_int_equal(read(fds[0], &value, sizeof(value)), sizeof(value));
            assert_int_equal(value, 7);
        }
        attnd_fdpass_close(fds, fds_count);
    }
    attnd_courier_end(line, 1);
    until_readable(ends[1]); /* its end */
    close(ends[0]);
    close(ends[1]);
}

static void a_knock_wakes_and_knocks_that_wait_are_one(void **state)
{
    int ends[2];
    char bytes[512];
    (void)state;
    assert_int_equal(pipe(ends), 0);
    struct attnd_courier_line *line = attnd_courier_new(2, ends[1]);
    assert_non_null(line);
    for (int i = 0; i < 1000; i++)
        attnd_courier_knock(line);
    until_readable(ends[0]);
    assert_true(read(ends[0], bytes, sizeof(bytes)) > 0);
    attnd_courier_end(line, 0);
    close(ends[0]);
    close(ends[1]);
}

/* Its socket is full: what follows is refused, and it is hung up on. */
static void a_peer_that_does_not_read_is_hung_up_on_and_holds_up_nobody(void **state)
{
    static char large[100000];
    int deaf[2], other[2], rc = 0;
    char byte;
    (void)state;
    make_pair(deaf);
    make_pair(other);
    struct attnd_courier_line *line = attnd_courier_new(3, deaf[0]);
    struct attnd_courier_line *beside = attnd_courier_new(4, other[0]);
    assert_true(line && beside);
    for (int i = 0; i < 100 && rc == 0; i++)
        rc = attnd_courier_send(line, large, sizeof(large), NULL, 0);
    assert_int_equal(attnd_courier_send(beside, "x", 1, NULL, 0), 0);
    until_readable(other[1]);
    assert_int_equal(recv(other[1], &byte, 1, 0), 1);
    struct pollfd end = {.fd = deaf[0], .events = POLLRDHUP};
    assert_int_equal(poll(&end, 1, 30000), 1); /* ours: the loop looks there */
    assert_true(end.revents & POLLRDHUP);
    attnd_courier_end(line, 1);
    attnd_courier_end(beside, 1);
    attnd_courier_end(NULL, 0);
    until_readable(other[1]);
    for (int i = 0; i < 2; i++) {
        close(deaf[i]);
        close(other[i]);
    }
}

/* The thread of the line's process waits in a knock meanwhile. */
static void descriptors_that_wait_are_bounded(void **state)
{
    char bytes[512] = {0};
    int slow[2], ends[2], sent = 0;
    (void)state;
    make_pair(ends);
    assert_int_equal(pipe2(slow, O_CLOEXEC | O_NONBLOCK), 0);
    while (write(slow[1], bytes, sizeof(bytes)) > 0)
        ;
    assert_int_equal(fcntl(slow[1], F_SETFL, 0), 0);
    struct attnd_courier_line *knocks = attnd_courier_new(5, slow[1]);
    struct attnd_courier_line *letters = attnd_courier_new(5, ends[0]);
    assert_true(knocks && letters);
    attnd_courier_knock(knocks);
    while (sent < 1000 && attnd_courier_send(letters, "x", 1, slow, 1) == 0)
        sent++;
    assert_int_equal(sent, 2 * ATTND_FDS_MAX);
    assert_int_equal(attnd_courier_send(letters, "y", 1, NULL, 0), 0);
    while (read(slow[0], bytes, sizeof(bytes)) > 0)
        ;
    for (int i = 0; i <= sent; i++) {
        int fds[ATTND_FDS_MAX], fds_count = 0;
        until_readable(ends[1]);
        assert_int_equal(attnd_fdpass_recv(ends[1], bytes, 1, fds, &fds_count), 1);
        assert_int_equal(bytes[0], i < sent ? 'x' : 'y');
        attnd_fdpass_close(fds, fds_count);
    }
    attnd_courier_end(knocks, 0);
    attnd_courier_end(letters, 1);
    until_readable(ends[1]);
    for (int i = 0; i < 2; i++) {
        close(slow[i]);
        close(ends[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(letters_arrive_in_order_with_their_descriptors),
        cmocka_unit_test(a_knock_wakes_and_knocks_that_wait_are_one),
        cmocka_unit_test(a_peer_that_does_not_read_is_hung_up_on_and_holds_up_nobody),
        cmocka_unit_test(descriptors_that_wait_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
