/*
 * backend.cu - the host half of the CUDA backend: its beginning, parking, and end.
 *
 * The device reads commands from and writes retires to the queue segment, which is registered with
 * the driver; the port's next() and retire() are not used. Kernels are launched and relaunched by
 * the helper thread (helper.cu), looked after by the watch thread (health.cu), and sized by the
 * residency (residency.cu); memory is the business of memory.cu. Everything done while a kernel is
 * resident is on the list of calls that were measured not to wait for it to end.
 */
#include "persistent/cuda/host/copies.cuh"
#include "persistent/cuda/host/health.cuh"
#include "persistent/cuda/host/kernels.cuh"
#include "persistent/cuda/host/memory.cuh"
#include "persistent/cuda/host/modules.cuh"
#include "persistent/cuda/host/portable.cuh"
#include "persistent/cuda/host/rates.cuh"
#include "persistent/cuda/host/residency.cuh"
#include "persistent/cuda/host/switch_cost.cuh"

extern "C" {
#include "schemas/atomics.h"
}

#include <algorithm>
#include <stdlib.h>
#include <string.h>

using attnd::ActiveRun;
using attnd::Memory;
using attnd::Resident;

/* Unless somebody says how much: a captured plan of long decodes takes some 8 MB, an engine
 * captures dozens, and one session may have a quarter of all. If the GPU is full already, less will
 * do. */
constexpr uint64_t scratch_part = 64, scratch_least_bytes = 256ull << 20;

static cudaError_t allocate_scratch(attnd_backend *backend, uint64_t gpu_bytes)
{
    const uint64_t asked_bytes = backend->config.scratch_bytes;
    uint64_t *bytes = &backend->settings.scratch_bytes;
    *bytes = asked_bytes ? asked_bytes
                         : std::max(gpu_bytes / scratch_part, scratch_least_bytes) / 256 * 256;
    for (;;) {
        void *scratch;
        cudaError_t error = cudaMallocAsync(&scratch, *bytes, backend->side_stream);
        if (!error) {
            backend->settings.scratch = static_cast<char *>(scratch);
            return cudaMemsetAsync(scratch, 0, *bytes, backend->side_stream);
        }
        if (error != cudaErrorMemoryAllocation || asked_bytes || *bytes == scratch_least_bytes)
            return error;
        (void)cudaGetLastError();
        *bytes = std::max(*bytes / 2 / 256 * 256, scratch_least_bytes);
    }
}

/* Gangs come before what engines have queued: they do it for one of them, and leave. What the host
 * copies comes before gangs, or it would wait for the end of one. The driver has few queues to the
 * hardware and gives a stream whichever it likes, also the one in which gangs wait. So what gangs
 * wait for never stands in a stream, and a thread that waits for a stream calls gangs
 * (side_wait()). */
static cudaError_t create_streams(attnd_backend *backend)
{
    const bool gangs = backend->residency == ATTND_RESIDENCY_ELASTIC;
    int least = 0, most = 0;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &most);
    const int before = most < least ? most + 1 : most; /* a smaller number comes first */
    backend->streams_count = gangs ? 1 : attnd::variant_streams;
    for (uint32_t i = 0; i < backend->streams_count && !error; i++)
        error = cudaStreamCreateWithPriority(&backend->streams[i], cudaStreamNonBlocking,
                                             gangs ? before : least);
    if (!error && backend->settings.reserved)
        error =
            cudaStreamCreateWithPriority(&backend->extras_stream, cudaStreamNonBlocking, before);
    if (!error)
        error = cudaStreamCreateWithPriority(&backend->side_stream, cudaStreamNonBlocking,
                                             gangs ? most : least);
    for (int i = 0; i < 3 && !error;
         i++) /* pages go by copy engines, and wait as side_wait() does */
        error = cudaStreamCreateWithPriority(&backend->pages_stream[i], cudaStreamNonBlocking,
                                             gangs ? most : least);
    return error;
}

