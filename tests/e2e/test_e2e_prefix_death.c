/*
 * test_e2e_prefix_death.c - the prefix tree where engines are killed at any moment of a claim or a
 * publish, where the service begins again, and where somebody would write to a published page.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/random/seed.h"
#include "tests/support/trial/prefixes.h"

#include "client/attnd.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define PAGES 512u
#define PAGE_TOKENS 16u
#define DIM 64u
#define PAGE_WORDS (PAGE_TOKENS * DIM / 2u) /* of K */
#define BLOCKS 8u
#define BLOCK_PAGES 4u
#define BLOCKS_PAGES (BLOCKS * BLOCK_PAGES)
#define DEATHS 32u
#define DEATH_US_MAX 400u
#define WAIT_NS 20000000000u

static uint64_t seed;
static struct harness own;

struct side {
    struct attnd_session *session;
    uint32_t pool, prefix;
    struct attnd_pool_info info;
    uint8_t *bytes; /* of the pool */
};

struct shared {
    const struct harness *harness;
    struct attnd_token pool, prefix;
    uint32_t round, ready, never;
};

static void find_pool(struct side *side)
{
    side->info.size = sizeof(side->info);
    CHECK_OK(attnd_pool_info(side->session, side->pool, &side->info));
    side->bytes = attnd_memory_address(side->session, side->info.memory);
    CHECK(side->bytes != NULL);
}

static void side_open(struct side *side, const struct harness *harness)
{
    const struct attnd_prefix_desc desc = {.size = sizeof(desc), .block_pages = BLOCK_PAGES};

    side->session = e2e_open(harness);
    CHECK_OK(attnd_pool_create_leased(side->session, 1, PAGES, PAGE_TOKENS, 1, DIM,
                                      ATTND_DTYPE_FP16, &side->pool));
    CHECK_OK(attnd_prefix_open(side->session, side->pool, &desc, &side->prefix));
    find_pool(side);
}

/* The prompt of @round: its keys. */
static void make_keys(const struct side *side, uint32_t round, struct attnd_prefix_key *keys)
{
    struct attnd_prefix_info info = {.size = sizeof(info)};

    CHECK_OK(attnd_prefix_info(side->session, side->prefix, &info));
    for (uint32_t i = 0; i < BLOCKS; i++) {
        const uint32_t content[] = {round, i};
        attnd_prefix_key(info.salt, i ? &keys[i - 1] : NULL, content, sizeof(content), &keys[i]);
    }
}

/* Page @index of the prompt of @round is full of one word. */
static uint32_t word_of(uint32_t round, uint32_t index)
{
    return 0x30000000u + round * BLOCKS_PAGES + index;
}

static uint32_t *words_of(const struct side *side, int32_t page)
{
    const struct attnd_plane *k = &side->info.desc.k[0];

    return (uint32_t *)(void *)(side->bytes + k->offset_bytes +
                                2u * (uint64_t)(page * k->stride_page));
}

/* Computes a prompt, and then claims and publishes it block by block without a pause: its death
 * finds some of the operations submitted, some taken, some done. */
static int mortal(void *context)
{
    struct shared *shared = context;
    struct attnd_prefix_key keys[BLOCKS];
    struct side side = {.session = e2e_open(shared->harness)};
    int32_t pages[BLOCKS_PAGES];

    CHECK_OK(attnd_pool_attach(side.session, &shared->pool, &side.pool));
    CHECK_OK(attnd_prefix_attach(side.session, &shared->prefix, &side.prefix));
    find_pool(&side);
    make_keys(&side, shared->round, keys);
    CHECK_OK(attnd_pages_alloc(side.session, side.pool, BLOCKS_PAGES, pages));
    for (uint32_t p = 0; p < BLOCKS_PAGES; p++)
        for (uint32_t w = 0; w < PAGE_WORDS; w++)
            words_of(&side, pages[p])[w] = word_of(shared->round, p);
    harness_say(&shared->ready, 1);
    struct attnd_prefix_args args = prefix_args(side.prefix, keys, 0, BLOCKS);
    CHECK_OK(attnd_prefix_claim(side.session, &args, NULL));
    for (uint32_t b = 0; b < BLOCKS; b++) {
        args = prefix_args(side.prefix, keys, b, b + 1);
        CHECK_OK(attnd_prefix_publish(side.session, &args, pages + (size_t)b * BLOCK_PAGES, NULL));
    }
    harness_await(&shared->never, 1);
    return 1;
}

