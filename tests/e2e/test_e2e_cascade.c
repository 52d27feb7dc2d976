/*
 * test_e2e_cascade.c - requests that begin with the same pages, in batches that do not say so: what
 * the service finds, and that every result is what it would be without.
 *
 * The pool's contents never change. Runs are in flight on several lanes while lengths advance. Now
 * and then a request shrinks into pages that are read once for several, and the plan must do
 * without from then on. Each run is held against the reference with the lengths that it began with.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/launched.h"
#include "tests/support/oracle/reference.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define REQUESTS 24u
#define HEADS_Q 4u
#define HEADS_KV 2u
#define DIM 64u
#define PAGE_SIZE 16u
#define PAGES 256u
#define SHARED_PAGES 128u /* 2,048 tokens, of all requests or of each half */
#define PAGES_BEGIN 130u
#define PAGES_EACH 136u
#define SLOTS 4u
#define STEPS 40u
#define SHRINK_STEP 25u /* into shared pages */
#define LANE_PREPARED 63u
#define WAIT_NS 20000000000u
#define ROW_ELEMENTS (REQUESTS * HEADS_Q * DIM)

struct scene {
    struct attnd_session *session;
    uint32_t memory, pool, plan, prepared;
    uint16_t *q, *o[SLOTS + 1]; /* in `memory`, in this order */
    struct attnd_pool_info info;
    const uint16_t *pool_bits;
    int32_t page[REQUESTS][PAGES_EACH];
    int32_t kv_len[REQUESTS], begun[SLOTS + 1][REQUESTS];
    uint32_t in_flight;
    struct attnd_plan_info found; /* of the last set */
};

static uint64_t seed;
static int from_host; /* this process can launch */
static struct harness harness;

static void fill(uint16_t *to, uint64_t count, struct prng *prng)
{
    for (uint64_t i = 0; i < count; i++) /* fp16: 1/8 to 2, of either sign */
        to[i] = (uint16_t)((prng_next(prng) & 0x8000u) | (0x3000u + prng_below(prng, 0x1000)));
}

static void open_scene(struct scene *scene, const struct harness *service, struct prng *prng)
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
    struct attnd_plan_args args = {.size = sizeof(args),
                                   .requests = REQUESTS,
                                   .rows = REQUESTS,
                                   .pages = REQUESTS * PAGES_EACH,
                                   .levels = 1,
                                   .heads_q = HEADS_Q};
    void *rows;

    memset(scene, 0, sizeof(*scene));
    scene->session = e2e_open(service);
    CHECK_OK(attnd_pool_create(scene->session, &desc, &scene->pool));
    scene->info.size = sizeof(scene->info);
    CHECK_OK(attnd_pool_info(scene->session, scene->pool, &scene->info));
    uint16_t *bits = attnd_memory_address(scene->session, scene->info.memory);
    CHECK(bits != NULL);
    fill(bits, scene->info.memory_bytes / sizeof(*bits), prng);
    scene->pool_bits = bits;
    CHECK_OK(attnd_memory_create(scene->session, (SLOTS + 2) * ROW_ELEMENTS * sizeof(uint16_t),
                                 &scene->memory, &rows));
    scene->q = rows;
    fill(scene->q, ROW_ELEMENTS, prng);
    for (uint32_t s = 0; s <= SLOTS; s++)
        scene->o[s] = scene->q + (s + 1) * ROW_ELEMENTS;
    args.pool = scene->pool;
    CHECK_OK(attnd_plan_create(scene->session, &args, &scene->plan));
}

/* Collects completions, of runs too, until the operation of lane 0 is over. */
static struct attnd_completion await_lane_0(struct scene *scene)
{
    struct attnd_completion done;

    for (;;) {
        CHECK_EQUAL(attnd_wait(scene->session, &done, 1, WAIT_NS), 1);
        CHECK_EQUAL(done.fault.code, 0);
        if (done.user_data == 0)
            return done;
        scene->in_flight--;
    }
}