static cudaError_t allocate(attnd_backend *backend, uint64_t gpu_bytes)
{
    Resident &settings = backend->settings;
    cudaError_t error;
    attnd_queue_head *queue = backend->config.queue;
    const size_t mirrored_size =
        (backend->config.queue_bytes / attnd::mirrored_bytes + 1) * sizeof(attnd::Mirrored);

    if ((error = create_streams(backend)))
        return error;
    if ((error = cudaHostRegister(queue, backend->config.queue_bytes, cudaHostRegisterMapped)) ||
        (error = cudaHostGetDevicePointer((void **)&backend->queue_device, queue, 0)) ||
        (error = cudaHostAlloc((void **)&backend->words, attnd::host_words_bytes,
                               cudaHostAllocMapped)) ||
        (error =
             cudaMalloc(&settings.templates, attnd::map_templates * sizeof(attnd::TensorMap))) ||
        (error = attnd::resident_templates(settings.templates, backend->side_stream)) ||
        (error = cudaMalloc(&backend->resident, sizeof(Resident))) ||
        (error =
             cudaHostAlloc((void **)&backend->own_wake, sizeof(attnd_wake), cudaHostAllocMapped)) ||
        (error = cudaMalloc(&backend->memories, ATTND_MEMORIES_MAX * sizeof(Memory))) ||
        (error = cudaMalloc(&settings.runs, attnd::run_slots * sizeof(ActiveRun))) ||
        (error = cudaMalloc(&settings.mirror, backend->config.queue_bytes)) ||
        (error = cudaMalloc(&settings.mirrored, mirrored_size)) ||
        (error = allocate_scratch(backend, gpu_bytes)) ||
        (error = cudaMemset(backend->memories, 0, ATTND_MEMORIES_MAX * sizeof(Memory))) ||
        (error = cudaMemset(settings.runs, 0, attnd::run_slots * sizeof(ActiveRun))) ||
        (error = cudaMemset(settings.mirror, 0, backend->config.queue_bytes)) ||
        (error = cudaMemset(settings.mirrored, 0, mirrored_size)) ||
        (error = cudaStreamSynchronize(backend->side_stream)))
        return error;
    settings.queue = backend->queue_device;
    settings.memories = backend->memories;
    memset(backend->words, 0, sizeof(*backend->words));
    memset(backend->own_wake, 0, sizeof(*backend->own_wake));
    settings.host = backend->words; /* one address on both sides */
    settings.records = trace_head(backend->queue_device, queue->trace_offset_bytes);
    settings.workers = uint32_t(backend->workers);
    settings.paths = backend->portable ? attnd::paths_without_maps : attnd::paths_all;
    const bool elastic = backend->residency == ATTND_RESIDENCY_ELASTIC;
    settings.drain = elastic && !settings.reserved;
    settings.transient = queue->runs_transient;
    settings.prepared_count = std::min(queue->runs - queue->runs_transient, attnd::prepared_max);
    settings.mailboxes_offset = queue->mailboxes_offset;
    settings.wake = elastic ? backend->own_wake : NULL; /* one address on both sides */
    settings.inject = uint32_t(backend->config.injection);
    modules_take(backend);
    backend->variants = backend->variants_there & (0u - backend->variants_there);
    if (const uint32_t usual =
            kernels_for(1u << attnd::variant_index(128, 128, ATTND_FP16, ATTND_FP16, 0)))
        backend->variants = usual; /* the first run corrects it */
    if ((error = cudaMemset(backend->resident, 0, sizeof(Resident))) ||
        (error = health_init(backend)))
        return error;
    return copies_init(backend);
}

/* Makes the device current and finds out what it is. */
static int open_device(int device, cudaDeviceProp *properties, attnd_fault *fault)
{
    /* Lazy loading would load the kernel behind a resident one: a hang. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    /* CUDA_DEVICE_MAX_CONNECTIONS stays at its 8. There are more streams, but those beyond the
     * kernels' carry copies, which take other ways; with 32 a context takes 350 ms longer to make
     * and 250 ms longer to end, and a worker that is back within a second is promised. */
    cudaError_t error;
    int devices = 0;
    if ((error = cudaGetDeviceCount(&devices)))
        return cuda_fault(error, fault);
    if (device >= devices)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_DEVICE, 0, device, devices - 1);
    if ((error = cudaSetDevice(device)) || (error = cudaGetDeviceProperties(properties, device)))
        return cuda_fault(error, fault);
    return 0;
}

/* Before the first of them is resident. */
static int load_kernels(attnd_backend *backend, const cudaDeviceProp *properties,
                        attnd_fault *fault)
{
    backend->portable = portable_chosen(&backend->config, properties);
    if (backend->portable)
        return portable_load(backend, properties, fault);
    const cudaError_t error = attnd::resident_prepare();
    return error ? cuda_fault(error, fault) : 0;
}

/* Of the tensor cores' and the memory's peak what attention reaches, and what one SM's decode loop
 * reads in a clock while the memory keeps up. */
