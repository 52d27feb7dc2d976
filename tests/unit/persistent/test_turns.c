/*
 * test_turns.c - whose items are next on a GPU (persistent/turns.h): workers take them as kernels
 * do that decode, one in hand and one claimed ahead, or, where sessions take turns, near the end of
 * the one in hand; and the choice is made as seldom as there.
 */
#include "persistent/turns.h"
#include "tests/support/harness/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define US 1000u
#define LOOK_NS (2 * US) /* the dispatcher looks no less often */
#define WORKERS_MAX 132u
#define NOBODY UINT32_MAX

struct run {
    uint32_t session, items, taken, done;
    uint64_t item_ns, busy_ns, end_ns;
};

struct worker {
    uint64_t free_ns[2]; /* when the items in hand and claimed ahead end */
    uint32_t of[2];
    uint32_t held; /* of them */
};

static struct {
    struct attnd_turns turns;
    struct run run[4 * ATTND_TURNS_RUNS]; /* by position */
    struct worker worker[WORKERS_MAX];
    uint32_t workers, published, retired;
    uint64_t now_ns;
    struct attnd_turns_choice next; /* what workers were told last */
} gpu;

static int start(void **state)
{
    (void)state;
    memset(&gpu, 0, sizeof(gpu));
    gpu.workers = 8;
    gpu.next = (struct attnd_turns_choice){NOBODY, NOBODY};
    return 0;
}

static uint32_t publish_reading(uint32_t session, uint32_t weight, uint32_t items, uint64_t item_ns,
                                uint64_t reads)
{
    const uint32_t at = gpu.published++;
    gpu.run[at] = (struct run){.session = session, .items = items, .item_ns = item_ns};
    attnd_turns_begin(&gpu.turns, at, session, weight, items, reads);
    return at;
}

static uint32_t publish(uint32_t session, uint32_t weight, uint32_t items, uint64_t item_ns)
{
    return publish_reading(session, weight, items, item_ns, 0);
}

static void look(void)
{
    for (uint32_t at = gpu.retired; at != gpu.published; at++)
        attnd_turns_note(&gpu.turns, at, gpu.run[at].taken, gpu.run[at].done, gpu.run[at].busy_ns);
    while (gpu.retired != gpu.published && gpu.run[gpu.retired].done == gpu.run[gpu.retired].items)
        gpu.retired++;
    gpu.next = attnd_turns_next(&gpu.turns, gpu.retired, gpu.published);
    if (gpu.next.at == gpu.published)
        gpu.next.at = gpu.next.twin = NOBODY;
}

/* The run of the next item of worker @index; gpu.published: there is none. */
static uint32_t choose(uint32_t index)
{
    const uint32_t next = index % 2 ? gpu.next.twin : gpu.next.at;
    if (next != NOBODY && gpu.run[next].taken < gpu.run[next].items)
        return next;
    uint32_t at = gpu.retired;
    while (at != gpu.published && gpu.run[at].taken == gpu.run[at].items)
        at++;
    return at;
}

static void work(struct worker *worker)
{
    while (worker->held && worker->free_ns[0] <= gpu.now_ns) {
        struct run *run = &gpu.run[worker->of[0]];
        run->done++;
        run->busy_ns += run->item_ns;
        run->end_ns = worker->free_ns[0];
        worker->free_ns[0] = worker->free_ns[1];
        worker->of[0] = worker->of[1];
        worker->held--;
    }
    while (worker->held < 2) {
        const uint32_t at = choose((uint32_t)(worker - gpu.worker));
        struct run *run = &gpu.run[at];
        /* None is claimed ahead when fewer are left than workers, nor while there are turns; but
         * for one near the end of the item in hand, which this leaves out. */
        if (at == gpu.published ||
            (worker->held && (run->items - run->taken < gpu.workers || gpu.next.at != NOBODY)))
            return;
        const uint64_t begin_ns = worker->held ? worker->free_ns[0] : gpu.now_ns;
        run->taken++;
        worker->of[worker->held] = at;
        worker->free_ns[worker->held++] = begin_ns + run->item_ns;
    }
}

/* Half a microsecond. Workers begin at different times, as they do. */
static void step(void)
{
    gpu.now_ns += US / 2;
    for (uint32_t i = 0; i < gpu.workers; i++)
        if (gpu.now_ns > i * 7 * US)
            work(&gpu.worker[i]);
    if (gpu.now_ns % LOOK_NS == 0)
        look();
}

static uint64_t run_until_over(uint32_t at)
{
    while (gpu.run[at].done < gpu.run[at].items)
        step();
    return gpu.run[at].end_ns;
}

