/*
 * backend.cu - the host half of the CUDA backend: launch, park, and two duties the device cannot do
 * itself.
 *
 * The device reads commands from and writes retires to the queue segment, which is registered with
 * the driver; the port's next() and retire() are not used. One host thread beats the heart (a
 * kernel whose host is gone leaves by itself) and wakes the daemon when a retire finds it asleep: a
 * GPU cannot make a system call. It also brings other variants of the worker kernel (head
 * dimension, element type): when a run needs one that is not resident, the kernels leave, and those
 * that were used come back beside it, the SMs shared out evenly. Everything done while a kernel is
 * resident is on the list of calls that were measured not to wait for it to end. Memory is the
 * business of memory.cu.
 */
#include "persistent/cuda/backend.cuh"

extern "C" {
#include "schemas/atomics.h"
#include "schemas/futex.h"
}

#include <stdlib.h>
#include <string.h>
#include <time.h>

using attnd::ActiveRun;
using attnd::Memory;
using attnd::Resident;

int cuda_fault(cudaError_t error, attnd_fault *fault)
{
    int code = error == cudaErrorMemoryAllocation ? -ATTND_E_NO_MEMORY
               : error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver
                   ? -ATTND_E_UNSUPPORTED
                   : -ATTND_E_SYSTEM;
    return attnd_fault_set(fault, code, ATTND_F_NONE, 0, error, 0);
}

static uint64_t monotonic_ns()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000000ull + uint64_t(now.tv_nsec);
}

__global__ void read_clock(uint64_t *out)
{
    *out = attnd::clock_ns();
}

/* globaltimer and CLOCK_MONOTONIC differ by a constant and little drift: taken at every launch. */
static int64_t clock_offset(uint64_t *pinned, cudaStream_t stream)
{
    int64_t best_span = INT64_MAX, offset = 0;
    for (int i = 0; i < 8; i++) {
        int64_t before = int64_t(monotonic_ns());
        read_clock<<<1, 1, 0, stream>>>(pinned);
        cudaStreamSynchronize(stream);
        int64_t after = int64_t(monotonic_ns());
        if (after - before < best_span) {
            best_span = after - before;
            offset = before + best_span / 2 - int64_t(*pinned);
        }
    }
    return offset;
}

static cudaError_t kernels_wait(attnd_backend *backend)
{
    for (cudaStream_t stream : backend->streams) {
        cudaError_t error = cudaStreamSynchronize(stream);
        if (error)
            return error;
    }
    return cudaSuccess;
}

/* The kernels are leaving for want of a variant: those in use come back with it. */
static cudaError_t bring_variant(attnd_backend *backend, uint32_t variant)
{
    uint32_t used = 0;
    cudaError_t error = kernels_wait(backend);
    if (error || (error = cudaMemcpy(&used, &backend->resident->used, 4, cudaMemcpyDeviceToHost)))
        return error;
    attnd_poke32(&backend->words->wanted, 0);
    backend->variants = used | 1u << variant;
    attnd_poke64(&backend->words->heartbeat_ns, monotonic_ns());
    return attnd::resident_launch(backend->resident, &backend->settings, backend->variants,
                                  backend->streams);
}

/* Beats the heart, wakes the daemon for what the device retired, and changes variants. */
static void *helper_main(void *argument)
{
    attnd_backend *backend = static_cast<attnd_backend *>(argument);
    attnd_queue_head *queue = backend->config.queue;
    uint32_t retired = attnd_peek32(&queue->retire_tail);
    while (!attnd_peek32(&backend->helper_leave)) {
        attnd_poke64(&backend->words->heartbeat_ns, monotonic_ns());
        uint32_t wanted = attnd_observe32(&backend->words->wanted);
        if (wanted && bring_variant(backend, wanted - 1) != cudaSuccess) {
            backend->failed = 1;
            return NULL; /* runs time out; the daemon restarts the worker */
        }
        uint32_t tail = attnd_observe32(&queue->retire_tail);
        if (tail != retired) {
            retired = tail;
            backend->config.port->knock(backend->config.port->context);
            continue;
        }
        uint32_t commands = attnd_observe32(&queue->command_tail);
        if (commands != tail) { /* runs in flight: as many retires as commands in the end */
            attnd_relax();
            continue;
        }
        timespec nap = {0, 100000000};
        attnd_poke32(&queue->command_need, 1);
        attnd_fence_full(); /* F1 */
        if (attnd_observe32(&queue->command_tail) == commands)
            attnd_futex_wait(&queue->command_tail, commands, &nap);
        attnd_poke32(&queue->command_need, 0);
    }
    return NULL;
}

