/*
 * both.c - see both.h.
 */
#include "tests/support/harness/both.h"

#define PAGES BOTH_PAGES
#define LONG_MS SIDE_LONG_MS

static const struct side_shape shape = {
    .layers = 3, .pages = 64, .page_size = 16, .heads_kv = 2, .dim = 64};

void both_open(struct both *both, struct harness *giver, struct harness *claimer,
               enum side_layout from, enum side_layout to)
{
    *both = (struct both){.giver_service = giver, .claimer_service = claimer};
    side_open(&both->giver, giver, &shape, from);
    side_open(&both->claimer, claimer, &shape, to);
}

void both_close(struct both *both)
{
    side_close(&both->giver);
    side_close(&both->claimer);
}

static void stop(struct harness *giver, struct harness *claimer)
{
    harness_stop(claimer);
    harness_stop(giver);
}

void both_stop(struct both *both)
{
    both_close(both);
    stop(both->giver_service, both->claimer_service);
}

void both_claim_well(const struct both *both, const struct attnd_token *ticket, uint64_t seed)
{
    int32_t pages[PAGES];

    side_claim(&both->claimer, ticket, PAGES, NULL);
    const struct attnd_completion completion = side_wait(&both->claimer, LONG_MS);
    side_take(&both->claimer, &completion, PAGES, pages);
    CHECK_EQUAL(side_wrong(&both->claimer, pages, PAGES, seed), 0);
    CHECK_EQUAL(side_leased(both->claimer_service), PAGES);
    side_await_free(both->giver_service, "the giver has its pages back");
    CHECK_OK(attnd_pages_free(both->claimer.session, both->claimer.pool, PAGES, pages));
    CHECK_EQUAL(side_leased(both->claimer_service), 0);
}

void both_bring_all_layouts(struct harness *giver, struct harness *claimer)
{
    static const enum side_layout layouts[] = {SIDE_OF_SERVICE, SIDE_BY_HEAD, SIDE_WITH_GAPS};

    for (uint32_t from = 0; from < 3; from++)
        for (uint32_t to = 0; to < 3; to++) {
            struct both both;
            struct attnd_token ticket;
            both_open(&both, giver, claimer, layouts[from], layouts[to]);
            side_offer(&both.giver, PAGES, 3 * from + to, 60000, &ticket);
            both_claim_well(&both, &ticket, 3 * from + to);
            both_close(&both);
        }
    stop(giver, claimer);
}

void both_bring_many(struct harness *giver, struct harness *claimer)
{
    struct both both;

    both_open(&both, giver, claimer, SIDE_OF_SERVICE, SIDE_BY_HEAD);
    side_hand_over_many(&both.giver, &both.claimer, BOTH_TICKETS, LONG_MS);
    CHECK_EQUAL(side_leased(claimer), BOTH_TICKETS);
    side_await_free(giver, "the giver has all pages back");
    both_stop(&both);
}
