/*
 * copies.cu - whole pages between a pool and host memory, and from pools of other services, by the
 * copy engines.
 *
 * No kernel has part in it: runs keep their SMs, and the two directions of the link are used side
 * by side, a stream and a thread of the worker each. The layers of a page are the rows of one copy
 * where they are equally far apart. A stream may share a queue of the hardware with the one in
 * which gangs wait to be called; so copies that take long have gangs called, as in side_wait().
 *
 * Host memory is pinned in pieces (memory.cu), and the driver takes no copy that reaches from one
 * into the next: rows are cut there.
 */
#include "persistent/cuda/host/copies.cuh"
#include "persistent/cuda/host/helper.cuh"
#include "persistent/cuda/host/memory.cuh"

extern "C" {
#include "persistent/bring.h"
#include "persistent/copy.h"
}

#include <algorithm>
#include <limits.h>
#include <string.h>

/* The largest pitch that the copy engines take. */
constexpr uint64_t pitch_max_bytes = INT_MAX;
/* A piece takes a millisecond or two. */
constexpr uint64_t stuck_ns = 10000000;

static bool lies_in(const Mapping *mapping, uint64_t offset_bytes, uint64_t bytes)
{
    return offset_bytes <= mapping->mapped_bytes && bytes <= mapping->mapped_bytes - offset_bytes;
}

/* @rows rows of @bytes each. */
static cudaError_t enqueue(cudaStream_t stream, const attnd_copy_rows *rows, char *pool, char *host,
                           uint64_t bytes, uint64_t count)
{
    char *to = rows->to_host ? host : pool, *from = rows->to_host ? pool : host;
    if (count == 1)
        return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
    const uint64_t to_pitch = rows->to_host ? bytes : rows->pitch_bytes;
    const uint64_t from_pitch = rows->to_host ? rows->pitch_bytes : bytes;
    return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, count, cudaMemcpyDefault,
                             stream);
}

/* From byte @at of row @row on, as far as one copy reaches. Both are moved behind it. */
static cudaError_t enqueue_some(cudaStream_t stream, const attnd_copy_rows *rows, char *pool,
                                char *host, uint64_t *row, uint64_t *at)
{
    const uint64_t host_at = rows->host_offset_bytes + *row * rows->row_bytes + *at;
    const uint64_t piece_left = pin_bytes - host_at % pin_bytes;
    const uint64_t whole = rows->pitch_bytes > pitch_max_bytes ? 1 : piece_left / rows->row_bytes;
    pool += *row * rows->pitch_bytes + *at;
    host += host_at;
    if (*at == 0 && whole >= 1 && piece_left >= rows->row_bytes) {
        const uint64_t count = std::min<uint64_t>(whole, rows->count - *row);
        *row += count;
        return enqueue(stream, rows, pool, host, rows->row_bytes, count);
    }
    const uint64_t bytes = std::min(piece_left, rows->row_bytes - *at);
    *at += bytes;
    if (*at == rows->row_bytes) {
        *at = 0;
        ++*row;
    }
    return enqueue(stream, rows, pool, host, bytes, 1);
}

/* The pool lies in host memory too. */
static void copy_on_host(const attnd_copy_rows *rows, char *pool, char *host)
{
    for (uint64_t row = 0; row < rows->count; row++) {
        char *there = pool + row * rows->pitch_bytes, *here = host + row * rows->row_bytes;
        memcpy(rows->to_host ? here : there, rows->to_host ? there : here, rows->row_bytes);
    }
}

static int copy_rows(void *context, const attnd_copy_rows *rows)
{
    attnd_backend *backend = static_cast<attnd_backend *>(context);
    if (rows->pool_memory >= ATTND_MEMORIES_MAX || rows->host_memory >= ATTND_MEMORIES_MAX)
        return -ATTND_E_UNKNOWN;
    const Mapping *pool = &backend->mappings[rows->pool_memory];
    const Mapping *host = &backend->mappings[rows->host_memory];
    uint64_t in_pool, in_host;
    if (!pool->kind || host->kind != ATTND_KIND_HOST || host->pinned_bytes < host->mapped_bytes)
        return -ATTND_E_UNKNOWN;
    if (__builtin_mul_overflow(rows->pitch_bytes, uint64_t(rows->count) - 1, &in_pool) ||
        __builtin_add_overflow(in_pool, rows->row_bytes, &in_pool) ||
        __builtin_mul_overflow(rows->row_bytes, uint64_t(rows->count), &in_host) ||
        !lies_in(pool, rows->pool_offset_bytes, in_pool) ||
        !lies_in(host, rows->host_offset_bytes, in_host))
        return -ATTND_E_RANGE;
    char *host_base = static_cast<char *>(host->host);
    if (pool->kind == ATTND_KIND_HOST) {
        copy_on_host(rows, static_cast<char *>(pool->host) + rows->pool_offset_bytes,
                     host_base + rows->host_offset_bytes);
        return 0;
    }
    char *pool_at = reinterpret_cast<char *>(pool->device) + rows->pool_offset_bytes;
    const cudaStream_t stream = backend->pages_stream[rows->to_host ? 1 : 0];
    uint64_t row = 0, at = 0;
    while (row < rows->count)
        if (enqueue_some(stream, rows, pool_at, host_base, &row, &at))
            return -ATTND_E_DEVICE;
    return 0;
}

cudaError_t copies_init(attnd_backend *backend)
{
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < 3 && !error; i++)
        error = cudaEventCreateWithFlags(&backend->pages_copied[i], cudaEventDisableTiming);
    return error;
}

void copies_end(attnd_backend *backend)
{
    for (int i = 0; i < 3; i++) {
        cudaEventDestroy(backend->pages_copied[i]);
        cudaStreamDestroy(backend->pages_stream[i]);
    }
}

