/*
 * plan_check.h - whether a plan does what its batch says, found out by brute force.
 *
 * Knows the contract (schemas/abi.h, plan.h) and nothing of how the planner works: it asks of every
 * row which tiles answer for it and over which keys.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_PLAN_CHECK_H
#define ATTND_TESTS_SUPPORT_RIGS_PLAN_CHECK_H

#include "tests/support/rigs/plan_case.h"

/**
 * plan_check() - every claim about a plan that was just set
 * @why: receives what is wrong
 *
 * Return: 1 right, 0 wrong. Claims:
 *   entries, page lists and generation 0 are the batch's; arrays stay within their places
 *   the tiles over one row of one level cover each key exactly once, from 0 to open end, cut at
 *   multiples of the granule; only entries without pages above the last level have no tile
 *   a tile is direct exactly if nobody else covers any of its rows
 *   partial rows are used once each and without a gap
 *   merges cover exactly the rows of partial tiles, once, are maximal, and list their parts by
 *   level, then by kv_begin; each gets as many arrivals as it has parts
 *   tiles are whole tokens, of the right class, and say what their entry and first merge do
 *   they are in falling order of cost; of a fused plan whole compute-bound blocks come first, then
 *   parts of such blocks, then the rest, each in that order, and the head says how many there are
 */
int plan_check(const struct plan_case *c, char *why, size_t why_bytes);

/** plan_head_of() and the arrays behind it, for tests. */
const struct attnd_tile *plan_tiles(const struct plan_case *c);
const struct attnd_merge *plan_merges(const struct plan_case *c);
const struct attnd_entry *plan_entries(const struct plan_case *c);
const uint32_t *plan_merge_parts(const struct plan_case *c);
const int32_t *plan_kv_pages(const struct plan_case *c);
const int32_t *plan_kv_len(const struct plan_case *c, uint32_t generation);

#endif
