/* test_lease_calls.c - the calls about pages: bounds of a call, replies, tickets from offer to
 * claim. What leases mean is test_lease.c's. */
#include "tests/support/rigs/pool_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define CALL_PAGES_MAX 16384u

static uint32_t pool; /* client 0's, of four pages */

static int with_a_pool(void **state)
{
    Attnd__PoolCreate desc = pool_rig_good_desc();
    (void)pool_rig_setup_with_loop(state);
    assert_int_equal(pool_rig_create(0, &desc), 0);
    pool = pool_rig.reply.pool->pool;
    return 0;
}

static int without(void **state)
{
    attnd_ticket_free_all(&pool_rig.service);
    return pool_rig_teardown_with_loop(state);
}

/* ---- the calls ---- */

static int alloc(uint32_t who, uint32_t of, uint32_t count)
{
    Attnd__PagesAlloc message = ATTND__PAGES_ALLOC__INIT;
    struct attnd_call *call = pool_rig_begin(who);
    message.pool = of;
    message.count = count;
    pool_rig.request.pages_alloc = &message;
    return attnd_call_pages_alloc(call);
}

static int share_pages(uint32_t of, int32_t *pages, size_t count)
{
    Attnd__PagesShare message = ATTND__PAGES_SHARE__INIT;
    struct attnd_call *call = pool_rig_begin(0);
    message.pool = of;
    message.page = pages;
    message.n_page = count;
    pool_rig.request.pages_share = &message;
    return attnd_call_pages_share(call);
}

static int free_pages(uint32_t of, int32_t *pages, size_t count)
{
    Attnd__PagesFree message = ATTND__PAGES_FREE__INIT;
    struct attnd_call *call = pool_rig_begin(0);
    message.pool = of;
    message.page = pages;
    message.n_page = count;
    pool_rig.request.pages_free = &message;
    return attnd_call_pages_free(call);
}

static int offer(uint32_t of, int32_t *pages, size_t count, uint32_t expire_ms, uint8_t *ticket)
{
    Attnd__PagesOffer message = ATTND__PAGES_OFFER__INIT;
    struct attnd_call *call = pool_rig_begin(0);
    message.pool = of;
    message.page = pages;
    message.n_page = count;
    message.expire_ms = expire_ms;
    pool_rig.request.pages_offer = &message;
    int rc = attnd_call_pages_offer(call);
    if (rc == 0) {
        assert_int_equal(pool_rig.reply.result_case, ATTND__REPLY__RESULT_TICKET);
        assert_int_equal(pool_rig.reply.ticket->ticket.len, ATTND_SECRET_BYTES);
        memcpy(ticket, pool_rig.reply.ticket->ticket.data, ATTND_SECRET_BYTES);
    }
    return rc;
}

static int claim(uint32_t who, uint8_t *ticket, size_t ticket_bytes, uint32_t pages_max)
{
    Attnd__PagesClaim message = ATTND__PAGES_CLAIM__INIT;
    struct attnd_call *call = pool_rig_begin(who);
    message.ticket.data = ticket;
    message.ticket.len = ticket_bytes;
    message.pages_max = pages_max;
    pool_rig.request.pages_claim = &message;
    return attnd_call_pages_claim(call);
}

/* Client 1 attaches the pool. Return: its handle. */
static uint32_t attach_other(void)
{
    Attnd__PoolShare message = ATTND__POOL_SHARE__INIT;
    Attnd__PoolAttach attach = ATTND__POOL_ATTACH__INIT;
    uint8_t token[ATTND_SECRET_BYTES];
    struct attnd_call *call = pool_rig_begin(0);
    message.pool = pool;
    message.writable = 1;
    pool_rig.request.pool_share = &message;
    assert_int_equal(attnd_call_pool_share(call), 0);
    memcpy(token, pool_rig.reply.token->token.data, sizeof(token));
    call = pool_rig_begin(1);
    attach.token.data = token;
    attach.token.len = sizeof(token);
    pool_rig.request.pool_attach = &attach;
    assert_int_equal(attnd_call_pool_attach(call), 0);
    return pool_rig.reply.pool->pool;
}

static uint32_t leased(void)
{
    return attnd_lease_count(pool_rig.service.pools);
}

/* ---- bounds ---- */

