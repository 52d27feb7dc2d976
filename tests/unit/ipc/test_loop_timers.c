/* test_loop_timers.c - timers in any order, timers that last, and descriptors that are paused. */
#include "ipc/loop.h"
#include "ipc/wake.h"
#include "tests/support/harness/quiet_loop.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include <malloc.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#define MS 1000000u
#define TIMERS 3000u

static enum attnd_loop_kind kind;
static struct attnd_loop *loop;

static int open_loop(void **state)
{
    (void)state;
    alarm(60);
    return quiet_loop_new(kind, &loop);
}

static int close_loop(void **state)
{
    (void)state;
    attnd_loop_free(loop);
    alarm(0);
    return 0;
}

static void run(void)
{
    struct attnd_fault fault = {0};
    assert_int_equal(attnd_loop_run(loop, &fault), 0);
}

static void stop(void *context)
{
    (void)context;
    attnd_loop_stop(loop);
}

/* ---- in any order ---- */

struct tick {
    uint64_t when_ns;
    uint32_t set; /* as the how many-th */
    int gone;
    struct attnd_watch *watch;
};

static struct tick ticks[TIMERS];
static const struct tick *fired[TIMERS];
static uint32_t fired_count;

static void on_tick(void *context)
{
    fired[fired_count++] = context;
}

static int by_time(const void *a, const void *b)
{
    const struct tick *x = *(struct tick *const *)a, *y = *(struct tick *const *)b;

    if (x->when_ns != y->when_ns)
        return x->when_ns < y->when_ns ? -1 : 1;
    return x->set < y->set ? -1 : x->set > y->set;
}

/* Few times, so that many are equal; a third is taken back, a third is set to another time. */
static void set_at_random(struct prng *prng)
{
    const uint64_t base_ns = attnd_clock_ns();
    uint32_t sets = 0;

    for (uint32_t i = 0; i < TIMERS; i++) {
        struct tick *tick = &ticks[i];
        *tick = (struct tick){.when_ns = base_ns + prng_below(prng, 50) * MS / 10, .set = sets++};
        tick->watch = attnd_loop_timer_new(loop, on_tick, tick);
        assert_non_null(tick->watch);
        attnd_loop_timer_set(loop, tick->watch, tick->when_ns);
    }
    for (uint32_t i = 0; i < TIMERS; i++) {
        struct tick *tick = &ticks[i];
        const uint32_t what = prng_below(prng, 3);
        if (what == 0) {
            tick->gone = 1;
            attnd_loop_unwatch(loop, tick->watch, NULL, NULL);
        } else if (what == 1) {
            tick->when_ns = base_ns + prng_below(prng, 50) * MS / 10;
            tick->set = sets++;
            attnd_loop_timer_set(loop, tick->watch, tick->when_ns);
        }
    }
}

static void timers_fire_as_a_sorted_list_would_have_them(void **state)
{
    static const struct tick *wanted[TIMERS];
    uint32_t count = 0;
    struct prng prng = {test_seed()};

    (void)state;
    fired_count = 0;
    set_at_random(&prng);
    for (uint32_t i = 0; i < TIMERS; i++)
        if (!ticks[i].gone)
            wanted[count++] = &ticks[i];
    qsort(wanted, count, sizeof(void *), by_time);
    attnd_loop_watch_timer(loop, attnd_clock_ns() + 20 * MS, stop, NULL);
    run();
    assert_int_equal(fired_count, count);
    for (uint32_t i = 0; i < count; i++)
        assert_ptr_equal(fired[i], wanted[i]);
    for (uint32_t i = 0; i < TIMERS; i++)
        if (!ticks[i].gone)
            attnd_loop_unwatch(loop, ticks[i].watch, NULL, NULL);
}

/* ---- timers that last ---- */

static struct attnd_watch *again;
static int fires;

static void on_again(void *context)
{
    if (++fires < 3)
        attnd_loop_timer_set(loop, again, attnd_clock_ns() + MS);
    else
        stop(context);
}

