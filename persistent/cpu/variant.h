/*
 * variant.h - windows, caps, slopes, sinks and scales of a run.
 */
#ifndef ATTND_PERSISTENT_CPU_VARIANT_H
#define ATTND_PERSISTENT_CPU_VARIANT_H

#include "persistent/cpu/state.h"

/** attnd_cpu_options() - ATTND_OPTION_* that this backend executes. */
uint32_t attnd_cpu_options(void);

/** attnd_cpu_variant_open() - the variant of a run whose plan is open. Return: 0;
 * -ATTND_E_UNSUPPORTED; -ATTND_E_UNKNOWN a table that is not mapped. */
int attnd_cpu_variant_open(const struct attnd_backend *backend, struct attnd_cpu_run *run,
                           uint32_t layer);

/** attnd_cpu_variant_scale() - what q of @kv_head is multiplied with, so that a product is a score.
 */
float attnd_cpu_variant_scale(const struct attnd_cpu_run *run, uint32_t kv_head);

/** attnd_cpu_k_scale(), attnd_cpu_v_scale() - what stored elements of @kv_head are multiplied with.
 */
float attnd_cpu_k_scale(const struct attnd_cpu_run *run, uint32_t kv_head);
float attnd_cpu_v_scale(const struct attnd_cpu_run *run, uint32_t kv_head);

/** attnd_cpu_variant_rows() - what becomes of the scores of @count packed rows of @kv_head, whose
 * positions the worker has. Return: NULL: nothing; else the worker's, until it is asked again. */
const struct attnd_cpu_policy *attnd_cpu_variant_rows(struct attnd_cpu_worker *worker,
                                                      const struct attnd_cpu_run *run,
                                                      uint32_t kv_head, uint32_t count);

/** attnd_cpu_row_finish() - the sink of query head @head and v_scale, at the end of a row. @m and
 * @l move along; of a row that saw nothing they are -inf and 0. Return: what the row's o is to be
 * multiplied with.
 */
float attnd_cpu_row_finish(const struct attnd_cpu_run *run, uint32_t head, float *m, float *l);

#endif
