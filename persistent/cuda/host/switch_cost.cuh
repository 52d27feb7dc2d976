/*
 * switch_cost.cuh - what a run in an engine's stream costs where contexts take turns on the GPU.
 *
 * Without MPS two contexts of one process take turns as those of two processes do. So a second
 * context, made for this alone, plays the engine: its stream writes a word, and waits for another
 * by stream memory operations, as client/cuda/ring.c does there. The worker's own context
 * answers. Each has a kernel of one thread a round, so a round is two switches.
 */
#ifndef ATTND_PERSISTENT_CUDA_HOST_SWITCH_COST_CUH
#define ATTND_PERSISTENT_CUDA_HOST_SWITCH_COST_CUH

#include <cuda_runtime.h>
#include <stdint.h>

namespace attnd
{

/**
 * switch_cost_measure() - before the first kernel of the service
 * @us: a round, the median; written where this succeeds, 1 at least
 *
 * The context of the device is current, and is again. A context more needs some hundred MiB of
 * device memory and a fraction of a second, and is gone behind this. Rounds have 1 s, and then 0.5
 * s to end where others keep the GPU busy; what has not ended by then is left to the process's end.
 *
 * Return: cudaSuccess; cudaErrorNotReady if the GPU was too busy; cudaErrorInsufficientDriver
 * without a call that is needed; other errors as they come.
 */
cudaError_t switch_cost_measure(uint32_t *us);

} // namespace attnd

#endif
