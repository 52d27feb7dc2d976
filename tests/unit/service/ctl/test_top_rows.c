/* test_top_rows.c - what happened between two statuses. */
#include "service/ctl/top_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct {
    Attnd__Status before, now;
    Attnd__SessionStatus old[2], new[3];
    Attnd__SessionStatus *old_list[2], *new_list[3];
    struct attnctl_top top;
} rig;

static int setup(void **state)
{
    (void)state;
    attnd__status__init(&rig.before);
    attnd__status__init(&rig.now);
    for (uint32_t i = 0; i < 2; i++) {
        attnd__session_status__init(&rig.old[i]);
        rig.old[i].session = 10 + i;
        rig.old_list[i] = &rig.old[i];
    }
    for (uint32_t i = 0; i < 3; i++) {
        attnd__session_status__init(&rig.new[i]);
        rig.new[i].session = 10 + i;
        rig.new_list[i] = &rig.new[i];
    }
    rig.before.sessions = rig.old_list;
    rig.before.n_sessions = 2;
    rig.now.sessions = rig.new_list;
    rig.now.n_sessions = 3;
    rig.before.uptime_ms = 1000;
    rig.now.uptime_ms = 3000;
    rig.now.time_ns = 2000000000u;
    return 0;
}

static void rates_are_of_the_time_between_the_looks(void **state)
{
    (void)state;
    rig.old[0].runs = 1000;
    rig.new[0].runs = 1100;
    rig.new[0].launches = 20;
    rig.old[0].faults = 4;
    rig.new[0].faults = 10;
    attnctl_top_compare(&rig.before, &rig.now, &rig.top);
    assert_int_equal(rig.top.count, 3);
    assert_true(rig.top.rows[0].session == 10 && rig.top.rows[0].runs_per_s == 60);
    assert_true(rig.top.rows[0].faults_per_s == 3);
}

static void shares_are_of_what_was_done_between_the_looks_largest_first(void **state)
{
    (void)state;
    rig.old[0].busy_ns = 1000000; /* much, but before */
    rig.new[0].busy_ns = 1000100;
    rig.new[1].busy_ns = 200;
    rig.new[1].launch_busy_ns = 100;
    rig.new[2].busy_ns = 600; /* a session that is new */
    attnctl_top_compare(&rig.before, &rig.now, &rig.top);
    assert_int_equal(rig.top.rows[0].session, 12);
    assert_true(rig.top.rows[0].share == 0.6);
    assert_true(rig.top.rows[1].session == 11 && rig.top.rows[1].share == 0.3);
    assert_true(rig.top.rows[2].session == 10 && rig.top.rows[2].share == 0.1);
}

static void the_loops_time_is_told_by_session_and_by_user(void **state)
{
    Attnd__UserStatus old = ATTND__USER_STATUS__INIT, one = ATTND__USER_STATUS__INIT,
                      other = ATTND__USER_STATUS__INIT;
    Attnd__UserStatus *before[] = {&old}, *now[] = {&other, &one};
    (void)state;
    rig.before.time_ns = 0;
    old.uid = one.uid = 7;
    other.uid = 9;
    old.loop_ns = 1000000000u;
    one.loop_ns = 1500000000u; /* in two seconds */
    other.loop_ns = 20000000u;
    rig.before.users = before;
    rig.before.n_users = 1;
    rig.now.users = now;
    rig.now.n_users = 2;
    rig.old[1].loop_ns = 100;
    rig.new[1].loop_ns = 200000100u;
    attnctl_top_compare(&rig.before, &rig.now, &rig.top);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(rig.top.rows[i].loop == (rig.top.rows[i].session == 11 ? 0.1 : 0));
    assert_int_equal(rig.top.users_count, 2);
    assert_true(rig.top.users[0].uid == 9 && rig.top.users[0].loop == 0.01);
    assert_true(rig.top.users[1].uid == 7 && rig.top.users[1].loop == 0.25);
    rig.before.n_users = rig.now.n_users = 0;
}

static void quantiles_are_of_runs_that_ended_between_the_looks(void **state)
{
    uint64_t before[] = {0, 1000}, now[] = {0, 1000, 0, 10};
    Attnd__Histogram old_latency = ATTND__HISTOGRAM__INIT, new_latency = ATTND__HISTOGRAM__INIT;
    (void)state;
    old_latency.counts = before;
    old_latency.n_counts = 2;
    new_latency.counts = now;
    new_latency.n_counts = 4;
    rig.old[0].latency = &old_latency;
    rig.new[0].latency = &new_latency;
    attnctl_top_compare(&rig.before, &rig.now, &rig.top);
    assert_int_equal(rig.top.rows[0].p50_ns, 4096);
    assert_int_equal(rig.top.rows[1].p50_ns, 0); /* none ended */
}

static void another_service_on_the_socket_is_seen_from_its_own_beginning(void **state)
{
    (void)state;
    rig.before.uptime_ms = 5000;
    rig.old[0].runs = 1000;
    rig.new[0].runs = 30;
    attnctl_top_compare(&rig.before, &rig.now, &rig.top);
    assert_true(rig.top.seconds == 3 && rig.top.rows[0].runs_per_s == 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup(name, setup)
        TEST(rates_are_of_the_time_between_the_looks),
        TEST(shares_are_of_what_was_done_between_the_looks_largest_first),
        TEST(the_loops_time_is_told_by_session_and_by_user),
        TEST(quantiles_are_of_runs_that_ended_between_the_looks),
        TEST(another_service_on_the_socket_is_seen_from_its_own_beginning),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
