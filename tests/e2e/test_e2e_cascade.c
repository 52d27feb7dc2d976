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
#include "tests/support/random/seed.h"
#include "tests/support/trial/decodes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define REQUESTS 24u
#define PAGE_SIZE 16u
#define PAGES 256u
#define SHARED_PAGES 128u /* 2,048 tokens, of all requests or of each half */
#define PAGES_BEGIN 130u
#define PAGES_EACH 136u
#define STEPS 20u
#define SHRINK_STEP 12u /* into shared pages */

static const struct decodes_shape shape = {REQUESTS, PAGES, PAGE_SIZE, PAGES_BEGIN, PAGES_EACH};

struct scene {
    struct decodes decodes;
    struct attnd_plan_info found; /* of the last set */
};

static uint64_t seed;
static int from_host; /* this process can launch */
static struct harness harness;

/* Requests in @groups of the same size; those of a group begin with the same pages. */
static void set(struct scene *scene, uint32_t groups, uint32_t flags, struct prng *prng)
{
    for (uint32_t r = 0; r < REQUESTS; r++) {
        const uint32_t first = groups ? r - r % (REQUESTS / groups) : r;
        for (uint32_t p = 0; p < PAGES_EACH; p++)
            scene->decodes.page[r][p] = r != first && p < SHARED_PAGES
                                            ? scene->decodes.page[first][p]
                                            : prng_between(prng, 0, PAGES - 1);
    }
    const struct attnd_completion done = decodes_set(&scene->decodes, flags, prng);
    scene->found = (struct attnd_plan_info){.size = sizeof(scene->found)};
    CHECK_OK(attnd_plan_info(&done, &scene->found));
}

/* Most requests by a token; some to any length of their own keys, with the first page of those that
 * are reserved; one into the shared ones if @shrink. */
static void advance(struct scene *scene, int shrink, struct prng *prng)
{
    const int32_t *before = scene->decodes.kv_len;
    int32_t kv_len[REQUESTS];
    const int32_t room = (int32_t)(PAGES_BEGIN * PAGE_SIZE);

    for (uint32_t r = 0; r < REQUESTS; r++)
        kv_len[r] = before[r] < room && prng_percent(prng, 80)
                        ? before[r] + 1
                        : prng_between(prng, (int32_t)(SHARED_PAGES * PAGE_SIZE) + 1, room);
    if (shrink)
        kv_len[prng_below(prng, REQUESTS)] = prng_between(prng, 0, SHARED_PAGES * PAGE_SIZE);
    decodes_advance(&scene->decodes, kv_len, NULL, NULL);
}

static void go_on(struct scene *scene, struct prng *prng)
{
    for (uint32_t step = 0; step < STEPS; step += DECODES_SLOTS) {
        for (uint32_t slot = 0; slot < DECODES_SLOTS; slot++) {
            advance(scene, step + slot == SHRINK_STEP, prng);
            decodes_submit(&scene->decodes, slot);
        }
        decodes_await_and_verify(&scene->decodes);
    }
}

static uint64_t saved_bytes(uint32_t groups)
{
    return (uint64_t)(REQUESTS - groups) * SHARED_PAGES * PAGE_SIZE * DECODES_HEADS_KV *
           DECODES_DIM * 2 * 2;
}

static void equal_leading_pages_are_found_and_results_are_the_same(void **state)
{
    struct prng prng = prng_fork(seed, 1);
    struct scene scene;

    decodes_open(&scene.decodes, *state, &shape, &prng);
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
    decodes_submit(&scene.decodes, 0);
    decodes_await_and_verify(&scene.decodes);
    decodes_close(&scene.decodes);
}

