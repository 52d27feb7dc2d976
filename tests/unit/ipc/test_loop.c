/*
 * test_loop.c - watches and timers: every claim for io_uring and for epoll.
 *
 * Doorbells, sleeping and the choice between the two are in test_loop_wake.c.
 */
#include "ipc/loop.h"
#include "ipc/wake.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cmocka.h>

#define MS 1000000u

/* What sweeps pretend to have moved: nothing, always one, or one at the start of a run. */
enum traffic { NONE, ALWAYS, ONCE };

static enum attnd_loop_kind kind;
static struct attnd_loop *loop;
static enum traffic traffic;
static uint64_t sweeps, sleeps;
static char trace[64]; /* what was called, in order */

static int sweep(void *context)
{
    (void)context;
    return sweeps++ == 0 ? traffic != NONE : traffic == ALWAYS;
}

static void asleep(void *context, int is_asleep)
{
    (void)context;
    sleeps += is_asleep != 0;
}

static int open_with(uint64_t spin_ns)
{
    const struct attnd_loop_hooks hooks = {.sweep = sweep, .asleep = asleep};
    struct attnd_fault fault = {0};
    traffic = NONE;
    memset(trace, 0, sizeof(trace));
    alarm(30); /* a loop that hangs is a failure */
    return attnd_loop_new(kind, spin_ns, &hooks, &loop, &fault);
}

static int open_loop(void **state)
{
    (void)state;
    return open_with(0);
}

static int open_spinning_loop(void **state)
{
    (void)state;
    return open_with(3600ull * 1000 * MS);
}

static int close_loop(void **state)
{
    (void)state;
    attnd_loop_free(loop);
    loop = NULL;
    alarm(0);
    return 0;
}

static void note(char what)
{
    size_t length = strlen(trace);
    assert_true(length + 1 < sizeof(trace));
    trace[length] = what;
}

static void run(void)
{
    struct attnd_fault fault = {0};
    sweeps = sleeps = 0;
    assert_int_equal(attnd_loop_run(loop, &fault), 0);
}

static void stop_timer(void *context)
{
    (void)context;
    attnd_loop_stop(loop);
}

static void run_for_ms(uint64_t ms)
{
    assert_non_null(attnd_loop_watch_timer(loop, attnd_clock_ns() + ms * MS, stop_timer, NULL));
    run();
}

static void control_done(void *context)
{
    note(*(const char *)context);
}

