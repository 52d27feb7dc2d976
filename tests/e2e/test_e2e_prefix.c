/*
 * test_e2e_prefix.c - one prefix tree between engines that are processes of their own, and die.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/prefixes.h"
#include "tests/support/trial/trial.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define PAGES 64u
#define BLOCKS 8u

struct engine_side {
    struct attnd_session *session;
    uint32_t pool, prefix;
};

/* What two processes have of each other. */
struct shared {
    const struct harness *harness;
    struct attnd_token pool, prefix;
    uint32_t ready, never;
    int publishes; /* blocks; the rest is claimed */
};

static const struct attnd_pool_desc pool_desc = {.size = sizeof(pool_desc),
                                                 .layers = 1,
                                                 .pages = PAGES,
                                                 .page_size = 16,
                                                 .heads_kv = 1,
                                                 .dim_qk = 64,
                                                 .dim_vo = 64,
                                                 .dtype = ATTND_DTYPE_FP16,
                                                 .page_owner = ATTND_PAGES_OF_SERVICE};

static void side_open_of(struct engine_side *side, const struct harness *harness,
                         const struct attnd_pool_desc *pool)
{
    side->session = e2e_open(harness);
    CHECK_OK(attnd_pool_create(side->session, pool, &side->pool));
    const struct attnd_prefix_desc desc = {.size = sizeof(desc), .block_pages = 1};
    CHECK_OK(attnd_prefix_open(side->session, side->pool, &desc, &side->prefix));
}

static void side_open(struct engine_side *side, const struct harness *harness)
{
    side_open_of(side, harness, &pool_desc);
}

static void side_share(const struct engine_side *side, int writable, struct shared *shared)
{
    CHECK_OK(attnd_pool_share(side->session, side->pool, 1, &shared->pool));
    CHECK_OK(attnd_prefix_share(side->session, side->prefix, writable, &shared->prefix));
}

static void side_attach(struct engine_side *side, const struct harness *harness,
                        const struct shared *shared)
{
    side->session = e2e_open(harness);
    CHECK_OK(attnd_pool_attach(side->session, &shared->pool, &side->pool));
    CHECK_OK(attnd_prefix_attach(side->session, &shared->prefix, &side->prefix));
}

/* The prompt that all tests have: its keys are the namespace's. */
static void make_keys(const struct engine_side *side, struct attnd_prefix_key *keys)
{
    struct attnd_prefix_info info = {.size = sizeof(info)};
    CHECK_OK(attnd_prefix_info(side->session, side->prefix, &info));
    for (uint32_t i = 0; i < BLOCKS; i++)
        attnd_prefix_key(info.salt, i ? &keys[i - 1] : NULL, &i, sizeof(i), &keys[i]);
}

static int failure(const struct engine_side *side, struct attnd_fault *fault)
{
    struct attnd_completion completion;
    CHECK_EQUAL(attnd_wait(side->session, &completion, 1, 20000000000u), 1);
    *fault = completion.fault;
    return completion.fault.code;
}

static struct attnd_prefix_result match(const struct engine_side *side,
                                        const struct attnd_prefix_key *keys, uint32_t flags,
                                        int32_t *pages)
{
    struct attnd_prefix_args args = prefix_args(side->prefix, keys, 0, BLOCKS);
    args.flags = flags;
    CHECK_OK(attnd_prefix_match(side->session, &args, NULL));
    return prefix_answer(side->session, pages);
}

static struct attnd_prefix_result publish(const struct engine_side *side,
                                          const struct attnd_prefix_key *keys, uint32_t begin,
                                          uint32_t end, int32_t *pages)
{
    struct attnd_prefix_args args = prefix_args(side->prefix, keys, begin, end);
    CHECK_OK(attnd_pages_alloc(side->session, side->pool, end - begin, pages));
    CHECK_OK(attnd_prefix_publish(side->session, &args, pages, NULL));
    return prefix_answer(side->session, NULL);
}

