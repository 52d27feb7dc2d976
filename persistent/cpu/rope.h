/*
 * rope.h - rotary embeddings.
 */
#ifndef ATTND_PERSISTENT_CPU_ROPE_H
#define ATTND_PERSISTENT_CPU_ROPE_H

#include "persistent/cpu/state.h"

/* Pairs that are rotated, at most. */
#define ATTND_CPU_PAIRS_MAX (ATTND_HEAD_DIM_MAX / 2)

/** attnd_cpu_rope_begin() - radians a token of each pair. */
void attnd_cpu_rope_begin(const struct attnd_cpu_run *run, double *frequency);

/** attnd_cpu_rope_row() - rotate one row of q or k where it stands. */
void attnd_cpu_rope_row(const struct attnd_cpu_run *run, const double *frequency, int64_t position,
                        float *row);

/** attnd_cpu_rope_block() - the worker's cosines and sines of keys [begin, begin + count). */
void attnd_cpu_rope_block(struct attnd_cpu_worker *worker, const struct attnd_cpu_run *run,
                          uint32_t begin, uint32_t count);

#endif
