/*
 * test_e2e_host_cache.c - prefixes that were evicted to host memory and come back: every byte of
 * them, in whatever moment the worker dies.
 *
 * The model is a plain dictionary: for each block of a fixed set of prompts, whether it was ever
 * published. The bytes of a page follow from its block, so what a match finds can be checked
 * without anything else. A pool has room for a quarter of the blocks, the host for all or for half.
 */
#include "schemas/atomics.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"
#include "tests/support/trial/prefixes.h"
#include "tests/support/trial/trial.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 3u
#define PAGES 64u
#define BLOCK_PAGES 2u
#define PROMPTS 16u
#define BLOCKS 8u                        /* of a prompt */
#define FREE_PAGES (PAGES / 8)           /* that the service keeps free */
#define PAGE_BYTES (16u * 2u * 64u * 2u) /* of a plane */
#define ROUNDS 400u

struct side {
    struct attnd_session *session;
    uint32_t pool, prefix;
    struct attnd_pool_info info;
    struct attnd_prefix_key key[PROMPTS][BLOCKS];
    int published[PROMPTS][BLOCKS]; /* the dictionary */
    int worker_dies;
};

static const struct attnd_pool_desc pool_desc = {.size = sizeof(pool_desc),
                                                 .layers = LAYERS,
                                                 .pages = PAGES,
                                                 .page_size = 16,
                                                 .heads_kv = 2,
                                                 .dim_qk = 64,
                                                 .dim_vo = 64,
                                                 .dtype = ATTND_DTYPE_FP16,
                                                 .page_owner = ATTND_PAGES_OF_SERVICE};

static void side_open(struct side *side, const struct harness *harness, uint32_t compute_us)
{
    const struct attnd_prefix_desc desc = {
        .size = sizeof(desc), .block_pages = BLOCK_PAGES, .block_compute_us = compute_us};
    struct attnd_prefix_info prefix = {.size = sizeof(prefix)};

    memset(side, 0, sizeof(*side));
    side->info.size = sizeof(side->info);
    side->session = e2e_open(harness);
    CHECK_OK(attnd_pool_create(side->session, &pool_desc, &side->pool));
    CHECK_OK(attnd_pool_info(side->session, side->pool, &side->info));
    CHECK_OK(attnd_prefix_open(side->session, side->pool, &desc, &side->prefix));
    CHECK_OK(attnd_prefix_info(side->session, side->prefix, &prefix));
    for (uint32_t prompt = 0; prompt < PROMPTS; prompt++)
        for (uint32_t i = 0; i < BLOCKS; i++) {
            uint32_t tokens[] = {prompt, i};
            attnd_prefix_key(prefix.salt, i ? &side->key[prompt][i - 1] : NULL, tokens,
                             sizeof(tokens), &side->key[prompt][i]);
        }
}

/* ---- bytes ---- */

static uint8_t *extent(const struct side *side, uint32_t plane, int32_t page)
{
    const struct attnd_pool_desc *desc = &side->info.desc;
    const struct attnd_plane *at = plane < LAYERS ? &desc->k[plane] : &desc->v[plane - LAYERS];
    return (uint8_t *)side->info.address + at->offset_bytes +
           (uint64_t)page * (uint64_t)at->stride_page * 2;
}

/* Of page @index of a block, in one plane. */
static void make_bytes(const struct attnd_prefix_key *key, uint32_t index, uint32_t plane,
                       uint8_t bytes[PAGE_BYTES])
{
    struct prng prng = prng_fork(key->word[0] ^ key->word[1], index * 2 * LAYERS + plane);
    for (uint32_t i = 0; i < PAGE_BYTES; i += 8) {
        uint64_t word = prng_next(&prng);
        memcpy(bytes + i, &word, 8);
    }
}

static void write_block(const struct side *side, const struct attnd_prefix_key *key,
                        const int32_t *pages)
{
    for (uint32_t i = 0; i < BLOCK_PAGES; i++)
        for (uint32_t plane = 0; plane < 2 * LAYERS; plane++)
            make_bytes(key, i, plane, extent(side, plane, pages[i]));
}

static void check_block(const struct side *side, const struct attnd_prefix_key *key,
                        const int32_t *pages)
{
    uint8_t bytes[PAGE_BYTES];
    for (uint32_t i = 0; i < BLOCK_PAGES; i++)
        for (uint32_t plane = 0; plane < 2 * LAYERS; plane++) {
            make_bytes(key, i, plane, bytes);
            CHECK(memcmp(bytes, extent(side, plane, pages[i]), PAGE_BYTES) == 0);
        }
}