/* Until what was enqueued has been copied. */
static int await_copies(attnd_backend *backend, int way)
{
    const timespec step = {0, 10000};
    uint64_t called_ns = attnd_clock_ns();
    cudaError_t error = cudaEventRecord(backend->pages_copied[way], backend->pages_stream[way]);
    while (!error && (error = cudaEventQuery(backend->pages_copied[way])) == cudaErrorNotReady) {
        error = cudaSuccess;
        if (attnd_clock_ns() - called_ns > stuck_ns) {
            called_ns = attnd_clock_ns();
            gang_wake(backend);
        }
        (void)nanosleep(&step, NULL);
    }
    return error ? -ATTND_E_DEVICE : 0;
}

int pages_copy(attnd_backend *backend, uint64_t offset_bytes)
{
    const char *segment = reinterpret_cast<const char *>(backend->config.queue);
    if (offset_bytes > backend->config.queue_bytes ||
        sizeof(attnd_copy) > backend->config.queue_bytes - offset_bytes)
        return -ATTND_E_RANGE;
    attnd_copy what;
    memcpy(&what, segment + offset_bytes, sizeof(what));
    const int way = what.to_host ? 1 : 0;
    if (cudaSetDevice(backend->driver.device))
        return -ATTND_E_DEVICE;
    const int code =
        attnd_copy_walk(segment, backend->config.queue_bytes, offset_bytes, copy_rows, backend);
    /* Copies that were enqueued before a failure must not come later either. */
    const int awaited = await_copies(backend, way);
    return code ? code : awaited;
}

/* ---- from pools of other services ---- */

constexpr int bring_way = 2;

/* Both in host memory. */
static void bring_on_host(const attnd_bring_rows *rows, const Mapping *from, const Mapping *to)
{
    const char *there = static_cast<const char *>(from->host) + rows->from_offset_bytes;
    char *here = static_cast<char *>(to->host) + rows->to_offset_bytes;
    for (uint64_t row = 0; row < rows->count; row++)
        memcpy(here + row * rows->to_pitch_bytes, there + row * rows->from_pitch_bytes,
               rows->row_bytes);
}

/* From another GPU by the link between them; from host memory that nobody pinned the driver goes by
 * way of its own. */
static cudaError_t enqueue_bring(cudaStream_t stream, const attnd_bring_rows *rows,
                                 const Mapping *from, const Mapping *to)
{
    const char *there = from->kind == ATTND_KIND_LENT_HOST
                            ? static_cast<const char *>(from->host)
                            : reinterpret_cast<const char *>(from->device);
    char *here = reinterpret_cast<char *>(to->device);
    there += rows->from_offset_bytes;
    here += rows->to_offset_bytes;
    if (rows->count == 1 ||
        (rows->from_pitch_bytes == rows->row_bytes && rows->to_pitch_bytes == rows->row_bytes))
        return cudaMemcpyAsync(here, there, rows->row_bytes * rows->count, cudaMemcpyDefault,
                               stream);
    if (rows->from_pitch_bytes <= pitch_max_bytes && rows->to_pitch_bytes <= pitch_max_bytes)
        return cudaMemcpy2DAsync(here, rows->to_pitch_bytes, there, rows->from_pitch_bytes,
                                 rows->row_bytes, rows->count, cudaMemcpyDefault, stream);
    cudaError_t error = cudaSuccess;
    for (uint64_t row = 0; row < rows->count && !error; row++)
        error =
            cudaMemcpyAsync(here + row * rows->to_pitch_bytes, there + row * rows->from_pitch_bytes,
                            rows->row_bytes, cudaMemcpyDefault, stream);
    return error;
}

static int bring_rows(void *context, const attnd_bring_rows *rows)
{
    attnd_backend *backend = static_cast<attnd_backend *>(context);
    uint64_t reach_from, reach_to;
    if (rows->from_memory >= ATTND_MEMORIES_MAX || rows->to_memory >= ATTND_MEMORIES_MAX)
        return -ATTND_E_UNKNOWN;
    const Mapping *from = &backend->mappings[rows->from_memory];
    const Mapping *to = &backend->mappings[rows->to_memory];
    const int from_host = from->kind == ATTND_KIND_LENT_HOST;
    if ((!from_host && from->kind != ATTND_KIND_LENT_DEVICE) || !to->kind)
        return -ATTND_E_UNKNOWN;
    if (attnd_bring_extent(rows, rows->from_pitch_bytes, &reach_from) < 0 ||
        attnd_bring_extent(rows, rows->to_pitch_bytes, &reach_to) < 0 ||
        !lies_in(from, rows->from_offset_bytes, reach_from) ||
        !lies_in(to, rows->to_offset_bytes, reach_to))
        return -ATTND_E_RANGE;
    if (from_host && to->kind == ATTND_KIND_HOST) {
        bring_on_host(rows, from, to);
        return 0;
    }
    if (to->kind == ATTND_KIND_HOST) /* pinned in pieces, and nobody has asked for it */
        return -ATTND_E_UNSUPPORTED;
    return enqueue_bring(backend->pages_stream[bring_way], rows, from, to) ? -ATTND_E_DEVICE : 0;
}

int pages_bring(attnd_backend *backend, uint64_t offset_bytes)
{
    const char *segment = reinterpret_cast<const char *>(backend->config.queue);
    if (cudaSetDevice(backend->driver.device))
        return -ATTND_E_DEVICE;
    const int code =
        attnd_bring_walk(segment, backend->config.queue_bytes, offset_bytes, bring_rows, backend);
    const int awaited = await_copies(backend, bring_way);
    return code ? code : awaited;
}
