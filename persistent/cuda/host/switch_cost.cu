/*
 * switch_cost.cu - what a run in an engine's stream costs where contexts take turns on the GPU.
 *
 *   engine   kernel 0 | rings 0, waits |          | kernel 1 | rings 1, waits | ...
 *   worker   waits 0  |                | kernel 0, answers 0, waits 1         | ...
 *
 * Each round has words of its own. Streams write 1 into them and wait for 1, so to let go of all
 * waits the host writes 1 into each, once and for good: whatever else is written there is 1, too.
 * That is done before anything is given back, on every path.
 *
 * Calls for the second context are the driver's own: the runtime is for the worker's alone. They
 * are found in the library by the names of their versions, which go with the prototypes below.
 */
#include "persistent/cuda/host/switch_cost.cuh"

#include "persistent/cuda/host/state.cuh"

extern "C" {
#include "schemas/atomics.h"
}

#include <algorithm>
#include <dlfcn.h>
#include <string.h>

namespace attnd
{

constexpr uint32_t warm_up = 4, times = 32, rounds = warm_up + times;
/* From the moment there is a context, which takes its time whatever is done. */
constexpr uint64_t measure_ns = 1000000000, leave_ns = 500000000;

/* Pinned; one address in both contexts and on the host. */
struct Words {
    uint32_t rung[rounds], answered[rounds];
    uint64_t engine_ns[rounds + 1], worker_ns; /* the GPU's clock, by kernels; worker: unused */
};

/* Stores the time. As text, so that the driver loads it into either context. */
static const char stamp_text[] = ".version 7.8\n"
                                 ".target sm_80\n"
                                 ".address_size 64\n"
                                 ".visible .entry attnd_stamp(.param .u64 at)\n"
                                 "{\n"
                                 "    .reg .b64 %rd<2>;\n"
                                 "    ld.param.u64 %rd0, [at];\n"
                                 "    mov.u64 %rd1, %globaltimer;\n"
                                 "    st.global.u64 [%rd0], %rd1;\n"
                                 "    ret;\n"
                                 "}\n";

struct Calls {
    CUresult (*context_create)(CUcontext *, unsigned int, CUdevice);
    CUresult (*context_destroy)(CUcontext);
    CUresult (*context_push)(CUcontext);
    CUresult (*context_pop)(CUcontext *);
    CUresult (*context_device)(CUdevice *);
    CUresult (*context_current)(CUcontext *);
    CUresult (*module_load)(CUmodule *, const void *);
    CUresult (*module_function)(CUfunction *, CUmodule, const char *);
    CUresult (*module_unload)(CUmodule);
    CUresult (*stream_create)(CUstream *, unsigned int);
    CUresult (*stream_destroy)(CUstream);
    CUresult (*stream_query)(CUstream);
    CUresult (*stream_wait)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
    CUresult (*stream_write)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
    CUresult (*launch)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
                       unsigned int, unsigned int, unsigned int, CUstream, void **, void **);
};

/* A context with what it needs for its part. */
struct Side {
    CUcontext context;
    CUmodule module;
    CUfunction stamp;
    CUstream stream;
};

struct Table {
    Calls calls;
    Words *words;
    Side engine, worker;
    uint64_t deadline_ns;
};

template <typename Function> static bool find(void *library, const char *name, Function *function)
{
    *function = reinterpret_cast<Function>(dlsym(library, name));
    return *function != nullptr;
}

static CUresult find_calls(Calls *calls)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* is there already, and stays */
    return library && find(library, "cuCtxCreate_v2", &calls->context_create) &&
                   find(library, "cuCtxDestroy_v2", &calls->context_destroy) &&
                   find(library, "cuCtxPushCurrent_v2", &calls->context_push) &&
                   find(library, "cuCtxPopCurrent_v2", &calls->context_pop) &&
                   find(library, "cuCtxGetDevice", &calls->context_device) &&
                   find(library, "cuCtxGetCurrent", &calls->context_current) &&
                   find(library, "cuModuleLoadData", &calls->module_load) &&
                   find(library, "cuModuleGetFunction", &calls->module_function) &&
                   find(library, "cuModuleUnload", &calls->module_unload) &&
                   find(library, "cuStreamCreate", &calls->stream_create) &&
                   find(library, "cuStreamDestroy_v2", &calls->stream_destroy) &&
                   find(library, "cuStreamQuery", &calls->stream_query) &&
                   find(library, "cuStreamWaitValue32_v2", &calls->stream_wait) &&
                   find(library, "cuStreamWriteValue32_v2", &calls->stream_write) &&
                   find(library, "cuLaunchKernel", &calls->launch)
               ? CUDA_SUCCESS
               : CUDA_ERROR_STUB_LIBRARY;
}

/* Its context is current. */
static CUresult stamp(const Table &table, const Side &side, uint64_t *at)
{
    void *arguments[] = {&at};
    return table.calls.launch(side.stamp, 1, 1, 1, 1, 1, 1, 0, side.stream, arguments, nullptr);
}

static CUresult wait(const Table &table, const Side &side, uint32_t *word)
{
    return table.calls.stream_wait(side.stream, reinterpret_cast<CUdeviceptr>(word), 1,
                                   CU_STREAM_WAIT_VALUE_GEQ);
}

/* Behind all that is before it in the stream, a kernel's stores included. */
static CUresult write(const Table &table, const Side &side, uint32_t *word)
{
    return table.calls.stream_write(side.stream, reinterpret_cast<CUdeviceptr>(word), 1,
                                    CU_STREAM_WRITE_VALUE_DEFAULT);
}