/* ---- operations ---- */

static struct attnd_prefix_args args_of(const struct side *side, uint32_t prompt, uint32_t begin,
                                        uint32_t end)
{
    return prefix_args(side->prefix, side->key[prompt], begin, end);
}

/* What is found is what was published, to the byte. Its leases end. Return: how many blocks. */
static uint32_t match(const struct side *side, uint32_t prompt, uint32_t count)
{
    struct attnd_prefix_args args = args_of(side, prompt, 0, count);
    int32_t pages[BLOCKS * BLOCK_PAGES];

    CHECK_OK(attnd_prefix_match(side->session, &args, NULL));
    struct attnd_prefix_result found = prefix_answer(side->session, pages);
    for (uint32_t i = 0; i < found.blocks; i++) {
        CHECK(side->published[prompt][i]);
        check_block(side, &side->key[prompt][i], pages + (size_t)i * BLOCK_PAGES);
    }
    if (found.blocks)
        CHECK_OK(attnd_pages_free(side->session, side->pool, found.blocks * BLOCK_PAGES, pages));
    return found.blocks;
}

struct lease {
    const struct side *side;
    uint32_t count;
    int32_t *pages;
};

static int is_leased(void *context)
{
    const struct lease *lease = context;
    int rc = attnd_pages_alloc(lease->side->session, lease->side->pool, lease->count, lease->pages);

    CHECK(rc >= 0 || rc == -ATTND_E_NO_SPACE);
    return rc >= 0;
}

/* There is always room, but that a worker which has died may have been copying: those pages are
 * free when the next one is there. */
static void lease_pages(const struct side *side, uint32_t count, int32_t *pages)
{
    struct lease lease = {side, count, pages};

    if (side->worker_dies)
        harness_eventually(is_leased, &lease, 20000, "what the dead worker copied is free again");
    else
        CHECK_OK(attnd_pages_alloc(side->session, side->pool, count, pages));
}

/* Blocks [@begin, @end), behind a parent that is leased meanwhile. Return: how many were taken. */
static uint32_t publish(struct side *side, uint32_t prompt, uint32_t begin, uint32_t end)
{
    struct attnd_prefix_args args = args_of(side, prompt, begin, end);
    uint32_t count = (end - begin) * BLOCK_PAGES;
    int32_t pages[BLOCKS * BLOCK_PAGES];

    lease_pages(side, count, pages);
    for (uint32_t i = begin; i < end; i++)
        write_block(side, &side->key[prompt][i], pages + (size_t)(i - begin) * BLOCK_PAGES);
    CHECK_OK(attnd_prefix_publish(side->session, &args, pages, NULL));
    struct attnd_prefix_result result = prefix_answer(side->session, NULL);
    for (uint32_t i = 0; i < result.blocks; i++)
        side->published[prompt][begin + i] = 1;
    CHECK_OK(attnd_pages_free(side->session, side->pool, count, pages));
    return result.taken;
}

/* ---- what the service says ---- */

struct seen {
    uint32_t pages_free;
    uint64_t used_bytes, made_bytes, out_blocks, in_blocks, recalled_blocks, lost_blocks;
    uint64_t declined_blocks, evicted_blocks;
};

static struct seen look(const struct harness *harness)
{
    Attnd__Status *status = harness_status(harness);
    const Attnd__HostCache *cache = status->host_cache;
    CHECK(cache != NULL && status->n_pools == 1);
    const struct seen seen = {.pages_free = PAGES - status->pools[0]->pages_leased,
                              .used_bytes = cache->used_bytes,
                              .made_bytes = cache->made_bytes,
                              .out_blocks = cache->out_blocks,
                              .in_blocks = cache->in_blocks,
                              .recalled_blocks = cache->recalled_blocks,
                              .lost_blocks = cache->lost_blocks,
                              .declined_blocks = cache->declined_blocks,
                              .evicted_blocks = cache->evicted_blocks};
    attnd__status__free_unpacked(status, NULL);
    return seen;
}

static int has_room(void *context)
{
    return look(context).pages_free >= FREE_PAGES;
}

/* What was to leave has left: then the next allocation evicts nothing in a hurry. */
static void await_room(struct harness *harness)
{
    harness_eventually(has_room, harness, 20000, "a part of the pool is free again");
}

static struct harness own;

static void start(const char *cache)
{
    const char *const options[] = {"--host-cache", cache, NULL};
    memset(&own, 0, sizeof(own));
    harness_start(&own, options);
}

