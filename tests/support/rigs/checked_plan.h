/* checked_plan.h - plans that have passed plan_check(), for tests of a case each. */
#ifndef ATTND_TESTS_SUPPORT_RIGS_CHECKED_PLAN_H
#define ATTND_TESTS_SUPPORT_RIGS_CHECKED_PLAN_H

#include "tests/support/rigs/plan_check.h"

/** checked_case_begin(), checked_case_end() - setup and teardown of a test whose state is a struct
 * plan_case. */
int checked_case_begin(void **state);
int checked_case_end(void **state);

/** checked_plan() - plan @c; fails the test if it cannot be planned, or plan_check() finds
 * anything. Return: what the plan's head says. */
const struct attnd_plan_head *checked_plan(struct plan_case *c);

#endif