static cudaError_t allocate(attnd_backend *backend)
{
    Resident &settings = backend->settings;
    cudaError_t error;
    attnd_queue_head *queue = backend->config.queue;

    for (cudaStream_t &stream : backend->streams)
        if ((error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)))
            return error;
    if ((error = cudaStreamCreateWithFlags(&backend->copy_stream, cudaStreamNonBlocking)) ||
        (error = cudaHostRegister(queue, backend->config.queue_bytes, cudaHostRegisterMapped)) ||
        (error = cudaHostGetDevicePointer((void **)&backend->queue_device, queue, 0)) ||
        (error = cudaHostAlloc((void **)&backend->words, 128, cudaHostAllocMapped)) ||
        (error =
             cudaMalloc(&settings.templates, attnd::map_templates * sizeof(attnd::TensorMap))) ||
        (error = attnd::resident_templates(settings.templates, backend->copy_stream)) ||
        (error = cudaMalloc(&backend->resident, sizeof(Resident))) ||
        (error = cudaMalloc(&backend->memories, ATTND_MEMORIES_MAX * sizeof(Memory))) ||
        (error = cudaMalloc(&settings.runs, attnd::active_runs * sizeof(ActiveRun))) ||
        (error = cudaMalloc(&settings.mirror, backend->config.queue_bytes)) ||
        (error = cudaMallocAsync((void **)&settings.scratch, backend->config.scratch_bytes,
                                 backend->copy_stream)) ||
        (error = cudaMemsetAsync(settings.scratch, 0, backend->config.scratch_bytes,
                                 backend->copy_stream)) ||
        (error = cudaMemset(backend->memories, 0, ATTND_MEMORIES_MAX * sizeof(Memory))) ||
        (error = cudaMemset(settings.runs, 0, attnd::active_runs * sizeof(ActiveRun))) ||
        (error = cudaMemset(settings.mirror, 0, backend->config.queue_bytes)) ||
        (error = cudaStreamSynchronize(backend->copy_stream)))
        return error;
    settings.queue = backend->queue_device;
    settings.memories = backend->memories;
    settings.scratch_bytes = backend->config.scratch_bytes;
    memset(backend->words, 0, sizeof(*backend->words));
    settings.host = backend->words; /* one address on both sides */
    settings.workers = uint32_t(backend->workers);
    const char *paths = getenv("ATTND_CUDA_PATHS"); /* the ladder's lower rungs, for comparison */
    settings.paths = paths ? uint32_t(atoi(paths)) : 7;
    backend->variants = 1u << attnd::variant_index(128, ATTND_FP16); /* the first run corrects it */
    return cudaMemset(backend->resident, 0, sizeof(Resident));
}

