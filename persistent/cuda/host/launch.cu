/*
 * launch.cu - the table of variants, and how they are launched side by side.
 */
#include "persistent/cuda/host/launch.cuh"

#include "persistent/cuda/dispatch/dispatcher.cuh"
#include "persistent/cuda/state/engine.cuh"
#include "persistent/cuda/state/roles.cuh"

#include "schemas/tensor_maps.h"

#include <cuda.h>

namespace attnd
{

#define ATTND_VARIANT(head_dim, type, policy) Variant variant_##head_dim##_##type##_##policy();
#include "persistent/cuda/host/variants.inc"
#undef ATTND_VARIANT

enum Dtype : uint32_t { dtype_fp16 = ATTND_FP16, dtype_bf16 = ATTND_BF16 };
enum Policy : uint32_t {
    policy_plain = ATTND_KERNEL_PLAIN,
    policy_varied = ATTND_KERNEL_VARIED,
    policy_fp8 = ATTND_KERNEL_FP8
};

static const struct {
    uint32_t index;
    Variant (*get)();
} variants_built[] = {
#define ATTND_VARIANT(head_dim, type, policy)                                                      \
    {attnd_kernel_number(head_dim, dtype_##type, policy_##policy),                                 \
     variant_##head_dim##_##type##_##policy},
#include "persistent/cuda/host/variants.inc"
#undef ATTND_VARIANT
};

/* By variant_index(). The stuck record is an address here, and no symbol. */
static Variant variants[variants_count];

Variant variant_get(uint32_t index)
{
    return variants[index];
}

uint32_t variants_there()
{
    uint32_t there = 0;
    for (uint32_t v = 0; v < variants_count; v++)
        there |= variants[v].kernel ? 1u << v : 0;
    return there;
}

/* Where no kernel may begin beside the one in front of it in its stream: workers have streams of
 * their own. In the stream that they belong to an event stands in front of the dispatcher, behind
 * which they begin, and all of them are waited for behind it. */
static struct Beside {
    bool used;
    cudaStream_t stream[variant_streams];
    cudaEvent_t begins, over;
} beside;

/* Loads it, and lets it have its shared memory; no more than all GPUs have that it is for. */
static cudaError_t variant_prepare(uint32_t index, const Variant &variant)
{
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, variant.kernel);
    if (!error && beside.used &&
        attributes.sharedSizeBytes + variant.shared_bytes > portable_shared_bytes)
        error = cudaErrorInvalidKernelImage;
    if (!error)
        error = cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     int(variant.shared_bytes));
    if (!error)
        variants[index] = variant;
    return error;
}

cudaError_t variant_load(uint32_t index, const void *image)
{
    cudaLibrary_t library;
    cudaKernel_t kernel;
    unsigned int kernels = 0;
    void *address;
    size_t bytes = 0;
    ModuleFacts facts;
    cudaError_t error = cudaLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0);
    if (error)
        return error;
    if (!(error = cudaLibraryGetGlobal(&address, &bytes, library, "attnd_module_facts")) &&
        !(error = cudaLibraryGetKernelCount(&kernels, library)))
        error = bytes != sizeof(facts) || kernels != 1 ? cudaErrorInvalidKernelImage : cudaSuccess;
    if (!error && !(error = cudaMemcpy(&facts, address, sizeof(facts), cudaMemcpyDeviceToHost)) &&
        (facts.variant != index || facts.resident_bytes != sizeof(Resident) ||
         facts.run_bytes != sizeof(ActiveRun)))
        error = cudaErrorInvalidKernelImage;
    if (!error && !(error = cudaLibraryEnumerateKernels(&kernel, 1, library)))
        error = variant_prepare(index, {kernel, facts.stuck, facts.shared_bytes});
    if (error)
        (void)cudaLibraryUnload(library);
    return error;
}

static cudaError_t dispatcher_prepare()
{
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, dispatch_kernel);
    if (!error)
        error = cudaFuncSetAttribute(dispatch_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     int(sizeof(Dispatch)));
    return error;
}

cudaError_t resident_prepare()
{
    cudaError_t error = dispatcher_prepare();
    for (const auto &built : variants_built) {
        Variant variant = built.get();
        void *address = nullptr;
        if (error ||
            (error = cudaGetSymbolAddress(&address, static_cast<const void *>(variant.stuck))))
            return error;
        variant.stuck = static_cast<const StuckRecord *>(address);
        error = variant_prepare(built.index, variant);
    }
    return error;
}

cudaError_t portable_prepare(int priority)
{
    cudaError_t error = dispatcher_prepare();
    beside.used = true;
    for (cudaStream_t &stream : beside.stream)
        if (error ||
            (error = cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority)))
            return error;
    for (cudaEvent_t *event : {&beside.begins, &beside.over})
        if (!error)
            error = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    return error;
}

/* Everything but the shape of the boxes is replaced on the device, where planes are known: see
 * map_run(). */
