/* How the CPU backend's threads take, finish, cancel and keep runs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "persistent/cpu/memory.h"
#include "persistent/plan/plan.h"
#include "schemas/atomics.h"
#include "tests/support/oracle/bits16.h"
#include "tests/support/rigs/cpu_rig.h"

/* Enough work that a thread is still busy with it when the test has done the next thing. */
static struct rig_batch large(uint64_t seed)
{
    struct rig_batch batch = rig_small_batch(seed);
    batch.qo_len[2] = 150;
    batch.kv_len[2] = 150;
    batch.tokens = 8;
    batch.dim = 128;
    return batch;
}

static void sleep_us(long us)
{
    const struct timespec time = {0, us * 1000};
    (void)nanosleep(&time, NULL);
}

static void the_worker_says_what_it_is(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, 3, "portable");
    const struct attnd_worker_info *info = &rig.head->info;
    assert_string_equal(info->backend, "cpu");
    assert_string_equal(info->isa, "portable");
    assert_int_equal(info->tile_workers, 3);
    assert_true(info->rows_per_tile > 0 && info->kv_granule > 0);
    assert_int_equal(info->scratch_bytes, RIG_SCRATCH_BYTES);
    rig_close(&rig);
}

static void an_unknown_instruction_set_is_unsupported(void **state)
{
    (void)state;
    struct attnd_queue_head head = {0};
    struct attnd_port port = {0};
    struct attnd_backend_config config = {
        .queue = &head, .queue_bytes = sizeof head, .port = &port, .threads = 1, .isa = "vax"};
    struct attnd_backend *backend = NULL;
    struct attnd_fault fault = {0};
    assert_int_equal(attnd_backend_cpu.create(&config, &backend, &fault), -ATTND_E_UNSUPPORTED);
    assert_int_equal(fault.code, -ATTND_E_UNSUPPORTED);
}

static void many_runs_in_flight_are_all_right(void **state)
{
    (void)state;
    enum { WORKS = 16, ROUNDS = 20 };
    struct rig rig;
    struct rig_work work[WORKS];
    rig_open_started(&rig, 4);
    for (uint32_t i = 0; i < WORKS; i++) {
        struct rig_batch batch = rig_small_batch(i + 1);
        batch.prefix_len = i % 3 ? 0 : 40;
        rig_make(&work[i], &rig, &batch);
        rig_run(&work[i], i, ATTND_RUN_ATTEND);
    }
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        for (uint32_t i = 0; i < WORKS; i++)
            rig_submit(&rig, i);
        for (uint32_t i = 0; i < WORKS; i++)
            assert_int_equal(rig_wait(&rig, i, round).code, 0);
    }
    for (uint32_t i = 0; i < WORKS; i++) {
        rig_judge(&work[i], "many runs");
        rig_free(&work[i]);
    }
    rig_close(&rig);
}

static void no_wake_up_is_lost(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_work work[2];
    rig_open_started(&rig, 4);
    for (uint32_t i = 0; i < 2; i++) {
        struct rig_batch batch = rig_small_batch(i + 1);
        batch.requests = 1 + i;
        batch.kv_len[0] = 4;
        rig_make(&work[i], &rig, &batch);
        rig_run(&work[i], i, ATTND_RUN_ATTEND);
    }
    /* One at a time, so that a lost wake-up is a hang. */
    for (uint32_t round = 1; round <= 3000; round++) {
        rig_submit(&rig, 0);
        if (round % 3 == 0)
            rig_submit(&rig, 1);
        (void)rig_wait(&rig, 0, round);
        (void)rig_wait(&rig, 1, round / 3);
        if (round % 64 == 0)
            sleep_us(100); /* long enough for everybody to fall asleep */
    }
    for (uint32_t i = 0; i < 2; i++)
        rig_free(&work[i]);
    rig_close(&rig);
}

