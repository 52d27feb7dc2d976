/*
 * memory.h - the memory table.
 */
#ifndef ATTND_PERSISTENT_CPU_MEMORY_H
#define ATTND_PERSISTENT_CPU_MEMORY_H

#include "persistent/cpu/state.h"

int attnd_cpu_memory_map(struct attnd_backend *backend, uint32_t index,
                         const struct attnd_memory_source *source, struct attnd_fault *fault);
int attnd_cpu_memory_unmap(struct attnd_backend *backend, const uint32_t *indices, uint32_t count);

/** attnd_cpu_memory_at() - NULL if @index is not mapped or @offset_bytes lies outside it. */
void *attnd_cpu_memory_at(const struct attnd_backend *backend, uint32_t index,
                          uint64_t offset_bytes);

#endif
