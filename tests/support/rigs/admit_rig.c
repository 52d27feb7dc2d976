/* admit_rig.c - one admission case, begun and ended around every test. */
#include "tests/support/rigs/admit_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct admit_case admit_rig;

int admit_rig_begin(void **state)
{
    (void)state;
    admit_case_begin(&admit_rig);
    return 0;
}

int admit_rig_end(void **state)
{
    (void)state;
    admit_case_end(&admit_rig);
    return 0;
}

void admit_rig_expect_fault(int error, enum attnd_field field, uint64_t index, int64_t value,
                            int64_t limit)
{
    assert_int_equal(admit_case_admit(&admit_rig), -error);
    assert_int_equal(admit_rig.fault.code, -error);
    assert_int_equal(admit_rig.fault.field, field);
    assert_int_equal(admit_rig.fault.index, index);
    assert_int_equal(admit_rig.fault.value, value);
    assert_int_equal(admit_rig.fault.limit, limit);
}
