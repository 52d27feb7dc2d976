/*
 * split.h - what the two halves of splitting know of a batch: split.c and fuse.c include it.
 */
#ifndef ATTND_PERSISTENT_PLAN_SPLIT_H
#define ATTND_PERSISTENT_PLAN_SPLIT_H

#include "persistent/plan/private.h"

/* All blocks of a batch, as split.c saw them. Times are of one KV head. */
struct blocks_seen {
    uint32_t blocks, runs, rows_max;
    uint32_t count[2]; /* by enum attnd_tile_class, and so below */
    double total_ns[2], longest_ns[2], shortest_ns[2];
    struct attnd_plan_load load;
    double stretch; /* of memory-bound items, because the memory does not keep up */
};

static inline double attnd_larger(double a, double b)
{
    return a > b ? a : b;
}

static inline double attnd_smaller(double a, double b)
{
    return a < b ? a : b;
}

/** attnd_plan_find_runs() - blocks side by side that are alike need one look: the first of each
 * run, into plan->order, which is not used yet. Return: runs. */
uint32_t attnd_plan_find_runs(struct attnd_plan *plan, uint32_t blocks);

/** attnd_plan_fuse() - are both classes of the batch to be in work at once?
 * Return: 1: yes, with plan->mix and *splits for that; *seen has its runs. 0: no. */
int attnd_plan_fuse(struct attnd_plan *plan, struct blocks_seen *seen, struct attnd_splits *splits);

#endif