/* Requests in @groups of the same size; those of a group begin with the same pages. */
static void set(struct scene *scene, uint32_t groups, uint32_t flags, struct prng *prng)
{
    int32_t qo_indptr[REQUESTS + 1], kv_indptr[REQUESTS + 1], last[REQUESTS];
    static int32_t pages[REQUESTS * PAGES_BEGIN];
    const struct attnd_level level = {REQUESTS, qo_indptr, kv_indptr, pages, last};
    const struct attnd_batch batch = {.size = sizeof(batch),
                                      .levels = 1,
                                      .flags = ATTND_CAUSAL | flags,
                                      .reserve_pages = PAGES_EACH - PAGES_BEGIN,
                                      .level = &level};
    const struct attnd_op op = {0};

    for (uint32_t r = 0; r <= REQUESTS; r++) {
        qo_indptr[r] = (int32_t)r;
        kv_indptr[r] = (int32_t)(r * PAGES_BEGIN);
    }
    for (uint32_t r = 0; r < REQUESTS; r++) {
        const uint32_t first = groups ? r - r % (REQUESTS / groups) : r;
        last[r] = prng_between(prng, 1, PAGE_SIZE);
        scene->kv_len[r] = (int32_t)((PAGES_BEGIN - 1) * PAGE_SIZE) + last[r];
        for (uint32_t p = 0; p < PAGES_EACH; p++)
            scene->page[r][p] = r != first && p < SHARED_PAGES ? scene->page[first][p]
                                                               : prng_between(prng, 0, PAGES - 1);
        memcpy(pages + r * PAGES_BEGIN, scene->page[r], PAGES_BEGIN * sizeof(*pages));
    }
    CHECK_OK(attnd_plan_set(scene->session, scene->plan, &batch, &op));
    const struct attnd_completion done = await_lane_0(scene);
    scene->found = (struct attnd_plan_info){.size = sizeof(scene->found)};
    CHECK_OK(attnd_plan_info(&done, &scene->found));
}

/* Most requests by a token; some to any length of their own keys, with the first page of those that
 * are reserved; one into the shared ones if @shrink. */
static void advance(struct scene *scene, int shrink, struct prng *prng)
{
    int32_t kv_len[REQUESTS];
    const struct attnd_advance args = {.size = sizeof(args), .entries = REQUESTS, .kv_len = kv_len};
    const struct attnd_op op = {0};
    const int32_t room = (int32_t)(PAGES_BEGIN * PAGE_SIZE);

    for (uint32_t r = 0; r < REQUESTS; r++)
        kv_len[r] = scene->kv_len[r] < room && prng_percent(prng, 80)
                        ? scene->kv_len[r] + 1
                        : prng_between(prng, (int32_t)(SHARED_PAGES * PAGE_SIZE) + 1, room);
    if (shrink)
        kv_len[prng_below(prng, REQUESTS)] = prng_between(prng, 0, SHARED_PAGES * PAGE_SIZE);
    memcpy(scene->kv_len, kv_len, sizeof(kv_len));
    CHECK_OK(attnd_plan_advance(scene->session, scene->plan, &args, &op));
    (void)await_lane_0(scene);
}

static struct attnd_tensor place(const struct scene *scene, const uint16_t *at)
{
    return (struct attnd_tensor){.memory = scene->memory,
                                 .offset_bytes = (uint64_t)(at - scene->q) * sizeof(*at)};
}

static void begin_run(struct scene *scene, uint32_t slot)
{
    memset(scene->o[slot], 0xff, ROW_ELEMENTS * sizeof(uint16_t));
    memcpy(scene->begun[slot], scene->kv_len, sizeof(scene->kv_len));
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
                                              scene->begun[slot]};
    reference_attend(&batch, o_want, lse_want);
    if (reference_compare(&batch, o_want, lse_want, &o, NULL, 0, 0, &wrong))
        return;
    printf("run %u: %llu elements differ; o of request %u, head %u, dim %u is %g, not %g\n", slot,
           (unsigned long long)wrong.count, wrong.row, wrong.head, wrong.dim, wrong.got,
           wrong.want);
    CHECK_FAIL("a run is not the reference's");
}

static void await_and_verify(struct scene *scene, uint32_t slots)
{
    struct attnd_completion done;

    for (; scene->in_flight; scene->in_flight--) {
        CHECK_EQUAL(attnd_wait(scene->session, &done, 1, WAIT_NS), 1);
        CHECK_EQUAL(done.fault.code, 0);
    }
    for (uint32_t s = 0; s < slots; s++)
        verify(scene, s);
}