/* Is run 1 done before run 0, whose one tile was begun when run 1 was submitted? */
static int overtakes(struct rig *rig)
{
    const struct attnd_backend *backend = rig->backend;
    while (attnd_observe32(&backend->sleepers) != 1 || !attnd_observe32(&backend->dispatching))
        sleep_us(100); /* until one thread waits for commands and the other sleeps */
    rig_submit(rig, 0);
    while (attnd_peek64(&backend->queue.runs[0].begin_ns) == 0)
        sleep_us(100); /* until its tile was taken */
    rig_submit(rig, 1);
    return rig_wait(rig, 1, 1).end_ns < rig_wait(rig, 0, 1).end_ns;
}

static void a_new_run_does_not_wait_for_a_tile_of_another(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_work slow, quick;
    struct rig_batch one_tile = rig_small_batch(1), tiny = rig_small_batch(2);
    one_tile.heads_kv = 1;
    one_tile.requests = 1;
    one_tile.qo_len[0] = 600;
    one_tile.kv_len[0] = 2400; /* longer than a thread is kept off its processor */
    one_tile.split = 0;
    one_tile.dim = 256;
    rig_open(&rig, 2, "portable");
    assert_int_equal(attnd_backend_cpu.start(rig.backend), 0);
    rig_make(&slow, &rig, &one_tile);
    rig_make(&quick, &rig, &tiny);
    rig_run(&slow, 0, ATTND_RUN_ATTEND);
    rig_run(&quick, 1, ATTND_RUN_ATTEND);
    assert_int_equal(rig.runs[0].items, 1);
    assert_true(overtakes(&rig));
    rig_free(&slow);
    rig_free(&quick);
    rig_close(&rig);
}

static void a_cancelled_run_skips_and_the_next_is_right(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_work work, other;
    struct rig_batch batch = large(3), beside = rig_small_batch(4);
    rig_open_started(&rig, 2);
    rig_make(&work, &rig, &batch);
    rig_make(&other, &rig, &beside);
    rig_run(&work, 0, ATTND_RUN_ATTEND);
    rig_run(&other, 1, ATTND_RUN_ATTEND);
    const uint32_t items = rig.runs[0].items;
    uint32_t cancelled = 0, round;
    for (round = 1; round <= 20; round++) {
        attnd_poke32(&rig.runs[0].cancel, 0);
        rig_submit(&rig, 0);
        rig_submit(&rig, 1);
        if (round > 1)
            sleep_us((long)round * 50);
        attnd_poke32(&rig.runs[0].cancel, 1);
        struct attnd_retire retire = rig_wait(&rig, 0, round);
        assert_true(retire.code == 0 || retire.code == -ATTND_E_CANCELLED);
        assert_true((retire.code == 0) == (retire.tiles == items));
        cancelled += retire.code != 0;
        assert_int_equal(rig_wait(&rig, 1, round).code, 0);
    }
    assert_true(cancelled > 0);
    attnd_poke32(&rig.runs[0].cancel, 0);
    rig_submit(&rig, 0);
    assert_int_equal(rig_wait(&rig, 0, round).code, 0);
    rig_judge(&work, "after cancelling");
    rig_judge(&other, "beside cancelled runs");
    rig_free(&work);
    rig_free(&other);
    rig_close(&rig);
}

static void parking_and_starting_loses_no_run(void **state)
{
    (void)state;
    enum { WORKS = 4, ROUNDS = 15 };
    struct rig rig;
    struct rig_work work[WORKS];
    rig_open_started(&rig, 3);
    for (uint32_t i = 0; i < WORKS; i++) {
        struct rig_batch batch = large(i + 1);
        rig_make(&work[i], &rig, &batch);
        rig_run(&work[i], i, ATTND_RUN_ATTEND);
    }
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        for (uint32_t i = 0; i < WORKS; i++)
            rig_submit(&rig, i);
        sleep_us(round % 7 * 100);
        assert_int_equal(attnd_backend_cpu.park(rig.backend), 0);
        assert_int_equal(attnd_observe32(&rig.head->state), ATTND_WORKER_PARKED);
        /* Parked means: nothing is taken and nothing is written. */
        uint32_t before = 0, after = 0;
        for (uint32_t i = 0; i < WORKS; i++)
            before += rig.retires[i];
        sleep_us(200);
        for (uint32_t i = 0; i < WORKS; i++)
            after += rig.retires[i];
        assert_int_equal(before, after);
        assert_int_equal(attnd_backend_cpu.start(rig.backend), 0);
        for (uint32_t i = 0; i < WORKS; i++)
            assert_int_equal(rig_wait(&rig, i, round).code, 0);
    }
    for (uint32_t i = 0; i < WORKS; i++) {
        rig_judge(&work[i], "after parking");
        rig_free(&work[i]);
    }
    rig_close(&rig);
}

