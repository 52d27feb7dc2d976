/*
 * test_e2e_advance.c - a plan that is advanced again and again, and what runs of it compute.
 *
 * The pool's contents never change: what a run computes depends on its lengths and page lists only.
 * Some advances append pages, to some requests or to all; some shorten; several may follow each
 * other without a run in between. Up to SLOTS runs are in flight while lengths advance, and each is
 * held against the reference with the lengths that it began with.
 *
 * On a GPU the worker has a copy of the plan behind the bus. Its daemon counts what is copied
 * there, and an advance must cost the lengths of one generation and the page ids that they newly
 * reach.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/launched.h"
#include "tests/support/oracle/reference.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include "schemas/abi.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define REQUESTS 48u
#define HEADS_Q 4u
#define HEADS_KV 2u
#define DIM 64u
#define PAGE_SIZE 4u
#define PAGES 512u
#define PAGES_BEGIN 2u /* of a request, when the plan is set */
#define PAGES_EACH 16u
#define SLOTS 5u /* runs in flight; the last place is the prepared run's */
#define STEPS 150u
#define LANE_PREPARED 63u
#define ROW_ELEMENTS (REQUESTS * HEADS_Q * DIM)

/* What a run began with. */
struct run {
    int32_t kv_len[REQUESTS];
    uint32_t busy;
};

struct scene {
    struct attnd_session *session;
    uint32_t memory, pool, plan, prepared;
    uint16_t *q, *o[SLOTS + 1]; /* in `memory`, in this order */
    struct attnd_pool_info info;
    const uint16_t *pool_bits;
    int32_t page[REQUESTS][PAGES_EACH];
    uint32_t used[REQUESTS];
    int32_t kv_len[REQUESTS];
    struct run run[SLOTS + 1];
    uint32_t in_flight, advanced;
    uint64_t verified;
};

static uint64_t seed;
static int from_host; /* this process can launch */

/* ---- what there is ---- */

static void fill(uint16_t *to, uint64_t count, struct prng *prng)
{
    for (uint64_t i = 0; i < count; i++) /* fp16: 1/8 to 2, of either sign */
        to[i] = (uint16_t)((prng_next(prng) & 0x8000u) | (0x3000u + prng_below(prng, 0x1000)));
}

static void make_memory(struct scene *scene, struct prng *prng)
{
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = PAGES,
                                         .page_size = PAGE_SIZE,
                                         .heads_kv = HEADS_KV,
                                         .dim_qk = DIM,
                                         .dim_vo = DIM,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_ENGINE};
    const uint64_t row_bytes = ROW_ELEMENTS * sizeof(uint16_t);
    void *rows;

    CHECK_OK(attnd_pool_create(scene->session, &desc, &scene->pool));
    scene->info.size = sizeof(scene->info);
    CHECK_OK(attnd_pool_info(scene->session, scene->pool, &scene->info));
    uint16_t *bits = attnd_memory_address(scene->session, scene->info.memory);
    CHECK(bits != NULL);
    fill(bits, scene->info.memory_bytes / sizeof(*bits), prng);
    scene->pool_bits = bits;
    CHECK_OK(attnd_memory_create(scene->session, (SLOTS + 2) * row_bytes, &scene->memory, &rows));
    scene->q = rows;
    fill(scene->q, ROW_ELEMENTS, prng);
    for (uint32_t s = 0; s <= SLOTS; s++)
        scene->o[s] = scene->q + (s + 1) * ROW_ELEMENTS;
}

static struct attnd_tensor place(const struct scene *scene, const uint16_t *at)
{
    return (struct attnd_tensor){.memory = scene->memory,
                                 .offset_bytes = (uint64_t)(at - scene->q) * sizeof(*at)};
}

/* Collects completions, of runs too, until the advance or set of lane 0 is over. */
static void await_lane_0(struct scene *scene)
{
    struct attnd_completion done;

    for (;;) {
        CHECK_EQUAL(attnd_wait(scene->session, &done, 1, TRIAL_WAIT_NS), 1);
        CHECK_EQUAL(done.fault.code, 0);
        if (done.user_data == 0)
            return;
        scene->in_flight--;
    }
}