/* Every prompt, in parts that the free part of the pool has room for. */
static void publish_all(struct side *side)
{
    for (uint32_t prompt = 0; prompt < PROMPTS; prompt++)
        for (uint32_t begin = 0; begin < BLOCKS; begin += 2) {
            await_room(&own);
            CHECK_EQUAL(publish(side, prompt, begin, begin + 2), 2);
        }
    await_room(&own);
}

/* ---- claims ---- */

static void nothing_that_was_published_is_lost_while_the_host_has_room(void **state)
{
    struct side side;
    (void)state;
    start("64M");
    side_open(&side, &own, 0);
    publish_all(&side);
    struct seen before = look(&own);
    CHECK(before.out_blocks >= PROMPTS * BLOCKS - PAGES / BLOCK_PAGES);
    CHECK_EQUAL(before.lost_blocks, 0);
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t prompt = 0; prompt < PROMPTS; prompt++) {
            CHECK_EQUAL(match(&side, prompt, BLOCKS), BLOCKS);
            await_room(&own);
        }
    struct seen after = look(&own);
    CHECK(after.in_blocks >= PROMPTS * BLOCKS);
    CHECK_EQUAL(after.lost_blocks, 0);
    /* What came back is still on the host: to evict it again copies nothing. */
    CHECK(after.out_blocks <= PROMPTS * BLOCKS);
    attnd_close(side.session);
    harness_stop(&own);
}

static void the_host_gives_up_what_was_used_least_recently(void **state)
{
    struct side side;
    uint32_t found[PROMPTS], all = 0;
    (void)state;
    start("3M"); /* 128 pages: half of the blocks */
    side_open(&side, &own, 0);
    publish_all(&side);
    struct seen seen = look(&own);
    CHECK(seen.evicted_blocks > 0);
    CHECK(seen.used_bytes <= seen.made_bytes && seen.made_bytes <= 3u << 20);
    /* The last prompts are there, whole; the first are gone. */
    for (uint32_t prompt = PROMPTS; prompt-- > 0;) {
        found[prompt] = match(&side, prompt, BLOCKS);
        all += found[prompt];
        await_room(&own);
    }
    CHECK_EQUAL(found[PROMPTS - 1], BLOCKS);
    CHECK_EQUAL(found[0], 0);
    CHECK(all >= PROMPTS * BLOCKS / 2);
    attnd_close(side.session);
    harness_stop(&own);
}

static void a_match_waits_for_what_comes_back_and_others_wait_with_it(void **state)
{
    struct side side;
    struct attnd_completion completion[2];
    (void)state;
    start("64M");
    side_open(&side, &own, 0);
    publish_all(&side);
    /* Both at once: one brings it, the other finds the claim. */
    struct attnd_prefix_args args = args_of(&side, 0, 0, BLOCKS);
    struct seen before = look(&own);
    CHECK_OK(attnd_prefix_match(side.session, &args, &(struct attnd_op){.user_data = 1}));
    CHECK_OK(
        attnd_prefix_match(side.session, &args, &(struct attnd_op){.user_data = 2, .lane = 1}));
    for (uint32_t i = 0; i < 2; i++) {
        struct attnd_prefix_result result = {.size = sizeof(result)};
        CHECK_EQUAL(attnd_wait(side.session, completion, 1, 20000000000u), 1);
        CHECK_EQUAL(completion[0].fault.code, 0);
        CHECK_OK(attnd_prefix_result(side.session, completion, &result));
        CHECK_EQUAL(result.blocks, BLOCKS);
        check_block(&side, &side.key[0][BLOCKS - 1], result.pages + (BLOCKS - 1) * BLOCK_PAGES);
    }
    CHECK_EQUAL(look(&own).in_blocks - before.in_blocks, BLOCKS);
    attnd_close(side.session);
    harness_stop(&own);
}

static void what_is_computed_sooner_is_not_brought_back(void **state)
{
    struct side side;
    (void)state;
    start("64M");
    side_open(&side, &own, 1); /* a microsecond a block */
    publish_all(&side);
    CHECK_EQUAL(match(&side, 0, BLOCKS), BLOCKS); /* nobody knows yet how long it takes */
    await_room(&own);
    CHECK_EQUAL(match(&side, 1, BLOCKS), 0);
    CHECK_EQUAL(look(&own).declined_blocks, BLOCKS);
    /* So it is computed, and found. */
    CHECK_EQUAL(publish(&side, 1, 0, 2), 2);
    CHECK_EQUAL(match(&side, 1, 2), 2);
    attnd_close(side.session);
    harness_stop(&own);
}