constexpr double flops_a_clock = 4096 * 0.65, bytes_a_clock = 42, memory_share = 0.91;
/* The same of kernels that go to other GPUs, too, whose tensor cores have a quarter or a half of
 * that. */
constexpr double portable_flops_a_clock = 1024 * 0.65, portable_bytes_a_clock = 21;

/* Return: all 0 if nothing is known. */
static attnd_rates derive_rates(const attnd_backend *backend, int sms)
{
    const int device = int(backend->config.device);
    int clock_khz = 0, memory_khz = 0, bits = 0;
    if (cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device) ||
        cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, device) ||
        cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device)) {
        (void)cudaGetLastError();
        return {};
    }
    const double ghz = clock_khz * 1e-6, memory = memory_khz * 1e-6 * 2 * bits / 8;
    const double share = double(backend->workers) / sms;
    const bool portable = backend->portable;
    const uint16_t worker_gbps =
        uint16_t(ghz * (portable ? portable_bytes_a_clock : bytes_a_clock));
    return {uint32_t(ghz * (portable ? portable_flops_a_clock : flops_a_clock)), worker_gbps,
            worker_gbps, uint16_t(memory * memory_share * (share < 0.5 ? 2 * share : 1)),
            ATTND_RATES_DERIVED};
}

/* A rate that was measured may be too low where the GPU is not ours alone. @derived: 0: not known.
 */
static bool likely(double measured, uint32_t derived)
{
    return measured >= derived * 0.7 && measured <= UINT16_MAX &&
           (derived == 0 || measured <= derived * 1.4);
}

/* What plans are made with, where the daemon has not said so, nor a worker before this one. */
static void find_rates(attnd_backend *backend, int sms)
{
    attnd_rates *rates = &backend->config.queue->rates;
    attnd::MeasuredRates measured = {};
    if (rates->source != ATTND_RATES_NONE)
        return;
    attnd_rates derived = derive_rates(backend, sms);
    *rates = derived;
    if (backend->portable) /* too little is known of the GPU to doubt what is measured */
        derived = {};
    const cudaError_t error = attnd::rates_measure(backend, &measured);
    if (!error && likely(measured.worker_gflops, derived.worker_gflops) &&
        likely(measured.worker_gbps, derived.worker_gbps) &&
        likely(measured.worker_l2_gbps, derived.worker_l2_gbps) &&
        likely(measured.memory_gbps, derived.memory_gbps))
        *rates = {uint32_t(measured.worker_gflops), uint16_t(measured.worker_gbps),
                  uint16_t(measured.worker_l2_gbps), uint16_t(measured.memory_gbps),
                  ATTND_RATES_MEASURED};
    else if (error != cudaErrorNotSupported)
        backend_say(backend, "rates of plans are derived from clocks: %s",
                    error ? cudaGetErrorString(error) : "what was measured is far from those");
}

/* What a run in an engine's stream costs for want of MPS, where no worker before this one has said
 * so. A worker that comes later is in a hurry, and does not try again what failed. */
static void find_switch_cost(attnd_backend *backend)
{
    uint32_t *us = &backend->config.queue->switch_cost_us;
    if (backend->mps || *us)
        return;
    *us = ATTND_SWITCH_COST_UNKNOWN; /* if this process ends in it, too */
    const cudaError_t error = attnd::switch_cost_measure(us);
    if (error)
        backend_say(backend, "what taking turns on the GPU costs is not measured: %s",
                    cudaGetErrorString(error));
}

/* The daemon learns this of the worker. */
static void describe(const attnd_backend *backend, int sms, attnd_worker_info *info)
{
    strcpy(info->backend, "cuda");
    strcpy(info->isa, backend->portable ? "sm_80" : "sm_90a");
    info->tile_workers = uint32_t(backend->workers);
    info->rows_per_tile = 128;
    info->kv_granule = 64;
    info->scratch_bytes = backend->settings.scratch_bytes;
    info->memory_kinds = 1u << ATTND_KIND_HOST | 1u << ATTND_KIND_DEVICE | 1u << ATTND_KIND_POOL |
                         1u << ATTND_KIND_IPC | 1u << ATTND_KIND_LENT_HOST |
                         1u << ATTND_KIND_LENT_DEVICE | ATTND_KIND_TRIED(ATTND_KIND_HOST) |
                         ATTND_KIND_TRIED(ATTND_KIND_DEVICE) | ATTND_KIND_TRIED(ATTND_KIND_POOL) |
                         ATTND_KIND_TRIED(ATTND_KIND_IPC);
    memset(info->head_dims, 0, sizeof(info->head_dims));
    for (uint32_t dtype = ATTND_FP16; dtype < ATTND_DTYPES_END; dtype++)
        for (uint32_t dim = 16; dim <= ATTND_HEAD_DIM_MAX; dim += 16) {
            const uint32_t rows = attnd_dtype_is_fp8(dtype) ? uint32_t(ATTND_FP16) : dtype;
            if (attnd::variant_index(dim, dim, rows, dtype, 0) < attnd::variants_count)
                info->head_dims[attnd_dtype_dims(dtype)] |= attnd_head_dim_bit(dim);
        }
    info->options = attnd::varied_options | attnd::varied_dims;
    info->residency = backend->residency;
    info->mailbox_kind = ATTND_KIND_DEVICE;
    info->sms = uint32_t(sms);
    info->sms_resident = uint32_t(backend->workers) + 1;
    info->mps = backend->mps != 0;
}

