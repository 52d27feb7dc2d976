/* test_pauses.c - whether kernels that come and go wait for another run. */
#include "persistent/pauses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* One gang after the other, of which each that may wait does. Return: how many did. */
static uint32_t gangs(struct attnd_pauses *pauses, uint32_t count, enum attnd_pause pause)
{
    uint32_t waited = 0;

    for (uint32_t i = 0; i < count; i++) {
        int may = attnd_pauses_may(pauses);
        waited += may != 0;
        attnd_pauses_note(pauses, may, may ? pause : ATTND_PAUSE_NONE);
    }
    return waited;
}

static void gangs_that_are_answered_all_wait(void **state)
{
    struct attnd_pauses pauses = {0};

    (void)state;
    assert_int_equal(gangs(&pauses, 5000, ATTND_PAUSE_ANSWERED), 5000);
}

static void one_wait_in_vain_costs_no_other_gang_its_wait(void **state)
{
    struct attnd_pauses pauses = {0};

    (void)state;
    for (int step = 0; step < 100; step++) { /* layers, and what comes behind the last one */
        assert_int_equal(gangs(&pauses, 15, ATTND_PAUSE_ANSWERED), 15);
        assert_int_equal(gangs(&pauses, 1, ATTND_PAUSE_VAIN), 1);
    }
}

static void waits_in_vain_become_rare(void **state)
{
    struct attnd_pauses pauses = {0};
    const uint32_t many = 100 * ATTND_PAUSES_RARE;

    (void)state;
    assert_int_equal(gangs(&pauses, 1 + 1 + 2 + 4 + 8, ATTND_PAUSE_VAIN), 5);
    (void)gangs(&pauses, many, ATTND_PAUSE_VAIN);
    assert_int_equal(gangs(&pauses, many, ATTND_PAUSE_VAIN), 100);
}

static void gangs_that_do_not_wait_change_nothing(void **state)
{
    struct attnd_pauses pauses = {0};

    (void)state;
    (void)gangs(&pauses, 2, ATTND_PAUSE_VAIN);
    assert_int_equal(gangs(&pauses, 1000, ATTND_PAUSE_NONE),
                     999); /* except for the one that may not */
    assert_int_equal(gangs(&pauses, 1 + 3 + 1, ATTND_PAUSE_VAIN), 2); /* as rare as before */
}

static void one_answer_lets_all_gangs_wait_again(void **state)
{
    struct attnd_pauses pauses = {0};

    (void)state;
    (void)gangs(&pauses, 100 * ATTND_PAUSES_RARE, ATTND_PAUSE_VAIN);
    (void)gangs(&pauses, ATTND_PAUSES_RARE, ATTND_PAUSE_ANSWERED);
    assert_int_equal(gangs(&pauses, 1000, ATTND_PAUSE_ANSWERED), 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gangs_that_are_answered_all_wait),
        cmocka_unit_test(one_wait_in_vain_costs_no_other_gang_its_wait),
        cmocka_unit_test(waits_in_vain_become_rare),
        cmocka_unit_test(gangs_that_do_not_wait_change_nothing),
        cmocka_unit_test(one_answer_lets_all_gangs_wait_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
