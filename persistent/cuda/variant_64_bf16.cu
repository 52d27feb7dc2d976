/* variant_64_bf16.cu - the worker kernel for head_dim 64, bf16. */
#include "persistent/cuda/resident_kernel.cuh"

namespace attnd
{

Variant variant_64_bf16()
{
    return variant_of<__nv_bfloat16, 64>();
}

} // namespace attnd
