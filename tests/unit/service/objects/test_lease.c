/* test_lease.c - pages are counted right, whatever is asked for; tickets move them and expire. */
#include "schemas/attnd.pb-c.h"
#include "service/objects/ticket.h"
#include "tests/support/harness/quiet_loop.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"
#include "tests/support/stubs/data_stub.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PAGES 12u

static struct attnd_service service;
static struct attnd_client one, two;
#define OTHER_UID 1000
static struct attnd_pool pool;

/* A pool of the test's own making: references are never given up, so nothing frees it. */
static int setup(void **state)
{
    (void)state;
    memset(&service, 0, sizeof(service));
    service.options.daemon_memory_max_bytes = 1u << 30;
    service.options.allow_uids[1] = OTHER_UID;
    one = (struct attnd_client){.service = &service, .id = 1};
    two = (struct attnd_client){.service = &service, .id = 2};
    service.clients[0] = &one;
    service.clients[1] = &two;
    memset(&pool, 0, sizeof(pool));
    pool.refs = 1;
    pool.page_owner = ATTND__PAGE_OWNER__OWNER_SERVICE;
    pool.shape.pages = PAGES;
    pool.leases = calloc(PAGES, sizeof(*pool.leases));
    pool.free_pages = calloc(PAGES, sizeof(*pool.free_pages));
    return quiet_loop_new(ATTND_LOOP_EPOLL, &service.loop);
}

static int teardown(void **state)
{
    (void)state;
    attnd_ticket_free_all(&service);
    assert_int_equal(service.used[ATTND_QUOTA_TICKETS], 0);
    assert_int_equal(service.used[ATTND_QUOTA_DAEMON], 0);
    attnd_loop_free(service.loop);
    assert_int_equal(pool.refs, 1);
    assert_int_equal(attnd_lease_count(&pool), 0);
    free(pool.leases);
    free(pool.free_pages);
    return 0;
}

static struct attnd_attachment attach(void)
{
    return (struct attnd_attachment){
        .pool = &pool, .writable = 1, .held = calloc(PAGES, sizeof(uint16_t))};
}

static void detach(struct attnd_attachment *attachment)
{
    while (attnd_lease_drop_some(attachment, 2))
        ; /* in parts */
    assert_int_equal(attachment->held_count, 0);
    free(attachment->held);
}

/* ---- leases ---- */

static void allocated_pages_are_distinct_and_counted(void **state)
{
    (void)state;
    struct attnd_attachment a = attach();
    int32_t pages[PAGES];
    uint32_t seen = 0;
    assert_int_equal(attnd_lease_alloc(&a, PAGES, pages, NULL), 0);
    for (uint32_t i = 0; i < PAGES; i++)
        seen |= 1u << pages[i];
    assert_int_equal(seen, (1u << PAGES) - 1);
    assert_int_equal(attnd_lease_count(&pool), PAGES);
    detach(&a);
}

static void no_space_says_how_many_are_free(void **state)
{
    (void)state;
    struct attnd_attachment a = attach();
    struct attnd_fault fault = {0};
    int32_t pages[PAGES];
    assert_int_equal(attnd_lease_alloc(&a, 5, pages, &fault), 0);
    assert_int_equal(attnd_lease_alloc(&a, PAGES - 4, pages, &fault), -ATTND_E_NO_SPACE);
    assert_int_equal(fault.value, PAGES - 4);
    assert_int_equal(fault.limit, PAGES - 5);
    assert_int_equal(attnd_lease_count(&pool), 5);
    detach(&a);
}

static void a_shared_page_is_free_after_its_last_lease(void **state)
{
    (void)state;
    struct attnd_attachment a = attach();
    int32_t page;
    assert_int_equal(attnd_lease_alloc(&a, 1, &page, NULL), 0);
    assert_false(attnd_lease_shared(&pool, (uint32_t)page));
    assert_int_equal(attnd_lease_share(&a, &page, 1, NULL), 0);
    assert_true(attnd_lease_shared(&pool, (uint32_t)page));
    assert_int_equal(attnd_lease_free(&a, &page, 1, NULL), 0);
    assert_false(attnd_lease_shared(&pool, (uint32_t)page));
    assert_int_equal(attnd_lease_count(&pool), 1);
    assert_int_equal(attnd_lease_free(&a, &page, 1, NULL), 0);
    assert_int_equal(attnd_lease_count(&pool), 0);
    assert_int_equal(attnd_lease_free(&a, &page, 1, NULL), -ATTND_E_NOT_LEASED);
    detach(&a);
}

