/* variant_128_bf16.cu - the worker kernel for head_dim 128, bf16. */
#include "persistent/cuda/resident_kernel.cuh"

namespace attnd
{

Variant variant_128_bf16()
{
    return variant_of<__nv_bfloat16, 128>();
}

} // namespace attnd