static void unmapped_memory_is_unknown(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_work work;
    struct rig_batch batch = rig_small_batch(5);
    rig_open_started(&rig, 2);
    rig_make(&work, &rig, &batch);
    for (int i = 0; i < 4; i++) {
        rig_run(&work, 0, ATTND_RUN_ATTEND);
        struct attnd_run *run = &rig.runs[0];
        run->q.memory = i == 0 ? 1000 : run->q.memory;
        run->o.memory = i == 1 ? ATTND_MEMORIES_MAX + 5 : run->o.memory;
        run->lse.memory = i == 2 ? 4000 : run->lse.memory;
        run->q.offset_bytes = i == 3 ? 1u << 30 : 0;
        rig_submit(&rig, 0);
        struct attnd_retire retire = rig_wait(&rig, 0, (uint32_t)i + 1);
        assert_int_equal(retire.code, -ATTND_E_UNKNOWN);
        assert_int_equal(retire.tiles, 0);
    }
    rig_run(&work, 0, ATTND_RUN_ATTEND);
    rig.runs[0].lse.memory = ATTND_NONE; /* that is no error: lse is optional */
    rig_submit(&rig, 0);
    assert_int_equal(rig_wait(&rig, 0, 5).code, 0);
    rig_free(&work);
    rig_close(&rig);
}

static void a_plan_outside_the_segment_is_refused(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_work work;
    struct rig_batch batch = rig_small_batch(6);
    rig_open_started(&rig, 1);
    rig_make(&work, &rig, &batch);
    rig_run(&work, 0, ATTND_RUN_ATTEND);
    struct attnd_run good = rig.runs[0];
    rig.runs[0].plan_offset_bytes = rig.segment_bytes - 8;
    rig_submit(&rig, 0);
    assert_int_equal(rig_wait(&rig, 0, 1).code, -ATTND_E_RANGE);
    rig.runs[0] = good;
    rig.runs[0].layer = 1;
    rig_submit(&rig, 0);
    assert_int_equal(rig_wait(&rig, 0, 2).code, -ATTND_E_RANGE);
    rig.runs[0] = good;
    rig.runs[0].scratch_offset_bytes = RIG_SCRATCH_BYTES;
    rig_submit(&rig, 0);
    assert_int_equal(rig_wait(&rig, 0, 3).code, -ATTND_E_RANGE);
    rig.runs[0] = good;
    rig.runs[0].kind = 9;
    rig_submit(&rig, 0);
    assert_int_equal(rig_wait(&rig, 0, 4).code, -ATTND_E_UNSUPPORTED);
    rig_free(&work);
    rig_close(&rig);
}

static void a_page_outside_the_pool_ends_the_run_with_range(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_work work;
    struct rig_batch batch = rig_small_batch(7);
    rig_open_started(&rig, 2);
    rig_make(&work, &rig, &batch);
    int32_t *pages = (int32_t *)((char *)work.plan + work.plan->kv_pages_offset_bytes);
    const int32_t bad[] = {-1, (int32_t)work.pool_pages, INT32_MAX, INT32_MIN};
    for (uint32_t i = 0; i < 4; i++) {
        int32_t before = pages[3];
        pages[3] = bad[i];
        for (uint32_t kind = ATTND_RUN_ATTEND; kind <= ATTND_RUN_APPEND; kind++) {
            rig_run(&work, kind, kind);
            rig_submit(&rig, kind);
            int32_t code = rig_wait(&rig, kind, i + 1).code;
            /* Append writes the last row of request 0 only: page 12. */
            assert_int_equal(code, kind == ATTND_RUN_ATTEND ? -ATTND_E_RANGE : 0);
        }
        pages[3] = before;
    }
    rig_free(&work);
    rig_close(&rig);
}

