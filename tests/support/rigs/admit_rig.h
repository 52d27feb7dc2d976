/*
 * admit_rig.h - one admission case, begun and ended around every test. Included by a test program,
 * once.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_ADMIT_RIG_H
#define ATTND_TESTS_SUPPORT_RIGS_ADMIT_RIG_H

#include "tests/support/rigs/admit_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct admit_case t;

static inline int begin(void **state)
{
    (void)state;
    admit_case_begin(&t);
    return 0;
}

static inline int end(void **state)
{
    (void)state;
    admit_case_end(&t);
    return 0;
}

static inline void expect_fault(int error, enum attnd_field field, uint64_t index, int64_t value,
                                int64_t limit)
{
    assert_int_equal(admit_case_admit(&t), -error);
    assert_int_equal(t.fault.code, -error);
    assert_int_equal(t.fault.field, field);
    assert_int_equal(t.fault.index, index);
    assert_int_equal(t.fault.value, value);
    assert_int_equal(t.fault.limit, limit);
}

#endif
