/*
 * test_e2e_peers.c - pages of tickets of another service of this host.
 */
#include "tests/support/harness/both.h"
#include "tests/support/harness/e2e.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define PAGES BOTH_PAGES
#define LONG_MS SIDE_LONG_MS

static struct harness giver, claimer;

static void open_both(struct both *both, enum side_layout from, enum side_layout to)
{
    both_open(both, &giver, &claimer, from, to);
}

/* ---- what is brought ---- */

static void pages_of_a_ticket_are_brought_from_another_service(void **state)
{
    (void)state;
    hand_over_start(&giver, &claimer, NULL);
    both_bring_all_layouts(&giver, &claimer);
}

static void a_giver_that_left_has_passed_them_on_all_the_same(void **state)
{
    struct both both;
    struct attnd_token ticket;
    int32_t pages[PAGES];
    (void)state;

    hand_over_start(&giver, &claimer, NULL);
    open_both(&both, SIDE_OF_SERVICE, SIDE_OF_SERVICE);
    side_offer(&both.giver, PAGES, 7, 60000, &ticket);
    side_close(&both.giver);
    side_claim(&both.claimer, &ticket, PAGES, NULL);
    const struct attnd_completion completion = side_wait(&both.claimer, LONG_MS);
    side_take(&both.claimer, &completion, PAGES, pages);
    CHECK_EQUAL(side_wrong(&both.claimer, pages, PAGES, 7), 0);
    side_close(&both.claimer);
    harness_stop(&claimer);
    harness_stop(&giver);
}

static void a_ticket_of_this_service_is_claimed_by_submission_too(void **state)
{
    struct both both;
    struct attnd_token ticket;
    struct attnd_completion completion;
    int32_t pages[PAGES];
    (void)state;

    hand_over_start(&giver, &claimer, NULL);
    open_both(&both, SIDE_OF_SERVICE, SIDE_OF_SERVICE);
    side_offer(&both.giver, PAGES, 9, 60000, &ticket);
    side_claim(&both.giver, &ticket, PAGES, NULL);
    completion = side_wait(&both.giver, LONG_MS);
    side_take(&both.giver, &completion, PAGES, pages);
    CHECK_EQUAL(side_wrong(&both.giver, pages, PAGES, 9), 0);
    CHECK_EQUAL(side_leased(&giver), PAGES);
    side_claim(&both.giver, &ticket, PAGES, NULL);
    CHECK_EQUAL(side_wait(&both.giver, LONG_MS).fault.code, -ATTND_E_EXPIRED);
    both_stop(&both);
}

static void many_tickets_come_at_once_and_each_whole(void **state)
{
    (void)state;
    hand_over_start(&giver, &claimer, NULL);
    both_bring_many(&giver, &claimer);
}

static void a_ticket_of_no_page_is_claimed(void **state)
{
    struct both both;
    struct attnd_token ticket;
    struct attnd_completion completion;
    (void)state;

    hand_over_start(&giver, &claimer, NULL);
    open_both(&both, SIDE_OF_SERVICE, SIDE_OF_SERVICE);
    side_offer(&both.giver, 0, 0, 60000, &ticket);
    side_claim(&both.claimer, &ticket, 0, NULL);
    completion = side_wait(&both.claimer, LONG_MS);
    side_take(&both.claimer, &completion, 0, NULL);
    both_stop(&both);
}

static void two_services_claim_from_each_other(void **state)
{
    struct both both;
    struct attnd_token there, here;
    struct attnd_completion completion;
    char options[2][160];
    int32_t pages[PAGES];
    (void)state;

    hand_over_start(&giver, &claimer, NULL);
    harness_kill_daemon(&giver); /* and again, now that both sockets are known */
    snprintf(options[0], sizeof(options[0]), "other=%s", claimer.socket);
    harness_restart(&giver, (const char *const[]){"--peer", options[0], NULL});
    side_await_linked(&giver);
    side_await_linked(&claimer);
    open_both(&both, SIDE_OF_SERVICE, SIDE_OF_SERVICE);
    side_offer(&both.giver, PAGES, 1, 60000, &there);
    side_offer(&both.claimer, PAGES, 2, 60000, &here);
    side_claim(&both.claimer, &there, PAGES, NULL);
    side_claim(&both.giver, &here, PAGES, NULL);
    completion = side_wait(&both.claimer, LONG_MS);
    side_take(&both.claimer, &completion, PAGES, pages);
    CHECK_EQUAL(side_wrong(&both.claimer, pages, PAGES, 1), 0);
    completion = side_wait(&both.giver, LONG_MS);
    side_take(&both.giver, &completion, PAGES, pages);
    CHECK_EQUAL(side_wrong(&both.giver, pages, PAGES, 2), 0);
    both_stop(&both);
}