static void lengths_are_clamped_to_the_planned_pages(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_work work;
    struct rig_batch batch = rig_small_batch(8);
    batch.kv_len[0] = 96; /* whole pages: what the clamp makes of it */
    rig_open_started(&rig, 2);
    rig_make(&work, &rig, &batch);
    int32_t *len = (int32_t *)((char *)work.plan + work.plan->kv_len_offset_bytes);
    len[3 * work.plan->entries_max] = INT32_MAX;
    rig_run(&work, 0, ATTND_RUN_ATTEND);
    rig.runs[0].generation = 3;
    rig_submit(&rig, 0);
    assert_int_equal(rig_wait(&rig, 0, 1).code, 0);
    rig_judge(&work, "clamped");
    len[3 * work.plan->entries_max] = -7; /* nothing */
    rig_submit(&rig, 0);
    assert_int_equal(rig_wait(&rig, 0, 2).code, 0);
    assert_true(isinf(*(float *)work.lse.address));
    rig_free(&work);
    rig_close(&rig);
}

/* Row @row of request @request as append must have stored it. */
static void expect_stored(const struct rig_work *work, uint32_t request, uint32_t row,
                          uint32_t token)
{
    const struct attnd_plan_head *plan = work->plan;
    for (uint32_t h = 0; h < plan->heads_kv; h++) {
        const uint16_t *k = work->new_k.address, *v = work->new_v.address;
        k += row * plan->k_pitch.row + h * plan->k_pitch.head;
        v += row * plan->v_pitch.row + h * plan->v_pitch.head;
        assert_memory_equal(rig_element(work, work->k, request, token, h), k, plan->dim_qk * 2);
        assert_memory_equal(rig_element(work, work->v, request, token, h), v, plan->dim_vo * 2);
    }
}

static void append_stores_rows_at_their_positions(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_work work;
    struct rig_batch batch = rig_small_batch(9);
    batch.requests = 5;
    const uint32_t qo_len[] = {1, 0, 150, 6, 0}, kv_len[] = {33, 8, 170, 4, 0};
    memcpy(batch.qo_len, qo_len, sizeof qo_len);
    memcpy(batch.kv_len, kv_len, sizeof kv_len);
    batch.prefix_len = 20;
    rig_open_started(&rig, 2);
    rig_make(&work, &rig, &batch);
    rig_run(&work, 0, ATTND_RUN_APPEND);
    rig_run(&work, 1, ATTND_RUN_ATTEND);
    assert_int_equal(rig.runs[0].items, 3);
    rig_submit(&rig, 0);
    assert_int_equal(rig_wait(&rig, 0, 1).code, 0);
    expect_stored(&work, 0, 0, 32);
    for (uint32_t i = 0; i < 150; i++)
        expect_stored(&work, 2, 1 + i, 20 + i);
    for (uint32_t i = 2; i < 6; i++) /* positions -2 and -1 do not exist */
        expect_stored(&work, 3, 151 + i, i - 2);
    rig_submit(&rig, 1);
    assert_int_equal(rig_wait(&rig, 1, 1).code, 0);
    rig_judge(&work, "after append");
    rig_free(&work);
    rig_close(&rig);
}

static void statistics_say_what_was_read(void **state)
{
    (void)state;
    struct rig rig;
    struct rig_work work;
    struct rig_batch batch = rig_small_batch(10);
    batch.qo_len[2] = 1;
    rig_open_started(&rig, 2);
    rig_make(&work, &rig, &batch);
    rig_run(&work, 0, ATTND_RUN_ATTEND);
    rig_submit(&rig, 0);
    struct attnd_retire retire = rig_wait(&rig, 0, 1);
    assert_int_equal(retire.kv_bytes, (100u + 30 + 9) * 4 * 64 * 2 * 2);
    assert_int_equal(retire.tiles, rig.runs[0].items);
    assert_true(retire.busy_ns > 0 && retire.begin_ns < retire.end_ns);
    assert_true(retire.busy_ns <= 2 * (retire.end_ns - retire.begin_ns));
    rig_free(&work);
    rig_close(&rig);
}

