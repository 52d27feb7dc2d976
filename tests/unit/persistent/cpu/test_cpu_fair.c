/* Whose items are next: the CPU backend's queue by itself, with items that take what a test says.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "persistent/cpu/queue.h"

#define RUNS 64u
#define MS 1000000u

static struct attnd_cpu_queue queue;
static struct attnd_plan_head plan;
static uint32_t cancel[RUNS];

static int begin(void **state)
{
    (void)state;
    queue = (struct attnd_cpu_queue){0};
    plan = (struct attnd_plan_head){.heads_kv = 1};
    assert_int_equal(attnd_cpu_queue_init(&queue, RUNS, 2), 0);
    for (uint32_t i = 0; i < RUNS; i++) {
        cancel[i] = 0;
        queue.runs[i].kind = ATTND_RUN_APPEND; /* an item is taken alone, and costs little */
        queue.runs[i].plan = &plan;
        queue.runs[i].cancel = &cancel[i];
    }
    return 0;
}

static int end(void **state)
{
    (void)state;
    attnd_cpu_queue_free(&queue);
    return 0;
}

static void publish(uint32_t run, uint32_t session, uint32_t weight, uint32_t items)
{
    const struct attnd_run shared = {.session = session, .weight = weight};
    attnd_cpu_queue_publish(&queue, &queue.runs[run], &shared, items);
}

/* Takes one item, which took @ns[its run]. Return: the run. */
static uint32_t serve(const uint64_t *ns)
{
    struct attnd_cpu_share share;
    assert_true(attnd_cpu_queue_take(&queue, INFINITY, &share));
    assert_int_equal(share.item_end - share.item_begin, 1);
    attnd_cpu_queue_charge(&queue, &share, ns[share.run->index], 0);
    return share.run->index;
}

/* Items of run 0 among @count. */
static uint32_t of_the_first(uint32_t count, const uint64_t *ns)
{
    uint32_t first = 0;
    while (count-- > 0)
        first += serve(ns) == 0;
    return first;
}

static void sessions_share_time_and_not_items(void **state)
{
    const uint64_t ns[] = {3 * MS, MS};
    (void)state;
    publish(0, 7, 1, 1000);
    publish(1, 8, 1, 1000);
    assert_in_range(of_the_first(400, ns), 99, 101);
}

static void a_weight_of_three_is_three_times_the_time(void **state)
{
    const uint64_t ns[] = {MS, MS};
    (void)state;
    publish(0, 7, 3, 1000);
    publish(1, 8, 1, 1000);
    assert_in_range(of_the_first(400, ns), 299, 301);
    publish(2, 8, 3, 1000); /* said by its next run */
    assert_in_range(of_the_first(400, ns), 199, 201);
}

static void many_lanes_are_one_session(void **state)
{
    uint64_t ns[RUNS];
    (void)state;
    for (uint32_t i = 0; i < RUNS; i++) {
        ns[i] = MS;
        publish(i, i == 0 ? 7 : 8, 1, 1000);
    }
    assert_in_range(of_the_first(400, ns), 199, 201);
}

static void alone_a_session_has_its_runs_in_order_whatever_they_take(void **state)
{
    const uint64_t ns[] = {9 * MS, 1, 5 * MS};
    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        publish(i, 7, 1, 4);
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(serve(ns), i / 4);
    assert_true(attnd_cpu_queue_empty(&queue));
}

static void a_session_that_comes_is_next_and_has_saved_nothing_up(void **state)
{
    const uint64_t ns[] = {MS, MS};
    (void)state;
    publish(0, 7, 1, 1000);
    assert_int_equal(of_the_first(500, ns), 500);
    publish(1, 8, 1, 1000);
    assert_int_equal(serve(ns), 1);
    assert_in_range(of_the_first(100, ns), 49, 51);
}

/* Three floods, and one that has one item at a time: it is never the last in line, and it never
 * gets more than its quarter by coming anew each time. */
static void a_session_that_comes_back_again_and_again_is_not_new(void **state)
{
    const uint64_t ns[] = {MS, MS, MS, MS};
    uint32_t own = 0, waited = 0;
    (void)state;
    for (uint32_t i = 1; i < 4; i++)
        publish(i, i, 1, 1000);
    publish(0, 9, 1, 1);
    for (uint32_t i = 0; i < 400; i++) {
        if (serve(ns) != 0) {
            assert_true(++waited <= 4);
            continue;
        }
        own++;
        waited = 0;
        publish(0, 9, 1, 1);
    }
    assert_in_range(own, 98, 103);
}

