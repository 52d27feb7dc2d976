/*
 * variants.cuh - the variants of the worker kernel: their numbers, which of them executes runs of
 * which, and what a kernel that is there says of itself.
 */
#ifndef ATTND_PERSISTENT_CUDA_STATE_VARIANTS_CUH
#define ATTND_PERSISTENT_CUDA_STATE_VARIANTS_CUH

#include "persistent/cuda/machine/barrier.cuh"
#include "schemas/abi.h"
#include "schemas/kernels.h"

namespace attnd
{

/* The variants of the worker kernel, one a head dimension, element type and policy. Some are built
 * in (cuda.mk), and the others may come as modules. */
constexpr uint32_t variants_count = ATTND_KERNELS;
constexpr uint32_t varied_options = ATTND_KERNEL_OPTIONS;
/* The dims of V and o in kernels of D: of DeepSeek's prompts fewer than those of K. */
template <int D> constexpr int values_dim = D == 192 ? 128 : D;
/* Longer rows of K are latents: 576, of which V is 512. */
constexpr uint32_t loop_dim_max = 256, latent_dim = 576, latent_values = 512;
constexpr uint32_t latent_rows =
    64; /* packed rows that their loop computes in one pass over keys */
/* And which dimensions beside those that are equal: a pool's, not a batch's. */
constexpr uint32_t varied_dims =
    ATTND_OPTION_DIMS_192_128 | ATTND_OPTION_DIMS_576_512 | ATTND_OPTION_DIMS_FP8;

__host__ __device__ constexpr bool is_fp8(uint32_t dtype)
{
    return dtype == ATTND_FP8_E4M3 || dtype == ATTND_FP8_E5M2;
}

/* The variant for dimensions, types of q and of K, and options; variants_count: there is none. */
__host__ __device__ constexpr uint32_t
variant_index(uint32_t dim_qk, uint32_t dim_vo, uint32_t dtype, uint32_t kv_dtype, uint32_t options)
{
    return attnd_kernel_of(dim_qk, dim_vo, dtype, kv_dtype, options);
}

/* Does kernel @kernel, which is one of D, execute runs of another variant? Varied ones execute
 * plain runs, too (attnd_kernel_varied()). So a model that mixes both has all SMs for each of them.
 */
template <int D> __host__ __device__ constexpr bool variant_executes(uint32_t kernel, uint32_t run)
{
    constexpr uint32_t first = D == 192 ? ATTND_KERNELS_192 : 0;
    constexpr uint32_t plain = D == 192 ? 2 : ATTND_KERNELS_PLAIN;
    return kernel == run || (run - first < plain && kernel == run + plain);
}

/* Of the variants that runs want, those whose kernels are needed. */
constexpr uint32_t variants_needed(uint32_t wanted)
{
    return wanted & ~attnd_kernels_plain_of(wanted);
}

/* Kernels that are there at once have a stream each, behind the dispatcher's: of a plain and a
 * varied one there is one at once. */
constexpr uint32_t variant_streams = 1 + 2 * ATTND_KERNELS_PLAIN + 2;
constexpr uint32_t variant_stream(uint32_t variant)
{
    if (variant >= ATTND_KERNELS_192)
        return 1 + 2 * ATTND_KERNELS_PLAIN + variant % 2;
    return 1 + (variant < ATTND_KERNELS_PLAIN ? variant : variant - ATTND_KERNELS_PLAIN);
}

/* A worker kernel: (Resident *, uint32_t variant, uint32_t first_worker, uint32_t gang,
 * EngineLaunch). */
struct Variant {
    const void *kernel;       /* NULL: it is not there */
    const StuckRecord *stuck; /* where it records that it is stuck; of variant_of() a symbol */
    uint32_t shared_bytes;
};

/* What a module says of itself: attnd_module_facts. */
struct ModuleFacts {
    uint32_t variant, shared_bytes;
    uint32_t resident_bytes, run_bytes; /* of struct Resident and ActiveRun, as it knows them */
    const StuckRecord *stuck;
};

} // namespace attnd

#endif