static void an_allocation_of_the_whole_pool_finds_every_page(void **state)
{
    struct side side;
    int32_t all[PAGES];
    (void)state;
    start("64M");
    side_open(&side, &own, 0);
    for (uint32_t round = 0; round < 20; round++) {
        for (uint32_t prompt = 0; prompt < 4; prompt++)
            (void)publish(&side, prompt, 0, BLOCKS); /* in a hurry: some are being copied */
        CHECK_OK(attnd_pages_alloc(side.session, side.pool, PAGES, all));
        CHECK_OK(attnd_pages_free(side.session, side.pool, PAGES, all));
        (void)match(&side, round % 4, BLOCKS);
    }
    attnd_close(side.session);
    harness_stop(&own);
}

static void a_namespace_lives_on_the_host_without_an_engine(void **state)
{
    struct attnd_token pool_token, prefix_token;
    struct side side, heir;
    int32_t all[PAGES];
    (void)state;
    start("64M");
    side_open(&side, &own, 0);
    publish_all(&side);
    CHECK_OK(attnd_pool_share(side.session, side.pool, 1, &pool_token));
    CHECK_OK(attnd_prefix_share(side.session, side.prefix, 1, &prefix_token));
    heir = side;
    heir.session = e2e_open(&own);
    CHECK_OK(attnd_pool_attach(heir.session, &pool_token, &heir.pool));
    CHECK_OK(attnd_pool_info(heir.session, heir.pool, &heir.info));
    attnd_close(side.session);
    /* Not one block is left in the pool, and nobody has a handle of the namespace. */
    for (uint32_t taken = 0; taken < PAGES; taken += FREE_PAGES) {
        await_room(&own);
        CHECK_OK(attnd_pages_alloc(heir.session, heir.pool, FREE_PAGES, all + taken));
        if (taken + FREE_PAGES < PAGES - FREE_PAGES)
            continue;
        CHECK_OK(attnd_pages_alloc(heir.session, heir.pool, FREE_PAGES, all + taken + FREE_PAGES));
        break;
    }
    CHECK_OK(attnd_pages_free(heir.session, heir.pool, PAGES, all));
    CHECK_OK(attnd_prefix_attach(heir.session, &prefix_token, &heir.prefix));
    uint32_t found = 0;
    for (uint32_t prompt = 0; prompt < PROMPTS; prompt++) {
        found += match(&heir, prompt, BLOCKS);
        await_room(&own);
    }
    CHECK(found >= PROMPTS * BLOCKS - FREE_PAGES / BLOCK_PAGES);
    attnd_close(heir.session);
    harness_stop(&own);
}

static void hostile_sizes_leave_the_service_as_it_was(void **state)
{
    static const char *const sizes[] = {"1", "24575", "24576", "64K", "1G"};
    (void)state;
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct side side;
        start(sizes[i]);
        side_open(&side, &own, UINT32_MAX);
        for (uint32_t prompt = 0; prompt < 6; prompt++) {
            (void)publish(&side, prompt, 0, BLOCKS);
            (void)match(&side, 0, BLOCKS);
        }
        attnd_close(side.session);
        harness_stop(&own);
    }
}

/* ---- beside runs ---- */

struct runner {
    uint32_t right, stop;
};

/* Batches of another engine, each of which is held against the reference. */
static int keep_running(void *context)
{
    struct runner *self = context;
    struct random_batch batch = e2e_batch();
    struct engine engine;

    engine_open(&engine, own.socket, "runs");
    while (!attnd_observe32(&self->stop)) {
        batch.seed++;
        trial_expect(&engine, &batch);
        (void)attnd_arrive32(&self->right, 1);
    }
    engine_close(&engine);
    return 0;
}

static int has_run(void *context)
{
    return attnd_observe32(&((const struct runner *)context)->right) > 0;
}

static uint64_t blocks_in(void)
{
    Attnd__Status *status = harness_status(&own);
    const uint64_t blocks = status->host_cache->in_blocks;

    attnd__status__free_unpacked(status, NULL);
    return blocks;
}

