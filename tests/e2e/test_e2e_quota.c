/*
 * test_e2e_quota.c - what one session takes of what all share ends at its share, and comes back.
 */
#include "client/attnd.h"
#include "schemas/errors.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/harness.h"

#include "tests/support/harness/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define PAGES (1u << 18)                  /* 128 bytes of K and of V each */
#define PAGES_COST (8u * (uint64_t)PAGES) /* of the daemon: leases, free pages, what one holds */
#define TRIES 1100u                       /* more than there can be */
#define BLOCKS 6                          /* places in Status.quotas */
#define DAEMON 7
#define BLOCK_BYTES_MIN 64

static struct harness service;

static const char *const options[] = {"--daemon-memory-max", "16M", "--heap", "16M", NULL};

static int make_pool(struct attnd_session *session, uint32_t pages, uint32_t *pool)
{
    return attnd_pool_create_leased(session, 1, pages, 1, 1, 64, ATTND_DTYPE_FP16, pool);
}

/* Memory of the host: the limit that is told is what is left. */
static void expect_too_large(int code, int64_t left_max)
{
    struct attnd_fault fault;
    CHECK_EQUAL(code, -ATTND_E_NO_MEMORY);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_SIZE);
    CHECK(fault.limit > 0 && fault.limit < left_max);
}

static void expect_refused(int code, enum attnd_field field, int64_t limit)
{
    struct attnd_fault fault;
    CHECK_EQUAL(code, -ATTND_E_NO_MEMORY);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, field);
    CHECK_EQUAL(fault.limit, limit);
    CHECK(fault.value > limit);
}

/* Until it is refused. Return: how many there are. */
static uint32_t hoard_pools(struct attnd_session *session)
{
    uint32_t pool, count = 0;
    int code = 0;
    while (count < TRIES && (code = make_pool(session, PAGES, &pool)) == 0)
        count++;
    expect_refused(code, ATTND_F_DAEMON_MEMORY, 8 << 20);
    return count;
}

static void pools_of_one_session_cost_the_daemon_no_more_than_its_share(void **state)
{
    (void)state;
    harness_start(&service, options);
    struct attnd_session *greedy = e2e_open(&service), *other = e2e_open(&service);
    uint32_t pool;
    const uint32_t count = hoard_pools(greedy);
    CHECK(count >= 1 && count <= (8u << 20) / PAGES_COST);
    CHECK_OK(make_pool(other, PAGES, &pool)); /* its share is its own */
    attnd_close(greedy);
    attnd_close(other);
    other = e2e_open(&service);
    CHECK_EQUAL(hoard_pools(other), count); /* and all came back */
    attnd_close(other);
    harness_stop(&service);
}

/* Until one is refused. Return: how many there are. */
static uint32_t hoard_plans(struct attnd_session *session, struct attnd_fault *fault)
{
    struct attnd_plan_args args = {.size = sizeof(args),
                                   .requests = 64,
                                   .rows = 64,
                                   .pages = 1u << 18,
                                   .levels = 1,
                                   .heads_q = 1};
    uint32_t plan, count = 0;
    int code = 0;

    CHECK_OK(make_pool(session, 64, &args.pool));
    while (count < TRIES && (code = attnd_plan_create(session, &args, &plan)) == 0)
        count++;
    CHECK_EQUAL(code, -ATTND_E_NO_MEMORY);
    attnd_last_fault(fault);
    CHECK_EQUAL(fault->field, ATTND_F_HEAP);
    CHECK(fault->value > fault->limit);
    return count;
}

/* A fork is another process, and a session of the same user. */
static int hoards_as_many(void *context)
{
    const uint32_t *count = context;
    struct attnd_session *session = e2e_open(&service);
    struct attnd_fault fault;

    CHECK_EQUAL(hoard_plans(session, &fault), *count);
    attnd_close(session);
    return 0;
}

static void plans_of_one_session_leave_half_of_the_heap(void **state)
{
    (void)state;
    harness_start(&service, options);
    struct attnd_session *greedy = e2e_open(&service);
    struct attnd_fault fault;
    uint32_t *count = harness_shared(sizeof(*count));

    *count = hoard_plans(greedy, &fault);
    CHECK(*count >= 1 && fault.limit <= 8 << 20);
    CHECK_EQUAL(harness_join(harness_fork(hoards_as_many, count), 20000), 0);
    attnd_close(greedy);
    harness_stop(&service);
}

static int has_a_quarter(void *context)
{
    struct attnd_session *session = e2e_open(&service);
    struct attnd_fault fault;

    (void)context;
    CHECK(hoard_plans(session, &fault) >= 1);
    attnd_close(session);
    return 0;
}

/* The second session of a process ends at what is left of three quarters. Another process has the
 * last one. */