static void run_for(uint64_t ns)
{
    for (const uint64_t end_ns = gpu.now_ns + ns; gpu.now_ns < end_ns;)
        step();
}

static void one_sessions_runs_are_taken_as_they_came(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20; i++)
        publish(7, 1 + i % 3, 3 + i, (1 + i % 5) * 30 * US);
    while (gpu.retired != gpu.published) {
        step();
        assert_true(gpu.next.at == NOBODY);
    }
}

/* Of the flood, as nobody else takes turns when it comes. */
static void a_small_run_beside_a_flood_waits_for_an_item_in_hand_and_one_ahead(void **state)
{
    enum { ITEM_US = 100, SMALL_US = 10, LATE_US = 5 };
    (void)state;
    for (uint32_t i = 0; i < 64; i++)
        publish(1, 1, 200, ITEM_US * US);
    run_for(3 * ITEM_US * US);
    for (uint32_t i = 0; i < 50; i++) {
        const uint64_t begin_ns = gpu.now_ns;
        const uint32_t small = publish(2, 1, 4, SMALL_US * US);
        assert_true(run_until_over(small) - begin_ns <= (2 * ITEM_US + SMALL_US + LATE_US) * US);
        run_for(37 * US);
    }
}

static void equal_runs_of_several_sessions_end_one_after_the_other(void **state)
{
    uint64_t ends_ns[4];
    (void)state;
    const uint64_t alone_ns = run_until_over(publish(9, 1, 64, 50 * US));
    start(NULL);
    for (uint32_t i = 0; i < 4; i++) {
        publish(i, 1, 64, 50 * US);
        run_for(20 * US);
    }
    for (uint32_t i = 0; i < 4; i++)
        ends_ns[i] = run_until_over(i);
    assert_int_equal(ends_ns[0], alone_ns);
    for (uint32_t i = 1; i < 4; i++)
        assert_true(ends_ns[i] > ends_ns[i - 1]);
}

static void long_runs_share_by_weight_and_short_ones_do_too(void **state)
{
    (void)state;
    const uint32_t one = publish(1, 1, 1000000, 100 * US);
    const uint32_t three = publish(2, 3, 1000000, 50 * US);
    run_for(1000000 * US);
    const double ratio = (double)gpu.run[three].busy_ns / (double)gpu.run[one].busy_ns;
    assert_true(ratio > 2.7 && ratio < 3.3);
}

/* Two sessions of short runs, each as soon as its last one ended, beside a run that is never over:
 * it has a third of the workers. */
static void short_runs_do_not_starve_a_long_one(void **state)
{
    (void)state;
    const uint32_t whole = publish(1, 1, 1000000, 100 * US);
    uint32_t small[] = {publish(2, 1, 16, 100 * US), publish(3, 1, 16, 100 * US)};
    while (gpu.published < 800) {
        step();
        for (uint32_t i = 0; i < 2; i++)
            if (gpu.run[small[i]].done == 16)
                small[i] = gpu.retired + ATTND_TURNS_RUNS > gpu.published
                               ? publish(2 + i, 1, 16, 100 * US)
                               : small[i];
        if (gpu.published - gpu.retired == ATTND_TURNS_RUNS) /* positions are in order */
            break;
    }
    const double all_ns = (double)gpu.now_ns * gpu.workers;
    assert_true((double)gpu.run[whole].busy_ns > 0.28 * all_ns);
    assert_true((double)gpu.run[whole].busy_ns < 0.45 * all_ns);
}

static void a_session_that_was_idle_has_saved_nothing_up(void **state)
{
    (void)state;
    const uint32_t first = publish(1, 1, 1000000, 100 * US);
    run_until_over(publish(2, 1, 8, 100 * US));
    run_for(300000 * US);
    const uint64_t had_ns = gpu.run[first].busy_ns, begin_ns = gpu.now_ns;
    (void)publish(2, 1, 1000000, 100 * US);
    run_for(100000 * US);
    const double share =
        (double)(gpu.run[first].busy_ns - had_ns) / ((double)(gpu.now_ns - begin_ns) * gpu.workers);
    assert_true(share > 0.4);
}

/* The furthest that two runs came apart while both had items left, and the end of the later one. */
static uint32_t run_both(uint32_t one, uint32_t other, uint64_t *end_ns)
{
    uint32_t most = 0;
    while (gpu.run[one].done < gpu.run[one].items || gpu.run[other].done < gpu.run[other].items) {
        const uint32_t a = gpu.run[one].taken, b = gpu.run[other].taken;
        if (a < gpu.run[one].items && b < gpu.run[other].items && (a > b ? a - b : b - a) > most)
            most = a > b ? a - b : b - a;
        step();
    }
    *end_ns =
        gpu.run[one].end_ns > gpu.run[other].end_ns ? gpu.run[one].end_ns : gpu.run[other].end_ns;
    return most;
}