static void set(struct scene *scene, struct prng *prng)
{
    int32_t qo_indptr[REQUESTS + 1], kv_indptr[REQUESTS + 1], last[REQUESTS];
    int32_t pages[REQUESTS * PAGES_BEGIN];
    const struct attnd_level level = {REQUESTS, qo_indptr, kv_indptr, pages, last};
    const struct attnd_batch batch = {.size = sizeof(batch),
                                      .levels = 1,
                                      .flags = ATTND_CAUSAL,
                                      .reserve_pages = PAGES_EACH - PAGES_BEGIN,
                                      .level = &level};
    const struct attnd_op op = {0};

    for (uint32_t r = 0; r <= REQUESTS; r++) {
        qo_indptr[r] = (int32_t)r;
        kv_indptr[r] = (int32_t)(r * PAGES_BEGIN);
    }
    for (uint32_t r = 0; r < REQUESTS; r++) {
        last[r] = prng_between(prng, 1, PAGE_SIZE);
        scene->used[r] = PAGES_BEGIN;
        scene->kv_len[r] = (int32_t)((PAGES_BEGIN - 1) * PAGE_SIZE) + last[r];
        for (uint32_t p = 0; p < PAGES_BEGIN; p++)
            pages[r * PAGES_BEGIN + p] = scene->page[r][p] = prng_between(prng, 0, PAGES - 1);
    }
    CHECK_OK(attnd_plan_set(scene->session, scene->plan, &batch, &op));
    await_lane_0(scene);
}

static void open_scene(struct scene *scene, const struct harness *harness, struct prng *prng)
{
    memset(scene, 0, sizeof(*scene));
    scene->session = e2e_open(harness);
    make_memory(scene, prng);
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = scene->pool,
                                         .requests = REQUESTS,
                                         .rows = REQUESTS,
                                         .pages = REQUESTS * PAGES_EACH,
                                         .levels = 1,
                                         .heads_q = HEADS_Q};
    CHECK_OK(attnd_plan_create(scene->session, &args, &scene->plan));
    set(scene, prng);
}

/* From here on every advance is published at once. */
static void prepare(struct scene *scene)
{
    const struct attnd_prepare_args args = {.size = sizeof(args),
                                            .lane = LANE_PREPARED,
                                            .q = place(scene, scene->q),
                                            .o = place(scene, scene->o[SLOTS])};
    CHECK_OK(attnd_prepare(scene->session, scene->plan, &args, &scene->prepared));
}

/* ---- steps ---- */

/* @added: pages of each request; @kv_len within what it has then. */
static void advance(struct scene *scene, const uint32_t *added, const int32_t *kv_len,
                    struct prng *prng)
{
    int32_t indptr[REQUESTS + 1] = {0}, pages[REQUESTS * PAGES_EACH];
    uint32_t count = 0;

    for (uint32_t r = 0; r < REQUESTS; r++) {
        for (uint32_t p = 0; p < added[r]; p++)
            pages[count++] = scene->page[r][scene->used[r]++] = prng_between(prng, 0, PAGES - 1);
        indptr[r + 1] = (int32_t)count;
        scene->kv_len[r] = kv_len[r];
    }
    const struct attnd_advance args = {.size = sizeof(args),
                                       .entries = REQUESTS,
                                       .kv_len = kv_len,
                                       .page_indptr = count ? indptr : NULL,
                                       .page_indices = count ? pages : NULL};
    const struct attnd_op op = {0};
    CHECK_OK(attnd_plan_advance(scene->session, scene->plan, &args, &op));
    await_lane_0(scene);
    scene->advanced++;
}

/* A token each, mostly; now and then pages for a few or for all, and lengths of any kind. */
static void advance_somehow(struct scene *scene, struct prng *prng)
{
    uint32_t added[REQUESTS] = {0};
    int32_t kv_len[REQUESTS];
    const uint32_t grow_percent = prng_percent(prng, 50) ? 0 : prng_percent(prng, 80) ? 6 : 60;
    const int any = (int)prng_percent(prng, 15);

    for (uint32_t r = 0; r < REQUESTS; r++) {
        if (prng_percent(prng, grow_percent))
            added[r] = prng_below(prng, 3);
        if (scene->used[r] + added[r] > PAGES_EACH)
            added[r] = PAGES_EACH - scene->used[r];
        const int32_t room = (int32_t)((scene->used[r] + added[r]) * PAGE_SIZE);
        kv_len[r] =
            any || scene->kv_len[r] == room ? prng_between(prng, 0, room) : scene->kv_len[r] + 1;
    }
    advance(scene, added, kv_len, prng);
}

