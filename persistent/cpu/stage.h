/*
 * stage.h - rows of K and V that no kernel takes as they lie.
 */
#ifndef ATTND_PERSISTENT_CPU_STAGE_H
#define ATTND_PERSISTENT_CPU_STAGE_H

#include "persistent/cpu/state.h"

/** attnd_cpu_dim() - what a kernel takes for rows of @dim elements: a multiple of 64. */
static inline uint32_t attnd_cpu_dim(uint32_t dim)
{
    return (dim + 63) / 64 * 64;
}

/** attnd_cpu_stage() - one head of a block in rows of run->dim elements, zeros at their ends.
 * Return: the block in the worker's own memory, until the next call. */
struct attnd_kv_block attnd_cpu_stage(struct attnd_cpu_worker *worker,
                                      const struct attnd_cpu_run *run,
                                      const struct attnd_kv_block *block);

#endif