static void runs_of_two_sessions_that_read_the_same_advance_together(void **state)
{
    uint64_t end_ns, apart_ns;
    (void)state;
    publish(1, 1, 100, 50 * US); /* both are queued behind it */
    run_for(100 * US);
    uint32_t one = publish_reading(2, 1, 200, 50 * US, 77);
    uint32_t other = publish_reading(3, 1, 200, 50 * US, 77);
    assert_true(run_both(one, other, &end_ns) <= 2 * gpu.workers);
    assert_int_equal(gpu.turns.met, 2);

    start(NULL);
    publish(1, 1, 100, 50 * US);
    run_for(100 * US);
    one = publish_reading(2, 1, 200, 50 * US, 77);
    other = publish_reading(3, 1, 200, 50 * US, 78);
    assert_true(run_both(one, other, &apart_ns) > 100);
    assert_int_equal(gpu.turns.met, 0);
    /* Here nobody reads any faster. */
    assert_true(end_ns <= apart_ns + 50 * US && apart_ns <= end_ns + 50 * US);
}

static void a_run_that_comes_when_its_like_is_far_ahead_has_no_twin(void **state)
{
    uint64_t end_ns;
    (void)state;
    const uint32_t one = publish_reading(1, 1, 400, 50 * US, 77);
    while (gpu.run[one].taken < 100)
        step();
    run_both(one, publish_reading(2, 1, 400, 50 * US, 77), &end_ns);
    assert_int_equal(gpu.turns.met, 0);
    assert_true(gpu.run[one].end_ns < end_ns);
}

static void one_sessions_runs_are_no_twins(void **state)
{
    (void)state;
    publish_reading(1, 1, 40, 50 * US, 77);
    const uint32_t second = publish_reading(1, 1, 40, 50 * US, 77);
    publish(2, 1, 40, 50 * US);
    run_until_over(second);
    assert_int_equal(gpu.turns.met, 0);
}

static void sessions_of_other_weights_have_no_twins(void **state)
{
    (void)state;
    publish_reading(1, 100, 400, 50 * US, 77);
    publish_reading(2, 1, 400, 50 * US, 77);
    run_for(2000 * US);
    assert_int_equal(gpu.turns.met, 0);
    assert_true(gpu.run[0].taken > 10 * gpu.run[1].taken);
}

static void twins_wait_for_nobody_of_another_session_longer(void **state)
{
    (void)state;
    publish_reading(1, 1, 4000, 50 * US, 77);
    publish_reading(2, 1, 4000, 50 * US, 77);
    run_for(500 * US);
    for (uint32_t i = 0; i < 50; i++) {
        const uint64_t begin_ns = gpu.now_ns;
        const uint32_t small = publish(3, 1, 4, 10 * US);
        assert_true(run_until_over(small) - begin_ns <= (2 * 50 + 10 + 5) * US);
        run_for(37 * US);
    }
    assert_int_equal(gpu.turns.met, 2);
}

static void more_sessions_than_are_remembered_lose_nothing(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < ATTND_TURNS_RUNS; i++)
        publish(1000 + i, i % 4, 1 + i % 9, 20 * US);
    for (uint32_t i = 0; i < ATTND_TURNS_RUNS; i++)
        run_until_over(i);
    look();
    assert_int_equal(gpu.retired, gpu.published);
    assert_int_equal(gpu.turns.busy, 0);
    for (uint32_t i = 0; i < ATTND_TURNS_FLOWS; i++)
        assert_int_equal(gpu.turns.flow[i].busy + gpu.turns.flow[i].held, 0);
}

#define TEST(name) cmocka_unit_test_setup(name, start)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_sessions_runs_are_taken_as_they_came),
        TEST(a_small_run_beside_a_flood_waits_for_an_item_in_hand_and_one_ahead),
        TEST(equal_runs_of_several_sessions_end_one_after_the_other),
        TEST(long_runs_share_by_weight_and_short_ones_do_too),
        TEST(short_runs_do_not_starve_a_long_one),
        TEST(a_session_that_was_idle_has_saved_nothing_up),
        TEST(runs_of_two_sessions_that_read_the_same_advance_together),
        TEST(a_run_that_comes_when_its_like_is_far_ahead_has_no_twin),
        TEST(one_sessions_runs_are_no_twins),
        TEST(sessions_of_other_weights_have_no_twins),
        TEST(twins_wait_for_nobody_of_another_session_longer),
        TEST(more_sessions_than_are_remembered_lose_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
