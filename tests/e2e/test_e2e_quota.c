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

#include <cmocka.h>

#define PAGES (1u << 18)                  /* 128 bytes of K and of V each */
#define PAGES_COST (8u * (uint64_t)PAGES) /* of the daemon: leases, free pages, what one holds */
#define TRIES 1100u                       /* more than there can be */

static struct harness service;

static const char *const options[] = {"--daemon-memory-max", "16M", "--heap", "16M", NULL};

static int make_pool(struct attnd_session *session, uint32_t pages, uint32_t *pool)
{
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = pages,
                                         .page_size = 1,
                                         .heads_kv = 1,
                                         .dim_qk = 64,
                                         .dim_vo = 64,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_SERVICE};
    return attnd_pool_create(session, &desc, pool);
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

/* A fork is another process, and a session of the same user. */
static void plans_of_one_session_leave_half_of_the_heap(void **state)
{
    (void)state;
    harness_start(&service, options);
    struct attnd_session *greedy = e2e_open(&service), *other = e2e_open(&service);
    struct attnd_plan_args args = {.size = sizeof(args),
                                   .requests = 64,
                                   .rows = 64,
                                   .pages = 1u << 18,
                                   .levels = 1,
                                   .heads_q = 1};
    uint32_t plan, count = 0, greedy_pool;
    int code = 0;
    CHECK_OK(make_pool(greedy, 64, &greedy_pool));
    args.pool = greedy_pool;
    while (count < TRIES && (code = attnd_plan_create(greedy, &args, &plan)) == 0)
        count++;
    struct attnd_fault fault;
    CHECK_EQUAL(code, -ATTND_E_NO_MEMORY);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_HEAP);
    CHECK(fault.value > fault.limit && fault.limit <= 8 << 20);
    CHECK(count >= 1);
    CHECK_OK(make_pool(other, 64, &args.pool));
    for (uint32_t i = 0; i < count; i++)
        CHECK_OK(attnd_plan_create(other, &args, &plan)); /* as many */
    attnd_close(greedy);
    attnd_close(other);
    harness_stop(&service);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(pools_of_one_session_cost_the_daemon_no_more_than_its_share),
        E2E_OWN_TEST(plans_of_one_session_leave_half_of_the_heap),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