static void sessions_of_one_process_leave_a_quarter_of_the_heap(void **state)
{
    (void)state;
    harness_start(&service, options);
    struct attnd_session *first = e2e_open(&service), *second = e2e_open(&service);
    struct attnd_fault one, two;
    const uint32_t many = hoard_plans(first, &one), few = hoard_plans(second, &two);

    CHECK(few >= 1 && few < many);
    CHECK_EQUAL(two.limit * 2, one.limit * 3);
    CHECK_EQUAL(harness_join(harness_fork(has_a_quarter, NULL), 20000), 0);
    attnd_close(first);
    attnd_close(second);
    harness_stop(&service);
}

static uint64_t host_memory_used(void)
{
    Attnd__Status *status = harness_status(&service);
    const uint64_t bytes = status->host_memory_bytes;

    attnd__status__free_unpacked(status, NULL);
    return bytes;
}

static int nothing_is_used(void *context)
{
    Attnd__Status *status = harness_status(context);
    uint64_t used = 0;

    for (size_t i = 0; i < status->n_quotas; i++)
        used += status->quotas[i]->used;
    attnd__status__free_unpacked(status, NULL);
    return used == 0;
}

/* What a client fills there is memory like any other. */
static void arenas_count_against_the_memory_of_their_session(void **state)
{
    static const char *const small[] = {"--memory-max", "16M", "--host-memory-max", "24M", NULL};
    struct attnd_open_args args = {.size = sizeof(args)};
    struct attnd_session *first, *second;
    uint32_t memory;

    (void)state;
    harness_start(&service, small);
    args.socket_path = service.socket;
    args.arena_bytes = 16u << 20; /* and the rings */
    expect_refused(attnd_open(&args, &first), ATTND_F_SIZE, 16 << 20);
    args.arena_bytes = 12u << 20;
    CHECK_OK(attnd_open(&args, &first));
    CHECK(host_memory_used() > 12u << 20);
    expect_too_large(attnd_memory_create(first, 4u << 20, &memory, NULL), 4 << 20);
    CHECK_OK(attnd_memory_create(first, 2u << 20, &memory, NULL));
    expect_refused(attnd_open(&args, &second), ATTND_F_SIZE, 24 << 20);
    attnd_close(first);
    harness_eventually(nothing_is_used, &service, 5000, "all of it came back");
    CHECK_OK(attnd_open(&args, &second));
    attnd_close(second);
    harness_stop(&service);
}

/* A promise of blocks is paid for when it is made, and cut to what can be paid for. */
static void blocks_of_prefix_trees_are_memory_of_the_daemon(void **state)
{
    const struct attnd_prefix_desc desc = {.size = sizeof(desc), .block_pages = 1};
    uint32_t pool, prefix;

    (void)state;
    harness_start(&service, options);
    struct attnd_session *session = e2e_open(&service);
    CHECK_OK(make_pool(session, PAGES, &pool));
    Attnd__Status *before = harness_status(&service);
    CHECK_OK(attnd_prefix_open(session, pool, &desc, &prefix));
    Attnd__Status *after = harness_status(&service);
    const uint64_t paid = after->quotas[DAEMON]->used - before->quotas[DAEMON]->used,
                   blocks = after->quotas[BLOCKS]->used - before->quotas[BLOCKS]->used;
    CHECK(strcmp(after->quotas[DAEMON]->name, "daemon memory") == 0);
    CHECK(blocks > 1000 && blocks < PAGES);
    CHECK(paid > blocks * BLOCK_BYTES_MIN && paid < 8u << 20);
    attnd__status__free_unpacked(before, NULL);
    attnd__status__free_unpacked(after, NULL);
    attnd_close(session);
    harness_eventually(nothing_is_used, &service, 5000, "all of it came back");
    harness_stop(&service);
}

static void attnctl_shows_what_is_used_of_the_shares(void **state)
{
    static const char *const command[] = {"status", NULL};
    static char text[16384];

    (void)state;
    harness_start(&service, options);
    struct attnd_session *session = e2e_open(&service);
    struct attnd_fault fault;
    (void)hoard_plans(session, &fault);
    CHECK_EQUAL(harness_attnctl(&service, command, text, sizeof(text)), 0);
    CHECK(strstr(text, "a process"));
    CHECK(strstr(text, "\nheap "));
    CHECK(strstr(text, "% of heap\n"));
    CHECK(!strstr(text, "tickets")); /* there are none */
    attnd_close(session);
    harness_stop(&service);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(pools_of_one_session_cost_the_daemon_no_more_than_its_share),
        E2E_OWN_TEST(plans_of_one_session_leave_half_of_the_heap),
        E2E_OWN_TEST(sessions_of_one_process_leave_a_quarter_of_the_heap),
        E2E_OWN_TEST(arenas_count_against_the_memory_of_their_session),
        E2E_OWN_TEST(blocks_of_prefix_trees_are_memory_of_the_daemon),
        E2E_OWN_TEST(attnctl_shows_what_is_used_of_the_shares),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