static void what_one_engine_published_another_reads_after_its_death(void **state)
{
    struct harness *harness = *state;
    struct attnd_prefix_key keys[BLOCKS];
    int32_t pages[BLOCKS], found[BLOCKS];
    struct engine_side a, b;
    struct shared shared;

    side_open(&a, harness);
    side_share(&a, 0, &shared);
    side_attach(&b, harness, &shared);
    make_keys(&a, keys);
    CHECK_EQUAL(match(&b, keys, 0, NULL).blocks, 0);
    CHECK_EQUAL(publish(&a, keys, 0, BLOCKS, pages).taken, BLOCKS);
    attnd_close(a.session);
    struct attnd_prefix_result result = match(&b, keys, 0, found);
    CHECK_EQUAL(result.blocks, BLOCKS);
    CHECK_EQUAL(result.foreign, BLOCKS);
    CHECK_EQUAL(result.end, ATTND_PREFIX_END);
    CHECK(memcmp(found, pages, sizeof(pages)) == 0);
    CHECK_OK(attnd_pages_free(b.session, b.pool, BLOCKS, found));
    CHECK_ERROR(attnd_pages_free(b.session, b.pool, 1, found), ATTND_E_NOT_LEASED);
    attnd_close(b.session);
}

/* A batch of @side: requests of one row, which begin with the same pages and have one of their own
 * each. Return: what the planner found. */
static struct attnd_plan_info plan_behind(const struct engine_side *side, uint32_t requests,
                                          const int32_t *prefix, int32_t page_size)
{
    int32_t rows[PAGES], lists[PAGES], pages[PAGES * (BLOCKS + 1)], last[PAGES], own[PAGES];
    struct attnd_level level = {requests, rows, lists, pages, last};
    const struct attnd_batch batch = ATTND_ARGS(batch, .flags = ATTND_CAUSAL, .level = &level);
    const struct attnd_plan_args args = ATTND_ARGS(plan_args, side->pool, requests, requests,
                                                   requests * (BLOCKS + 1), 1, .heads_q = 4);
    struct attnd_plan_info found = {.size = sizeof(found)};
    struct attnd_completion done;
    uint32_t plan;

    CHECK(requests < PAGES);
    CHECK_OK(attnd_pages_alloc(side->session, side->pool, requests, own));
    for (uint32_t r = 0; r <= requests; r++) {
        rows[r] = (int32_t)r;
        lists[r] = (int32_t)(r * (BLOCKS + 1));
    }
    for (uint32_t r = 0; r < requests; r++) {
        memcpy(pages + lists[r], prefix, BLOCKS * sizeof(*prefix));
        pages[lists[r] + (int32_t)BLOCKS] = own[r];
        last[r] = page_size;
    }
    CHECK_OK(attnd_plan_create(side->session, &args, &plan));
    CHECK_OK(attnd_plan_set(side->session, plan, &batch, NULL));
    CHECK_EQUAL(attnd_wait(side->session, &done, 1, 20000000000u), 1);
    CHECK_OK(done.fault.code);
    CHECK_OK(attnd_plan_info(&done, &found));
    return found;
}

/* A page of the pool has one id for all sessions, so a batch shares what others computed. */
static void a_batch_shares_what_another_engine_published(void **state)
{
    enum { REQUESTS = 24, PAGE_SIZE = 256 };
    struct attnd_pool_desc large = pool_desc;
    struct attnd_prefix_key keys[BLOCKS];
    int32_t pages[BLOCKS], found[BLOCKS];
    struct engine_side a, b;
    struct shared shared;

    large.page_size = PAGE_SIZE;
    side_open_of(&a, *state, &large);
    side_share(&a, 0, &shared);
    side_attach(&b, *state, &shared);
    make_keys(&a, keys);
    CHECK_EQUAL(publish(&a, keys, 0, BLOCKS, pages).taken, BLOCKS);
    CHECK_EQUAL(match(&b, keys, 0, found).foreign, BLOCKS);
    const struct attnd_plan_info info = plan_behind(&b, REQUESTS, found, PAGE_SIZE);
    if (!e2e_on_gpu()) { /* there so little does not pay */
        CHECK_EQUAL(info.shared_groups, 1);
        CHECK_EQUAL(info.bytes_saved, (uint64_t)(REQUESTS - 1) * BLOCKS * PAGE_SIZE * 64 * 2 * 2);
    }
    attnd_close(a.session);
    attnd_close(b.session);
}

