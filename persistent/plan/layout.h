/*
 * layout.h - what capacities come to, and how long an item may be.
 */
#ifndef ATTND_PERSISTENT_PLAN_LAYOUT_H
#define ATTND_PERSISTENT_PLAN_LAYOUT_H

#include "persistent/plan/private.h"

/** attnd_plan_capacity() - derive capacities and heap layout. Return: 0 or -ATTND_E_RANGE. */
int attnd_plan_capacity(const struct attnd_plan_limits *limits,
                        struct attnd_plan_capacity *capacity);

/** attnd_plan_keys_max() - whole granules of keys that an item of @packed_rows may have and stay
 * below ATTND_ITEM_COST_MAX, with a granule more to spare; at least one granule. */
uint32_t attnd_plan_keys_max(const struct attnd_plan_target *target, uint32_t packed_rows);

#endif
