/*
 * run.h - a run from the queue segment to pointers, and its end.
 */
#ifndef ATTND_PERSISTENT_CPU_RUN_H
#define ATTND_PERSISTENT_CPU_RUN_H

#include "persistent/cpu/state.h"

/**
 * attnd_cpu_run_open() - resolve a run into slot @index
 * @shared: the run table's, or of a prepared run its private copy
 *
 * Threads: the dispatcher. Return: the items to execute, or what the run is to be retired with:
 * -ATTND_E_UNKNOWN (memory that is not mapped), -ATTND_E_UNSUPPORTED, -ATTND_E_RANGE (outside the
 * segment or the scratch).
 */
int64_t attnd_cpu_run_open(struct attnd_backend *backend, uint32_t index,
                           const struct attnd_run *shared);

/** attnd_cpu_retire() - tell the daemon what became of a run. Threads: any. */
void attnd_cpu_retire(struct attnd_backend *backend, const struct attnd_retire *retire);

/** attnd_cpu_run_check() - would it open? Return: 0, or as attnd_cpu_run_open(). */
int attnd_cpu_run_check(const struct attnd_backend *backend, const struct attnd_run *shared);

/** attnd_cpu_run_fail() - keep the first error of a run for its retirement. Threads: any. */
void attnd_cpu_run_fail(struct attnd_cpu_run *run, int error);

/**
 * attnd_cpu_run_close() - retire a run of which nothing is or will be executed any more; a prepared
 * one is answered in its mailbox instead
 *
 * Threads: one for each run; serialises retire() of the port. The slot may be opened again before
 * this returns.
 */
void attnd_cpu_run_close(struct attnd_backend *backend, struct attnd_cpu_run *run);

#endif
