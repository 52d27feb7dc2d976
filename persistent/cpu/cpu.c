/*
 * cpu.c - the backend as the worker process sees it: create, start, park, destroy.
 *
 * Parking ends the threads, starting begins them anew: whatever is in flight stands in the queue
 * and in scratch, nothing of it in a thread, so neither loses a run.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "persistent/cpu/doorbell.h"
#include "persistent/cpu/mailbox.h"
#include "persistent/cpu/memory.h"
#include "persistent/cpu/ops.h"
#include "persistent/cpu/queue.h"
#include "persistent/cpu/variant.h"
#include "persistent/cpu/worker.h"
#include "schemas/atomics.h"

#define THREADS_MAX 1024u

static uint32_t processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int count = CPU_COUNT(&set);
    return count > 0 ? (uint32_t)count : 1;
}

static void describe(struct attnd_backend *backend)
{
    struct attnd_worker_info info = {
        .backend = "cpu",
        .tile_workers = backend->threads,
        .rows_per_tile = ATTND_ROWS_MAX,
        .mailbox_kind = ATTND_KIND_HOST,
        .kv_granule = ATTND_KEYS_BLOCK,
        .memory_kinds = 1u << ATTND_KIND_HOST | 1u << ATTND_KIND_LENT_HOST,
        .scratch_bytes = backend->scratch_bytes,
        .options = attnd_cpu_options(),
    };
    for (uint32_t dtype = ATTND_FP16; dtype < ATTND_DTYPES_END; dtype++)
        for (uint32_t dim = 16; dim <= ATTND_HEAD_DIM_EQUAL_MAX; dim += 16)
            info.head_dims[attnd_dtype_dims(dtype)] |= attnd_head_dim_bit(dim);
    (void)snprintf(info.isa, sizeof info.isa, "%s", backend->kernel->name);
    backend->head->info = info;
}

static void destroy(struct attnd_backend *backend)
{
    for (uint32_t i = 0; backend->workers != NULL && i < backend->threads; i++)
        attnd_cpu_worker_free(&backend->workers[i]);
    for (uint32_t i = 0; backend->memories != NULL && i < ATTND_MEMORIES_MAX; i++)
        if (backend->memories[i].address != 0)
            (void)attnd_cpu_memory_unmap(backend, &i, 1);
    if (backend->scratch != NULL)
        (void)munmap(backend->scratch, backend->scratch_bytes);
    attnd_cpu_queue_free(&backend->queue);
    attnd_cpu_mail_free(backend);
    (void)pthread_mutex_destroy(&backend->retire_lock);
    free(backend->workers);
    free(backend->memories);
    free(backend);
}

/* Partials and counters: zero pages, touched only as far as runs need them. */
static int map_scratch(struct attnd_backend *backend, uint64_t bytes)
{
    void *scratch = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (scratch == MAP_FAILED)
        return -ATTND_E_NO_MEMORY;
    backend->scratch = scratch;
    backend->scratch_bytes = bytes;
    return 0;
}

static int allocate(struct attnd_backend *backend, uint64_t scratch_bytes)
{
    const struct attnd_queue_head *head = backend->head;
    backend->memories = calloc(ATTND_MEMORIES_MAX, sizeof *backend->memories);
    backend->workers = calloc(backend->threads, sizeof *backend->workers);
    if (backend->memories == NULL || backend->workers == NULL)
        return -ATTND_E_NO_MEMORY;
    int error = attnd_cpu_queue_init(&backend->queue, head->runs, backend->threads);
    error = error ? error : attnd_cpu_mail_init(backend);
    error = error ? error : map_scratch(backend, scratch_bytes);
    for (uint32_t i = 0; i < backend->threads && error == 0; i++)
        error = attnd_cpu_worker_init(&backend->workers[i], backend);
    return error;
}

static int create(const struct attnd_backend_config *config, struct attnd_backend **out,
                  struct attnd_fault *fault)
{
    const struct attnd_kernel *kernel = attnd_kernel_find(config->isa);
    if (kernel == NULL)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_NONE, 0, 0, 0);
    struct attnd_backend *backend = aligned_alloc(ATTND_CACHE_LINE, sizeof *backend);
    if (backend == NULL)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    uint32_t threads = config->threads != 0 ? config->threads : processors();
    *backend = (struct attnd_backend){
        .head = config->queue,
        .segment = (char *)config->queue,
        .segment_bytes = config->queue_bytes,
        .port = config->port,
        .runs = (const void *)((char *)config->queue + config->queue->runs_offset_bytes),
        .kernel = kernel,
        .stuck = config->injection == ATTND_INJECT_STUCK,
        .threads = threads < THREADS_MAX ? threads : THREADS_MAX,
    };
    (void)pthread_mutex_init(&backend->retire_lock, NULL);
    int error =
        allocate(backend, config->scratch_bytes ? config->scratch_bytes : ATTND_SCRATCH_BYTES);
    if (error) {
        destroy(backend);
        return attnd_fault_set(fault, error, ATTND_F_NONE, 0, 0, 0);
    }
    describe(backend);
    *out = backend;
    return 0;
}

static void join(struct attnd_backend *backend)
{
    attnd_cpu_doorbell_stop(backend);
    attnd_cpu_workers_stop(backend);
    for (; backend->running > 0; backend->running--)
        (void)pthread_join(backend->workers[backend->running - 1].thread, NULL);
    attnd_poke32(&backend->stop, 0);
}

static int start(struct attnd_backend *backend)
{
    /* Signals are the main thread's. */
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = attnd_cpu_doorbell_start(backend);
    while (backend->running < backend->threads && error == 0) {
        struct attnd_cpu_worker *worker = &backend->workers[backend->running];
        error = pthread_create(&worker->thread, NULL, attnd_cpu_worker_main, worker);
        if (error == 0) {
            char name[16];
            (void)snprintf(name, sizeof name, "tiles-%u", backend->running % 10000u);
            (void)pthread_setname_np(worker->thread, name);
            backend->running++;
        }
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        join(backend);
        return -ATTND_E_SYSTEM;
    }
    attnd_publish32(&backend->head->state, ATTND_WORKER_RUNNING);
    return 0;
}

static int park(struct attnd_backend *backend)
{
    join(backend);
    attnd_publish32(&backend->head->state, ATTND_WORKER_PARKED);
    return 0;
}

const struct attnd_backend_ops attnd_backend_cpu = {
    .name = "cpu",
    .create = create,
    .start = start,
    .map = attnd_cpu_memory_map,
    .unmap = attnd_cpu_memory_unmap,
    .copy = attnd_cpu_copy,
    .bring = attnd_cpu_bring,
    .park = park,
    .check = attnd_cpu_check,
    .check_period_ms = ATTND_CPU_LOOK_MS,
    .destroy = destroy,
};
