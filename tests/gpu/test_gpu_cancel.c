/*
 * test_gpu_cancel.c - items of hundreds of thousands of keys, which take milliseconds to seconds:
 * a cancel, a deadline and the death of a client end them at once, and the worker lives.
 *
 * A run has more items than the GPU has SMs. When the first row of its output is there, others are
 * in the middle of theirs. The keys are one page again and again, which nothing may notice: with
 * the common pages read once there would be little to cancel.
 */
#include "tests/gpu/support/gpu.h"
#include "tests/gpu/support/one_key.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/one_page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#define CLIENT_MS 60000
#define WAIT_NS 20000000000u
#define DIM 128u
#define PAGE_SIZE 16384u
#define PLANE_BYTES (PAGE_SIZE * DIM * 2u)
#define ROWS_BYTES (64u << 20)
#define Q_AT (2u * PLANE_BYTES)
#define O_AT (Q_AT + ROWS_BYTES)
#define ONE_KEY_AT (O_AT + ROWS_BYTES)
#define ALL_BYTES (ONE_KEY_AT + (1u << 20))
#define CANCELS 5u
#define CANCEL_US_MAX 1000.0
#define TURN_MS 3

struct shape {
    const char *name; /* of the loop that computes it */
    struct one_page_batch batch;
};

static const struct shape decode = {
    "decode", {.requests = 300, .rows = 1, .pages = 256, .page_size = PAGE_SIZE, .heads_q = 1}};
static const struct shape prefill = {
    "prefill", {.requests = 1, .rows = 32768, .pages = 29, .page_size = PAGE_SIZE, .heads_q = 8}};
/* Rows of q that are not aligned to 16 bytes are for no other loop. */
static const struct shape naive = {"naive",
                                   {.requests = 300,
                                    .rows = 1,
                                    .pages = 20,
                                    .page_size = PAGE_SIZE,
                                    .heads_q = 1,
                                    .q = {DIM + 4, DIM}}};

struct victim {
    struct attnd_session *session;
    CUdeviceptr address;
    uint32_t memory, pool, plan;
};

static void victim_open(struct victim *victim, const struct harness *harness,
                        const struct shape *shape)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = harness->socket, .arena_bytes = 4u << 20};

    gpu_open();
    CHECK_OK(attnd_open(&args, &victim->session));
    CHECK_OK(attnd_memory_create_device(victim->session, ALL_BYTES, &victim->memory));
    CHECK_OK(attnd_cuda_map(victim->session, victim->memory, &victim->address));
    CHECK_CUDA(cuMemsetD8(victim->address, 0, ALL_BYTES));
    CHECK_CUDA(cuCtxSynchronize());
    victim->pool = plain_planes_pool(victim->session, victim->memory, 0, PAGE_SIZE, DIM);
    victim->plan = one_page_plan(victim->session, victim->pool, &shape->batch);
}

static void submit(const struct victim *victim, uint64_t user_data, uint32_t timeout_us)
{
    const struct attnd_run_args run = {
        .size = sizeof(run), .q = {victim->memory, Q_AT}, .o = {victim->memory, O_AT}};
    const struct attnd_op op = {.user_data = user_data, .timeout_us = timeout_us};
    const uint32_t poison = 0xffffffffu;

    CHECK_CUDA(cuMemcpyHtoD(victim->address + O_AT, &poison, sizeof(poison)));
    CHECK_CUDA(cuCtxSynchronize());
    CHECK_OK(attnd_run(victim->session, victim->plan, &run, &op));
}

/* Until its first item is over. Each look is a turn of this process on the GPU; without MPS the
 * worker's kernels stand still meanwhile, and the last turn is to be over when this returns. */
static void await_first_row(const struct victim *victim)
{
    const uint64_t end_ns = harness_now_ns() + WAIT_NS;
    uint32_t word;

    do {
        CHECK_CUDA(cuMemcpyDtoH(&word, victim->address + O_AT, sizeof(word)));
        CHECK(harness_now_ns() < end_ns);
    } while (word == 0xffffffffu);
    harness_sleep_ms(TURN_MS);
}

/* Return: microseconds since @begin_ns. */
static double await_code(const struct victim *victim, uint64_t user_data, int code,
                         uint64_t begin_ns)
{
    struct attnd_completion done;

    CHECK_EQUAL(attnd_wait(victim->session, &done, 1, WAIT_NS), 1);
    const uint64_t end_ns = harness_now_ns();
    CHECK_EQUAL(done.user_data, user_data);
    CHECK_EQUAL(done.fault.code, code);
    return (double)(end_ns - begin_ns) / 1e3;
}

