/*
 * test_e2e_far.c - pages of tickets of a service of another host, by attnd-mover.
 */
#include "tests/support/harness/both.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/far.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct harness giver, claimer;

static void pages_of_a_ticket_are_brought_from_another_host(void **state)
{
    (void)state;
    far_start(&giver, &claimer, NULL);
    both_bring_all_layouts(&giver, &claimer);
}

static void many_tickets_come_at_once_and_each_whole(void **state)
{
    (void)state;
    far_start(&giver, &claimer, NULL);
    both_bring_many(&giver, &claimer);
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