/* Waits for what both have, until the time is over. An error is the context's, which then has
 * nothing any more. */
static CUresult settled(const Table &table, uint64_t end_ns)
{
    for (;;) {
        CUresult results[2];
        const Side *sides[2] = {&table.engine, &table.worker};
        for (int i = 0; i < 2; i++)
            results[i] =
                sides[i]->stream ? table.calls.stream_query(sides[i]->stream) : CUDA_SUCCESS;
        const bool busy = results[0] == CUDA_ERROR_NOT_READY || results[1] == CUDA_ERROR_NOT_READY;
        if (!busy)
            return results[0] ? results[0] : results[1];
        if (attnd_clock_ns() >= end_ns)
            return CUDA_ERROR_NOT_READY;
    }
}

/* Its context is current. The kernel is launched once: one that is not loaded yet would be loaded
 * behind a wait, and that waits for it. */
static CUresult open_side(const Table &table, Side *side)
{
    CUresult result;
    if ((result = table.calls.module_load(&side->module, stamp_text)) ||
        (result = table.calls.module_function(&side->stamp, side->module, "attnd_stamp")) ||
        (result = table.calls.stream_create(&side->stream, CU_STREAM_NON_BLOCKING)))
        return result;
    return stamp(table, *side, &table.words->worker_ns);
}

static CUresult open(Table *table)
{
    const Calls &calls = table->calls;
    CUdevice device = 0;
    CUcontext popped = nullptr;
    CUresult result;
    if ((result = calls.context_current(&table->worker.context)) ||
        (result = calls.context_device(&device)) ||
        (result = calls.context_create(&table->engine.context, 0, device)))
        return result;
    table->deadline_ns = attnd_clock_ns() + measure_ns;
    /* It is current now, and is to be no longer than necessary. */
    if ((result = calls.context_pop(&popped)))
        return result;
    void *words = nullptr;
    const cudaError_t error =
        cudaHostAlloc(&words, sizeof(Words), cudaHostAllocPortable | cudaHostAllocMapped);
    if (error)
        return static_cast<CUresult>(error); /* they have the same numbers */
    table->words = static_cast<Words *>(words);
    memset(table->words, 0, sizeof(*table->words));
    if ((result = open_side(*table, &table->worker)) ||
        (result = calls.context_push(table->engine.context)))
        return result;
    result = open_side(*table, &table->engine);
    (void)calls.context_pop(&popped);
    return result ? result : settled(*table, table->deadline_ns);
}

static CUresult enqueue_worker(const Table &table)
{
    const Side &worker = table.worker;
    CUresult result = CUDA_SUCCESS;
    for (uint32_t i = 0; i < rounds && !result; i++)
        if (!(result = wait(table, worker, &table.words->rung[i])) &&
            !(result = stamp(table, worker, &table.words->worker_ns)))
            result = write(table, worker, &table.words->answered[i]);
    return result;
}

static CUresult enqueue_engine(const Table &table)
{
    const Side &engine = table.engine;
    CUcontext popped = nullptr;
    CUresult result = table.calls.context_push(engine.context);
    if (result)
        return result;
    for (uint32_t i = 0; i < rounds && !result; i++)
        if (!(result = stamp(table, engine, &table.words->engine_ns[i])) &&
            !(result = write(table, engine, &table.words->rung[i])))
            result = wait(table, engine, &table.words->answered[i]);
    if (!result)
        result = stamp(table, engine, &table.words->engine_ns[rounds]);
    (void)table.calls.context_pop(&popped);
    return result;
}

/* All of the worker's part is there before the engine rings for the first time. */
static CUresult measure(const Table &table, uint32_t *us)
{
    CUresult result;
    if ((result = enqueue_worker(table)) || (result = enqueue_engine(table)) ||
        (result = settled(table, table.deadline_ns)))
        return result;
    uint64_t ns[times];
    const uint64_t *at = &table.words->engine_ns[warm_up];
    for (uint32_t i = 0; i < times; i++)
        ns[i] = at[i + 1] - at[i];
    std::nth_element(ns, ns + times / 2, ns + times);
    *us = uint32_t(std::clamp<uint64_t>((ns[times / 2] + 500) / 1000, 1, UINT32_MAX - 1));
    return CUDA_SUCCESS;
}

static void close_side(const Calls &calls, const Side &side)
{
    if (side.stream)
        (void)calls.stream_destroy(side.stream);
    if (side.module)
        (void)calls.module_unload(side.module);
}

/* Nothing waits for another stream any more. What others do not let begin is not waited for for
 * long: it ends when the GPU is free, and what it uses stays. */
static void close(const Table &table)
{
    for (uint32_t i = 0; table.words && i < rounds; i++) {
        attnd_publish32(&table.words->rung[i], 1);
        attnd_publish32(&table.words->answered[i], 1);
    }
    if (settled(table, attnd_clock_ns() + leave_ns) == CUDA_ERROR_NOT_READY)
        return;
    close_side(table.calls, table.worker);
    if (table.engine.context)
        (void)table.calls.context_destroy(table.engine.context); /* with all that it has */
    if (table.words)
        (void)cudaFreeHost(table.words);
    (void)cudaGetLastError();
}

cudaError_t switch_cost_measure(uint32_t *us)
{
    Table table = {};
    if (find_calls(&table.calls))
        return cudaErrorInsufficientDriver;
    CUresult result = open(&table);
    if (!result)
        result = measure(table, us);
    close(table);
    return static_cast<cudaError_t>(result); /* they have the same numbers */
}

} // namespace attnd
