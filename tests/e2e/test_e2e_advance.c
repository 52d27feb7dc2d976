/*
 * test_e2e_advance.c - a plan that is advanced again and again, and what runs of it compute.
 *
 * The pool's contents never change: what a run computes depends on its lengths and page lists only.
 * Some advances append pages, to some requests or to all; some shorten; several may follow each
 * other without a run in between. Several runs are in flight while lengths advance, and each is
 * held against the reference with the lengths that it began with (decodes.h).
 *
 * On a GPU the worker has a copy of the plan behind the bus. Its daemon counts what is copied
 * there, and an advance must cost the lengths of one generation and the page ids that they newly
 * reach.
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

#define REQUESTS 48u
#define PAGE_SIZE 4u
#define PAGES 512u
#define PAGES_BEGIN 2u
#define PAGES_EACH 16u
#define STEPS 150u

static const struct decodes_shape shape = {REQUESTS, PAGES, PAGE_SIZE, PAGES_BEGIN, PAGES_EACH};

struct scene {
    struct decodes decodes;
    uint32_t used[REQUESTS]; /* pages of each request */
};

static uint64_t seed;
static int from_host; /* this process can launch */

static void set(struct scene *scene, struct prng *prng)
{
    for (uint32_t r = 0; r < REQUESTS; r++) {
        scene->used[r] = PAGES_BEGIN;
        for (uint32_t p = 0; p < PAGES_BEGIN; p++)
            scene->decodes.page[r][p] = prng_between(prng, 0, PAGES - 1);
    }
    (void)decodes_set(&scene->decodes, 0, prng);
}

static void open_scene(struct scene *scene, const struct harness *harness, struct prng *prng)
{
    decodes_open(&scene->decodes, harness, &shape, prng);
    set(scene, prng);
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
            pages[count++] = scene->decodes.page[r][scene->used[r]++] =
                prng_between(prng, 0, PAGES - 1);
        indptr[r + 1] = (int32_t)count;
    }
    decodes_advance(&scene->decodes, kv_len, count ? indptr : NULL, count ? pages : NULL);
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
        const int32_t before = scene->decodes.kv_len[r];
        kv_len[r] = any || before == room ? prng_between(prng, 0, room) : before + 1;
    }
    advance(scene, added, kv_len, prng);
}

/* Advances and runs; the lists are full after a while and the plan is set again. */
static void go_on(struct scene *scene, uint32_t steps, struct prng *prng)
{
    for (uint32_t step = 0; step < steps; step++) {
        const uint32_t slot = step % DECODES_SLOTS;
        if (slot == 0)
            decodes_await_and_verify(&scene->decodes);
        if (step % 50 == 49) {
            decodes_await_and_verify(&scene->decodes);
            set(scene, prng);
        }
        for (uint32_t more = 1 + prng_below(prng, 3); more; more--)
            advance_somehow(scene, prng);
        decodes_submit(&scene->decodes, slot);
    }
    decodes_await_and_verify(&scene->decodes);
}

/* ---- claims ---- */

static void runs_keep_the_lengths_they_began_with_while_the_plan_advances(void **state)
{
    struct prng prng = prng_fork(seed, 1);
    struct scene scene;

    open_scene(&scene, *state, &prng);
    go_on(&scene, STEPS, &prng);
    printf("%llu runs right after %u advances\n", (unsigned long long)scene.decodes.verified,
           scene.decodes.advanced);
    assert_int_equal(scene.decodes.verified, STEPS);
    decodes_close(&scene.decodes);
}

/* The same of a plan with a prepared run: each advance is published, sets hold it. */
static void the_same_where_every_advance_is_published(void **state)
{
    struct prng prng = prng_fork(seed, 2);
    struct scene scene;

    open_scene(&scene, *state, &prng);
    decodes_prepare(&scene.decodes);
    go_on(&scene, STEPS, &prng);
    assert_int_equal(scene.decodes.verified, STEPS);
    decodes_close(&scene.decodes);
}

static void a_launched_run_finds_the_lengths_that_were_published(void **state)
{
    struct prng prng = prng_fork(seed, 3);
    struct scene scene;

    if (!from_host)
        skip(); /* tests/gpu launches from a stream there */
    open_scene(&scene, *state, &prng);
    decodes_prepare(&scene.decodes);
    for (uint32_t step = 0; step < STEPS / 3; step++) {
        advance_somehow(&scene, &prng);
        decodes_launch(&scene.decodes);
    }
    decodes_close(&scene.decodes);
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
        kv_len[r] =
            r < grown ? (int32_t)(scene->used[r] * PAGE_SIZE) + 1 : scene->decodes.kv_len[r];
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
    decodes_prepare(&scene.decodes);
    assert_true(plan_bytes(*state) - begin >= REQUESTS * PAGES_EACH * sizeof(int32_t)); /* whole */
    assert_int_equal(grow(&scene, *state, 0, 0, &prng), lengths);
    assert_int_equal(grow(&scene, *state, 3, 1, &prng), lengths + 3 * vector);
    assert_int_equal(grow(&scene, *state, 40, 2, &prng), lengths + 40 * vector); /* one of two */
    assert_int_equal(grow(&scene, *state, 0, 0, &prng), lengths);
    decodes_await_and_verify(&scene.decodes);
    decodes_submit(&scene.decodes, 0);
    decodes_await_and_verify(&scene.decodes);
    decodes_close(&scene.decodes);
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
