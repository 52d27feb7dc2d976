/*
 * claim_trial.c - see claim_trial.h.
 */
#include "tests/support/harness/claim_trial.h"

#include <signal.h>
#include <string.h>

#define PAGES TRIAL_PAGES

static const struct side_shape shape = {
    .layers = 2, .pages = 40, .page_size = 16, .heads_kv = 2, .dim = 64};

static void open_sides(struct claim_trial *trial, struct harness *giver, struct harness *claimer,
                       uint64_t seed)
{
    *trial = (struct claim_trial){.giver_service = giver, .claimer_service = claimer, .seed = seed};
    side_open(&trial->giver, giver, &shape, SIDE_OF_SERVICE);
    side_open(&trial->claimer, claimer, &shape, SIDE_BY_HEAD);
}

void claim_trial_begin(struct claim_trial *trial, struct harness *giver, struct harness *claimer,
                       uint64_t seed)
{
    open_sides(trial, giver, claimer, seed);
    side_offer(&trial->giver, PAGES, seed, 600000, &trial->ticket);
}

/* Bytes that are there before their layers are said to be whole; the ticket alone has the pages. */
void claim_trial_begin_early(struct claim_trial *trial, struct harness *giver,
                             struct harness *claimer, uint64_t seed)
{
    int32_t pages[PAGES];

    open_sides(trial, giver, claimer, seed);
    trial->early = 1;
    CHECK_OK(attnd_pages_alloc(trial->giver.session, trial->giver.pool, PAGES, pages));
    side_fill(&trial->giver, pages, PAGES, seed);
    CHECK_OK(attnd_pages_offer_layers(trial->giver.session, trial->giver.pool, PAGES, pages, 600000,
                                      &trial->ticket));
    CHECK_OK(attnd_pages_free(trial->giver.session, trial->giver.pool, PAGES, pages));
}

void claim_trial_claim(const struct claim_trial *trial)
{
    const struct attnd_claim_args args = {.size = sizeof(args),
                                          .pool = trial->claimer.pool,
                                          .pages_max = PAGES,
                                          .flags = trial->early ? ATTND_CLAIM_EARLY : 0,
                                          .ticket = &trial->ticket};
    const struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS};

    CHECK_OK(attnd_pages_claim_async(trial->claimer.session, &args, NULL));
    for (uint32_t layers = 1; trial->early && layers <= shape.layers; layers++) {
        const int rc = attnd_pages_ready(trial->giver.session, trial->giver.pool, &trial->ticket,
                                         layers, &quiet);
        CHECK(rc == 0 || rc == -ATTND_E_DISCONNECTED); /* it may be dead already */
    }
}

void claim_trial_close(struct claim_trial *trial)
{
    side_close(&trial->giver);
    side_close(&trial->claimer);
}

/* The pages are the claimer's already: until all of them are here, or it is told that they will not
 * be. */
static enum trial_outcome arrive(const struct claim_trial *trial, const int32_t *pages,
                                 uint32_t limit_ms)
{
    const uint64_t end_ns = harness_now_ns() + limit_ms * UINT64_C(1000000);
    const struct side *side = &trial->claimer;
    struct attnd_token token;
    int32_t same[PAGES];
    uint32_t pool;
    int rc;

    do {
        rc = attnd_pages_offer(side->session, side->pool, PAGES, pages, 60000, &token);
        CHECK(rc != -ATTND_E_BUSY || harness_now_ns() < end_ns);
        harness_sleep_ms(1);
    } while (rc == -ATTND_E_BUSY);
    if (rc == -ATTND_E_DISCONNECTED)
        return TRIAL_DISCONNECTED;
    if (rc == -ATTND_E_PEER_LOST)
        return TRIAL_FAILED;
    CHECK_OK(rc);
    CHECK_EQUAL(attnd_pages_claim(side->session, &token, &pool, same, PAGES), PAGES);
    return TRIAL_SUCCEEDED;
}

/* The answer of the claim, at most @limit_ms after now. Pages of one that succeeded are right. */
enum trial_outcome claim_trial_answer(const struct claim_trial *trial, uint32_t limit_ms)
{
    struct attnd_completion completion = {0};
    int32_t pages[PAGES];
    const int got = attnd_wait(trial->claimer.session, &completion, 1,
                               (limit_ms + 500) * UINT64_C(1000000)); /* our own share of it */