static void begin_run(struct scene *scene, uint32_t slot)
{
    memset(scene->o[slot], 0xff, ROW_ELEMENTS * sizeof(uint16_t));
    memcpy(scene->run[slot].kv_len, scene->kv_len, sizeof(scene->kv_len));
    scene->run[slot].busy = 1;
}

static void submit(struct scene *scene, uint32_t slot)
{
    const struct attnd_run_args args = {
        .size = sizeof(args), .q = place(scene, scene->q), .o = place(scene, scene->o[slot])};
    const struct attnd_op op = {.user_data = 1 + slot, .lane = (uint16_t)(1 + slot)};

    begin_run(scene, slot);
    CHECK_OK(attnd_run(scene->session, scene->plan, &args, &op));
    scene->in_flight++;
}

static struct reference_plane plane_of(const struct scene *scene, const struct attnd_plane *plane)
{
    return (struct reference_plane){scene->pool_bits + plane->offset_bytes / sizeof(uint16_t),
                                    plane->stride_page, plane->stride_token, plane->stride_head};
}

static void verify(struct scene *scene, uint32_t slot)
{
    static double o_want[ROW_ELEMENTS], lse_want[REQUESTS * HEADS_Q];
    int32_t qo_indptr[REQUESTS + 1], kv_indptr[REQUESTS + 1];
    struct reference_mismatch wrong;
    struct reference_batch batch = {.dtype = ATTND_DTYPE_FP16,
                                    .rows = REQUESTS,
                                    .heads_q = HEADS_Q,
                                    .heads_kv = HEADS_KV,
                                    .dim = DIM,
                                    .page_size = PAGE_SIZE,
                                    .causal = 1,
                                    .levels = 1,
                                    .q = {scene->q, HEADS_Q * DIM, DIM},
                                    .k = plane_of(scene, &scene->info.desc.k[0]),
                                    .v = plane_of(scene, &scene->info.desc.v[0])};
    const struct reference_rows o = {scene->o[slot], HEADS_Q * DIM, DIM};

    for (uint32_t r = 0; r <= REQUESTS; r++) {
        qo_indptr[r] = (int32_t)r;
        kv_indptr[r] = (int32_t)(r * PAGES_EACH);
    }
    batch.level[0] = (struct reference_level){REQUESTS, qo_indptr, kv_indptr, &scene->page[0][0],
                                              scene->run[slot].kv_len};
    reference_attend(&batch, o_want, lse_want);
    if (!reference_compare(&batch, o_want, lse_want, &o, NULL, 0, 0, &wrong)) {
        printf("after %u advances, run %u: %llu elements differ; o of request %u, head %u, dim %u "
               "is %g, not %g\n",
               scene->advanced, slot, (unsigned long long)wrong.count, wrong.row, wrong.head,
               wrong.dim, wrong.got, wrong.want);
        CHECK_FAIL("a run is not the reference's");
    }
    scene->run[slot].busy = 0;
    scene->verified++;
}

static void await_and_verify(struct scene *scene)
{
    struct attnd_completion done;

    for (; scene->in_flight; scene->in_flight--) {
        CHECK_EQUAL(attnd_wait(scene->session, &done, 1, TRIAL_WAIT_NS), 1);
        CHECK_EQUAL(done.fault.code, 0);
    }
    for (uint32_t s = 0; s < SLOTS; s++)
        if (scene->run[s].busy)
            verify(scene, s);
}

/* Advances and runs; the lists are full after a while and the plan is set again. */
static void go_on(struct scene *scene, uint32_t steps, struct prng *prng)
{
    for (uint32_t step = 0; step < steps; step++) {
        const uint32_t slot = step % SLOTS;
        if (slot == 0)
            await_and_verify(scene);
        if (step % 50 == 49) {
            await_and_verify(scene);
            set(scene, prng);
        }
        for (uint32_t more = 1 + prng_below(prng, 3); more; more--)
            advance_somehow(scene, prng);
        submit(scene, slot);
    }
    await_and_verify(scene);
}