/* What the planner saw is a page; what an advance made of it is a million of them. */
static void an_item_that_takes_longer_than_it_says_is_paid_for(void **state)
{
    const uint64_t ns[] = {1000 * MS, MS};
    (void)state;
    publish(0, 7, 1, 1000);
    publish(1, 8, 1, 100000);
    assert_in_range(of_the_first(10010, ns), 10, 11);
}

static void an_item_that_was_cancelled_costs_what_it_took(void **state)
{
    const uint64_t ns[] = {0, MS};
    (void)state;
    publish(0, 7, 1, 1000);
    publish(1, 8, 1, 1000);
    assert_in_range(of_the_first(500, ns), 498, 500);
}

static void a_cancelled_run_is_taken_whole(void **state)
{
    struct attnd_cpu_share share;
    (void)state;
    publish(0, 7, 1, 1000);
    cancel[0] = 1;
    assert_true(attnd_cpu_queue_take(&queue, INFINITY, &share));
    assert_true(share.skip);
    assert_int_equal(share.item_end - share.item_begin, 1000);
    attnd_cpu_queue_charge(&queue, &share, 0, 0);
    assert_true(attnd_cpu_queue_empty(&queue));
}

/* What an item that makes way asks: is anybody behind me? */
static void only_a_session_that_is_behind_is_taken_from(void **state)
{
    struct attnd_cpu_share mine, other;
    (void)state;
    publish(0, 7, 1, 10);
    assert_true(attnd_cpu_queue_take(&queue, INFINITY, &mine));
    publish(1, 8, 1, 10);
    assert_false(attnd_cpu_queue_take(&queue, mine.start, &other));
    assert_true(attnd_cpu_queue_take(&queue, mine.start + MS, &other));
    assert_int_equal(other.run->index, 1);
    attnd_cpu_queue_charge(&queue, &other, 2 * MS, 0);
    attnd_cpu_queue_charge(&queue, &mine, 3 * MS, 0);
    assert_true(attnd_cpu_queue_take(&queue, 2.5 * MS, &other));
    assert_int_equal(other.run->index, 1); /* and run 0, of 3 ms, is not */
    attnd_cpu_queue_charge(&queue, &other, 2 * MS, 0);
    assert_false(attnd_cpu_queue_take(&queue, 2.5 * MS, &other));
}

/* A thread that takes does not see what another one is still at. It is counted all the same. */
static void items_that_are_not_done_count(void **state)
{
    struct attnd_cpu_share shares[20];
    uint32_t first = 0;
    (void)state;
    publish(0, 7, 1, 1000);
    publish(1, 8, 1, 1000);
    for (uint32_t i = 0; i < 20; i++) {
        assert_true(attnd_cpu_queue_take(&queue, INFINITY, &shares[i]));
        first += shares[i].run->index == 0;
    }
    assert_int_equal(first, 10);
    for (uint32_t i = 0; i < 20; i++)
        attnd_cpu_queue_charge(&queue, &shares[i], MS, 0);
}

static void a_weight_counts_before_an_item_is_done(void **state)
{
    struct attnd_cpu_share shares[20];
    uint32_t first = 0;
    (void)state;
    publish(0, 7, 3, 1000);
    publish(1, 8, 1, 1000);
    for (uint32_t i = 0; i < 20; i++) {
        assert_true(attnd_cpu_queue_take(&queue, INFINITY, &shares[i]));
        first += shares[i].run->index == 0;
    }
    assert_int_equal(first, 15);
    for (uint32_t i = 0; i < 20; i++)
        attnd_cpu_queue_charge(&queue, &shares[i], MS, 0);
}

/* The thread that took items last may be without a processor: the other makes way as well. */
static void a_session_that_comes_is_behind_all_that_threads_have_in_hand(void **state)
{
    struct attnd_cpu_share first, last, small;
    (void)state;
    publish(0, 7, 1, 1000);
    assert_true(attnd_cpu_queue_take(&queue, INFINITY, &first));
    assert_true(attnd_cpu_queue_take(&queue, INFINITY, &last));
    assert_true(last.start > first.start);
    attnd_poke64(&first.had_ns, 10);
    publish(1, 8, 1, 10);
    assert_false(attnd_cpu_queue_take(&queue, attnd_cpu_share_reached(&first), &small));
    attnd_poke64(&first.had_ns, 11);
    assert_true(attnd_cpu_queue_take(&queue, attnd_cpu_share_reached(&first), &small));
    assert_int_equal(small.run->index, 1);
    attnd_cpu_queue_charge(&queue, &small, MS, 0);
    attnd_cpu_queue_charge(&queue, &first, MS, 0);
    attnd_cpu_queue_charge(&queue, &last, MS, 0);
}

