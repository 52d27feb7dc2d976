/* checked_plan.c - see checked_plan.h. */
#include "tests/support/rigs/checked_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

int checked_case_begin(void **state)
{
    plan_case_begin(*state);
    return 0;
}

int checked_case_end(void **state)
{
    plan_case_free(*state);
    return 0;
}

const struct attnd_plan_head *checked_plan(struct plan_case *c)
{
    char why[200];

    assert_int_equal(plan_case_plan(c), 0);
    if (!plan_check(c, why, sizeof(why)))
        fail_msg("%s", why);
    return attnd_plan_head(c->plan);
}
