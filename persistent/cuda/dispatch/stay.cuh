/*
 * stay.cuh - how long kernels stay that come and go, and for whom.
 */
#ifndef ATTND_PERSISTENT_CUDA_DISPATCH_STAY_CUH
#define ATTND_PERSISTENT_CUDA_DISPATCH_STAY_CUH

#include <stdint.h>

namespace attnd
{

/* A gang that finds something to do all the time makes way after so long. */
constexpr uint64_t stay_ns = 2000000;
/* How long a gang waits for one more command. */
constexpr uint64_t linger_ns = 12000;

} // namespace attnd

#endif
