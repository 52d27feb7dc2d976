/* How a run of the CPU backend ends before its time: in the middle of an item. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "persistent/cpu/state.h"
#include "schemas/atomics.h"
#include "schemas/clock.h"
#include "tests/support/rigs/cpu_rig.h"

#define CANCEL_NS_MAX 1000000u
#define ATTEMPTS 10

static void sleep_ms(long ms)
{
    const struct timespec time = {0, ms * 1000000};
    (void)nanosleep(&time, NULL);
}

static int begun(const struct rig *rig, uint32_t run)
{
    return attnd_peek64(&rig->backend->queue.runs[run].begin_ns) != 0;
}

/* Return: from the cancel to the retirement, the shortest of several: others use the machine. */
static uint64_t cancel_ns(struct rig *rig, uint32_t run)
{
    uint64_t best_ns = UINT64_MAX;
    for (uint32_t round = 1; round <= ATTEMPTS; round++) {
        attnd_poke32(&rig->runs[run].cancel, 0);
        rig_submit(rig, run);
        sleep_ms(2);
        while (!begun(rig, run))
            sleep_ms(1);
        const uint64_t from_ns = attnd_clock_ns();
        attnd_poke32(&rig->runs[run].cancel, 1);
        const struct attnd_retire retire = rig_wait(rig, run, round);
        const uint64_t ns = retire.end_ns - from_ns;
        assert_int_equal(retire.code, -ATTND_E_CANCELLED);
        assert_int_equal(retire.tiles, 0);
        best_ns = ns < best_ns ? ns : best_ns;
    }
    return best_ns;
}

static void an_item_of_2_31_keys_ends_within_a_millisecond_of_its_cancel(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_work endless;
    rig_open(&rig, 2, NULL);
    assert_int_equal(attnd_backend_cpu.start(rig.backend), 0);
    rig_make_endless(&endless, &rig, 2);
    rig_run(&endless, 0, ATTND_RUN_ATTEND);
    assert_true(cancel_ns(&rig, 0) <= CANCEL_NS_MAX);
    rig_free(&endless);
    rig_close(&rig);
}

/* Rows that fill the buffers, and the slowest kernel: what takes longest between two looks. */
static void an_item_of_many_rows_ends_soon_too(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_work work;
    const struct rig_batch batch = {.seed = 1,
                                    .dtype = ATTND_FP16,
                                    .heads_kv = 1,
                                    .group = 1,
                                    .dim = 128,
                                    .page_size = 64,
                                    .requests = 1,
                                    .qo_len = {192},
                                    .kv_len = {8192}};
    rig_open(&rig, 1, "portable");
    assert_int_equal(attnd_backend_cpu.start(rig.backend), 0);
    rig_make(&work, &rig, &batch);
    rig_run(&work, 0, ATTND_RUN_ATTEND);
    assert_true(cancel_ns(&rig, 0) <= 10 * CANCEL_NS_MAX); /* sanitized builds as well */
    attnd_poke32(&rig.runs[0].cancel, 0);
    rig_submit(&rig, 0);
    assert_int_equal(rig_wait(&rig, 0, ATTEMPTS + 1).code, 0);
    rig_judge(&work, "after it was cancelled");
    rig_free(&work);
    rig_close(&rig);
}

static void a_cancelled_item_beside_it_changes_no_result(void **state)
{
    enum { ROUNDS = 10 };
    (void)state;
    struct rig rig;
    struct rig_work endless, work;
    const struct rig_batch batch = {.seed = 2,
                                    .dtype = ATTND_BF16,
                                    .heads_kv = 2,
                                    .group = 2,
                                    .dim = 64,
                                    .page_size = 8,
                                    .requests = 2,
                                    .qo_len = {1, 7},
                                    .kv_len = {300, 400},
                                    .causal = 1,
                                    .split = 64};
    rig_open(&rig, 2, NULL);
    assert_int_equal(attnd_backend_cpu.start(rig.backend), 0);
    rig_make_endless(&endless, &rig, 1);
    rig_make(&work, &rig, &batch);
    rig_run(&endless, 0, ATTND_RUN_ATTEND);
    rig_run(&work, 1, ATTND_RUN_ATTEND);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        attnd_poke32(&rig.runs[0].cancel, 0);
        rig_submit(&rig, 0);
        rig_submit(&rig, 1);
        assert_int_equal(rig_wait(&rig, 1, round).code, 0);
        attnd_poke32(&rig.runs[0].cancel, 1);
        assert_int_equal(rig_wait(&rig, 0, round).code, -ATTND_E_CANCELLED);
        rig_judge(&work, "beside what is cancelled");
    }
    rig_free(&endless);
    rig_free(&work);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_item_of_2_31_keys_ends_within_a_millisecond_of_its_cancel),
        cmocka_unit_test(an_item_of_many_rows_ends_soon_too),
        cmocka_unit_test(a_cancelled_item_beside_it_changes_no_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
