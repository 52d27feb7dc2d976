/* variant_128_fp16.cu - the worker kernel for head_dim 128, fp16. */
#include "persistent/cuda/resident_kernel.cuh"

namespace attnd
{

Variant variant_128_fp16()
{
    return variant_of<__half, 128>();
}

} // namespace attnd
