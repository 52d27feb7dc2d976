/* Sessions beside each other on the threads of the CPU backend: nobody waits for a long item of
 * somebody else, and making way changes no result. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "persistent/cpu/state.h"
#include "schemas/atomics.h"
#include "tests/support/rigs/cpu_rig.h"

#define THREADS 2u

/* As a run of its own session. */
static void submit_as(struct rig *rig, struct rig_work *work, uint32_t run, uint32_t session)
{
    rig_run(work, run, ATTND_RUN_ATTEND);
    rig->runs[run].session = session;
    rig_submit(rig, run);
}

static void wait_until_begun(const struct rig *rig, uint32_t run)
{
    const struct timespec nap = {0, 100000};
    while (attnd_peek64(&rig->backend->queue.runs[run].begin_ns) == 0)
        (void)nanosleep(&nap, NULL);
}

/* Three sessions with items of hours on every thread; the fourth is answered all the same. */
static void a_short_run_does_not_wait_for_endless_items(void **state)
{
    enum { ENDLESS = 3, ROUNDS = 20 };
    struct rig rig;
    struct rig_work endless, work;
    const struct rig_batch batch = rig_small_batch(1);
    (void)state;
    rig_open_started(&rig, THREADS);
    rig_make_endless(&endless, &rig, THREADS);
    rig_make(&work, &rig, &batch);
    for (uint32_t i = 0; i < ENDLESS; i++) {
        submit_as(&rig, &endless, i, 10 + i);
        wait_until_begun(&rig, i);
    }
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        rig.scratch_used_bytes = 0;
        submit_as(&rig, &work, ENDLESS, 9);
        assert_int_equal(rig_wait(&rig, ENDLESS, round).code, 0);
        rig_judge(&work, "between endless items");
    }
    for (uint32_t i = 0; i < ENDLESS; i++)
        attnd_poke32(&rig.runs[i].cancel, 1);
    for (uint32_t i = 0; i < ENDLESS; i++)
        assert_int_equal(rig_wait(&rig, i, 1).code, -ATTND_E_CANCELLED);
    rig_free(&endless);
    rig_free(&work);
    rig_close(&rig);
}

/* Of one session: its runs stand behind its own, so that order within it is what it was. */
static void a_run_waits_for_those_of_its_own_session(void **state)
{
    const struct timespec nap = {0, 20000000};
    struct rig rig;
    struct rig_work endless, work;
    const struct rig_batch batch = rig_small_batch(2);
    (void)state;
    rig_open_started(&rig, THREADS);
    rig_make_endless(&endless, &rig, 2 * THREADS); /* some items are left */
    rig_make(&work, &rig, &batch);
    submit_as(&rig, &endless, 0, 7);
    wait_until_begun(&rig, 0);
    submit_as(&rig, &work, 1, 7);
    (void)nanosleep(&nap, NULL);
    assert_int_equal(attnd_peek64(&rig.backend->queue.runs[1].begin_ns), 0);
    attnd_poke32(&rig.runs[0].cancel, 1);
    assert_int_equal(rig_wait(&rig, 0, 1).code, -ATTND_E_CANCELLED);
    assert_int_equal(rig_wait(&rig, 1, 1).code, 0);
    rig_judge(&work, "behind its own");
    rig_free(&endless);
    rig_free(&work);
    rig_close(&rig);
}

/* It gets the processor at once, and the thread that woke it gets it back when nobody else wants
 * it. */
static void who_wakes_the_daemon_holds_nobody_up(void **state)
{
    struct rig rig;
    struct rig_work work[2];
    (void)state;
    rig_open_started(&rig, THREADS);
    rig_hold_knocks(&rig, 1);
    for (uint32_t i = 0; i < 2; i++) {
        const struct rig_batch batch = rig_small_batch(60 + i);
        rig_make(&work[i], &rig, &batch);
        submit_as(&rig, &work[i], i, 20 + i);
        assert_int_equal(rig_wait(&rig, i, 1).code, 0);
    }
    rig_hold_knocks(&rig, 0);
    for (uint32_t i = 0; i < 2; i++) {
        rig_judge(&work[i], "beside a wake-up");
        rig_free(&work[i]);
    }
    rig_close(&rig);
}

/* Items that are longer than the time after which they make way, of several sessions at once: each
 * of them is interrupted, and each result is right. */
static void sessions_that_make_way_for_each_other_are_all_right(void **state)
{
    enum { SESSIONS = 4, ROUNDS = 6 };
    struct rig rig;
    struct rig_work work[SESSIONS];
    (void)state;
    rig_open_started(&rig, THREADS);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        struct rig_batch batch = rig_small_batch(20 + i);
        batch.split = i % 2 ? 512 : 0;
        batch.qo_len[2] = 40 + 30 * i;
        batch.kv_len[2] = 2000;
        batch.tile_class = ATTND_TILE_COMPUTE;
        batch.prefix_len = i == 3 ? 700 : 0;
        rig_make(&work[i], &rig, &batch);
        rig_run(&work[i], i, ATTND_RUN_ATTEND);
        rig.runs[i].session = i;
        rig.runs[i].weight = 1 + i;
    }
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        for (uint32_t i = 0; i < SESSIONS; i++) {
            attnd_poke32(&rig.runs[i].cancel, 0);
            rig_submit(&rig, i);
        }
        if (round == 2)
            attnd_poke32(&rig.runs[1].cancel, 1);
        for (uint32_t i = 0; i < SESSIONS; i++) {
            const int32_t code = rig_wait(&rig, i, round).code;
            assert_true(code == 0 || (round == 2 && i == 1));
        }
    }
    for (uint32_t i = 0; i < SESSIONS; i++) {
        rig_judge(&work[i], "beside others");
        rig_free(&work[i]);
    }
    rig_close(&rig);
}

/* Parking does not wait for items that have not begun, nor lose those that came in between. */
static void parking_between_sessions_loses_nothing(void **state)
{
    enum { SESSIONS = 3, ROUNDS = 10 };
    struct rig rig;
    struct rig_work work[SESSIONS];
    (void)state;
    rig_open_started(&rig, THREADS);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        struct rig_batch batch = rig_small_batch(40 + i);
        batch.qo_len[2] = 60;
        batch.kv_len[2] = 3000;
        batch.split = 0;
        rig_make(&work[i], &rig, &batch);
        rig_run(&work[i], i, ATTND_RUN_ATTEND);
        rig.runs[i].session = i;
    }
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        for (uint32_t i = 0; i < SESSIONS; i++)
            rig_submit(&rig, i);
        assert_int_equal(attnd_backend_cpu.park(rig.backend), 0);
        assert_int_equal(attnd_backend_cpu.start(rig.backend), 0);
        for (uint32_t i = 0; i < SESSIONS; i++)
            assert_int_equal(rig_wait(&rig, i, round).code, 0);
    }
    for (uint32_t i = 0; i < SESSIONS; i++) {
        rig_judge(&work[i], "after parking");
        rig_free(&work[i]);
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_run_does_not_wait_for_endless_items),
        cmocka_unit_test(a_run_waits_for_those_of_its_own_session),
        cmocka_unit_test(who_wakes_the_daemon_holds_nobody_up),
        cmocka_unit_test(sessions_that_make_way_for_each_other_are_all_right),
        cmocka_unit_test(parking_between_sessions_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
