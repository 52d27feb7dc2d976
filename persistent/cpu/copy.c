/*
 * copy.c - whole pages between a pool and host memory, or from a pool of another service: memcpy,
 * on the thread that asks.
 */
#include <string.h>

#include "persistent/bring.h"
#include "persistent/copy.h"
#include "persistent/cpu/memory.h"
#include "persistent/cpu/ops.h"
#include "schemas/crash.h"

/* Return: NULL with *code set if the rows do not lie in a memory that is there. */
static char *rows_at(const struct attnd_backend *backend, uint32_t memory, uint64_t offset_bytes,
                     uint64_t bytes, int *code)
{
    char *at = attnd_cpu_memory_at(backend, memory, offset_bytes);
    if (at == NULL)
        *code = -ATTND_E_UNKNOWN;
    else if (bytes > backend->memories[memory].size_bytes - offset_bytes)
        *code = -ATTND_E_RANGE;
    return *code ? NULL : at;
}

static int copy_rows(void *context, const struct attnd_copy_rows *rows)
{
    const struct attnd_backend *backend = context;
    uint64_t in_pool, in_host;
    int code = 0;
    if (__builtin_mul_overflow(rows->pitch_bytes, (uint64_t)rows->count - 1, &in_pool) ||
        __builtin_add_overflow(in_pool, rows->row_bytes, &in_pool) ||
        __builtin_mul_overflow(rows->row_bytes, (uint64_t)rows->count, &in_host))
        return -ATTND_E_RANGE;
    char *pool = rows_at(backend, rows->pool_memory, rows->pool_offset_bytes, in_pool, &code);
    char *host = rows_at(backend, rows->host_memory, rows->host_offset_bytes, in_host, &code);
    for (uint32_t row = 0; row < rows->count && code == 0; row++) {
        char *there = pool + row * rows->pitch_bytes, *here = host + row * rows->row_bytes;
        memcpy(rows->to_host ? here : there, rows->to_host ? there : here, rows->row_bytes);
    }
    return code;
}

int attnd_cpu_copy(struct attnd_backend *backend, uint64_t offset_bytes)
{
    return attnd_copy_walk(backend->segment, backend->segment_bytes, offset_bytes, copy_rows,
                           backend);
}

static int bring_rows(void *context, const struct attnd_bring_rows *rows)
{
    const struct attnd_backend *backend = context;
    uint64_t reach_from, reach_to;
    int code = 0;
    if (attnd_bring_extent(rows, rows->from_pitch_bytes, &reach_from) < 0 ||
        attnd_bring_extent(rows, rows->to_pitch_bytes, &reach_to) < 0)
        return -ATTND_E_RANGE;
    const char *from =
        rows_at(backend, rows->from_memory, rows->from_offset_bytes, reach_from, &code);
    char *to = rows_at(backend, rows->to_memory, rows->to_offset_bytes, reach_to, &code);
    for (uint32_t row = 0; row < rows->count && code == 0; row++)
        memcpy(to + row * rows->to_pitch_bytes, from + row * rows->from_pitch_bytes,
               rows->row_bytes);
    return code;
}

int attnd_cpu_bring(struct attnd_backend *backend, uint64_t offset_bytes)
{
    attnd_crash(ATTND_CRASH_CPU_BRING_BEGUN);
    const int code = attnd_bring_walk(backend->segment, backend->segment_bytes, offset_bytes,
                                      bring_rows, backend);
    attnd_crash(ATTND_CRASH_CPU_BRING_DONE);
    return code;
}
