/*
 * memory.c - the worker's memory table on the CPU: each object is a memfd, mapped shared. Another
 * service's is mapped for reading.
 *
 * The daemon seals what it hands out against shrinking, so a mapping stays valid until unmap, and
 * proves before unmap that no run in flight names it. Look-ups happen once a run, not once a tile.
 */
#include <errno.h>
#include <sys/mman.h>

#include "persistent/cpu/memory.h"
#include "schemas/atomics.h"

int attnd_cpu_memory_map(struct attnd_backend *backend, uint32_t index,
                         const struct attnd_memory_source *source, struct attnd_fault *fault)
{
    const int lent = source->kind == ATTND_KIND_LENT_HOST;
    if (source->kind != ATTND_KIND_HOST && !lent)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_MEMORY_KIND, index,
                               source->kind, ATTND_KIND_HOST);
    if (index >= ATTND_MEMORIES_MAX)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_MEMORY, index, index,
                               ATTND_MEMORIES_MAX - 1);
    struct attnd_cpu_memory *memory = &backend->memories[index];
    if (memory->address != 0)
        return attnd_fault_set(fault, -ATTND_E_BUSY, ATTND_F_MEMORY, index, 0, 0);
    void *address = mmap(NULL, source->size_bytes, lent ? PROT_READ : PROT_READ | PROT_WRITE,
                         MAP_SHARED, source->fd, 0);
    if (address == MAP_FAILED)
        return attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_MEMORY, index, errno, 0);
    memory->size_bytes = source->size_bytes;
    attnd_publish64(&memory->address, (uint64_t)(uintptr_t)address); /* R1: covers the size */
    return 0;
}

static int unmap(struct attnd_backend *backend, uint32_t index)
{
    if (index >= ATTND_MEMORIES_MAX || backend->memories[index].address == 0)
        return -ATTND_E_UNKNOWN;
    struct attnd_cpu_memory *memory = &backend->memories[index];
    void *address = (void *)(uintptr_t)memory->address;
    attnd_publish64(&memory->address, 0);
    return munmap(address, memory->size_bytes) == 0 ? 0 : -ATTND_E_SYSTEM;
}

int attnd_cpu_memory_unmap(struct attnd_backend *backend, const uint32_t *indices, uint32_t count)
{
    int rc = 0;
    for (uint32_t i = 0; i < count; i++) {
        int one = unmap(backend, indices[i]);
        if (rc == 0 || rc == -ATTND_E_UNKNOWN) /* which is no harm, and must not hide any */
            rc = one ? one : rc;
    }
    return rc;
}

void *attnd_cpu_memory_at(const struct attnd_backend *backend, uint32_t index,
                          uint64_t offset_bytes)
{
    if (index >= ATTND_MEMORIES_MAX)
        return NULL;
    const struct attnd_cpu_memory *memory = &backend->memories[index];
    uint64_t address = attnd_observe64(&memory->address); /* A1 */
    if (address == 0 || offset_bytes >= memory->size_bytes)
        return NULL;
    return (void *)(uintptr_t)(address + offset_bytes);
}
