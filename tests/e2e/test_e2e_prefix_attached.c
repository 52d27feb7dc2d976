/*
 * test_e2e_prefix_attached.c - what an engine that attached a prefix tree can take from its owner.
 */
#include "tests/support/harness/e2e.h"

#include "client/attnd.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define PAGES 64u
#define OFTEN 200u

/* What a reader finds is pinned for it, and what it keeps is bounded. */
static void one_that_attached_for_reading_leaves_its_owner_half_of_the_pages(void **state)
{
    struct harness *harness = *state;
    struct attnd_session *owner = e2e_open(harness), *reader = e2e_open(harness);
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = PAGES,
                                         .page_size = 1,
                                         .heads_kv = 1,
                                         .dim_qk = 64,
                                         .dim_vo = 64,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_SERVICE};
    const struct attnd_prefix_desc args = {.size = sizeof(args), .block_pages = 1};
    struct attnd_prefix_key keys[PAGES];
    struct attnd_prefix_result result = {.size = sizeof(result)};
    struct attnd_token pool_token, prefix_token;
    struct attnd_completion done;
    uint32_t pool, prefix, read_pool, read_prefix;
    int32_t pages[PAGES];
    const struct attnd_op op = {0};

    for (uint32_t i = 0; i < PAGES; i++)
        keys[i] = (struct attnd_prefix_key){{i + 1, 7}};
    CHECK_OK(attnd_pool_create(owner, &desc, &pool));
    CHECK_OK(attnd_prefix_open(owner, pool, &args, &prefix));
    CHECK_OK(attnd_pool_share(owner, pool, 0, &pool_token));
    CHECK_OK(attnd_prefix_share(owner, prefix, 0, &prefix_token));
    CHECK_OK(attnd_pool_attach(reader, &pool_token, &read_pool));
    CHECK_OK(attnd_prefix_attach(reader, &prefix_token, &read_prefix));
    const struct attnd_prefix_args own = {
        .size = sizeof(own), .prefix = prefix, .blocks = PAGES, .keys = keys};
    CHECK_OK(attnd_pages_alloc(owner, pool, PAGES, pages));
    CHECK_OK(attnd_prefix_publish(owner, &own, pages, &op));
    CHECK_EQUAL(attnd_wait(owner, &done, 1, ATTND_FOREVER), 1);
    CHECK_OK(attnd_pages_free(owner, pool, PAGES, pages));

    const struct attnd_prefix_args match = {
        .size = sizeof(match), .prefix = read_prefix, .blocks = PAGES, .keys = keys};
    for (uint32_t i = 0; i < OFTEN; i++) {
        CHECK_OK(attnd_prefix_match(reader, &match, &op));
        CHECK_EQUAL(attnd_wait(reader, &done, 1, ATTND_FOREVER), 1);
        CHECK_OK(attnd_prefix_result(reader, &done, &result));
        CHECK_EQUAL(result.pages_count, PAGES / 2);
        CHECK_EQUAL(result.end, ATTND_PREFIX_FULL);
    }
    CHECK_OK(attnd_prefix_match(owner, &own, &op)); /* and the owner has its own */
    CHECK_EQUAL(attnd_wait(owner, &done, 1, ATTND_FOREVER), 1);
    CHECK_OK(attnd_prefix_result(owner, &done, &result));
    CHECK_EQUAL(result.pages_count, PAGES);
    CHECK_OK(attnd_pages_free(owner, pool, PAGES, result.pages));
    CHECK_OK(attnd_pages_alloc(owner, pool, PAGES / 2, pages)); /* of what nobody else keeps */
    attnd_close(reader);
    CHECK_OK(attnd_pages_free(owner, pool, PAGES / 2, pages));
    attnd_close(owner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(one_that_attached_for_reading_leaves_its_owner_half_of_the_pages),
    };
    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