static void a_pool_that_the_session_has_not_is_unknown_to_every_call(void **state)
{
    int32_t page = 0;
    uint8_t ticket[ATTND_SECRET_BYTES];
    const uint32_t handles[] = {0, pool + 1, ATTND_HANDLES_MAX + 1, UINT32_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof(handles) / sizeof(handles[0]); i++) {
        assert_int_equal(alloc(0, handles[i], 1), -ATTND_E_UNKNOWN);
        assert_int_equal(pool_rig.fault.value, handles[i]);
        assert_int_equal(share_pages(handles[i], &page, 1), -ATTND_E_UNKNOWN);
        assert_int_equal(free_pages(handles[i], &page, 1), -ATTND_E_UNKNOWN);
        assert_int_equal(offer(handles[i], &page, 1, 1000, ticket), -ATTND_E_UNKNOWN);
        assert_int_equal(pool_rig.fault.field, ATTND_F_POOL);
    }
    assert_int_equal(alloc(1, pool, 1), -ATTND_E_UNKNOWN); /* another's */
}

static void a_call_of_too_many_pages_is_refused_before_any_is_looked_at(void **state)
{
    static int32_t pages[CALL_PAGES_MAX + 1]; /* all page 0, which nobody has */
    uint8_t ticket[ATTND_SECRET_BYTES];
    (void)state;
    assert_int_equal(alloc(0, pool, CALL_PAGES_MAX + 1), -ATTND_E_RANGE);
    assert_int_equal(pool_rig.fault.field, ATTND_F_COUNT);
    assert_int_equal(pool_rig.fault.value, CALL_PAGES_MAX + 1);
    assert_int_equal(pool_rig.fault.limit, CALL_PAGES_MAX);
    assert_int_equal(share_pages(pool, pages, CALL_PAGES_MAX + 1), -ATTND_E_RANGE);
    assert_int_equal(free_pages(pool, pages, CALL_PAGES_MAX + 1), -ATTND_E_RANGE);
    assert_int_equal(offer(pool, pages, CALL_PAGES_MAX + 1, 1, ticket), -ATTND_E_RANGE);
    assert_int_equal(pool_rig.fault.field, ATTND_F_COUNT);
    assert_int_equal(free_pages(pool, pages, CALL_PAGES_MAX), -ATTND_E_NOT_LEASED);
}

static void a_ticket_lives_a_millisecond_to_ten_minutes(void **state)
{
    uint8_t ticket[ATTND_SECRET_BYTES];
    int32_t pages[2];
    (void)state;
    assert_int_equal(alloc(0, pool, 2), 0);
    memcpy(pages, pool_rig.reply.pages->page, sizeof(pages));
    assert_int_equal(offer(pool, pages, 1, 0, ticket), -ATTND_E_RANGE);
    assert_int_equal(pool_rig.fault.field, ATTND_F_EXPIRE_MS);
    assert_int_equal(pool_rig.fault.limit, 1);
    assert_int_equal(offer(pool, pages, 1, 600001, ticket), -ATTND_E_RANGE);
    assert_int_equal(pool_rig.fault.limit, 600000);
    assert_int_equal(offer(pool, pages, 1, 600000, ticket), 0);
    assert_int_equal(offer(pool, pages + 1, 1, 1, ticket), 0);
}

/* ---- replies ---- */

static void allocated_pages_come_in_the_reply_or_not_at_all(void **state)
{
    (void)state;
    assert_int_equal(alloc(0, pool, 3), 0);
    assert_int_equal(pool_rig.reply.result_case, ATTND__REPLY__RESULT_PAGES);
    assert_int_equal(pool_rig.reply.pages->pool, pool);
    assert_int_equal(pool_rig.reply.pages->n_page, 3);
    for (int32_t i = 0; i < 3; i++)
        assert_int_equal(attnd_lease_check(pool_rig.clients[0]->attachments[pool - 1],
                                           &pool_rig.reply.pages->page[i], 1, NULL),
                         0);
    assert_int_equal(leased(), 3);
    assert_int_equal(alloc(0, pool, 2), -ATTND_E_NO_SPACE);
    assert_int_equal(pool_rig.fault.limit, 1);
    assert_int_equal(leased(), 3);
    assert_int_equal(alloc(0, pool, 0), 0);
    assert_int_equal(pool_rig.reply.pages->n_page, 0);
}

static void shared_pages_take_as_many_frees(void **state)
{
    int32_t pages[2];
    (void)state;
    assert_int_equal(alloc(0, pool, 2), 0);
    memcpy(pages, pool_rig.reply.pages->page, sizeof(pages));
    assert_int_equal(share_pages(pool, pages, 2), 0);
    assert_int_equal(free_pages(pool, pages, 2), 0);
    assert_int_equal(leased(), 2);
    assert_int_equal(free_pages(pool, pages, 2), 0);
    assert_int_equal(leased(), 0);
    assert_int_equal(free_pages(pool, pages, 1), -ATTND_E_NOT_LEASED);
}