static void a_thousand_blocks_are_one_operation(void **state)
{
    enum { MANY = 1000 };
    static struct attnd_prefix_key keys[MANY];
    static int32_t pages[MANY];
    const struct attnd_prefix_desc desc = {.size = sizeof(desc), .block_pages = 1};
    struct attnd_prefix_info info = {.size = sizeof(info)};
    struct attnd_pool_desc large = pool_desc;
    struct engine_side side;

    large.pages = MANY;
    side.session = e2e_open(*state);
    CHECK_OK(attnd_pool_create(side.session, &large, &side.pool));
    CHECK_OK(attnd_prefix_open(side.session, side.pool, &desc, &side.prefix));
    CHECK_OK(attnd_prefix_info(side.session, side.prefix, &info));
    for (uint32_t i = 0; i < MANY; i++)
        attnd_prefix_key(info.salt, i ? &keys[i - 1] : NULL, &i, sizeof(i), &keys[i]);
    CHECK_OK(attnd_pages_alloc(side.session, side.pool, MANY, pages));
    struct attnd_prefix_args args = prefix_args(side.prefix, keys, 0, MANY);
    CHECK_OK(attnd_prefix_claim(side.session, &args, NULL));
    CHECK(prefix_answer(side.session, NULL).blocks > 0); /* as many as one handle may */
    CHECK_OK(attnd_prefix_publish(side.session, &args, pages, NULL));
    CHECK_EQUAL(prefix_answer(side.session, NULL).taken, MANY);
    struct attnd_completion done;
    struct attnd_prefix_result found = {.size = sizeof(found)};
    CHECK_OK(attnd_prefix_match(side.session, &args, NULL));
    CHECK_EQUAL(attnd_wait(side.session, &done, 1, 20000000000u), 1);
    CHECK_OK(attnd_prefix_result(side.session, &done, &found));
    CHECK_EQUAL(found.blocks, MANY);
    CHECK(memcmp(found.pages, pages, sizeof(pages)) == 0);
    attnd_close(side.session);
}

/* A process that claims a prompt, publishes a part of it, and then does nothing more. */
static int claimant(void *context)
{
    struct shared *shared = context;
    struct attnd_prefix_key keys[BLOCKS];
    int32_t pages[BLOCKS];
    struct engine_side side;

    side_attach(&side, shared->harness, shared);
    make_keys(&side, keys);
    struct attnd_prefix_args args = prefix_args(side.prefix, keys, 0, BLOCKS);
    CHECK_OK(attnd_prefix_claim(side.session, &args, NULL));
    CHECK_EQUAL(prefix_answer(side.session, NULL).blocks, BLOCKS);
    if (shared->publishes)
        publish(&side, keys, 0, (uint32_t)shared->publishes, pages);
    harness_say(&shared->ready, 1);
    harness_await(&shared->never, 1);
    return 1;
}

static pid_t start_claimant(const struct engine_side *side, struct harness *harness, int publishes,
                            struct shared **shared)
{
    *shared = harness_shared(sizeof(**shared));
    (*shared)->harness = harness;
    (*shared)->publishes = publishes;
    side_share(side, 1, *shared);
    pid_t pid = harness_fork(claimant, *shared);
    harness_await(&(*shared)->ready, 1);
    return pid;
}

static uint64_t waits_of(const struct harness *harness)
{
    const char *const command[] = {"prefix", "--json", NULL};
    char output[8192];
    uint64_t waits = 0;
    CHECK_EQUAL(harness_attnctl(harness, command, output, sizeof(output)), 0);
    const char *at = strstr(output, "\"waits\":");
    CHECK(at != NULL);
    for (at += strlen("\"waits\":"); *at == ' '; at++)
        ;
    for (; *at >= '0' && *at <= '9'; at++)
        waits = 10 * waits + (uint64_t)(*at - '0');
    return waits;
}

static int has_waited(void *context)
{
    return waits_of(context) > 0;
}

static void who_waits_for_an_engine_that_is_killed_is_told(void **state)
{
    struct harness *harness = *state;
    struct attnd_prefix_key keys[BLOCKS];
    int32_t found[BLOCKS];
    struct engine_side side;
    struct shared *shared;

    side_open(&side, harness);
    make_keys(&side, keys);
    pid_t pid = start_claimant(&side, harness, 3, &shared);
    struct attnd_prefix_result result = match(&side, keys, 0, found);
    CHECK_EQUAL(result.blocks, 3);
    CHECK_EQUAL(result.end, ATTND_PREFIX_CLAIMED);
    struct attnd_prefix_args args = prefix_args(side.prefix, keys, 0, BLOCKS);
    args.flags = ATTND_PREFIX_MATCH_WAITS;
    CHECK_OK(attnd_prefix_match(side.session, &args, NULL));
    harness_eventually(has_waited, harness, 5000, "the match waits");
    harness_kill(pid);
    result = prefix_answer(side.session, found);
    CHECK_EQUAL(result.blocks, 3);
    CHECK_EQUAL(result.end, ATTND_PREFIX_ABANDONED);
    CHECK_EQUAL(result.foreign, 3);
    /* What it had not published is anybody's to compute now. */
    args = prefix_args(side.prefix, keys, 3, BLOCKS);
    CHECK_OK(attnd_prefix_claim(side.session, &args, NULL));
    CHECK_EQUAL(prefix_answer(side.session, NULL).blocks, BLOCKS - 3);
    attnd_close(side.session);
}

