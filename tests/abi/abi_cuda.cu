// abi_cuda.cu - abi.h alone, as CUDA: host and device must agree about every size.
#include "schemas/abi.h"

// Instantiated in both passes of the compiler, so the assertions of abi.h hold in both.
__global__ void attnd_abi_probe(const attnd_plan_head *plan, unsigned long long *bytes)
{
    *bytes = sizeof(*plan) + sizeof(attnd_tile) + sizeof(attnd_run);
}
