/*
 * steps.h - the steps of a set, of which planner.c lists the order: share.c, fill.c, tile.c,
 * twin.c, merge.c, order.c.
 */
#ifndef ATTND_PERSISTENT_PLAN_STEPS_H
#define ATTND_PERSISTENT_PLAN_STEPS_H

#include "persistent/plan/private.h"

/** attnd_plan_share() - find equal leading pages of @batch and decide which are read once.
 * Sets plan->shared; the entries are for attnd_plan_fill_entries() to write. */
void attnd_plan_share(struct attnd_plan *plan, const struct attnd_batch_view *batch);
/** attnd_plan_share_entries() - the entries that were found, when the batch's are there, into the
 * private half. */
void attnd_plan_share_entries(struct attnd_plan *plan);

/** attnd_plan_fill_entries() - entries, into the private half. */
void attnd_plan_fill_entries(struct attnd_plan *plan, const struct attnd_batch_view *batch);
/** attnd_plan_write_entries() - those, page lists and generation 0 into the heap. */
void attnd_plan_write_entries(struct attnd_plan *plan, const struct attnd_batch_view *batch);
/** attnd_plan_copy_entries() - some entries, and their lengths of generation 0, into the heap. */
void attnd_plan_copy_entries(struct attnd_plan *plan, uint32_t begin, uint32_t end);

/** attnd_plan_build_tiles() - blocks, then tiles by splitting them, into plan->built.
 * @fixed_split: keys of a part; 0: as balance wants
 * Return: 0; -ATTND_E_RANGE and -ATTND_E_NO_SPACE as attnd_planner_set(). */
int attnd_plan_build_tiles(struct attnd_plan *plan, uint32_t fixed_split,
                           struct attnd_fault *fault);

/** attnd_plan_reads_first() - of blocks that are there, what the plan's head has by that name. */
uint64_t attnd_plan_reads_first(const struct attnd_plan *plan);

/** attnd_plan_count_merges() - give partial rows to tiles whose rows have several parts, and count
 * merges and their parts. */
void attnd_plan_count_merges(struct attnd_plan *plan);
/** attnd_plan_build_merges() - those that were counted, into the heap. */
void attnd_plan_build_merges(struct attnd_plan *plan);

/** attnd_plan_order_tiles() - plan->built into the heap: largest cost first, equals in order; of a
 * fused plan whole compute-bound blocks, then their parts, then the rest, each so. */
void attnd_plan_order_tiles(struct attnd_plan *plan);

#endif