static void go_on(struct scene *scene, struct prng *prng)
{
    for (uint32_t step = 0; step < STEPS; step += SLOTS) {
        for (uint32_t slot = 0; slot < SLOTS; slot++) {
            advance(scene, step + slot == SHRINK_STEP, prng);
            submit(scene, slot);
        }
        await_and_verify(scene, SLOTS);
    }
}

static uint64_t saved_bytes(uint32_t groups)
{
    return (uint64_t)(REQUESTS - groups) * SHARED_PAGES * PAGE_SIZE * HEADS_KV * DIM * 2 * 2;
}

static void equal_leading_pages_are_found_and_results_are_the_same(void **state)
{
    struct prng prng = prng_fork(seed, 1);
    struct scene scene;

    open_scene(&scene, *state, &prng);
    for (uint32_t groups = 1; groups <= 2; groups++) {
        set(&scene, groups, 0, &prng);
        if (!e2e_on_gpu()) { /* there so little does not pay */
            assert_int_equal(scene.found.shared_groups, groups);
            assert_int_equal(scene.found.bytes_saved, saved_bytes(groups));
        }
        go_on(&scene, &prng);
    }
    set(&scene, 0, 0, &prng);
    assert_int_equal(scene.found.shared_groups, 0);
    assert_int_equal(scene.found.bytes_saved, 0);
    submit(&scene, 0);
    await_and_verify(&scene, 1);
    attnd_close(scene.session);
}

static void prepare(struct scene *scene)
{
    const struct attnd_prepare_args args = {.size = sizeof(args),
                                            .lane = LANE_PREPARED,
                                            .q = place(scene, scene->q),
                                            .o = place(scene, scene->o[SLOTS])};
    CHECK_OK(attnd_prepare(scene->session, scene->plan, &args, &scene->prepared));
}

/* Each set holds the prepared run, each advance is published, and one plans again. */
static void launched_runs_of_such_a_plan_are_right(void **state)
{
    struct prng prng = prng_fork(seed, 2);
    struct scene scene;

    if (!from_host)
        skip(); /* tests/gpu launches from a stream there */
    open_scene(&scene, *state, &prng);
    set(&scene, 1, 0, &prng);
    prepare(&scene);
    for (uint32_t step = 0; step < STEPS; step++) {
        if (step == STEPS / 2)
            set(&scene, 2, 0, &prng);
        advance(&scene, step % SHRINK_STEP == SHRINK_STEP - 1, &prng);
        submit(&scene, 0);
        begin_run(&scene, SLOTS);
        CHECK_OK(attnd_launch(scene.session, LANE_PREPARED, scene.prepared));
        CHECK_EQUAL(attnd_launch_wait(scene.session, LANE_PREPARED, WAIT_NS), 0);
        await_and_verify(&scene, 1);
        verify(&scene, SLOTS);
    }
    attnd_close(scene.session);
}

static uint32_t groups_found(const char *mode, uint32_t flags)
{
    const char *const options[] = {"--cascade", mode, NULL};
    struct prng prng = prng_fork(seed, 3);
    struct scene scene;

    harness_start(&harness, options);
    open_scene(&scene, &harness, &prng);
    set(&scene, 1, flags, &prng);
    submit(&scene, 0);
    await_and_verify(&scene, 1);
    attnd_close(scene.session);
    harness_stop(&harness);
    return scene.found.shared_groups;
}

static void the_service_looks_only_where_its_option_says(void **state)
{
    const uint32_t there = e2e_on_gpu() ? 0 : 1;

    (void)state;
    assert_int_equal(groups_found("off", ATTND_SHARED_PAGES), 0);
    assert_int_equal(groups_found("hint", 0), 0);
    assert_int_equal(groups_found("hint", ATTND_SHARED_PAGES), there);
    assert_int_equal(groups_found("auto", 0), there);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(equal_leading_pages_are_found_and_results_are_the_same),
        E2E_TEST(launched_runs_of_such_a_plan_are_right),
        E2E_OWN_TEST(the_service_looks_only_where_its_option_says),
    };

    harness_init();
    from_host = launched_from_host();
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