/* The same page twice, leased once: the second cannot be freed, so the first is not either. */
static void a_refused_list_changes_nothing(void **state)
{
    (void)state;
    struct attnd_attachment a = attach();
    struct attnd_fault fault = {0};
    int32_t pages[2];
    assert_int_equal(attnd_lease_alloc(&a, 2, pages, NULL), 0);
    const int32_t twice[] = {pages[0], pages[1], pages[0]};
    const int32_t outside[] = {pages[0], (int32_t)PAGES};
    const int32_t negative[] = {pages[0], -1};

    assert_int_equal(attnd_lease_free(&a, twice, 3, &fault), -ATTND_E_NOT_LEASED);
    assert_int_equal(fault.index, 2);
    assert_int_equal(fault.value, pages[0]);
    assert_int_equal(attnd_lease_free(&a, outside, 2, &fault), -ATTND_E_RANGE);
    assert_int_equal(fault.limit, PAGES - 1);
    assert_int_equal(attnd_lease_share(&a, negative, 2, &fault), -ATTND_E_RANGE);
    assert_int_equal(fault.value, -1);
    assert_int_equal(a.held_count, 2);
    assert_int_equal(pool.leases[pages[0]], 1);
    assert_int_equal(attnd_lease_free(&a, twice, 2, &fault), 0);
    detach(&a);
}

static void a_page_cannot_be_shared_beyond_its_counter(void **state)
{
    (void)state;
    struct attnd_attachment a = attach();
    struct attnd_fault fault = {0};
    int32_t page;
    assert_int_equal(attnd_lease_alloc(&a, 1, &page, NULL), 0);
    for (uint32_t leases = 1; leases < ATTND_PAGE_LEASES_MAX; leases++)
        assert_int_equal(attnd_lease_share(&a, &page, 1, NULL), 0);
    assert_int_equal(attnd_lease_share(&a, &page, 1, &fault), -ATTND_E_RANGE);
    assert_int_equal(fault.limit, ATTND_PAGE_LEASES_MAX);
    assert_int_equal(pool.leases[page], ATTND_PAGE_LEASES_MAX);
    detach(&a);
}

static void a_session_may_use_only_what_it_leased(void **state)
{
    (void)state;
    struct attnd_attachment a = attach(), b = attach();
    struct attnd_attachment engine_owned = {.pool = &pool};
    struct attnd_fault fault = {0};
    int32_t pages[2];
    assert_int_equal(attnd_lease_alloc(&a, 1, &pages[0], NULL), 0);
    assert_int_equal(attnd_lease_alloc(&b, 1, &pages[1], NULL), 0);
    assert_int_equal(attnd_lease_check(&a, pages, 1, &fault), 0);
    assert_int_equal(attnd_lease_check(&a, pages, 2, &fault), -ATTND_E_NOT_LEASED);
    assert_int_equal(fault.field, ATTND_F_KV_INDICES);
    assert_int_equal(fault.index, 1);
    assert_int_equal(attnd_lease_free(&a, &pages[1], 1, &fault), -ATTND_E_NOT_LEASED);
    assert_int_equal(attnd_lease_check(&engine_owned, pages, 2, &fault), 0);
    detach(&a);
    detach(&b);
}

