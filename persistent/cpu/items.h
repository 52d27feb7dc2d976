/*
 * items.h - what a thread executes, each with its own worker: one item of a run.
 */
#ifndef ATTND_PERSISTENT_CPU_ITEMS_H
#define ATTND_PERSISTENT_CPU_ITEMS_H

#include "persistent/cpu/state.h"

/** attnd_cpu_tile() - attend one tile for KV heads [head_begin, head_end).
 * Return: 0; -ATTND_E_CANCELLED it ended in the middle, and what its rows hold means nothing. */
int attnd_cpu_tile(struct attnd_cpu_worker *worker, struct attnd_cpu_run *run, uint32_t tile,
                   uint32_t head_begin, uint32_t head_end);

/** attnd_cpu_append() - store the rows of append item @item. Return: as attnd_cpu_tile(). */
int attnd_cpu_append(const struct attnd_cpu_worker *worker, struct attnd_cpu_run *run,
                     uint32_t item);

/** attnd_cpu_merge_state() - the rows of merge item @item. */
void attnd_cpu_merge_state(const struct attnd_cpu_worker *worker, const struct attnd_cpu_run *run,
                           uint32_t item);

#endif