/* A cap is of each score, a sink is counted once a row, and a scale is of what comes out. */
static void so_they_are_with_a_cap_and_sinks_and_scales(void **state)
{
    struct prng prng = prng_fork(seed, 5);
    struct scene scene;
    uint32_t memory;
    void *sinks;

    decodes_open(&scene.decodes, *state, &shape, &prng);
    CHECK_OK(attnd_memory_create(scene.decodes.session, 4096, &memory, &sinks));
    for (uint32_t h = 0; h < DECODES_HEADS_Q; h++)
        ((float *)sinks)[h] = (float)prng_between(&prng, -3, 3);
    scene.decodes.sinks = sinks;
    scene.decodes.variant = (struct attnd_variant)ATTND_VARIANT_INIT;
    scene.decodes.variant.logits_soft_cap = 5.0f;
    scene.decodes.variant.v_scale = 0.5f;
    scene.decodes.variant.sinks.memory = memory;
    for (uint32_t groups = 0; groups <= 2; groups++) {
        set(&scene, groups, 0, &prng);
        if (!e2e_on_gpu())
            assert_int_equal(scene.found.shared_groups, groups);
        for (uint32_t slot = 0; slot < DECODES_SLOTS; slot++) {
            advance(&scene, slot == 3, &prng); /* without levels from there on */
            decodes_submit(&scene.decodes, slot);
        }
        decodes_await_and_verify(&scene.decodes);
    }
    decodes_close(&scene.decodes);
}

/* Each set holds the prepared run, each advance is published, and one plans again. */
static void launched_runs_of_such_a_plan_are_right(void **state)
{
    struct prng prng = prng_fork(seed, 2);
    struct scene scene;

    if (!from_host)
        skip(); /* tests/gpu launches from a stream there */
    decodes_open(&scene.decodes, *state, &shape, &prng);
    set(&scene, 1, 0, &prng);
    decodes_prepare(&scene.decodes);
    for (uint32_t step = 0; step < STEPS; step++) {
        if (step == STEPS / 2)
            set(&scene, 2, 0, &prng);
        advance(&scene, step % SHRINK_STEP == SHRINK_STEP - 1, &prng);
        decodes_submit(&scene.decodes, 0);
        decodes_launch(&scene.decodes);
        decodes_await_and_verify(&scene.decodes);
    }
    decodes_close(&scene.decodes);
}

/* Behind a run, on two lanes, and each of them would plan again: the second finds it done. */
static void advances_of_two_lanes_into_shared_pages_do_not_wait_for_each_other(void **state)
{
    struct prng prng = prng_fork(seed, 4);
    struct scene scene;

    decodes_open(&scene.decodes, *state, &shape, &prng);
    for (uint32_t round = 0; round < 8; round++) {
        int32_t *kv_len = scene.decodes.kv_len;
        const struct attnd_advance args = {
            .size = sizeof(args), .entries = REQUESTS, .kv_len = kv_len};
        struct attnd_completion done[3];
        set(&scene, 1, 0, &prng);
        for (uint32_t slot = 0; slot < 3; slot++)
            decodes_submit(&scene.decodes, slot);
        for (uint16_t lane = 10; lane < 12; lane++) {
            const struct attnd_op op = {.user_data = lane, .lane = lane};
            kv_len[lane] = prng_between(&prng, 0, SHARED_PAGES * PAGE_SIZE);
            CHECK_OK(attnd_plan_advance(scene.decodes.session, scene.decodes.plan, &args, &op));
        }
        for (uint32_t left = 2; left;) {
            CHECK_EQUAL(attnd_wait(scene.decodes.session, done, 1, 10000000000), 1);
            CHECK_EQUAL(done[0].fault.code, 0);
            scene.decodes.in_flight -= done[0].user_data < 10;
            left -= done[0].user_data >= 10;
        }
        decodes_await_and_verify(&scene.decodes);
        decodes_submit(&scene.decodes, 0);
        decodes_await_and_verify(&scene.decodes);
    }
    decodes_close(&scene.decodes);
}

static uint32_t groups_found(const char *mode, uint32_t flags)
{
    const char *const options[] = {"--cascade", mode, NULL};
    struct prng prng = prng_fork(seed, 3);
    struct scene scene;

    harness_start(&harness, options);
    decodes_open(&scene.decodes, &harness, &shape, &prng);
    set(&scene, 1, flags, &prng);
    decodes_submit(&scene.decodes, 0);
    decodes_await_and_verify(&scene.decodes);
    decodes_close(&scene.decodes);
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
        E2E_TEST(so_they_are_with_a_cap_and_sinks_and_scales),
        E2E_TEST(advances_of_two_lanes_into_shared_pages_do_not_wait_for_each_other),
        E2E_TEST(launched_runs_of_such_a_plan_are_right),
        E2E_OWN_TEST(the_service_looks_only_where_its_option_says),
    };

    harness_init();
    from_host = launched_from_host();
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
