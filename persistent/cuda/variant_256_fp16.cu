/* variant_256_fp16.cu - the worker kernel for head_dim 256, fp16. */
#include "persistent/cuda/resident_kernel.cuh"

namespace attnd
{

Variant variant_256_fp16()
{
    return variant_of<__half, 256>();
}

} // namespace attnd