static int new_event(unsigned value)
{
    int fd = eventfd(value, EFD_NONBLOCK | EFD_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void knock(int fd)
{
    uint64_t one = 1;
    assert_int_equal(write(fd, &one, sizeof(one)), sizeof(one));
}

static uint64_t drain(int fd)
{
    uint64_t value = 0;
    return read(fd, &value, sizeof(value)) == sizeof(value) ? value : 0;
}

/* ---- descriptors ---- */

struct peer {
    int fd;
    int calls;
    int drain_at; /* leave the event pending until this call */
    uint32_t events;
    struct attnd_watch *watch, *other;
    void *context;
};

static int to_drain; /* events that are still left pending on purpose */

/* After the last one the loop goes on for a moment: nothing more may come. */
static void on_event(void *context, uint32_t events)
{
    struct peer *peer = context;
    peer->events |= events;
    if (++peer->calls != peer->drain_at)
        return;
    drain(peer->fd);
    if (--to_drain == 0)
        attnd_loop_watch_timer(loop, attnd_clock_ns() + 5 * MS, stop_timer, NULL);
}

static void run_until_drained(int count)
{
    to_drain = count;
    run();
    assert_int_equal(to_drain, 0);
}

static void an_event_that_is_not_taken_is_reported_again(void **state)
{
    (void)state;
    struct peer peer = {.fd = new_event(1), .drain_at = 5};
    peer.watch = attnd_loop_watch_fd(loop, peer.fd, POLLIN, on_event, &peer);
    assert_non_null(peer.watch);
    run_until_drained(1);
    assert_int_equal(peer.calls, 5); /* and once taken, never again */
    assert_int_equal(peer.events, POLLIN);

    knock(peer.fd);
    peer.calls = 0;
    peer.drain_at = 1;
    run_until_drained(1);
    assert_int_equal(peer.calls, 1);
    attnd_loop_unwatch(loop, peer.watch, NULL, NULL);
    run_for_ms(1);
    close(peer.fd);
}

static void on_hangup(void *context, uint32_t events)
{
    struct peer *peer = context;
    peer->events |= events;
    attnd_loop_unwatch(loop, peer->watch, NULL, NULL);
    attnd_loop_stop(loop);
}

static void a_peer_that_goes_is_reported_unasked(void **state)
{
    (void)state;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    struct peer peer = {.fd = pair[0]};
    peer.watch = attnd_loop_watch_fd(loop, pair[0], 0, on_hangup, &peer);
    assert_non_null(peer.watch);
    run_for_ms(10);
    assert_int_equal(peer.events, 0);
    close(pair[1]);
    run();
    assert_true(peer.events & POLLRDHUP);
    assert_true(peer.events & POLLHUP);
    close(pair[0]);
}

static const char done_mark = 'd', wrong_mark = 'X';

static void on_once(void *context, uint32_t events)
{
    struct peer *peer = context;
    (void)events;
    note('a');
    attnd_loop_unwatch(loop, peer->watch, control_done, (void *)(uintptr_t)&done_mark);
    note('|');
    attnd_loop_unwatch(loop, peer->watch, control_done, (void *)(uintptr_t)&wrong_mark);
}

static void a_watch_may_end_itself(void **state)
{
    (void)state;
    struct peer peer = {.fd = new_event(1)};
    peer.watch = attnd_loop_watch_fd(loop, peer.fd, POLLIN, on_once, &peer);
    run_for_ms(20);
    assert_string_equal(trace, "ad|"); /* the event is still pending: nobody hears of it */
    close(peer.fd);
}

static void on_end_both(void *context, uint32_t events)
{
    struct peer *peer = context;
    (void)events;
    note('a');
    attnd_loop_unwatch(loop, peer->watch, NULL, NULL);
    attnd_loop_unwatch(loop, peer->other, NULL, NULL);
}

/* Both events are collected before either callback runs; the first removes the other. */
static void a_watch_removed_by_another_is_silent(void **state)
{
    (void)state;
    struct peer one = {.fd = new_event(1)}, two = {.fd = new_event(1)};
    one.watch = two.other = attnd_loop_watch_fd(loop, one.fd, POLLIN, on_end_both, &one);
    two.watch = one.other = attnd_loop_watch_fd(loop, two.fd, POLLIN, on_end_both, &two);
    run_for_ms(20);
    assert_string_equal(trace, "a");
    close(one.fd);
    close(two.fd);
}

static void stop_when_done(void *context)
{
    note(*(const char *)context);
    attnd_loop_stop(loop);
}

static void end_the_idle_watch(void *context)
{
    struct peer *peer = context;
    note('t');
    attnd_loop_unwatch(loop, peer->watch, stop_when_done, (void *)(uintptr_t)&done_mark);
    note('|');
}

/* A watch the kernel waits on: with io_uring `done` comes later, with epoll before the return. */
static void done_says_when_the_kernel_has_let_go(void **state)
{
    (void)state;
    struct peer peer = {.fd = new_event(0)};
    peer.watch = attnd_loop_watch_fd(loop, peer.fd, POLLIN, on_event, &peer);
    attnd_loop_watch_timer(loop, attnd_clock_ns() + 5 * MS, end_the_idle_watch, &peer);
    run();
    assert_string_equal(trace, attnd_loop_has_futex(loop) ? "t|d" : "td|");
    knock(peer.fd);
    run_for_ms(10);
    assert_int_equal(peer.calls, 0);
    close(peer.fd);
}

static void free_pays_every_done_it_owes(void **state)
{
    struct peer peers[20];
    for (int i = 0; i < 20; i++) {
        peers[i] = (struct peer){.fd = new_event(i % 2 == 1)};
        peers[i].watch = attnd_loop_watch_fd(loop, peers[i].fd, POLLIN, on_event, &peers[i]);
        assert_non_null(peers[i].watch);
    }
    run_for_ms(2);
    for (int i = 0; i < 10; i++)
        attnd_loop_unwatch(loop, peers[i].watch, control_done, (void *)(uintptr_t)&done_mark);
    attnd_loop_free(loop); /* and the other ten it ends itself */
    assert_string_equal(trace, "dddddddddd");
    for (int i = 0; i < 20; i++)
        close(peers[i].fd);
    assert_int_equal(open_loop(state), 0);
}

static void more_descriptors_than_a_batch_are_all_served(void **state)
{
    (void)state;
    enum { COUNT = 300 };
    static struct peer peers[COUNT];
    for (int i = 0; i < COUNT; i++) {
        peers[i] = (struct peer){.fd = new_event(1), .drain_at = 2};
        peers[i].watch = attnd_loop_watch_fd(loop, peers[i].fd, POLLIN, on_event, &peers[i]);
        assert_non_null(peers[i].watch);
    }
    run_until_drained(COUNT);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(peers[i].calls, 2);
        attnd_loop_unwatch(loop, peers[i].watch, NULL, NULL);
    }
    run_for_ms(1);
    for (int i = 0; i < COUNT; i++)
        close(peers[i].fd);
}

static void watches_come_and_go_without_end(void **state)
{
    (void)state;
    for (int i = 0; i < 3000; i++) {
        struct peer peer = {.fd = new_event(i % 3 == 0), .drain_at = 1};
        peer.watch = attnd_loop_watch_fd(loop, peer.fd, POLLIN, on_event, &peer);
        assert_non_null(peer.watch);
        attnd_loop_watch_timer(loop, 0, stop_timer, NULL);
        run();
        attnd_loop_unwatch(loop, peer.watch, stop_timer, NULL);
        if (attnd_loop_has_futex(loop))
            run(); /* until done */
        close(peer.fd);
    }
}

/* ---- timers ---- */

struct tick {
    char name;
    uint64_t when_ns, fired_ns;
    struct attnd_watch *watch;
};

static void on_tick(void *context)
{
    struct tick *tick = context;
    tick->fired_ns = attnd_clock_ns();
    note(tick->name);
    if (tick->name == 'z')
        attnd_loop_stop(loop);
}

static void timers_fire_in_order_and_never_early(void **state)
{
    (void)state;
    uint64_t base_ns = attnd_clock_ns() + 5 * MS;
    struct tick ticks[] = {
        {.name = 'c', .when_ns = base_ns + 2 * MS}, {.name = 'a', .when_ns = base_ns},
        {.name = 'z', .when_ns = base_ns + 9 * MS}, {.name = 'd', .when_ns = base_ns + 2 * MS},
        {.name = 'b', .when_ns = base_ns + 1},      {.name = '0', .when_ns = 0},
    };
    const size_t count = sizeof(ticks) / sizeof(ticks[0]);
    for (size_t i = 0; i < count; i++)
        assert_non_null(attnd_loop_watch_timer(loop, ticks[i].when_ns, on_tick, &ticks[i]));
    run();
    assert_string_equal(trace, "0abcdz");
    for (size_t i = 0; i < count; i++)
        assert_true(ticks[i].fired_ns >= ticks[i].when_ns);
}

/* A sleep that was aimed at a late timer must be cut short by an earlier one added meanwhile. */
static void add_earlier(void *context)
{
    struct tick *tick = context;
    note('t');
    tick->when_ns = attnd_clock_ns() + 20 * MS;
    assert_non_null(attnd_loop_watch_timer(loop, tick->when_ns, on_tick, tick));
}

static void on_event_add_earlier(void *context, uint32_t events)
{
    struct peer *peer = context;
    (void)events;
    attnd_loop_unwatch(loop, peer->watch, NULL, NULL);
    add_earlier(peer->context);
}

static void a_timer_added_later_may_come_earlier(void **state)
{
    (void)state;
    struct tick far = {.name = 'X'}, near = {.name = 'z'};
    const struct itimerspec soon = {.it_value = {.tv_nsec = 10 * MS}};
    struct peer peer = {.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), .context = &near};
    far.watch = attnd_loop_watch_timer(loop, attnd_clock_ns() + 20000ull * MS, on_tick, &far);
    peer.watch = attnd_loop_watch_fd(loop, peer.fd, POLLIN, on_event_add_earlier, &peer);
    assert_non_null(peer.watch);
    assert_int_equal(timerfd_settime(peer.fd, 0, &soon, NULL), 0);
    run();
    assert_string_equal(trace, "tz");
    assert_true(near.fired_ns >= near.when_ns && near.fired_ns < near.when_ns + 5000ull * MS);
    attnd_loop_unwatch(loop, far.watch, NULL, NULL);
    close(peer.fd);
}