    if (got == -ATTND_E_DISCONNECTED)
        return TRIAL_DISCONNECTED;
    CHECK_EQUAL(got, 1);
    if (completion.fault.code != 0) {
        /* EXPIRED: the question came when the ticket had been claimed there already. */
        CHECK(completion.fault.code == -ATTND_E_PEER_LOST ||
              completion.fault.code == -ATTND_E_EXPIRED);
        return TRIAL_FAILED;
    }
    side_take(&trial->claimer, &completion, PAGES, pages);
    const enum trial_outcome outcome =
        trial->early ? arrive(trial, pages, limit_ms) : TRIAL_SUCCEEDED;
    if (outcome == TRIAL_DISCONNECTED)
        return TRIAL_DISCONNECTED;
    if (outcome == TRIAL_SUCCEEDED)
        CHECK_EQUAL(side_wrong(&trial->claimer, pages, PAGES, trial->seed), 0);
    CHECK_OK(attnd_pages_free(trial->claimer.session, trial->claimer.pool, PAGES, pages));
    return outcome;
}

/* The ticket is claimed at the giver. Return: 1; 0 it is spent. Awaits that it is lent no more, and
 * that its layers are whole. */
int claim_trial_claim_there(const struct claim_trial *trial, uint32_t limit_ms)
{
    const uint64_t end_ns = harness_now_ns() + TRIAL_LONG_MS * UINT64_C(1000000);
    int32_t pages[PAGES];
    uint32_t pool;
    int rc;

    side_await_returned(trial->giver_service, limit_ms);
    do
        rc = attnd_pages_claim(trial->giver.session, &trial->ticket, &pool, pages, PAGES);
    while (rc == -ATTND_E_BUSY && harness_now_ns() < end_ns); /* a question may be on its way */
    if (rc == -ATTND_E_EXPIRED) {
        side_await_free(trial->giver_service, "the giver has its pages back");
        return 0;
    }
    CHECK_EQUAL(rc, PAGES);
    CHECK_EQUAL(side_wrong(&trial->giver, pages, PAGES, trial->seed), 0);
    CHECK_OK(attnd_pages_free(trial->giver.session, trial->giver.pool, PAGES, pages));
    CHECK_EQUAL(side_leased(trial->giver_service), 0);
    return 1;
}

static uint32_t limit_after(int signal)
{
    return signal == SIGKILL ? TRIAL_KILLED_MS : TRIAL_STOPPED_MS;
}

void claim_trial_after_giver(const struct claim_trial *trial, int signal,
                             void (*restart)(struct harness *giver))
{
    const enum trial_outcome outcome = claim_trial_answer(trial, limit_after(signal));

    CHECK(outcome != TRIAL_DISCONNECTED);
    side_await_free(trial->claimer_service, "nothing is leased here");
    if (signal == SIGKILL) {
        harness_kill_daemon(trial->giver_service); /* it is dead: reaped */
        restart(trial->giver_service);
        return;
    }
    CHECK_EQUAL(kill(trial->giver_service->daemon, SIGCONT), 0);
    CHECK(!claim_trial_claim_there(trial, TRIAL_LONG_MS) || outcome == TRIAL_FAILED);
}

void claim_trial_after_claimer(const struct claim_trial *trial, int signal,
                               void (*restart)(struct harness *claimer))
{
    const int there = claim_trial_claim_there(trial, limit_after(signal));

    if (signal == SIGKILL) {
        CHECK_EQUAL(claim_trial_answer(trial, TRIAL_KILLED_MS), TRIAL_DISCONNECTED);
        harness_kill_daemon(trial->claimer_service);
        restart(trial->claimer_service);
        return;
    }
    CHECK_EQUAL(kill(trial->claimer_service->daemon, SIGCONT), 0);
    const enum trial_outcome outcome = claim_trial_answer(trial, TRIAL_STOPPED_MS);
    CHECK(outcome == TRIAL_FAILED || (outcome == TRIAL_SUCCEEDED && !there));
    side_await_free(trial->claimer_service, "nothing is leased here");
}

/* All over again, to see that it works. */
void claim_trial_once_more(struct harness *giver, struct harness *claimer)
{
    struct claim_trial trial;

    side_await_linked(claimer);
    claim_trial_begin(&trial, giver, claimer, 77);
    claim_trial_claim(&trial);
    CHECK_EQUAL(claim_trial_answer(&trial, TRIAL_LONG_MS), TRIAL_SUCCEEDED);
    side_await_free(giver, "the giver has its pages back");
    side_await_free(claimer, "nothing is leased here");
    claim_trial_close(&trial);
}
