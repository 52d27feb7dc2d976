/* variant_64_fp16.cu - the worker kernel for head_dim 64, fp16. */
#include "persistent/cuda/resident_kernel.cuh"

namespace attnd
{

Variant variant_64_fp16()
{
    return variant_of<__half, 64>();
}

} // namespace attnd
