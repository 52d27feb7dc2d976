/*
 * split.h - blocks cut along KV: split.c, and fuse.c where both classes are in work at once.
 */
#ifndef ATTND_PERSISTENT_PLAN_SPLIT_H
#define ATTND_PERSISTENT_PLAN_SPLIT_H

#include "persistent/plan/private.h"

/* How blocks are cut along KV: into parts of about @target time, of at least that much or to the
 * nearest. */
struct attnd_split {
    double target_ns;  /* 0: not at all */
    double round;      /* 0 or 0.5 */
    uint32_t shortest; /* keys of a part, at least */
};

/* The splits of a batch, by enum attnd_tile_class; and how many memory-bound blocks are halved,
 * behind how many that are not. */
struct attnd_splits {
    struct attnd_split of[2];
    uint32_t unhalved, halved;
    struct attnd_split halves;
    uint32_t whole, parts; /* of a fused plan: compute-bound blocks in front, and parts of others */
};

/** attnd_plan_choose_splits() - for the blocks that were cut; sets plan->mix. */
struct attnd_splits attnd_plan_choose_splits(struct attnd_plan *plan);
/** attnd_plan_split_parts() - into how many parts @split cuts @block. */
uint32_t attnd_plan_split_parts(const struct attnd_plan *plan, const struct attnd_row_block *block,
                                const struct attnd_split *split);

/* ---- between the two ---- */

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