static int one_session_is_left(void *context)
{
    Attnd__Status *status = harness_status(context);
    const int left = status->n_sessions == 1;

    attnd__status__free_unpacked(status, NULL);
    return left;
}

static uint64_t pages_leased(const struct harness *harness)
{
    Attnd__Status *status = harness_status(harness);
    const uint64_t pages = status->pools[0]->pages_leased;

    CHECK_EQUAL(status->n_pools, 1);
    attnd__status__free_unpacked(status, NULL);
    return pages;
}

/* Return: blocks of the prompt that are there. Each is whole, its neighbours in the tree are not
 * claimed by anybody any more, and no page is leased but those of blocks. */
static uint32_t look(const struct side *side, const struct harness *harness, uint32_t round,
                     uint64_t leased_before)
{
    struct attnd_prefix_key keys[BLOCKS];

    make_keys(side, round, keys);
    struct attnd_prefix_args args = prefix_args(side->prefix, keys, 0, BLOCKS);
    CHECK_OK(attnd_prefix_match(side->session, &args, NULL));
    const struct attnd_prefix_result found = prefix_answer(side->session, NULL);
    CHECK_EQUAL(found.end, found.blocks == BLOCKS ? ATTND_PREFIX_END : ATTND_PREFIX_MISSING);
    CHECK_EQUAL(found.pages_count, found.blocks * BLOCK_PAGES);
    for (uint32_t p = 0; p < found.pages_count; p++)
        for (uint32_t w = 0; w < PAGE_WORDS; w++)
            CHECK_EQUAL(words_of(side, found.pages[p])[w], word_of(round, p));
    if (found.pages_count)
        CHECK_OK(attnd_pages_free(side->session, side->pool, found.pages_count, found.pages));
    CHECK_EQUAL(pages_leased(harness), leased_before + found.pages_count);
    return found.blocks;
}

static void a_kill_in_the_middle_of_a_claim_or_a_publish_leaves_whole_blocks(void **state)
{
    const struct harness *harness = *state;
    struct shared *shared = harness_shared(sizeof(*shared));
    struct prng prng = prng_fork(seed, 1);
    uint32_t halves = 0, all = 0;
    struct side side;

    if (e2e_on_gpu())
        skip(); /* the pool is looked at by its address */
    side_open(&side, harness);
    shared->harness = harness;
    CHECK_OK(attnd_pool_share(side.session, side.pool, 1, &shared->pool));
    CHECK_OK(attnd_prefix_share(side.session, side.prefix, 1, &shared->prefix));
    for (uint32_t round = 0; round < DEATHS; round++) {
        shared->round = round;
        shared->ready = 0;
        const uint64_t before = pages_leased(harness);
        CHECK(before + BLOCKS_PAGES <= PAGES); /* nothing has to be evicted */
        const pid_t pid = harness_fork(mortal, shared);
        harness_await(&shared->ready, 1);
        const uint64_t end_ns =
            harness_now_ns() + 1000u * (uint64_t)prng_below(&prng, DEATH_US_MAX);
        while (harness_now_ns() < end_ns)
            ;
        harness_kill(pid);
        harness_eventually(one_session_is_left, *state, 5000, "the session ends");
        const uint32_t blocks = look(&side, harness, round, before);
        halves += blocks > 0 && blocks < BLOCKS;
        all += blocks == BLOCKS;
        /* Room for the next one: what nobody holds goes. */
        if (before + 2u * BLOCKS_PAGES > PAGES) {
            static int32_t room[PAGES];
            CHECK_OK(attnd_pages_alloc(side.session, side.pool, PAGES, room));
            CHECK_OK(attnd_pages_free(side.session, side.pool, PAGES, room));
            CHECK_EQUAL(pages_leased(harness), 0);
        }
    }
    printf("of %u that were killed, %u had published all, %u a part\n", DEATHS, all, halves);
    attnd_close(side.session);
}

/* ---- the service begins again ---- */

static int log_says(const struct harness *harness, const char *what)
{
    char line[512];
    int times = 0;
    FILE *file = fopen(harness->log, "re");

    CHECK(file != NULL);
    while (fgets(line, sizeof(line), file))
        times += strstr(line, what) != NULL;
    (void)fclose(file);
    return times;
}