/* ---- tickets ---- */

static void a_ticket_is_claimed_once_by_whoever_attached_the_pool(void **state)
{
    uint8_t ticket[ATTND_SECRET_BYTES];
    int32_t pages[3];
    (void)state;
    assert_int_equal(alloc(0, pool, 3), 0);
    memcpy(pages, pool_rig.reply.pages->page, sizeof(pages));
    const int32_t order[] = {pages[2], pages[0], pages[1]};
    int32_t offered[3];
    memcpy(offered, order, sizeof(order));
    assert_int_equal(offer(pool, offered, 3, 60000, ticket), 0);
    assert_int_equal(free_pages(pool, pages, 1), -ATTND_E_NOT_LEASED); /* given away */

    assert_int_equal(claim(1, ticket, sizeof(ticket), 3), -ATTND_E_PERMISSION);
    assert_int_equal(pool_rig.fault.field, ATTND_F_POOL);
    uint32_t handle = attach_other();
    assert_int_equal(claim(1, ticket, sizeof(ticket), 2), -ATTND_E_NO_SPACE);
    assert_int_equal(pool_rig.fault.field, ATTND_F_COUNT);
    assert_int_equal(pool_rig.fault.limit, 3);
    assert_int_equal(claim(1, ticket, sizeof(ticket), 3), 0); /* neither has spent it */
    assert_int_equal(pool_rig.reply.pages->pool, handle);
    assert_int_equal(pool_rig.reply.pages->n_page, 3);
    assert_memory_equal(pool_rig.reply.pages->page, order, sizeof(order));
    assert_int_equal(pool_rig.clients[1]->attachments[handle - 1]->held_count, 3);
    assert_int_equal(claim(1, ticket, sizeof(ticket), 3), -ATTND_E_EXPIRED);
}

static void what_is_no_ticket_is_as_good_as_an_expired_one(void **state)
{
    uint8_t ticket[ATTND_SECRET_BYTES + 1] = {0};
    int32_t page;
    (void)state;
    assert_int_equal(claim(0, ticket, ATTND_SECRET_BYTES, 1), -ATTND_E_EXPIRED);
    assert_int_equal(alloc(0, pool, 1), 0);
    page = pool_rig.reply.pages->page[0];
    assert_int_equal(offer(pool, &page, 1, 60000, ticket), 0);
    assert_int_equal(claim(0, ticket, ATTND_SECRET_BYTES - 1, 1), -ATTND_E_EXPIRED);
    assert_int_equal(claim(0, ticket, ATTND_SECRET_BYTES + 1, 1), -ATTND_E_EXPIRED);
    assert_int_equal(claim(0, ticket, 0, 1), -ATTND_E_EXPIRED);
    ticket[ATTND_SECRET_BYTES - 1] ^= 1;
    assert_int_equal(claim(0, ticket, ATTND_SECRET_BYTES, 1), -ATTND_E_EXPIRED);
    ticket[ATTND_SECRET_BYTES - 1] ^= 1;
    assert_int_equal(claim(0, ticket, ATTND_SECRET_BYTES, 1), 0); /* the giver itself may */
}

static void an_offer_that_fails_makes_no_ticket(void **state)
{
    uint8_t ticket[ATTND_SECRET_BYTES];
    int32_t pages[2];
    (void)state;
    assert_int_equal(alloc(0, pool, 1), 0);
    pages[0] = pool_rig.reply.pages->page[0];
    pages[1] = pages[0]; /* it has one lease of it, not two */
    assert_int_equal(offer(pool, pages, 2, 60000, ticket), -ATTND_E_NOT_LEASED);
    assert_int_equal(pool_rig.fault.index, 1);
    assert_int_equal(free_pages(pool, pages, 1), 0); /* it still has that one */
    assert_int_equal(pool_rig.service.pools->refs, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, with_a_pool, without)
        TEST(a_pool_that_the_session_has_not_is_unknown_to_every_call),
        TEST(a_call_of_too_many_pages_is_refused_before_any_is_looked_at),
        TEST(a_ticket_lives_a_millisecond_to_ten_minutes),
        TEST(allocated_pages_come_in_the_reply_or_not_at_all),
        TEST(shared_pages_take_as_many_frees),
        TEST(a_ticket_is_claimed_once_by_whoever_attached_the_pool),
        TEST(what_is_no_ticket_is_as_good_as_an_expired_one),
        TEST(an_offer_that_fails_makes_no_ticket),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
