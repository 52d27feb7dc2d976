/*
 * ops.h - operations of struct attnd_backend_ops that have files of their own: copy.c, health.c.
 */
#ifndef ATTND_PERSISTENT_CPU_OPS_H
#define ATTND_PERSISTENT_CPU_OPS_H

#include "persistent/cpu/state.h"

/** attnd_cpu_copy() - as copy() of struct attnd_backend_ops. */
int attnd_cpu_copy(struct attnd_backend *backend, uint64_t offset_bytes);
/** attnd_cpu_bring() - as bring() of struct attnd_backend_ops. */
int attnd_cpu_bring(struct attnd_backend *backend, uint64_t offset_bytes);

#define ATTND_CPU_LOOK_MS 500u
#define ATTND_CPU_STILL_LOOKS 10u /* 5 s, as on a GPU */

/** attnd_cpu_check() - as check() of struct attnd_backend_ops. Threads: one, beside all others. */
int attnd_cpu_check(struct attnd_backend *backend, char *report, size_t report_bytes);

#endif
