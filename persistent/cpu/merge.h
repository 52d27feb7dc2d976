/*
 * merge.h - finished rows: to their place, or merged first.
 */
#ifndef ATTND_PERSISTENT_CPU_MERGE_H
#define ATTND_PERSISTENT_CPU_MERGE_H

#include "persistent/cpu/state.h"

/** attnd_cpu_row_store() - normalise one row (@o: [dim]) into the caller's o and lse. */
void attnd_cpu_row_store(const struct attnd_kernel *kernel, const struct attnd_cpu_run *run,
                         uint32_t row, uint32_t head, const float *o, float m, float l);

/** attnd_cpu_merge_arrive() - one tile is done for one KV head: merge where it was the last. */
void attnd_cpu_merge_arrive(struct attnd_cpu_worker *worker, const struct attnd_cpu_run *run,
                            const struct attnd_tile *tile, uint32_t kv_head);

#endif