static void end_itself(void *context)
{
    struct tick *tick = context;
    note(tick->name);
    attnd_loop_unwatch(loop, tick->watch, control_done, (void *)(uintptr_t)&done_mark);
}

static void end_another(void *context)
{
    struct tick *tick = context;
    note('e');
    attnd_loop_unwatch(loop, tick->watch, control_done, (void *)(uintptr_t)&done_mark);
}

static void a_timer_taken_back_never_fires(void **state)
{
    (void)state;
    uint64_t when_ns = attnd_clock_ns() + 5 * MS;
    struct tick gone = {.name = 'X'}, same = {.name = 'X'}, self = {.name = 's'};
    gone.watch = attnd_loop_watch_timer(loop, when_ns, on_tick, &gone);
    attnd_loop_unwatch(loop, gone.watch, control_done, (void *)(uintptr_t)&done_mark);
    assert_string_equal(trace, "d");
    /* due at the same moment: the first takes the second back */
    attnd_loop_watch_timer(loop, when_ns, end_another, &same);
    same.watch = attnd_loop_watch_timer(loop, when_ns, on_tick, &same);
    self.watch = attnd_loop_watch_timer(loop, when_ns, end_itself, &self);
    run_for_ms(20);
    assert_string_equal(trace, "dedsd");
}

/* ---- nobody waits for a busy or spinning loop ---- */