static int cuda_create(const attnd_backend_config *config, attnd_backend **out, attnd_fault *fault)
{
    const int device = int(config->device);
    cudaDeviceProp properties;
    int code = open_device(device, &properties, fault);
    if (code)
        return code;
    attnd_backend *backend = static_cast<attnd_backend *>(calloc(1, sizeof(*backend)));
    if (!backend)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    backend->config = *config;
    if ((code = load_kernels(backend, &properties, fault))) {
        free(backend);
        return code;
    }
    pthread_mutex_init(&backend->rest, NULL);
    const int sms = properties.multiProcessorCount;
    /* An older driver does not know the question. */
    (void)cudaDeviceGetAttribute(&backend->mps, cudaDevAttrMpsEnabled, device);
    (void)cudaGetLastError();
    backend->workers = residency_choose(backend, sms);
    if (!backend->workers) {
        free(backend);
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_NONE, 0, 0, 0);
    }
    attnd_worker_info *info = &config->queue->info;
    cudaError_t error;
    if ((error = driver_load(&backend->driver, device)) ||
        (error = driver_uuid(device, info->gpu_uuid)) ||
        (error = allocate(backend, properties.totalGlobalMem))) {
        int scratch_is_missing = backend->settings.mirror && !backend->settings.scratch;
        code = cuda_fault(error, fault);
        if (code == -ATTND_E_NO_MEMORY && scratch_is_missing) /* --scratch is too much */
            attnd_fault_set(fault, code, ATTND_F_PARTIALS, 0,
                            int64_t(backend->settings.scratch_bytes), 0);
        free(backend); /* the process ends; the driver takes the rest back */
        return code;
    }
    find_switch_cost(backend);
    find_rates(backend, sms);
    describe(backend, sms, info);
    *out = backend;
    return 0;
}

static int cuda_park(attnd_backend *backend)
{
    pthread_mutex_lock(&backend->rest);
    int code = backend_quiesce(backend);
    pthread_mutex_unlock(&backend->rest);
    attnd_publish32(&backend->config.queue->state, ATTND_WORKER_PARKED);
    return code;
}

static void cuda_destroy(attnd_backend *backend)
{
    backend_quiesce(backend);
    for (uint32_t i = 0; i < ATTND_MEMORIES_MAX; i++)
        while (backend->mappings[i].kind && memory_unmap(backend, &i, 1) == ATTND_BACKEND_MORE)
            ;
    cudaFreeAsync(backend->settings.scratch, backend->side_stream);
    cudaStreamSynchronize(backend->side_stream);
    cudaFree(backend->settings.mirrored);
    cudaFree(backend->settings.mirror);
    cudaFree(backend->settings.runs);
    cudaFree(backend->memories);
    cudaFree(backend->resident);
    cudaFreeHost(backend->own_wake);
    cudaFree(backend->settings.templates);
    cudaFreeHost(backend->words);
    cudaHostUnregister(backend->config.queue);
    for (uint32_t i = 0; i < backend->streams_count; i++)
        cudaStreamDestroy(backend->streams[i]);
    if (backend->extras_stream)
        cudaStreamDestroy(backend->extras_stream);
    cudaStreamDestroy(backend->health.stream);
    cudaStreamDestroy(backend->side_stream);
    copies_end(backend);
    free(backend);
}

extern "C" const attnd_backend_ops attnd_backend_cuda = {
    "cuda",      cuda_create, backend_start, memory_map, memory_unmap, pages_copy,
    pages_bring, cuda_park,   health_check,  50,         cuda_destroy,
};