/* ---- claims ---- */

static void runs_keep_the_lengths_they_began_with_while_the_plan_advances(void **state)
{
    struct prng prng = prng_fork(seed, 1);
    struct scene scene;

    open_scene(&scene, *state, &prng);
    go_on(&scene, STEPS, &prng);
    printf("%llu runs right after %u advances\n", (unsigned long long)scene.verified,
           scene.advanced);
    assert_int_equal(scene.verified, STEPS);
    attnd_close(scene.session);
}

/* The same of a plan with a prepared run: each advance is published, sets hold it. */
static void the_same_where_every_advance_is_published(void **state)
{
    struct prng prng = prng_fork(seed, 2);
    struct scene scene;

    open_scene(&scene, *state, &prng);
    prepare(&scene);
    go_on(&scene, STEPS, &prng);
    assert_int_equal(scene.verified, STEPS);
    attnd_close(scene.session);
}

static void a_launched_run_finds_the_lengths_that_were_published(void **state)
{
    struct prng prng = prng_fork(seed, 3);
    struct scene scene;

    if (!from_host)
        skip(); /* tests/gpu launches from a stream there */
    open_scene(&scene, *state, &prng);
    prepare(&scene);
    for (uint32_t step = 0; step < STEPS / 3; step++) {
        advance_somehow(&scene, &prng);
        begin_run(&scene, SLOTS);
        CHECK_OK(attnd_launch(scene.session, LANE_PREPARED, scene.prepared));
        CHECK_EQUAL(attnd_launch_wait(scene.session, LANE_PREPARED, TRIAL_WAIT_NS), 0);
        verify(&scene, SLOTS);
    }
    attnd_close(scene.session);
}

/* ---- bytes ---- */

static uint64_t plan_bytes(const struct harness *harness)
{
    Attnd__Status *status = harness_status(harness);
    const uint64_t bytes = status->plan_bytes;

    assert_true(status->has_plan_bytes);
    attnd__status__free_unpacked(status, NULL);
    return bytes;
}

/* A token of each request; @pages for the first @grown requests before, of which that token begins
 * the first. Return: bytes that were copied. */
static uint64_t grow(struct scene *scene, const struct harness *harness, uint32_t grown,
                     uint32_t pages, struct prng *prng)
{
    const uint64_t before = plan_bytes(harness);
    uint32_t added[REQUESTS] = {0};
    int32_t kv_len[REQUESTS];

    for (uint32_t r = 0; r < REQUESTS; r++) {
        added[r] = r < grown ? pages : 0;
        kv_len[r] = r < grown ? (int32_t)(scene->used[r] * PAGE_SIZE) + 1 : scene->kv_len[r];
    }
    advance(scene, added, kv_len, prng);
    return plan_bytes(harness) - before;
}

static void an_advance_copies_lengths_and_the_page_ids_they_reach(void **state)
{
    const uint64_t lengths = REQUESTS * sizeof(int32_t), vector = 16;
    struct prng prng = prng_fork(seed, 4);
    struct scene scene;

    if (!e2e_on_gpu())
        skip(); /* other workers read the plan where the daemon writes it */
    open_scene(&scene, *state, &prng);
    const uint64_t begin = plan_bytes(*state);
    prepare(&scene);
    assert_true(plan_bytes(*state) - begin >= REQUESTS * PAGES_EACH * sizeof(int32_t)); /* whole */
    assert_int_equal(grow(&scene, *state, 0, 0, &prng), lengths);
    assert_int_equal(grow(&scene, *state, 3, 1, &prng), lengths + 3 * vector);
    assert_int_equal(grow(&scene, *state, 40, 2, &prng), lengths + 40 * vector); /* one of two */
    assert_int_equal(grow(&scene, *state, 0, 0, &prng), lengths);
    await_and_verify(&scene);
    submit(&scene, 0);
    await_and_verify(&scene);
    attnd_close(scene.session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(runs_keep_the_lengths_they_began_with_while_the_plan_advances),
        E2E_TEST(the_same_where_every_advance_is_published),
        E2E_TEST(a_launched_run_finds_the_lengths_that_were_published),
        E2E_TEST(an_advance_copies_lengths_and_the_page_ids_they_reach),
    };

    harness_init();
    from_host = launched_from_host();
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