/* ---- what is refused ---- */

/* Services of several GPUs may read one file. */
static void a_file_of_all_services_is_good_for_each(void **state)
{
    char own[160], other[160];
    const char *const arguments[] = {"--peer", own, "--peer", other, NULL};
    struct both both;
    struct attnd_token ticket;
    (void)state;

    harness_start(&giver, NULL);
    harness_start(&claimer, NULL);
    harness_kill_daemon(&claimer);
    snprintf(own, sizeof(own), "claimer=%s", claimer.socket);
    snprintf(other, sizeof(other), "giver=%s", giver.socket);
    harness_restart(&claimer, arguments);
    side_await_linked(&claimer);
    Attnd__Status *status = harness_status(&claimer);
    CHECK_EQUAL(status->n_peers, 1);
    CHECK(strcmp(status->peers[0]->name, "giver") == 0);
    attnd__status__free_unpacked(status, NULL);
    open_both(&both, SIDE_OF_SERVICE, SIDE_OF_SERVICE);
    side_offer(&both.giver, PAGES, 8, 60000, &ticket);
    both_claim_well(&both, &ticket, 8);
    both_stop(&both);
}

static void a_refused_claim_leaves_the_ticket_as_it_was(void **state)
{
    struct both both;
    struct side other;
    struct attnd_token ticket, none = {{0}};
    const struct side_shape narrow = {
        .layers = 3, .pages = 64, .page_size = 16, .heads_kv = 1, .dim = 64};
    const struct side_shape small = {
        .layers = 3, .pages = PAGES - 1, .page_size = 16, .heads_kv = 2, .dim = 64};
    struct attnd_completion completion;
    uint32_t pool;
    int32_t pages[PAGES];
    (void)state;

    hand_over_start(&giver, &claimer, NULL);
    open_both(&both, SIDE_OF_SERVICE, SIDE_OF_SERVICE);
    side_offer(&both.giver, PAGES, 5, 60000, &ticket);

    side_claim(&both.claimer, &ticket, PAGES - 1, NULL);
    completion = side_wait(&both.claimer, LONG_MS);
    CHECK_EQUAL(completion.fault.code, -ATTND_E_NO_SPACE);
    CHECK_EQUAL(completion.fault.field, ATTND_F_COUNT);
    CHECK_EQUAL(completion.fault.limit, PAGES);

    side_open(&other, &claimer, &narrow, SIDE_OF_SERVICE);
    side_claim(&other, &ticket, PAGES, NULL);
    completion = side_wait(&other, LONG_MS);
    CHECK_EQUAL(completion.fault.code, -ATTND_E_INVALID);
    CHECK_EQUAL(completion.fault.field, ATTND_F_POOL);
    side_close(&other);

    side_open(&other, &claimer, &small, SIDE_OF_SERVICE);
    side_claim(&other, &ticket, PAGES, NULL);
    completion = side_wait(&other, LONG_MS);
    CHECK_EQUAL(completion.fault.code, -ATTND_E_NO_SPACE);
    CHECK_EQUAL(completion.fault.field, ATTND_F_PAGES);
    side_close(&other);

    CHECK_ERROR(attnd_pages_claim(both.claimer.session, &ticket, &pool, pages, PAGES),
                ATTND_E_UNSUPPORTED);
    side_claim(&both.claimer, &none, PAGES, NULL);
    CHECK_EQUAL(side_wait(&both.claimer, LONG_MS).fault.code, -ATTND_E_EXPIRED);
    memcpy(none.bytes, ticket.bytes, 4); /* of that service, but none of its tickets */
    side_claim(&both.claimer, &none, PAGES, NULL);
    CHECK_EQUAL(side_wait(&both.claimer, LONG_MS).fault.code, -ATTND_E_EXPIRED);

    both_claim_well(&both, &ticket, 5);
    side_claim(&both.claimer, &ticket, PAGES, NULL);
    CHECK_EQUAL(side_wait(&both.claimer, LONG_MS).fault.code, -ATTND_E_EXPIRED);
    both_stop(&both);
}