static void a_memory_index_is_mapped_once(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, 1, NULL);
    struct rig_memory memory = rig_map(&rig, 4096);
    struct attnd_fault fault = {0};
    const struct attnd_backend_ops *ops = &attnd_backend_cpu;
    struct attnd_memory_source source = {
        .kind = ATTND_KIND_HOST, .fd = memory.fd, .size_bytes = 4096};
    assert_int_equal(ops->map(rig.backend, memory.index, &source, &fault), -ATTND_E_BUSY);
    assert_int_equal(ops->map(rig.backend, ATTND_MEMORIES_MAX, &source, &fault), -ATTND_E_RANGE);
    source.fd = -1;
    assert_int_equal(ops->map(rig.backend, 9, &source, &fault), -ATTND_E_SYSTEM);
    uint32_t none = 9;
    assert_int_equal(ops->unmap(rig.backend, &none, 1), -ATTND_E_UNKNOWN);
    rig_unmap(&rig, &memory);
    assert_int_equal(ops->unmap(rig.backend, &memory.index, 1), -ATTND_E_UNKNOWN);
    rig_close(&rig);
}

static void unmapping_several_takes_out_those_that_are_there(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, 1, NULL);
    struct rig_memory a = rig_map(&rig, 4096), b = rig_map(&rig, 4096);
    const uint32_t indices[] = {a.index, 9, b.index};
    assert_int_equal(attnd_backend_cpu.unmap(rig.backend, indices, 3), -ATTND_E_UNKNOWN);
    assert_null(attnd_cpu_memory_at(rig.backend, a.index, 0));
    assert_null(attnd_cpu_memory_at(rig.backend, b.index, 0));
    (void)munmap(a.address, 4096);
    (void)munmap(b.address, 4096);
    (void)close(a.fd);
    (void)close(b.fd);
    rig_close(&rig);
}

static void memory_of_another_kind_is_refused_by_name(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, 1, NULL);
    for (uint32_t kind = ATTND_KIND_DEVICE; kind <= ATTND_KIND_IPC; kind++) {
        const struct attnd_memory_source source = {.kind = kind, .fd = -1, .size_bytes = 4096};
        struct attnd_fault fault = {0};
        assert_false(rig.head->info.memory_kinds >> kind & 1);
        assert_int_equal(attnd_backend_cpu.map(rig.backend, 3, &source, &fault),
                         -ATTND_E_UNSUPPORTED);
        assert_int_equal(fault.field, ATTND_F_MEMORY_KIND);
        assert_int_equal(fault.value, kind);
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_worker_says_what_it_is),
        cmocka_unit_test(an_unknown_instruction_set_is_unsupported),
        cmocka_unit_test(many_runs_in_flight_are_all_right),
        cmocka_unit_test(no_wake_up_is_lost),
        cmocka_unit_test(a_new_run_does_not_wait_for_a_tile_of_another),
        cmocka_unit_test(a_cancelled_run_skips_and_the_next_is_right),
        cmocka_unit_test(parking_and_starting_loses_no_run),
        cmocka_unit_test(unmapped_memory_is_unknown),
        cmocka_unit_test(a_plan_outside_the_segment_is_refused),
        cmocka_unit_test(a_page_outside_the_pool_ends_the_run_with_range),
        cmocka_unit_test(lengths_are_clamped_to_the_planned_pages),
        cmocka_unit_test(append_stores_rows_at_their_positions),
        cmocka_unit_test(statistics_say_what_was_read),
        cmocka_unit_test(a_memory_index_is_mapped_once),
        cmocka_unit_test(unmapping_several_takes_out_those_that_are_there),
        cmocka_unit_test(memory_of_another_kind_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