static void two_engines_that_race_compute_a_prefix_once(void **state)
{
    struct harness *harness = *state;
    struct attnd_prefix_key keys[BLOCKS];
    int32_t pages[BLOCKS], found[BLOCKS];
    struct engine_side a, b;
    struct shared shared;

    side_open(&a, harness);
    side_share(&a, 1, &shared);
    side_attach(&b, harness, &shared);
    make_keys(&a, keys);
    struct attnd_prefix_args mine = prefix_args(a.prefix, keys, 0, BLOCKS);
    struct attnd_prefix_args theirs = prefix_args(b.prefix, keys, 0, BLOCKS);
    CHECK_OK(attnd_prefix_claim(a.session, &mine, NULL));
    CHECK_OK(attnd_prefix_claim(b.session, &theirs, NULL));
    uint32_t first = prefix_answer(a.session, NULL).blocks,
             second = prefix_answer(b.session, NULL).blocks;
    CHECK_EQUAL(first + second, BLOCKS);
    CHECK(first == 0 || second == 0);
    const struct engine_side *computes = first ? &a : &b, *waits = first ? &b : &a;

    theirs = prefix_args(waits->prefix, keys, 0, BLOCKS);
    theirs.flags = ATTND_PREFIX_MATCH_WAITS;
    CHECK_OK(attnd_prefix_match(waits->session, &theirs, NULL));
    CHECK_EQUAL(publish(computes, keys, 0, 4, pages).taken, 4); /* in two chunks */
    CHECK_EQUAL(publish(computes, keys, 4, BLOCKS, pages + 4).taken, BLOCKS - 4);
    struct attnd_prefix_result result = prefix_answer(waits->session, found);
    CHECK_EQUAL(result.blocks, BLOCKS);
    CHECK_EQUAL(result.end, ATTND_PREFIX_END);
    CHECK(memcmp(found, pages, sizeof(pages)) == 0);
    attnd_close(a.session);
    attnd_close(b.session);
}

static void a_match_that_waits_ends_in_time_or_when_cancelled_and_leases_nothing(void **state)
{
    struct harness *harness = *state;
    struct attnd_prefix_key keys[BLOCKS];
    struct engine_side side;
    struct shared *shared;
    struct attnd_fault fault;
    int32_t found[BLOCKS], all[PAGES];

    side_open(&side, harness);
    make_keys(&side, keys);
    pid_t pid = start_claimant(&side, harness, 2, &shared);
    struct attnd_prefix_args args = prefix_args(side.prefix, keys, 0, BLOCKS);
    args.flags = ATTND_PREFIX_MATCH_WAITS;
    const struct attnd_op late = {.timeout_us = 1000}, named = {.user_data = 7};
    CHECK_OK(attnd_prefix_match(side.session, &args, &late));
    CHECK_EQUAL(failure(&side, &fault), -ATTND_E_TIMEOUT);
    CHECK_OK(attnd_prefix_match(side.session, &args, &named));
    /* It has left its lane: what comes behind it is answered, and its own end too. */
    CHECK_EQUAL(match(&side, keys, 0, found).blocks, 2);
    CHECK_OK(attnd_cancel(side.session, 7));
    CHECK_EQUAL(failure(&side, &fault), -ATTND_E_CANCELLED);
    harness_kill(pid);
    CHECK_OK(attnd_pages_free(side.session, side.pool, 2, found));
    CHECK_OK(attnd_pages_alloc(side.session, side.pool, PAGES, all)); /* not one is held */
    attnd_close(side.session);
}