/* That a worker is there, and which: one that died would have lost this memory's run. */
static void still_right(const struct victim *victim, uint32_t salt)
{
    const CUdeviceptr rows = victim->address + ONE_KEY_AT;
    const CUdeviceptr planes = rows + ONE_KEY_PLANES_BYTES;
    const struct attnd_tensor at = {victim->memory, ONE_KEY_AT + ONE_KEY_PLANES_BYTES};
    const struct attnd_tensor rows_at = {victim->memory, ONE_KEY_AT};
    struct attnd_fault fault;

    one_key_fill(planes, rows, salt);
    const uint32_t pool = one_key_pool(victim->session, &at);
    CHECK_EQUAL(one_key_run(victim->session, pool, &rows_at, &fault), 0);
    CHECK(one_key_right(rows, salt));
    CHECK_OK(attnd_pool_release(victim->session, pool));
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct scene {
    const struct harness *harness;
    const struct shape *shape;
};

static int cancelling(void *context)
{
    const struct scene *scene = context;
    struct victim victim;
    double us[CANCELS];

    victim_open(&victim, scene->harness, scene->shape);
    for (uint32_t i = 0; i < CANCELS; i++) {
        submit(&victim, i + 1, 0);
        await_first_row(&victim);
        const uint64_t begin_ns = harness_now_ns();
        CHECK_OK(attnd_cancel(victim.session, i + 1));
        us[i] = await_code(&victim, i + 1, -ATTND_E_CANCELLED, begin_ns);
    }
    still_right(&victim, 7);
    qsort(us, CANCELS, sizeof(us[0]), by_value);
    printf("safety.cancel_us, %s, items of %u keys: p50 %.0f, worst %.0f of %u\n",
           scene->shape->name, scene->shape->batch.pages * PAGE_SIZE, us[CANCELS / 2],
           us[CANCELS - 1], CANCELS);
    CHECK(us[CANCELS / 2] <= CANCEL_US_MAX);
    attnd_close(victim.session);
    return 0;
}

static void cancel_within_a_millisecond(const struct harness *harness, const struct shape *shape)
{
    struct scene scene = {harness, shape};
    CHECK_EQUAL(harness_join(harness_fork(cancelling, &scene), CLIENT_MS), 0);
}

static void a_cancelled_decode_item_ends_within_a_millisecond(void **state)
{
    cancel_within_a_millisecond(*state, &decode);
}

static void a_cancelled_prefill_item_ends_within_a_millisecond(void **state)
{
    cancel_within_a_millisecond(*state, &prefill);
}

static void a_cancelled_item_of_the_plain_loop_ends_within_a_millisecond(void **state)
{
    cancel_within_a_millisecond(*state, &naive);
}

/* ---- deadlines, deaths: an item of the plain loop takes 100 ms and more ---- */

#define TIMEOUT_US 30000u
#define SOON_US 30000.0

static int expiring(void *context)
{
    const struct scene *scene = context;
    struct victim victim;

    victim_open(&victim, scene->harness, scene->shape);
    const uint64_t begin_ns = harness_now_ns();
    submit(&victim, 1, TIMEOUT_US);
    const double us = await_code(&victim, 1, -ATTND_E_TIMEOUT, begin_ns);
    still_right(&victim, 8);
    printf("a deadline of %u us was answered after %.0f us\n", TIMEOUT_US, us);
    CHECK(us >= TIMEOUT_US && us <= TIMEOUT_US + SOON_US);
    attnd_close(victim.session);
    return 0;
}

static void an_expired_item_ends_soon_after_its_deadline(void **state)
{
    struct scene scene = {*state, &naive};
    CHECK_EQUAL(harness_join(harness_fork(expiring, &scene), CLIENT_MS), 0);
}

/* CUDA does not survive fork(): the client that is to die is there before the other's context, and
 * waits for its word. */
struct death {
    struct scene scene;
    int word[2]; /* a pipe */
};

static int dying(void *context)
{
    const struct death *death = context;
    struct victim victim;
    char word;

    victim_open(&victim, death->scene.harness, death->scene.shape);
    CHECK_EQUAL(read(death->word[0], &word, 1), 1);
    submit(&victim, 1, 0);
    await_first_row(&victim);
    return 0; /* without closing anything */
}

static int surviving(void *context)
{
    const struct shape one = {
        "decode", {.requests = 1, .rows = 1, .pages = 1, .page_size = PAGE_SIZE, .heads_q = 1}};
    struct death death = {.scene = *(const struct scene *)context};
    struct victim bystander;

    CHECK_EQUAL(pipe(death.word), 0);
    const pid_t pid = harness_fork(dying, &death);
    victim_open(&bystander, death.scene.harness, &one);
    still_right(&bystander, 9);
    CHECK_EQUAL(write(death.word[1], "", 1), 1);
    CHECK_EQUAL(harness_join(pid, CLIENT_MS), 0);
    const uint64_t begin_ns = harness_now_ns();
    submit(&bystander, 2, 0);
    const double us = await_code(&bystander, 2, 0, begin_ns);
    printf("behind a dead client's run another's took %.0f us\n", us);
    CHECK(us <= SOON_US);
    attnd_close(bystander.session);
    return 0;
}

static void a_dead_clients_items_end_soon_after_it(void **state)
{
    struct scene scene = {*state, &naive};
    CHECK_EQUAL(harness_join(harness_fork(surviving, &scene), CLIENT_MS), 0);
}

static int start(void **state)
{
    static const char *const options[] = {"--cascade", "off", NULL};
    static struct harness harness;

    *state = &harness;
    harness_start(&harness, options);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, e2e_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_cancelled_decode_item_ends_within_a_millisecond),
        TEST(a_cancelled_prefill_item_ends_within_a_millisecond),
        TEST(a_cancelled_item_of_the_plain_loop_ends_within_a_millisecond),
        TEST(an_expired_item_ends_soon_after_its_deadline),
        TEST(a_dead_clients_items_end_soon_after_it),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
