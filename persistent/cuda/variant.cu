/*
 * variant.cu - the worker kernel of one variant. The build compiles this file once for each entry
 * of CUDA_VARIANTS (cuda.mk), with its head dimension and element type.
 */
#include "persistent/cuda/resident_kernel.cuh"

namespace attnd
{

using element_fp16 = __half;
using element_bf16 = __nv_bfloat16;

#define PASTE(prefix, first, second) prefix##first##second
#define VARIANT(dim, type) PASTE(variant_##dim, _, type)
#define ELEMENT(type) PASTE(element_, type, )
#define EXPAND(macro, ...) macro(__VA_ARGS__)

Variant EXPAND(VARIANT, ATTND_VARIANT_DIM, ATTND_VARIANT_TYPE)()
{
    return variant_of<EXPAND(ELEMENT, ATTND_VARIANT_TYPE), ATTND_VARIANT_DIM>();
}

} // namespace attnd
