/* test_monitor.c - events are kept for those who watch, and what is lost is counted exactly. */
#include "service/base/monitor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct attnd_monitor monitor;

static int clear(void **state)
{
    (void)state;
    attnd_monitor_free(&monitor);
    memset(&monitor, 0, sizeof(monitor));
    return 0;
}

/* As the daemon does: an event is made only if somebody wants it. */
static void happen(uint64_t time_ns, uint32_t times)
{
    for (uint32_t i = 0; i < times; i++)
        if (attnd_monitor_wants(&monitor)) {
            const struct attnd_monitor_event event = {.time_ns = time_ns,
                                                      .user_data = monitor.next};
            attnd_monitor_add(&monitor, &event);
        }
}

static void expect(uint64_t from, uint64_t first, uint64_t lost)
{
    assert_int_equal(attnd_monitor_from(&monitor, &from), lost);
    assert_int_equal(from, first);
    for (; from < monitor.next; from++)
        assert_int_equal(attnd_monitor_at(&monitor, from)->user_data, from);
}

static void nothing_is_kept_for_nobody(void **state)
{
    (void)state;
    happen(1, 3);
    assert_null(monitor.events);
    assert_int_equal(attnd_monitor_watch(&monitor, 1), 0);
    expect(0, 3, 3); /* they have been, and were not kept */
    happen(1, 2);
    expect(3, 3, 0);
    expect(4, 4, 0);
    assert_int_equal(monitor.next, 5);
}

static void the_oldest_are_written_over_and_counted(void **state)
{
    (void)state;
    assert_int_equal(attnd_monitor_watch(&monitor, 1), 0);
    happen(1, ATTND_MONITOR_EVENTS);
    expect(0, 0, 0);
    happen(1, 5);
    expect(0, 5, 5);
    expect(7, 7, 0);
    happen(1, 3 * ATTND_MONITOR_EVENTS);
    expect(7, monitor.next - ATTND_MONITOR_EVENTS, monitor.next - ATTND_MONITOR_EVENTS - 7);
}

static void who_asks_no_more_costs_no_memory_and_learns_the_gap(void **state)
{
    const uint64_t late_ns = 2 + ATTND_MONITOR_PATIENCE_NS;

    (void)state;
    assert_int_equal(attnd_monitor_watch(&monitor, 1), 0);
    happen(1 + ATTND_MONITOR_PATIENCE_NS, 4); /* still in time */
    assert_non_null(monitor.events);
    happen(late_ns, 6);
    assert_null(monitor.events);
    assert_int_equal(monitor.next, 10);
    assert_int_equal(attnd_monitor_watch(&monitor, late_ns), 0);
    happen(late_ns, 1);
    expect(2, 10, 8);
}

static void a_ring_that_nobody_asked_for_in_time_is_not_shown_to_the_next(void **state)
{
    (void)state;
    assert_int_equal(attnd_monitor_watch(&monitor, 1), 0);
    happen(1, 4);
    assert_int_equal(attnd_monitor_watch(&monitor, 2 + ATTND_MONITOR_PATIENCE_NS), 0);
    expect(0, 4, 4);
}

static void a_number_of_another_daemon_is_no_loss(void **state)
{
    (void)state;
    assert_int_equal(attnd_monitor_watch(&monitor, 1), 0);
    happen(1, 2);
    expect(1000, 2, 0);
}

static void words_are_cut_to_what_fits(void **state)
{
    char text[200];

    (void)state;
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(attnd_monitor_watch(&monitor, UINT64_MAX / 2), 0);
    attnd_monitor_say(&monitor, ATTND_MONITOR_ENDED, 7, 1000, 42, text);
    const struct attnd_monitor_event *event = attnd_monitor_at(&monitor, 0);
    assert_int_equal(strlen(event->text), sizeof(event->text) - 1);
    assert_int_equal(event->session, 7);
    assert_int_equal(event->uid, 1000);
    assert_int_equal(event->pid, 42);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, clear, clear)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(nothing_is_kept_for_nobody),
        CASE(the_oldest_are_written_over_and_counted),
        CASE(who_asks_no_more_costs_no_memory_and_learns_the_gap),
        CASE(a_ring_that_nobody_asked_for_in_time_is_not_shown_to_the_next),
        CASE(a_number_of_another_daemon_is_no_loss),
        CASE(words_are_cut_to_what_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
