/*
 * times.h - how long things take, for one KV head, in nanoseconds.
 */
#ifndef ATTND_PERSISTENT_PLAN_TIMES_H
#define ATTND_PERSISTENT_PLAN_TIMES_H

#include "persistent/plan/private.h"

/** attnd_plan_default_rates() - those of a processor, where a target has none. */
void attnd_plan_default_rates(struct attnd_plan_target *target);
/** attnd_plan_take_times() - plan->times, of rates and pool. */
void attnd_plan_take_times(struct attnd_plan *plan);
/** attnd_plan_key_ns() - one key against @packed_rows. */
double attnd_plan_key_ns(const struct attnd_plan *plan, uint32_t packed_rows);
/** attnd_plan_again_ns() - the same if others have just read the key. */
double attnd_plan_again_ns(const struct attnd_plan *plan, uint32_t packed_rows);
/** attnd_plan_tile_cost() - what a tile is ordered by: attnd_item_cost(), or its time in units of a
 * packed row's, where rows are computed in steps: then few rows take as long as many. */
uint64_t attnd_plan_tile_cost(const struct attnd_plan *plan, uint32_t keys, uint32_t packed_rows);
/** attnd_plan_start_ns() - a tile that sees nothing. */
double attnd_plan_start_ns(const struct attnd_plan *plan);
/** attnd_plan_item_ns() - a tile of @keys and @packed_rows. */
double attnd_plan_item_ns(const struct attnd_plan *plan, uint32_t keys, uint32_t packed_rows);
/** attnd_plan_part_ns() - what it costs that @packed_rows are a partial: written and merged.
 * @shared: of a level whose rows have keys of their own as well, with which they are merged. */
double attnd_plan_part_ns(const struct attnd_plan *plan, uint32_t packed_rows, int shared);
/** attnd_plan_bytes_ns() - the memory, on one key, if all workers read. */
double attnd_plan_bytes_ns(const struct attnd_plan *plan);

#endif