static int cuda_create(const attnd_backend_config *config, attnd_backend **out, attnd_fault *fault)
{
    /* Lazy loading would load the kernel behind a resident one: a hang. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    cudaDeviceProp properties;
    cudaError_t error;
    if ((error = cudaSetDevice(0)) || (error = cudaGetDeviceProperties(&properties, 0)))
        return cuda_fault(error, fault);
    if (properties.major != 9)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_VERSION, 0,
                               properties.major * 10 + properties.minor, 90);
    if ((error = attnd::resident_prepare()))
        return cuda_fault(error, fault);

    attnd_backend *backend = static_cast<attnd_backend *>(calloc(1, sizeof(*backend)));
    if (!backend)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    backend->config = *config;
    backend->workers = properties.multiProcessorCount - 1;
    if (config->threads && int(config->threads) < backend->workers)
        backend->workers = int(config->threads);
    if ((error = driver_load(&backend->driver)) || (error = allocate(backend))) {
        free(backend); /* the process ends; the driver takes the rest back */
        return cuda_fault(error, fault);
    }
    attnd_worker_info *info = &config->queue->info;
    strcpy(info->backend, "cuda");
    strcpy(info->isa, "sm_90a");
    info->tile_workers = uint32_t(backend->workers);
    info->rows_per_tile = 128;
    info->kv_granule = 64;
    info->scratch_bytes = config->scratch_bytes;
    info->memory_kinds =
        1u << ATTND_KIND_HOST | 1u << ATTND_KIND_DEVICE | 1u << ATTND_KIND_POOL | 1u << ATTND_KIND_IPC;
    memset(info->head_dims, 0, sizeof(info->head_dims));
    for (uint32_t dtype = ATTND_FP16; dtype <= ATTND_BF16; dtype++)
        for (uint32_t dim = 16; dim <= ATTND_HEAD_DIM_MAX; dim += 16)
            if (attnd::variant_index(dim, dtype) < attnd::variants_count)
                info->head_dims[dtype] |= attnd_head_dim_bit(dim);
    *out = backend;
    return 0;
}

int backend_start(attnd_backend *backend)
{
    attnd::HostWords *words = backend->words;
    backend->settings.host_clock_offset_ns =
        clock_offset(&words->heartbeat_ns, backend->copy_stream);
    words->heartbeat_ns = monotonic_ns();
    if (attnd::resident_launch(backend->resident, &backend->settings, backend->variants,
                               backend->streams) != cudaSuccess)
        return -ATTND_E_SYSTEM;
    attnd_poke32(&backend->helper_leave, 0);
    if (pthread_create(&backend->helper, NULL, helper_main, backend) != 0)
        return -ATTND_E_SYSTEM;
    backend->running = 1;
    attnd_publish32(&backend->config.queue->state, ATTND_WORKER_RUNNING);
    return 0;
}

int backend_quiesce(attnd_backend *backend)
{
    attnd_queue_head *queue = backend->config.queue;
    if (!backend->running)
        return 0;
    uint32_t asked = attnd_swap32(&queue->park, 1);
    attnd_poke32(&backend->helper_leave, 1);
    attnd_futex_wake(&queue->command_tail, 1);
    pthread_join(backend->helper, NULL); /* first: it may be launching */
    cudaError_t error = kernels_wait(backend);
    attnd_publish32(&queue->park, asked);
    attnd_poke32(&backend->words->wanted, 0); /* the command is still there and will ask again */
    backend->running = 0;
    return error == cudaSuccess && !backend->failed ? 0 : -ATTND_E_SYSTEM;
}

static int cuda_park(attnd_backend *backend)
{
    int code = backend_quiesce(backend);
    attnd_publish32(&backend->config.queue->state, ATTND_WORKER_PARKED);
    return code;
}

static void cuda_destroy(attnd_backend *backend)
{
    backend_quiesce(backend);
    for (uint32_t i = 0; i < ATTND_MEMORIES_MAX; i++)
        if (backend->mappings[i].kind)
            memory_unmap(backend, &i, 1);
    cudaFreeAsync(backend->settings.scratch, backend->copy_stream);
    cudaStreamSynchronize(backend->copy_stream);
    cudaFree(backend->settings.mirror);
    cudaFree(backend->settings.runs);
    cudaFree(backend->memories);
    cudaFree(backend->resident);
    cudaFree(backend->settings.templates);
    cudaFreeHost(backend->words);
    cudaHostUnregister(backend->config.queue);
    for (cudaStream_t stream : backend->streams)
        cudaStreamDestroy(stream);
    cudaStreamDestroy(backend->copy_stream);
    free(backend);
}

extern "C" const attnd_backend_ops attnd_backend_cuda = {
    "cuda", cuda_create, backend_start, memory_map, memory_unmap,
    cuda_park, NULL, 0, cuda_destroy,
};
