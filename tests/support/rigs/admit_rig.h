/*
 * admit_rig.h - one admission case, begun and ended around every test.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_ADMIT_RIG_H
#define ATTND_TESTS_SUPPORT_RIGS_ADMIT_RIG_H

#include "tests/support/rigs/admit_case.h"

extern struct admit_case admit_rig;

int admit_rig_begin(void **state);
int admit_rig_end(void **state);
void admit_rig_expect_fault(int error, enum attnd_field field, uint64_t index, int64_t value,
                            int64_t limit);

#endif
