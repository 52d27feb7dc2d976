/*
 * test_e2e_far.c - pages of tickets of a service of another host, by attnd-mover.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/far.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define PAGES 24
#define LONG_MS 20000u

static struct harness giver, claimer;

static const struct side_shape shape = {
    .layers = 3, .pages = 64, .page_size = 16, .heads_kv = 2, .dim = 64};

struct both {
    struct side giver, claimer;
};

static void open_both(struct both *both, enum side_layout from, enum side_layout to)
{
    side_open(&both->giver, &giver, &shape, from);
    side_open(&both->claimer, &claimer, &shape, to);
}

static void stop_all(void)
{
    harness_stop(&claimer);
    harness_stop(&giver);
}

static void close_both(struct both *both)
{
    side_close(&both->giver);
    side_close(&both->claimer);
    stop_all();
}

static int nothing_is_leased(void *context)
{
    return side_leased(context) == 0;
}

/* Claims the ticket, and all is as it should be. */
static void claim_well(const struct both *both, const struct attnd_token *ticket, uint64_t seed)
{
    int32_t pages[PAGES];

    side_claim(&both->claimer, ticket, PAGES, NULL);
    const struct attnd_completion completion = side_wait(&both->claimer, LONG_MS);
    side_take(&both->claimer, &completion, PAGES, pages);
    CHECK_EQUAL(side_wrong(&both->claimer, pages, PAGES, seed), 0);
    CHECK_EQUAL(side_leased(&claimer), PAGES);
    harness_eventually(nothing_is_leased, &giver, LONG_MS, "the giver has its pages back");
    CHECK_OK(attnd_pages_free(both->claimer.session, both->claimer.pool, PAGES, pages));
    CHECK_EQUAL(side_leased(&claimer), 0);
}

static void pages_of_a_ticket_are_brought_from_another_host(void **state)
{
    static const enum side_layout layouts[] = {SIDE_OF_SERVICE, SIDE_BY_HEAD, SIDE_WITH_GAPS};
    (void)state;

    far_start(&giver, &claimer, NULL);
    for (uint32_t from = 0; from < 3; from++)
        for (uint32_t to = 0; to < 3; to++) {
            struct both both;
            struct attnd_token ticket;
            open_both(&both, layouts[from], layouts[to]);
            side_offer(&both.giver, PAGES, 3 * from + to, 60000, &ticket);
            claim_well(&both, &ticket, 3 * from + to);
            side_close(&both.giver);
            side_close(&both.claimer);
        }
    stop_all();
}

#define TICKETS 40

static void many_tickets_come_at_once_and_each_whole(void **state)
{
    struct both both;
    (void)state;

    far_start(&giver, &claimer, NULL);
    open_both(&both, SIDE_OF_SERVICE, SIDE_BY_HEAD);
    side_hand_over_many(&both.giver, &both.claimer, TICKETS, LONG_MS);
    CHECK_EQUAL(side_leased(&claimer), TICKETS);
    harness_eventually(nothing_is_leased, &giver, LONG_MS, "the giver has all pages back");
    close_both(&both);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(pages_of_a_ticket_are_brought_from_another_host),
        E2E_OWN_TEST(many_tickets_come_at_once_and_each_whole),
    };

    harness_init();
    if (far_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