/* Wherever it stands in a batch: ids are looked up by eights, and the rest one by one. */
static void one_page_that_is_not_leased_is_found_among_many(void **state)
{
    (void)state;
    struct attnd_attachment a = attach();
    struct attnd_fault fault;
    int32_t held[PAGES - 1], pages[3 * 8 + 3];
    const uint32_t count = sizeof(pages) / sizeof(pages[0]);
    assert_int_equal(attnd_lease_alloc(&a, PAGES - 1, held, NULL), 0);
    for (uint32_t i = 0; i < count; i++)
        pages[i] = held[i % (PAGES - 1)];
    assert_int_equal(attnd_lease_check(&a, pages, count, NULL), 0);
    for (uint32_t i = 0; i < count; i++) {
        fault = (struct attnd_fault){0};
        pages[i] = PAGES - 1; /* the one that nobody took */
        assert_int_equal(attnd_lease_check(&a, pages, count, &fault), -ATTND_E_NOT_LEASED);
        assert_int_equal(fault.index, i);
        assert_int_equal(fault.value, PAGES - 1);
        pages[i] = held[i % (PAGES - 1)];
    }
    detach(&a);
}

static void pages_of_an_engine_cannot_be_leased(void **state)
{
    (void)state;
    struct attnd_pool engine = {.page_owner = ATTND__PAGE_OWNER__OWNER_ENGINE,
                                .shape = {.pages = PAGES}};
    struct attnd_attachment a = {.pool = &engine};
    struct attnd_fault fault = {0};
    int32_t page = 0;
    assert_int_equal(attnd_lease_alloc(&a, 1, &page, &fault), -ATTND_E_INVALID);
    assert_int_equal(fault.field, ATTND_F_PAGE_OWNER);
    assert_int_equal(attnd_lease_free(&a, &page, 1, &fault), -ATTND_E_INVALID);
    assert_int_equal(attnd_lease_count(&engine), 0);
    assert_false(attnd_lease_shared(&engine, 0));
}

/* ---- against a model: how often each of three sessions holds each page ---- */

#define ACTORS 3u

static void model_step(struct prng *prng, struct attnd_attachment *actors, uint32_t (*model)[PAGES])
{
    uint32_t who = prng_below(prng, ACTORS), count = 1 + prng_below(prng, 4);
    int32_t pages[4];
    uint32_t wanted[PAGES] = {0};
    int possible = 1;

    for (uint32_t i = 0; i < count; i++) {
        pages[i] = (int32_t)prng_below(prng, PAGES);
        possible &= model[who][pages[i]] > 0;
        wanted[pages[i]]++;
    }
    if (prng_below(prng, 2)) {
        int rc = attnd_lease_share(&actors[who], pages, count, NULL);
        assert_int_equal(rc, possible ? 0 : -ATTND_E_NOT_LEASED);
        for (uint32_t p = 0; rc == 0 && p < PAGES; p++)
            model[who][p] += wanted[p];
        return;
    }
    for (uint32_t p = 0; p < PAGES; p++)
        possible &= model[who][p] >= wanted[p];
    int rc = attnd_lease_free(&actors[who], pages, count, NULL);
    assert_int_equal(rc, possible ? 0 : -ATTND_E_NOT_LEASED);
    for (uint32_t p = 0; rc == 0 && p < PAGES; p++)
        model[who][p] -= wanted[p];
}

static void counts_agree_with_a_model(void **state)
{
    (void)state;
    struct prng prng = prng_fork(test_seed(), 0);
    struct attnd_attachment actors[ACTORS] = {attach(), attach(), attach()};
    uint32_t model[ACTORS][PAGES] = {0};

    for (uint32_t step = 0; step < 20000; step++) {
        uint32_t who = prng_below(&prng, ACTORS);
        int32_t page;
        if (prng_below(&prng, 4) == 0 && attnd_lease_alloc(&actors[who], 1, &page, NULL) == 0) {
            for (uint32_t a = 0; a < ACTORS; a++)
                assert_int_equal(model[a][page], 0);
            model[who][page] = 1;
        }
        model_step(&prng, actors, model);

        uint32_t leased = 0;
        for (uint32_t p = 0; p < PAGES; p++) {
            uint32_t all = 0;
            for (uint32_t a = 0; a < ACTORS; a++) {
                assert_int_equal(-actors[a].held[p], model[a][p]);
                all += model[a][p];
            }
            assert_int_equal(pool.leases[p], all);
            leased += all > 0;
        }
        assert_int_equal(attnd_lease_count(&pool), leased);
    }
    for (uint32_t a = 0; a < ACTORS; a++)
        detach(&actors[a]);
}