static void a_timer_that_lasts_fires_each_time_it_is_set(void **state)
{
    (void)state;
    fires = 0;
    again = attnd_loop_timer_new(loop, on_again, NULL);
    assert_non_null(again);
    attnd_loop_timer_set(loop, again, 0);
    run();
    assert_int_equal(fires, 3);
    attnd_loop_timer_set(loop, again, attnd_clock_ns());
    attnd_loop_timer_set(loop, again, UINT64_MAX); /* and not at all */
    attnd_loop_watch_timer(loop, attnd_clock_ns() + 5 * MS, stop, NULL);
    run();
    assert_int_equal(fires, 3);
    attnd_loop_unwatch(loop, again, NULL, NULL);
}

/* ---- descriptors that are paused ---- */

static struct attnd_watch *event_watch;
static int event_fd, calls;

static void on_event(void *context, uint32_t poll_events)
{
    (void)context;
    (void)poll_events;
    calls++;
    attnd_loop_pause(loop, event_watch);
}

static void resume(void *context)
{
    (void)context;
    assert_int_equal(attnd_loop_resume(loop, event_watch), 0);
}

static void watch_event(void)
{
    calls = 0;
    event_fd = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
    event_watch = attnd_loop_watch_fd(loop, event_fd, POLLIN, on_event, NULL);
    assert_non_null(event_watch);
}

static void unwatch_event(void)
{
    attnd_loop_unwatch(loop, event_watch, NULL, NULL);
    attnd_loop_watch_timer(loop, attnd_clock_ns() + MS, stop, NULL);
    run();
    close(event_fd);
}

static void a_paused_descriptor_is_silent_until_it_is_resumed(void **state)
{
    (void)state;
    watch_event();
    attnd_loop_watch_timer(loop, attnd_clock_ns() + 10 * MS, stop, NULL);
    run();
    assert_int_equal(calls, 1); /* it is readable all the time */
    attnd_loop_watch_timer(loop, attnd_clock_ns() + MS, resume, NULL);
    attnd_loop_watch_timer(loop, attnd_clock_ns() + 10 * MS, stop, NULL);
    run();
    assert_int_equal(calls, 2);
    unwatch_event();
}

/* Whoever has no memory may still stop to listen for a while, and listen again. */
static void pausing_and_setting_a_timer_need_no_memory(void **state)
{
    (void)state;
    watch_event();
    again = attnd_loop_timer_new(loop, resume, NULL);
    assert_non_null(again);
    struct attnd_watch *end = attnd_loop_timer_new(loop, stop, NULL);
    assert_non_null(end);
    const size_t before_bytes = mallinfo2().uordblks;
    attnd_loop_timer_set(loop, again, attnd_clock_ns() + MS);
    attnd_loop_timer_set(loop, end, attnd_clock_ns() + 10 * MS);
    run();
    assert_int_equal(calls, 2);
    assert_int_equal(mallinfo2().uordblks, before_bytes);
    attnd_loop_unwatch(loop, again, NULL, NULL);
    attnd_loop_unwatch(loop, end, NULL, NULL);
    unwatch_event();
}

#define CLAIM(name) cmocka_unit_test_setup_teardown(name, open_loop, close_loop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLAIM(timers_fire_as_a_sorted_list_would_have_them),
        CLAIM(a_timer_that_lasts_fires_each_time_it_is_set),
        CLAIM(a_paused_descriptor_is_silent_until_it_is_resumed),
        CLAIM(pausing_and_setting_a_timer_need_no_memory),
    };
    kind = ATTND_LOOP_EPOLL;
    int failed = cmocka_run_group_tests_name("epoll", tests, NULL, NULL);
    kind = ATTND_LOOP_IO_URING;
    if (open_loop(NULL) < 0) {
        printf("io_uring is refused here: only epoll was tested\n");
        return failed;
    }
    attnd_loop_free(loop);
    return failed + cmocka_run_group_tests_name("io_uring", tests, NULL, NULL);
}
