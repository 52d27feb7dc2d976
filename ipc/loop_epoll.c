/*
 * loop_epoll.c - the fallback where io_uring is refused, as container runtimes do by default.
 *
 * Descriptors are level-triggered by nature here. There are no futex words: doorbells are eventfds,
 * watched like every other descriptor. Looking costs a system call, so a spinning loop looks only
 * every so often.
 */
#include "ipc/loop_impl.h"
#include "ipc/wake.h"
#include "schemas/abi.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS_MAX 64
#define COLLECT_EVERY_NS 10000u

ATTND_ASSERT_ABI(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT && EPOLLPRI == POLLPRI);
ATTND_ASSERT_ABI(EPOLLHUP == POLLHUP && EPOLLERR == POLLERR && EPOLLRDHUP == POLLRDHUP);

struct epoll {
    int fd;
    int count; /* events collected and not dispatched */
    struct epoll_event events[EVENTS_MAX];
};

static int epoll_open(struct attnd_loop *loop)
{
    struct epoll *epoll = calloc(1, sizeof(*epoll));
    if (!epoll)
        return -ENOMEM;
    epoll->fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll->fd < 0) {
        int error = errno;
        free(epoll);
        return -error;
    }
    loop->state = epoll;
    return 0;
}

static void epoll_close(struct attnd_loop *loop)
{
    struct epoll *epoll = loop->state;
    close(epoll->fd);
    free(epoll);
}

static int epoll_arm(struct attnd_loop *loop, struct attnd_watch *watch)
{
    const struct epoll *epoll = loop->state;
    struct epoll_event event = {.events = watch->poll_events | EPOLLRDHUP, .data.ptr = watch};
    if (epoll_ctl(epoll->fd, EPOLL_CTL_ADD, watch->fd, &event) < 0)
        return -errno;
    watch->armed = 1;
    return 0;
}

static void epoll_disarm(struct attnd_loop *loop, struct attnd_watch *watch)
{
    const struct epoll *epoll = loop->state;
    /* Fails only for a descriptor its owner closed already, and then it is out of the set. */
    (void)epoll_ctl(epoll->fd, EPOLL_CTL_DEL, watch->fd, NULL);
    watch->armed = 0;
}

static int wait_for(struct epoll *epoll, const struct timespec *timeout)
{
    int count = epoll_pwait2(epoll->fd, epoll->events, EVENTS_MAX, timeout, NULL);
    if (count >= 0 || (errno != ENOSYS && errno != EPERM))
        return count;
    /* Older than Linux 5.11, or filtered: whole milliseconds, rounded up. */
    int timeout_ms = -1;
    if (timeout && timeout->tv_sec < INT_MAX / 1000 - 1)
        timeout_ms = (int)(timeout->tv_sec * 1000 + (timeout->tv_nsec + 999999) / 1000000);
    return epoll_wait(epoll->fd, epoll->events, EVENTS_MAX, timeout_ms);
}

static int epoll_collect(struct attnd_loop *loop, uint64_t until_ns)
{
    struct epoll *epoll = loop->state;
    struct timespec timeout = {0};

    if (until_ns != 0 && until_ns != UINT64_MAX) {
        uint64_t now_ns = attnd_clock_ns();
        uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
        timeout.tv_sec = (time_t)(left_ns / 1000000000u);
        timeout.tv_nsec = (long)(left_ns % 1000000000u);
    }
    int count = wait_for(epoll, until_ns == UINT64_MAX ? NULL : &timeout);
    epoll->count = count > 0 ? count : 0;
    return count >= 0 || errno == EINTR ? 0 : -errno;
}

static int epoll_dispatch(struct attnd_loop *loop)
{
    struct epoll *epoll = loop->state;
    for (int i = 0; i < epoll->count; i++) {
        struct attnd_watch *watch = epoll->events[i].data.ptr;
        if (!watch->ended && !watch->paused) /* by an earlier callback of this batch */
            watch->fd_fn(watch->context, epoll->events[i].events);
    }
    epoll->count = 0;
    return 0;
}

const struct attnd_loop_backend attnd_loop_epoll = {
    .name = "epoll",
    .has_futex = 0,
    .collect_every_ns = COLLECT_EVERY_NS,
    .open = epoll_open,
    .close = epoll_close,
    .arm = epoll_arm,
    .disarm = epoll_disarm,
    .collect = epoll_collect,
    .dispatch = epoll_dispatch,
};
