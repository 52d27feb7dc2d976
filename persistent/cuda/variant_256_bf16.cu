/* variant_256_bf16.cu - the worker kernel for head_dim 256, bf16. */
#include "persistent/cuda/resident_kernel.cuh"

namespace attnd
{

Variant variant_256_bf16()
{
    return variant_of<__nv_bfloat16, 256>();
}

} // namespace attnd