/* ---- tickets ---- */

static void a_reader_has_one_lease_of_a_page_however_often_it_finds_it(void **state)
{
    (void)state;
    struct attnd_attachment owner = attach(), reader = attach();
    int32_t pages[2];
    reader.writable = 0;
    assert_int_equal(attnd_lease_alloc(&owner, 2, pages, NULL), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(attnd_lease_grant(&reader, pages, 2, 1), 2);
    assert_int_equal(pool.leases[pages[0]], 2);
    assert_int_equal(reader.held_count, 6);
    assert_int_equal(attnd_lease_free(&owner, pages, 2, NULL), 0);
    const int32_t twice[] = {pages[0], pages[0], pages[1]};
    assert_int_equal(attnd_lease_free(&reader, twice, 3, NULL), 0);
    assert_int_equal(pool.leases[pages[0]], 1);
    const int32_t last[] = {pages[0], pages[0]};
    assert_int_equal(attnd_lease_free(&reader, last, 2, NULL), -ATTND_E_NOT_LEASED);
    assert_int_equal(attnd_lease_free(&reader, last, 1, NULL), 0);
    assert_int_equal(pool.leases[pages[0]], 0);
    assert_int_equal(pool.leases[pages[1]], 1);
    assert_int_equal(pool.reader_pages, 1);
    detach(&reader);
    assert_int_equal(pool.reader_pages, 0);
    detach(&owner);
}

/* The other half of a page's count is its owner's, whatever readers do. */
static void a_reader_that_finds_a_page_too_often_finds_it_no_more(void **state)
{
    (void)state;
    struct attnd_attachment owner = attach(), reader = attach();
    int32_t pages[2];
    reader.writable = 0;
    assert_int_equal(attnd_lease_alloc(&owner, 2, pages, NULL), 0);
    for (uint32_t i = 0; i < ATTND_PAGE_LEASES_MAX; i++)
        assert_int_equal(attnd_lease_grant(&reader, pages, 1, 1), 1);
    assert_int_equal(attnd_lease_grant(&reader, pages, 1, 1), 0);
    assert_int_equal(attnd_lease_grant(&reader, pages, 1, 2), 0); /* nor the block that has it */
    assert_int_equal(pool.leases[pages[0]], 2);
    assert_int_equal(pool.leases[pages[1]], 1);
    assert_int_equal(attnd_lease_share(&owner, pages, 1, NULL), 0);
    detach(&reader);
    detach(&owner);
}

static void readers_together_keep_half_of_the_pages(void **state)
{
    (void)state;
    struct attnd_attachment owner = attach(), first = attach(), other = attach();
    int32_t pages[PAGES];
    first.writable = other.writable = 0;
    assert_int_equal(attnd_lease_alloc(&owner, PAGES, pages, NULL), 0);
    assert_int_equal(attnd_lease_grant(&first, pages, PAGES / 4, 1), PAGES / 4);
    assert_int_equal(attnd_lease_grant(&other, pages, PAGES, 1), PAGES / 4);
    assert_int_equal(other.held_count, PAGES / 4); /* what was too much is given back */
    assert_int_equal(pool.leases[pages[PAGES - 1]], 1);
    assert_int_equal(attnd_lease_grant(&first, pages, PAGES, 1), PAGES / 4); /* it has those */
    detach(&first);
    assert_int_equal(attnd_lease_grant(&other, pages, PAGES, 1), PAGES / 2);
    detach(&other);
    detach(&owner);
}

static void a_ticket_outlives_its_giver_and_is_claimed_once(void **state)
{
    (void)state;
    struct attnd_attachment giver = attach(), taker = attach();
    const struct attnd_ticket *ticket;
    struct attnd_fault fault = {0};
    uint8_t secret[ATTND_SECRET_BYTES];
    int32_t pages[3];
    assert_int_equal(attnd_lease_alloc(&giver, 3, pages, NULL), 0);
    assert_int_equal(attnd_ticket_offer(&one, &giver, pages, 3, 60000, 0, &ticket, &fault), 0);
    memcpy(secret, ticket->secret, sizeof(secret));
    assert_int_equal(giver.held_count, 0);
    detach(&giver);
    assert_int_equal(attnd_lease_count(&pool), 3);
    assert_int_equal(pool.refs, 2);

    struct attnd_ticket *found = attnd_ticket_find(&service, secret);
    assert_non_null(found);
    assert_memory_equal(found->pages, pages, sizeof(pages));
    attnd_ticket_claim(found, &taker);
    assert_null(attnd_ticket_find(&service, secret));
    assert_int_equal(attnd_lease_check(&taker, pages, 3, NULL), 0);
    detach(&taker);
}

static void what_is_not_held_cannot_be_offered(void **state)
{
    (void)state;
    struct attnd_attachment a = attach();
    const struct attnd_ticket *ticket;
    struct attnd_fault fault = {0};
    int32_t pages[2] = {0, 0};
    assert_int_equal(attnd_lease_alloc(&a, 1, pages, NULL), 0);
    pages[1] = pages[0];
    assert_int_equal(attnd_ticket_offer(&one, &a, pages, 2, 60000, 0, &ticket, &fault),
                     -ATTND_E_NOT_LEASED);
    assert_int_equal(a.held_count, 1);
    assert_int_equal(pool.refs, 1);
    detach(&a);
}

static void stop(void *loop)
{
    attnd_loop_stop(loop);
}

static void an_unclaimed_ticket_gives_its_pages_back(void **state)
{
    (void)state;
    struct attnd_attachment a = attach();
    const struct attnd_ticket *ticket;
    struct attnd_fault fault = {0};
    uint8_t secret[ATTND_SECRET_BYTES];
    int32_t pages[2];
    assert_int_equal(attnd_lease_alloc(&a, 2, pages, NULL), 0);
    assert_int_equal(attnd_ticket_offer(&one, &a, pages, 2, 20, 0, &ticket, &fault), 0);
    memcpy(secret, ticket->secret, sizeof(secret));
    assert_non_null(
        attnd_loop_watch_timer(service.loop, attnd_clock_ns() + 60000000u, stop, service.loop));
    assert_int_equal(attnd_loop_run(service.loop, NULL), 0);
    assert_null(attnd_ticket_find(&service, secret));
    assert_int_equal(attnd_lease_count(&pool), 0);
    assert_int_equal(pool.refs, 1);
    detach(&a);
}

static void a_session_may_have_half_of_the_tickets_and_a_user_all(void **state)
{
    const uint32_t half = ATTND_TICKETS_MAX / 2;
    (void)state;
    struct attnd_attachment a = attach();
    const struct attnd_ticket *ticket;
    struct attnd_fault fault = {0};
    for (uint32_t i = 0; i < half; i++)
        assert_int_equal(attnd_ticket_offer(&one, &a, NULL, 0, 60000, 0, &ticket, &fault), 0);
    assert_int_equal(attnd_ticket_offer(&one, &a, NULL, 0, 60000, 0, &ticket, &fault),
                     -ATTND_E_NO_MEMORY);
    assert_int_equal(fault.field, ATTND_F_TICKET);
    assert_int_equal(fault.value, half + 1);
    assert_int_equal(fault.limit, half);
    for (uint32_t i = 0; i < half; i++)
        assert_int_equal(attnd_ticket_offer(&two, &a, NULL, 0, 60000, 0, &ticket, &fault), 0);
    assert_int_equal(attnd_ticket_offer(&two, &a, NULL, 0, 60000, 0, &ticket, &fault),
                     -ATTND_E_NO_MEMORY);
    assert_int_equal(service.used[ATTND_QUOTA_TICKETS], ATTND_TICKETS_MAX);
    detach(&a);
}

/* Two processes that a fork made are two sessions of one user. */
static void a_user_among_several_may_have_half_of_the_tickets(void **state)
{
    const uint32_t quarter = ATTND_TICKETS_MAX / 4;
    (void)state;
    struct attnd_attachment a = attach();
    const struct attnd_ticket *ticket;
    struct attnd_fault fault = {0};
    service.options.allow_uids_count = 2;
    two.uid = OTHER_UID;
    for (uint32_t i = 0; i < quarter; i++)
        assert_int_equal(attnd_ticket_offer(&one, &a, NULL, 0, 60000, 0, &ticket, &fault), 0);
    assert_int_equal(attnd_ticket_offer(&one, &a, NULL, 0, 60000, 0, &ticket, &fault),
                     -ATTND_E_NO_MEMORY);
    assert_int_equal(fault.limit, quarter);
    one.id = 11; /* the next session of the same user */
    memset(one.used, 0, sizeof(one.used));
    for (uint32_t i = 0; i < quarter; i++)
        assert_int_equal(attnd_ticket_offer(&one, &a, NULL, 0, 60000, 0, &ticket, &fault), 0);
    one.id = 12;
    memset(one.used, 0, sizeof(one.used));
    assert_int_equal(attnd_ticket_offer(&one, &a, NULL, 0, 60000, 0, &ticket, &fault),
                     -ATTND_E_NO_MEMORY);
    assert_int_equal(fault.value, 2 * quarter + 1);
    assert_int_equal(fault.limit, 2 * quarter);
    assert_int_equal(attnd_ticket_offer(&two, &a, NULL, 0, 60000, 0, &ticket, &fault), 0);
    detach(&a);
}

static void pages_of_a_ticket_are_memory_of_its_giver(void **state)
{
    (void)state;
    struct attnd_attachment a = attach();
    const struct attnd_ticket *ticket;
    struct attnd_fault fault = {0};
    int32_t pages[3];
    const uint64_t bytes = sizeof(*ticket) + sizeof(pages);
    service.options.daemon_memory_max_bytes = 2 * bytes + 2; /* half is a session's */
    assert_int_equal(attnd_lease_alloc(&a, 3, pages, NULL), 0);
    assert_int_equal(attnd_ticket_offer(&one, &a, pages, 3, 60000, 0, &ticket, &fault), 0);
    assert_int_equal(one.used[ATTND_QUOTA_DAEMON], bytes);
    assert_int_equal(attnd_ticket_offer(&one, &a, NULL, 0, 60000, 0, &ticket, &fault),
                     -ATTND_E_NO_MEMORY);
    assert_int_equal(fault.field, ATTND_F_DAEMON_MEMORY);
    assert_int_equal(fault.value, bytes + sizeof(*ticket));
    assert_int_equal(fault.limit, bytes + 1);
    assert_int_equal(one.used[ATTND_QUOTA_TICKETS], 1);
    attnd_ticket_claim(attnd_ticket_find(&service, ticket->secret), &a);
    assert_int_equal(one.used[ATTND_QUOTA_DAEMON], 0);
    assert_int_equal(attnd_ticket_offer(&one, &a, NULL, 0, 60000, 0, &ticket, &fault), 0);
    detach(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(allocated_pages_are_distinct_and_counted),
        TEST(no_space_says_how_many_are_free),
        TEST(a_shared_page_is_free_after_its_last_lease),
        TEST(a_refused_list_changes_nothing),
        TEST(a_page_cannot_be_shared_beyond_its_counter),
        TEST(a_session_may_use_only_what_it_leased),
        TEST(one_page_that_is_not_leased_is_found_among_many),
        TEST(pages_of_an_engine_cannot_be_leased),
        TEST(counts_agree_with_a_model),
        TEST(a_ticket_outlives_its_giver_and_is_claimed_once),
        TEST(a_reader_has_one_lease_of_a_page_however_often_it_finds_it),
        TEST(a_reader_that_finds_a_page_too_often_finds_it_no_more),
        TEST(readers_together_keep_half_of_the_pages),
        TEST(what_is_not_held_cannot_be_offered),
        TEST(an_unclaimed_ticket_gives_its_pages_back),
        TEST(a_session_may_have_half_of_the_tickets_and_a_user_all),
        TEST(a_user_among_several_may_have_half_of_the_tickets),
        TEST(pages_of_a_ticket_are_memory_of_its_giver),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