static void set_again_for_the_past(void *context)
{
    int *fires = context;
    if (++*fires == 100)
        attnd_loop_stop(loop);
    attnd_loop_watch_timer(loop, 0, set_again_for_the_past, context);
}

static void a_timer_that_is_always_due_starves_nobody(void **state)
{
    (void)state;
    int fires = 0;
    struct peer peer = {.fd = new_event(1), .drain_at = 1};
    peer.watch = attnd_loop_watch_fd(loop, peer.fd, POLLIN, on_event, &peer);
    attnd_loop_watch_timer(loop, 0, set_again_for_the_past, &fires);
    run();
    assert_int_equal(peer.calls, 1);
    assert_true(sweeps >= 100);
    attnd_loop_unwatch(loop, peer.watch, NULL, NULL);
    run_for_ms(1);
    close(peer.fd);
}

static void on_event_stop(void *context, uint32_t events)
{
    on_event(context, events);
    attnd_loop_stop(loop);
}

static void ring_doorbell(void *context)
{
    struct peer *peer = context;
    knock(peer->fd);
}

static void expect_service_without_sleep(void)
{
    struct peer peer = {.fd = new_event(0), .drain_at = 1};
    struct peer late = {.fd = new_event(0)};
    peer.watch = attnd_loop_watch_fd(loop, peer.fd, POLLIN, on_event_stop, &peer);
    attnd_loop_watch_timer(loop, attnd_clock_ns() + 3 * MS, ring_doorbell, &peer);
    run();
    assert_int_equal(peer.calls, 1);

    /* a watch that is made and ended while nobody ever sleeps */
    late.watch = attnd_loop_watch_fd(loop, late.fd, POLLIN, on_event, &late);
    attnd_loop_unwatch(loop, late.watch, stop_when_done, (void *)(uintptr_t)&done_mark);
    if (attnd_loop_has_futex(loop))
        run();
    assert_string_equal(trace, "d");
    assert_int_equal(sleeps, 0);
    attnd_loop_unwatch(loop, peer.watch, NULL, NULL);
    close(peer.fd);
    close(late.fd);
}

static void a_ring_that_never_runs_dry_starves_nobody(void **state)
{
    (void)state;
    traffic = ALWAYS;
    expect_service_without_sleep();
}

/* The first sweep starts the spinning budget; it lasts an hour here. */
static void spinning_starves_nobody(void **state)
{
    (void)state;
    traffic = ONCE;
    expect_service_without_sleep();
}

static void tick_three_times(void *context)
{
    int *ticks = context;
    if (++*ticks == 3)
        attnd_loop_stop(loop);
    else
        attnd_loop_watch_timer(loop, attnd_clock_ns() + 10 * MS, tick_three_times, context);
}

static void an_idle_loop_sleeps(void **state)
{
    int ticks = 0;
    (void)state;
    attnd_loop_watch_timer(loop, attnd_clock_ns() + 10 * MS, tick_three_times, &ticks);
    run();
    assert_true(sweeps < 100);
}

static void a_loop_that_was_stopped_runs_again(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        run_for_ms(1);
}

static int is_refused(void)
{
    if (open_with(0) < 0)
        return 1;
    attnd_loop_free(loop);
    return 0;
}

#define CLAIM(name) cmocka_unit_test_setup_teardown(name, open_loop, close_loop)
#define SPINNING_CLAIM(name) cmocka_unit_test_setup_teardown(name, open_spinning_loop, close_loop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLAIM(an_event_that_is_not_taken_is_reported_again),
        CLAIM(a_peer_that_goes_is_reported_unasked),
        CLAIM(a_watch_may_end_itself),
        CLAIM(a_watch_removed_by_another_is_silent),
        CLAIM(done_says_when_the_kernel_has_let_go),
        CLAIM(free_pays_every_done_it_owes),
        CLAIM(more_descriptors_than_a_batch_are_all_served),
        CLAIM(watches_come_and_go_without_end),
        CLAIM(timers_fire_in_order_and_never_early),
        CLAIM(a_timer_added_later_may_come_earlier),
        CLAIM(a_timer_taken_back_never_fires),
        CLAIM(a_timer_that_is_always_due_starves_nobody),
        SPINNING_CLAIM(a_ring_that_never_runs_dry_starves_nobody),
        SPINNING_CLAIM(spinning_starves_nobody),
        CLAIM(an_idle_loop_sleeps),
        CLAIM(a_loop_that_was_stopped_runs_again),
    };
    kind = ATTND_LOOP_EPOLL;
    int failed = cmocka_run_group_tests_name("epoll", tests, NULL, NULL);
    kind = ATTND_LOOP_IO_URING;
    if (is_refused())
        printf("io_uring is refused here: only epoll was tested\n");
    else
        failed += cmocka_run_group_tests_name("io_uring", tests, NULL, NULL);
    return failed;
}