static void runs_go_on_while_blocks_come_back(void **state)
{
    struct runner *runner = harness_shared(sizeof(*runner));
    struct side side;
    (void)state;

    start("64M");
    side_open(&side, &own, 0);
    publish_all(&side);
    const pid_t pid = harness_fork(keep_running, runner);
    harness_eventually(has_run, runner, 20000, "the other engine runs");
    const uint64_t in_before = blocks_in();
    const uint32_t right_before = attnd_observe32(&runner->right);
    while (blocks_in() - in_before < PROMPTS * BLOCKS ||
           attnd_observe32(&runner->right) - right_before < 10)
        for (uint32_t prompt = 0; prompt < PROMPTS; prompt++)
            (void)match(&side, prompt, BLOCKS);
    harness_say(&runner->stop, 1);
    CHECK_EQUAL(harness_join(pid, 20000), 0);
    attnd_close(side.session);
    harness_stop(&own);
}

/* ---- at random, against the dictionary ---- */

static void one(struct side *side, struct prng *prng)
{
    uint32_t prompt = prng_below(prng, PROMPTS), count = 1 + prng_below(prng, BLOCKS);
    int32_t held[BLOCKS * BLOCK_PAGES];

    if (prng_below(prng, 3) == 0) {
        (void)match(side, prompt, count);
        return;
    }
    /* As an engine does: what is there is leased, the rest is computed. */
    struct attnd_prefix_args args = args_of(side, prompt, 0, count);
    CHECK_OK(attnd_prefix_match(side->session, &args, NULL));
    struct attnd_prefix_result found = prefix_answer(side->session, held);
    for (uint32_t i = 0; i < found.blocks; i++) {
        CHECK(side->published[prompt][i]);
        check_block(side, &side->key[prompt][i], held + (size_t)i * BLOCK_PAGES);
    }
    if (found.blocks < count)
        (void)publish(side, prompt, found.blocks, count);
    /* Others' copies have gone on: what is leased has not changed. */
    for (uint32_t i = 0; i < found.blocks; i++)
        check_block(side, &side->key[prompt][i], held + (size_t)i * BLOCK_PAGES);
    if (found.blocks)
        CHECK_OK(attnd_pages_free(side->session, side->pool, found.blocks * BLOCK_PAGES, held));
}

/* Whichever worker there is; where none has come since the last death, there is nobody to kill. */
static void kill_worker(void)
{
    Attnd__Status *status = harness_status(&own);

    if (status->worker_pid > 1)
        (void)kill((pid_t)status->worker_pid, SIGKILL);
    attnd__status__free_unpacked(status, NULL);
}

static void at_random(const char *cache, uint32_t deaths, uint64_t seed)
{
    struct prng prng = prng_fork(seed, deaths);
    struct side side;

    start(cache);
    side_open(&side, &own, 0);
    side.worker_dies = deaths > 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        if (deaths && prng_below(&prng, ROUNDS / deaths) == 0)
            kill_worker();
        one(&side, &prng);
    }
    /* A worker that takes long to come back may have moved nothing yet. */
    struct seen seen = look(&own);
    for (; seen.out_blocks == 0 || seen.in_blocks == 0; seen = look(&own)) {
        await_room(&own);
        one(&side, &prng);
    }
    printf("%s, %u deaths: %llu out, %llu in, %llu turned back, %llu lost, %llu evicted\n", cache,
           deaths, (unsigned long long)seen.out_blocks, (unsigned long long)seen.in_blocks,
           (unsigned long long)seen.recalled_blocks, (unsigned long long)seen.lost_blocks,
           (unsigned long long)seen.evicted_blocks);
    attnd_close(side.session);
    harness_stop(&own);
}

static void what_is_found_is_what_was_published(void **state)
{
    uint64_t seed = test_seed();
    (void)state;
    at_random("64M", 0, seed);
    at_random("3M", 0, seed);
}

static void a_worker_that_dies_in_the_middle_changes_no_byte(void **state)
{
    uint64_t seed = test_seed();
    (void)state;
    at_random("64M", 4, seed);
    at_random("3M", 4, seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(nothing_that_was_published_is_lost_while_the_host_has_room),
        E2E_OWN_TEST(the_host_gives_up_what_was_used_least_recently),
        E2E_OWN_TEST(a_match_waits_for_what_comes_back_and_others_wait_with_it),
        E2E_OWN_TEST(what_is_computed_sooner_is_not_brought_back),
        E2E_OWN_TEST(an_allocation_of_the_whole_pool_finds_every_page),
        E2E_OWN_TEST(a_namespace_lives_on_the_host_without_an_engine),
        E2E_OWN_TEST(hostile_sizes_leave_the_service_as_it_was),
        E2E_OWN_TEST(runs_go_on_while_blocks_come_back),
        E2E_OWN_TEST(what_is_found_is_what_was_published),
        E2E_OWN_TEST(a_worker_that_dies_in_the_middle_changes_no_byte),
    };
    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