static void allocation_takes_what_only_the_tree_holds(void **state)
{
    struct harness *harness = *state;
    struct attnd_prefix_key keys[BLOCKS];
    int32_t pages[BLOCKS], all[PAGES], found[BLOCKS];
    struct engine_side side;

    side_open(&side, harness);
    make_keys(&side, keys);
    publish(&side, keys, 0, BLOCKS, pages);
    CHECK_ERROR(attnd_pages_alloc(side.session, side.pool, PAGES, all), ATTND_E_NO_SPACE);
    CHECK_OK(attnd_pages_free(side.session, side.pool, BLOCKS, pages));
    CHECK_OK(attnd_pages_alloc(side.session, side.pool, PAGES - 5, all));
    CHECK_EQUAL(match(&side, keys, 0, found).blocks, 5); /* the end of the prompt went */
    CHECK_ERROR(attnd_pages_alloc(side.session, side.pool, 1, all), ATTND_E_NO_SPACE);
    CHECK_OK(attnd_pages_free(side.session, side.pool, 5, found));

    struct attnd_prefix_args args = prefix_args(side.prefix, keys, 0, 2);
    CHECK_OK(attnd_prefix_pin(side.session, &args, NULL));
    CHECK_EQUAL(prefix_answer(side.session, NULL).blocks, 2);
    CHECK_ERROR(attnd_pages_alloc(side.session, side.pool, 4, all), ATTND_E_NO_SPACE);
    CHECK_OK(attnd_pages_alloc(side.session, side.pool, 3, all));
    CHECK_OK(attnd_prefix_unpin(side.session, &args, NULL));
    CHECK_EQUAL(prefix_answer(side.session, NULL).blocks, 2);
    CHECK_OK(attnd_pages_alloc(side.session, side.pool, 2, all));
    attnd_close(side.session);
}

static void a_namespace_is_a_wall_and_its_rights_bind(void **state)
{
    struct harness *harness = *state;
    struct attnd_prefix_key keys[BLOCKS], other_keys[BLOCKS];
    int32_t pages[BLOCKS];
    struct engine_side a, b, other;
    struct shared shared;
    struct attnd_fault fault;
    struct attnd_token token;

    side_open(&a, harness);
    side_share(&a, 0, &shared);
    side_attach(&b, harness, &shared);
    make_keys(&a, keys);
    publish(&a, keys, 0, BLOCKS, pages);
    /* For reading: matches, and nothing else. */
    CHECK_EQUAL(match(&b, keys, 0, NULL).blocks, BLOCKS);
    struct attnd_prefix_args args = prefix_args(b.prefix, keys, 0, 1);
    CHECK_OK(attnd_prefix_claim(b.session, &args, NULL));
    CHECK_EQUAL(failure(&b, &fault), -ATTND_E_PERMISSION);
    CHECK_ERROR(attnd_prefix_share(b.session, b.prefix, 1, &token), ATTND_E_PERMISSION);
    /* Another namespace of the pool: other keys for the same tokens, and none of these. */
    other = b;
    const struct attnd_prefix_desc desc = {.size = sizeof(desc), .block_pages = 1};
    CHECK_OK(attnd_prefix_open(other.session, other.pool, &desc, &other.prefix));
    make_keys(&other, other_keys);
    CHECK(memcmp(keys, other_keys, sizeof(keys)) != 0);
    CHECK_EQUAL(match(&other, keys, 0, NULL).blocks, 0);
    /* A page of one cannot be published in the other. */
    CHECK_EQUAL(match(&b, keys, 0, pages).blocks, BLOCKS);
    args = prefix_args(other.prefix, other_keys, 0, 1);
    CHECK_OK(attnd_prefix_publish(other.session, &args, pages, NULL));
    CHECK_EQUAL(failure(&other, &fault), -ATTND_E_INVALID);
    /* Without the pool a token opens nothing. */
    struct attnd_session *stranger = e2e_open(harness);
    uint32_t prefix;
    CHECK_ERROR(attnd_prefix_attach(stranger, &shared.prefix, &prefix), ATTND_E_PERMISSION);
    attnd_close(stranger);
    CHECK_ERROR(attnd_pool_release(b.session, b.pool), ATTND_E_BUSY);
    attnd_close(a.session);
    attnd_close(b.session);
}