/* What seems to have had more than it said may have had no processor, and its session is not ahead
 * by that. */
static void a_session_that_comes_is_no_further_than_the_others_clock(void **state)
{
    struct attnd_cpu_share first, last, small;
    (void)state;
    publish(0, 7, 1, 2);
    assert_true(attnd_cpu_queue_take(&queue, INFINITY, &first));
    assert_true(attnd_cpu_queue_take(&queue, INFINITY, &last));
    attnd_poke64(&first.had_ns, 5 * MS);
    attnd_poke64(&last.had_ns, 5 * MS);
    publish(1, 8, 1, 10);
    assert_true(attnd_cpu_queue_take(&queue, INFINITY, &small));
    assert_int_equal(small.run->index, 1);
    assert_true(small.start <= queue.flow[first.flow].clock);
    attnd_cpu_queue_charge(&queue, &small, MS, 0);
    attnd_cpu_queue_charge(&queue, &first, MS, 0);
    attnd_cpu_queue_charge(&queue, &last, MS, 0);
}

/* Return: what a session is charged for an item that took so long. */
static double paid_for(uint64_t ns, uint64_t without_ns)
{
    struct attnd_cpu_share share;
    publish(0, 7, 1, 2); /* one is left: clocks go on */
    assert_true(attnd_cpu_queue_take(&queue, INFINITY, &share));
    assert_int_equal(attnd_cpu_share_is_late(&share, ns), ns > (uint64_t)share.charged_ns);
    attnd_cpu_queue_charge(&queue, &share, ns, without_ns);
    const double paid = queue.flow[share.flow].clock - share.start;
    assert_true(attnd_cpu_queue_take(&queue, INFINITY, &share));
    attnd_cpu_queue_charge(&queue, &share, 1, 0);
    return paid;
}

static void time_without_a_processor_is_not_paid_for(void **state)
{
    (void)state;
    const double said = paid_for(MS, MS);
    assert_true(said > 0 && said < 0.5 * MS);
    assert_true(fabs(paid_for(5 * MS, 4 * MS) - MS) < 1);
    assert_true(fabs(paid_for(MS, 3 * MS) - said) < 1); /* also of what was before */
    assert_true(fabs(paid_for(5 * MS, 0) - 5 * MS) < 1);
    assert_true(fabs(paid_for(1, 0) - 1) < 1);
}

static void clocks_start_again_when_nothing_is_left(void **state)
{
    const uint64_t year_ns[] = {(uint64_t)365 * 86400 * 1000 * MS};
    (void)state;
    publish(0, 7, 1, 3);
    for (uint32_t i = 0; i < 3; i++)
        (void)serve(year_ns);
    assert_true(queue.clock <= 0);
    for (uint32_t i = 0; i < ATTND_CPU_FLOWS; i++)
        assert_true(queue.flow[i].clock <= 0);
}

/* More sessions come and go than there are flows; those with runs keep theirs. */
static void sessions_come_and_go(void **state)
{
    const uint64_t ns[] = {MS, MS};
    (void)state;
    publish(0, 1, 1, 100000);
    for (uint32_t session = 2; session < 10 * ATTND_CPU_FLOWS; session++) {
        publish(1, session, 1, 1);
        assert_int_equal(serve(ns), 1); /* each of them is new */
        assert_int_equal(serve(ns), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
        TEST(sessions_share_time_and_not_items),
        TEST(a_weight_of_three_is_three_times_the_time),
        TEST(many_lanes_are_one_session),
        TEST(alone_a_session_has_its_runs_in_order_whatever_they_take),
        TEST(a_session_that_comes_is_next_and_has_saved_nothing_up),
        TEST(a_session_that_comes_back_again_and_again_is_not_new),
        TEST(an_item_that_takes_longer_than_it_says_is_paid_for),
        TEST(an_item_that_was_cancelled_costs_what_it_took),
        TEST(a_cancelled_run_is_taken_whole),
        TEST(only_a_session_that_is_behind_is_taken_from),
        TEST(items_that_are_not_done_count),
        TEST(a_weight_counts_before_an_item_is_done),
        TEST(a_session_that_comes_is_behind_all_that_threads_have_in_hand),
        TEST(a_session_that_comes_is_no_further_than_the_others_clock),
        TEST(time_without_a_processor_is_not_paid_for),
        TEST(clocks_start_again_when_nothing_is_left),
        TEST(sessions_come_and_go),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
