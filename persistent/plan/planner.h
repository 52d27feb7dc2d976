/*
 * planner.h - what a set and an advance have in common.
 */
#ifndef ATTND_PERSISTENT_PLAN_PLANNER_H
#define ATTND_PERSISTENT_PLAN_PLANNER_H

#include "persistent/plan/private.h"

/** attnd_plan_begin() - a new version of the plan, which attnd_planner_drop() takes back. What a
 * worker has of the plan is stale when it is written. */
void attnd_plan_begin(struct attnd_plan *plan);
/** attnd_plan_build() - tiles and how many merges, of entries that are there, in the private half.
 * Return: as attnd_planner_set(). */
int attnd_plan_build(struct attnd_plan *plan, uint32_t fixed_split, struct attnd_fault *fault);
/** attnd_plan_write() - merges, tiles in order and the head into the heap. */
void attnd_plan_write(struct attnd_plan *plan);

#endif