static void what_is_wrong_is_refused_and_named(void **state)
{
    struct harness *harness = *state;
    struct attnd_prefix_key keys[BLOCKS];
    int32_t pages[BLOCKS];
    struct engine_side side;
    struct attnd_fault fault;

    side_open(&side, harness);
    make_keys(&side, keys);
    CHECK_OK(attnd_pages_alloc(side.session, side.pool, 2, pages));
    struct attnd_prefix_args args = prefix_args(side.prefix, keys, 0, 2);
    const int32_t foreign[] = {pages[0], (int32_t)PAGES - 1}, outside[] = {pages[0], PAGES};
    CHECK_OK(attnd_prefix_publish(side.session, &args, foreign, NULL));
    CHECK_EQUAL(failure(&side, &fault), -ATTND_E_NOT_LEASED);
    CHECK_EQUAL(fault.index, 1);
    CHECK_OK(attnd_prefix_publish(side.session, &args, outside, NULL));
    CHECK_EQUAL(failure(&side, &fault), -ATTND_E_RANGE);
    args = prefix_args(side.prefix, keys, 1, 2); /* its parent is not there */
    CHECK_OK(attnd_prefix_publish(side.session, &args, pages, NULL));
    CHECK_EQUAL(failure(&side, &fault), -ATTND_E_UNKNOWN);
    CHECK_EQUAL(fault.field, ATTND_F_PARENT);
    args = prefix_args(side.prefix, keys, 0, 2);
    const struct attnd_op silent = {.flags = ATTND_SKIP_SUCCESS};
    CHECK_OK(attnd_prefix_match(side.session, &args, &silent));
    CHECK_EQUAL(failure(&side, &fault), -ATTND_E_INVALID);
    args.blocks = 4097;
    CHECK_ERROR(attnd_prefix_match(side.session, &args, NULL), ATTND_E_RANGE);
    args.prefix = 99;
    CHECK_ERROR(attnd_prefix_match(side.session, &args, NULL), ATTND_E_UNKNOWN);
    CHECK_OK(attnd_prefix_release(side.session, side.prefix));
    CHECK_ERROR(attnd_prefix_release(side.session, side.prefix), ATTND_E_UNKNOWN);
    CHECK_OK(attnd_pool_release(side.session, side.pool));
    attnd_close(side.session);
}

static void the_workers_death_loses_nothing(void **state)
{
    struct harness *harness = *state;
    struct attnd_prefix_key keys[BLOCKS];
    int32_t pages[BLOCKS], found[BLOCKS];
    struct engine_side side;

    side_open(&side, harness);
    make_keys(&side, keys);
    publish(&side, keys, 0, BLOCKS, pages);
    pid_t worker = harness_worker(harness);
    kill(worker, SIGKILL);
    while (harness_worker(harness) == worker)
        harness_sleep_ms(1);
    CHECK_EQUAL(match(&side, keys, 0, found).blocks, BLOCKS);
    CHECK(memcmp(found, pages, sizeof(pages)) == 0);
    attnd_close(side.session);
}

static void attnctl_shows_the_tree(void **state)
{
    struct harness *harness = *state;
    const char *const command[] = {"prefix", NULL};
    struct attnd_prefix_key keys[BLOCKS];
    int32_t pages[BLOCKS];
    struct engine_side side;
    char output[8192];

    CHECK_EQUAL(harness_attnctl(harness, command, output, sizeof(output)), 0);
    CHECK(strstr(output, "no namespace is open") != NULL);
    side_open(&side, harness);
    make_keys(&side, keys);
    publish(&side, keys, 0, BLOCKS - 2, pages);
    match(&side, keys, 0, NULL);
    CHECK_EQUAL(harness_attnctl(harness, command, output, sizeof(output)), 0);
    CHECK(strstr(output, "6 blocks, 6 of 64 pages") != NULL);
    CHECK(strstr(output, "6 of 8 blocks (75.0%)") != NULL);
    CHECK(strstr(output, "6 blocks, found last 1 times") != NULL);
    attnd_close(side.session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(what_one_engine_published_another_reads_after_its_death),
        E2E_TEST(a_batch_shares_what_another_engine_published),
        E2E_TEST(a_thousand_blocks_are_one_operation),
        E2E_TEST(who_waits_for_an_engine_that_is_killed_is_told),
        E2E_TEST(two_engines_that_race_compute_a_prefix_once),
        E2E_TEST(a_match_that_waits_ends_in_time_or_when_cancelled_and_leases_nothing),
        E2E_TEST(allocation_takes_what_only_the_tree_holds),
        E2E_TEST(a_namespace_is_a_wall_and_its_rights_bind),
        E2E_TEST(what_is_wrong_is_refused_and_named),
        E2E_TEST(the_workers_death_loses_nothing),
        E2E_TEST(attnctl_shows_the_tree),
    };
    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
