/*
 * resident.cu - the table of variants, and how they are launched side by side.
 */
#include "persistent/cuda/resident.cuh"

#include "persistent/cuda/dispatch.cuh"

#include <cuda.h>

namespace attnd
{

#define ATTND_VARIANT(head_dim, type) Variant variant_##head_dim##_##type();
#include "persistent/cuda/variants.inc"
#undef ATTND_VARIANT

/* In the order of variant_index(). */
static Variant (*const variants_list[variants_count])() = {
#define ATTND_VARIANT(head_dim, type) variant_##head_dim##_##type,
#include "persistent/cuda/variants.inc"
#undef ATTND_VARIANT
};

Variant variant_get(uint32_t index)
{
    return variants_list[index]();
}

__global__ void __launch_bounds__(dispatch_threads, 1) dispatch_kernel(Resident *resident)
{
    extern __shared__ __align__(128) char state[];
    /* Not known to ptxas, which would compute it anew behind every __syncwarp(), 40 clocks each. */
    uint32_t address = shared_address(state);
    asm volatile("" : "+r"(address));
    Dispatch *dispatch = static_cast<Dispatch *>(__cvta_shared_to_generic(address));
    dispatch_begin(dispatch, resident);
    switch (threadIdx.x / 32) {
    case 0:
        dispatch_commands(dispatch, resident);
        break;
    case 1:
        dispatch_retires(dispatch, resident);
        break;
    case 2:
        dispatch_doorbells(dispatch, resident);
        break;
    default:
        dispatch_chores(dispatch, resident);
    }
    __syncthreads();
    if (threadIdx.x / 32 == 0)
        carry_sums(dispatch, resident); /* with what the others added at the end */
    if (threadIdx.x == 0)
        publish_sys(&resident->host->left, 1);
}

cudaError_t resident_prepare()
{
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, dispatch_kernel);
    if (!error)
        error = cudaFuncSetAttribute(dispatch_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     int(sizeof(Dispatch)));
    for (uint32_t v = 0; v < variants_count && !error; v++) {
        Variant variant = variant_get(v);
        if (!(error = cudaFuncGetAttributes(&attributes, variant.kernel)))
            error =
                cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     int(variant.shared_bytes));
    }
    return error;
}

cudaError_t resident_stuck_records(const StuckRecord **records)
{
    for (uint32_t v = 0; v < variants_count; v++) {
        void *address;
        cudaError_t error =
            cudaGetSymbolAddress(&address, static_cast<const void *>(variant_get(v).stuck));
        if (error)
            return error;
        records[v] = static_cast<const StuckRecord *>(address);
    }
    return cudaSuccess;
}

/* Everything but the shape of the boxes is replaced on the device, where planes are known: see
 * map_run(). */
cudaError_t resident_templates(TensorMap *to, cudaStream_t stream)
{
    static_assert(sizeof(CUtensorMap) == sizeof(TensorMap), "a tensor map");
    CUtensorMap maps[map_templates];
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                         cudaEnableDefault, &found);
    if (error || found != cudaDriverEntryPointSuccess)
        return error ? error : cudaErrorNotSupported;
    auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
    for (uint32_t i = 0; i < map_templates; i++) {
        const uint32_t panels = 1u << i % map_dims, height = i / map_dims; /* 0: V's */
        cuuint64_t dims[5] = {64, 64, 4, 8, 1}, strides[4] = {512, 128, 32768, 32768};
        cuuint32_t box[5] = {64, height ? 8u : 16u, panels, height ? 1u << height : 1u, 1};
        cuuint32_t steps[5] = {1, 1, 1, 1, 1};
        if (encode(&maps[i], CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 5, to, dims, strides, box, steps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
            return cudaErrorInvalidValue;
    }
    if ((error = cudaMemcpyAsync(to, maps, sizeof(maps), cudaMemcpyHostToDevice, stream)))
        return error;
    return cudaStreamSynchronize(stream);
}

cudaError_t resident_launch(Resident *resident, Resident *settings, uint32_t variants,
                            cudaStream_t *streams)
{
    cudaError_t error;
    uint32_t published, cursors[workers_max];
    if ((error = cudaMemcpy(&published, &resident->published, 4, cudaMemcpyDeviceToHost)))
        return error;
    for (uint32_t &cursor : cursors) /* nothing was left over when the last kernel left */
        cursor = published;
    settings->resident = variants;
    const size_t constants = sizeof(Settings);
    if ((error = cudaMemcpy(resident, settings, constants, cudaMemcpyHostToDevice)) ||
        (error = cudaMemset(&resident->used, 0, 4)) ||
        (error = cudaMemcpy(resident->cursor, cursors, sizeof(cursors), cudaMemcpyHostToDevice)) ||
        (error = cudaStreamSynchronize(0)))
        return error;
    return resident_relaunch(resident, settings, streams);
}

cudaError_t resident_relaunch(Resident *resident, const Resident *settings, cudaStream_t *streams)
{
    cudaError_t error;
    const uint32_t variants = settings->resident;
    error = cudaMemsetAsync(&resident->leave, 0, 4, streams[0]);
    if (!error && settings->burst) /* whoever asked before is gone */
        error =
            cudaMemsetAsync(resident->burst_state, 0, sizeof(resident->burst_state), streams[0]);
    if (error || (error = cudaStreamSynchronize(streams[0])))
        return error;
    dispatch_kernel<<<1, dispatch_threads, sizeof(Dispatch), streams[0]>>>(resident);
    uint32_t left = uint32_t(__builtin_popcount(variants)), first = 0;
    for (uint32_t v = 0; v < variants_count; v++) {
        if (!(variants >> v & 1))
            continue;
        uint32_t count = (settings->workers - first) / left--;
        Variant variant = variant_get(v);
        void *arguments[] = {&resident, &v, &first};
        if ((error = cudaLaunchKernel(variant.kernel, count, resident_threads, arguments,
                                      variant.shared_bytes, streams[1 + v])))
            return error;
        first += count;
    }
    return cudaGetLastError();
}

cudaError_t resident_burst(Resident *resident, const Resident *settings, cudaStream_t stream)
{
    uint32_t v = uint32_t(__builtin_ctz(settings->resident)), first = settings->workers;
    Variant variant = variant_get(v);
    void *arguments[] = {&resident, &v, &first};
    return cudaLaunchKernel(variant.kernel, settings->burst, resident_threads, arguments,
                            variant.shared_bytes, stream);
}

} // namespace attnd