static uint32_t found_of(const struct side *side)
{
    struct attnd_prefix_key keys[BLOCKS];

    make_keys(side, 0, keys);
    struct attnd_prefix_args args = prefix_args(side->prefix, keys, 0, BLOCKS);
    CHECK_OK(attnd_prefix_match(side->session, &args, NULL));
    return prefix_answer(side->session, NULL).blocks;
}

static void publish_all(const struct side *side, int32_t *pages)
{
    struct attnd_prefix_key keys[BLOCKS];

    make_keys(side, 0, keys);
    struct attnd_prefix_args args = prefix_args(side->prefix, keys, 0, BLOCKS);
    CHECK_OK(attnd_pages_alloc(side->session, side->pool, BLOCKS_PAGES, pages));
    CHECK_OK(attnd_prefix_publish(side->session, &args, pages, NULL));
    CHECK_EQUAL(prefix_answer(side->session, NULL).taken, BLOCKS);
}

static void a_service_that_begins_again_is_empty_and_says_so(void **state)
{
    static const char said[] = "prefix trees begin empty";
    int32_t pages[BLOCKS_PAGES];
    struct side side;
    (void)state;

    harness_start(&own, NULL);
    CHECK_EQUAL(log_says(&own, said), 1);
    side_open(&side, &own);
    publish_all(&side, pages);
    CHECK_EQUAL(found_of(&side), BLOCKS);
    harness_kill_daemon(&own);
    attnd_close(side.session);
    harness_restart(&own, NULL);
    CHECK_EQUAL(log_says(&own, said), 2); /* its log goes on */
    side_open(&side, &own);
    CHECK_EQUAL(found_of(&side), 0);
    attnd_close(side.session);
    harness_stop(&own);
}

/* ---- what is published is not written ---- */

static int append_to(const struct side *side, int32_t page, uint32_t memory)
{
    static const int32_t one[] = {0, 1}, last[] = {PAGE_TOKENS};
    const struct attnd_level level = {1, one, one, &page, last};
    const struct attnd_batch batch = {.size = sizeof(batch), .level = &level};
    const struct attnd_plan_args room = {.size = sizeof(room),
                                         .pool = side->pool,
                                         .requests = 1,
                                         .rows = 1,
                                         .pages = 1,
                                         .levels = 1,
                                         .heads_q = 1};
    const struct attnd_append_args append = {
        .size = sizeof(append), .k = {memory, 0}, .v = {memory, 2u * DIM}};
    const struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS};
    struct attnd_completion done;
    uint32_t plan;

    CHECK_OK(attnd_plan_create(side->session, &room, &plan));
    CHECK_OK(attnd_plan_set(side->session, plan, &batch, &quiet));
    CHECK_OK(attnd_append(side->session, plan, &append, NULL));
    CHECK_EQUAL(attnd_wait(side->session, &done, 1, WAIT_NS), 1);
    CHECK_OK(attnd_plan_destroy(side->session, plan));
    return done.fault.code;
}

static void a_published_page_is_not_written_by_its_publisher_either(void **state)
{
    int32_t pages[BLOCKS_PAGES], page;
    uint32_t memory;
    struct side side;

    side_open(&side, *state);
    CHECK_OK(attnd_memory_create(side.session, 4096, &memory, NULL));
    CHECK_OK(attnd_pages_alloc(side.session, side.pool, 1, &page));
    CHECK_EQUAL(append_to(&side, page, memory), 0);
    publish_all(&side, pages);
    CHECK_EQUAL(append_to(&side, pages[5], memory), -ATTND_E_SHARED_PAGE);
    CHECK_OK(attnd_pages_free(side.session, side.pool, BLOCKS_PAGES, pages));
    CHECK_EQUAL(append_to(&side, page, memory), 0);
    CHECK_EQUAL(append_to(&side, pages[5], memory), -ATTND_E_NOT_LEASED);
    attnd_close(side.session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_kill_in_the_middle_of_a_claim_or_a_publish_leaves_whole_blocks),
        E2E_OWN_TEST(a_service_that_begins_again_is_empty_and_says_so),
        E2E_TEST(a_published_page_is_not_written_by_its_publisher_either),
    };

    harness_init();
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