cudaError_t resident_templates(TensorMap *to, cudaStream_t stream)
{
    static_assert(sizeof(CUtensorMap) == sizeof(TensorMap), "a tensor map");
    CUtensorMap maps[map_templates];
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (beside.used)
        return cudaMemsetAsync(to, 0, sizeof(maps), stream);
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                         cudaEnableDefault, &found);
    if (error || found != cudaDriverEntryPointSuccess)
        return error ? error : cudaErrorNotSupported;
    auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
    for (uint32_t i = 0; i < map_templates; i++) {
        const struct attnd_map_shape shape = attnd_map_shape(i);
        cuuint64_t dims[5], strides[4];
        for (uint32_t d = 0; d < 5; d++)
            dims[d] = shape.dims[d];
        for (uint32_t d = 0; d < 4; d++)
            strides[d] = shape.strides[d];
        if (encode(&maps[i], CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 5, to, dims, strides, shape.box,
                   shape.steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
            return cudaErrorInvalidValue;
    }
    if ((error = cudaMemcpyAsync(to, maps, sizeof(maps), cudaMemcpyHostToDevice, stream)))
        return error;
    return cudaStreamSynchronize(stream);
}

cudaError_t resident_upload(Resident *resident, Resident *settings, uint32_t variants)
{
    settings->kernels = variants;
    settings->resident = attnd_kernels_executed(variants);
    cudaError_t error = cudaMemcpy(resident, settings, sizeof(Settings), cudaMemcpyHostToDevice);
    if (error || (error = cudaMemset(&resident->used, 0, 4)))
        return error;
    return cudaStreamSynchronize(0);
}

/* Workers of one variant. @beside: they begin while the kernel before them in the stream runs. */
static cudaError_t launch_workers(Resident *resident, uint32_t v, uint32_t first, uint32_t count,
                                  uint32_t gang, cudaStream_t stream, bool beside)
{
    const Variant variant = variant_get(v);
    EngineLaunch none = {};
    attnd_engine_fused fused = {};
    void *arguments[] = {&resident, &v, &first, &gang, &none, &fused};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(count);
    config.blockDim = dim3(resident_threads);
    config.dynamicSmemBytes = variant.shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = beside;
    return cudaLaunchKernelExC(&config, variant.kernel, arguments);
}

/* What follows in @stream waits for its end. */
static cudaError_t join(cudaStream_t own, cudaStream_t stream)
{
    cudaError_t error = cudaEventRecord(beside.over, own);
    return error ? error : cudaStreamWaitEvent(stream, beside.over, 0);
}

/* Workers from @first on, up to @end, shared out among the variants. @streams: one a variant; or,
 * with @one, one for all, in which @behind says whether a kernel of theirs is in front. */
static cudaError_t launch_shares(Resident *resident, const Resident *settings, uint32_t first,
                                 uint32_t end, uint32_t gang, const cudaStream_t *streams, bool one,
                                 bool behind)
{
    const uint32_t variants = settings->kernels;
    const bool forks = one && beside.used;
    uint32_t left = uint32_t(__builtin_popcount(variants)), launched = 0;
    cudaError_t error = cudaSuccess;
    for (uint32_t v = 0; v < variants_count && !error; v++) {
        if (!(variants >> v & 1))
            continue;
        const uint32_t count = (end - first) / left--;
        if (!count)
            continue;
        const cudaStream_t stream =
            forks ? beside.stream[variant_stream(v)] : streams[one ? 0 : variant_stream(v)];
        if (!forks || !(error = cudaStreamWaitEvent(stream, beside.begins, 0)))
            error =
                launch_workers(resident, v, first, count, gang, stream, one && behind && !forks);
        launched |= 1u << v;
        behind = true;
        first += count;
    }
    for (uint32_t v = 0; v < variants_count && !error && forks; v++)
        if (launched >> v & 1) /* behind all launches: none stands behind another one's end */
            error = join(beside.stream[variant_stream(v)], streams[0]);
    return error;
}

/* In front of the dispatcher: what workers begin behind. */
static cudaError_t begin_shares(cudaStream_t stream, bool one)
{
    return one && beside.used ? cudaEventRecord(beside.begins, stream) : cudaSuccess;
}

static cudaError_t launch_dispatcher(Resident *resident, uint32_t gang, cudaStream_t stream)
{
    dispatch_kernel<<<1, dispatch_threads, sizeof(Dispatch), stream>>>(resident, gang);
    return cudaGetLastError();
}

cudaError_t resident_launch(Resident *resident, const Resident *settings, uint32_t gang,
                            const cudaStream_t *streams)
{
    const bool one = settings->reserved;
    const uint32_t end = one ? settings->reserved : settings->workers;
    cudaError_t error = begin_shares(streams[0], one);
    if (!error)
        error = launch_dispatcher(resident, gang, streams[0]);
    return error ? error : launch_shares(resident, settings, 0, end, gang, streams, one, one);
}

cudaError_t resident_arm(Resident *resident, const Resident *settings, uint32_t gang,
                         cudaStream_t stream)
{
    const uint32_t first = settings->reserved;
    cudaError_t error = begin_shares(stream, true);
    if (!error && !first)
        error = launch_dispatcher(resident, gang, stream);
    return error ? error
                 : launch_shares(resident, settings, first, settings->workers, gang, &stream, true,
                                 !first);
}

} // namespace attnd