/* ---- while bytes are on their way ---- */

/* The claimer's worker stands still, with a piece or before it. */
static pid_t hold_in_the_middle(const struct both *both, const struct attnd_token *ticket,
                                const struct attnd_op *op)
{
    const pid_t worker = harness_stop_worker(&claimer);

    side_claim(&both->claimer, ticket, PAGES, op);
    side_await_lent(&giver);
    return worker;
}

static void a_claim_that_is_cancelled_or_too_late_leaves_the_ticket(void **state)
{
    struct both both;
    struct attnd_token ticket;
    (void)state;

    hand_over_start(&giver, &claimer, (const char *const[]){"--watchdog", "0", NULL});
    open_both(&both, SIDE_OF_SERVICE, SIDE_OF_SERVICE);
    side_offer(&both.giver, PAGES, 11, 60000, &ticket);

    pid_t worker = hold_in_the_middle(&both, &ticket, &(struct attnd_op){.user_data = 1});
    CHECK_OK(attnd_cancel(both.claimer.session, 1));
    CHECK_EQUAL(side_wait(&both.claimer, LONG_MS).fault.code, -ATTND_E_CANCELLED);
    side_await_returned(&giver, LONG_MS);
    CHECK_EQUAL(side_leased(&giver), PAGES);
    CHECK_EQUAL(kill(worker, SIGCONT), 0);
    side_await_free(&claimer, "what was leased for it is free");

    worker = hold_in_the_middle(&both, &ticket, &(struct attnd_op){.timeout_us = 50000});
    CHECK_EQUAL(side_wait(&both.claimer, LONG_MS).fault.code, -ATTND_E_TIMEOUT);
    CHECK_EQUAL(kill(worker, SIGCONT), 0);
    side_await_free(&claimer, "what was leased for it is free");

    both_claim_well(&both, &ticket, 11);
    both_stop(&both);
}

static void a_lent_ticket_is_claimed_by_nobody_else(void **state)
{
    struct both both;
    struct attnd_token ticket;
    uint32_t pool;
    int32_t pages[PAGES];
    (void)state;

    hand_over_start(&giver, &claimer, (const char *const[]){"--watchdog", "0", NULL});
    open_both(&both, SIDE_OF_SERVICE, SIDE_OF_SERVICE);
    side_offer(&both.giver, PAGES, 12, 60000, &ticket);
    const pid_t worker = hold_in_the_middle(&both, &ticket, NULL);
    CHECK_ERROR(attnd_pages_claim(both.giver.session, &ticket, &pool, pages, PAGES), ATTND_E_BUSY);
    side_claim(&both.claimer, &ticket, PAGES, &(struct attnd_op){.user_data = 2});
    struct attnd_completion completion = side_wait(&both.claimer, LONG_MS);
    CHECK_EQUAL(completion.user_data, 2);
    CHECK_EQUAL(completion.fault.code, -ATTND_E_BUSY);
    CHECK_EQUAL(kill(worker, SIGCONT), 0);
    completion = side_wait(&both.claimer, LONG_MS);
    side_take(&both.claimer, &completion, PAGES, pages);
    CHECK_EQUAL(side_wrong(&both.claimer, pages, PAGES, 12), 0);
    both_stop(&both);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(pages_of_a_ticket_are_brought_from_another_service),
        E2E_OWN_TEST(a_giver_that_left_has_passed_them_on_all_the_same),
        E2E_OWN_TEST(a_ticket_of_this_service_is_claimed_by_submission_too),
        E2E_OWN_TEST(many_tickets_come_at_once_and_each_whole),
        E2E_OWN_TEST(a_ticket_of_no_page_is_claimed),
        E2E_OWN_TEST(two_services_claim_from_each_other),
        E2E_OWN_TEST(a_file_of_all_services_is_good_for_each),
        E2E_OWN_TEST(a_refused_claim_leaves_the_ticket_as_it_was),
        E2E_OWN_TEST(a_claim_that_is_cancelled_or_too_late_leaves_the_ticket),
        E2E_OWN_TEST(a_lent_ticket_is_claimed_by_nobody_else),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
