/*
 * rates.cuh - what a tile worker does in a second, measured with the kernels that plans are for.
 *
 * Plans of known times are run before the first kernel of the service is there: tiles of 128 rows,
 * tiles of one row for each worker, the same of few workers, and the same of keys that all workers
 * read. Each plan is run with all of its keys and with half of them. The difference is the rate: it
 * leaves out what a run and an item take whatever they are.
 */
#ifndef ATTND_PERSISTENT_CUDA_HOST_RATES_CUH
#define ATTND_PERSISTENT_CUDA_HOST_RATES_CUH

#include "schemas/abi.h"

#include <cuda_runtime.h>

namespace attnd
{

/**
 * rates_measure() - on the current device, on which nothing of ours may be resident
 * @workers: tile workers that the service will have
 * @rates:   written where this succeeds; source ATTND_RATES_MEASURED
 *
 * It takes some tens of milliseconds, and 4 MiB of device memory a worker meanwhile. It wants the
 * kernel of 128 dims, fp16 and no options.
 * Return: cudaSuccess; cudaErrorNotSupported without that kernel; cudaErrorNotReady if the GPU is
 * so busy with others that nothing can be told; other errors as they come.
 */
cudaError_t rates_measure(uint32_t workers, attnd_rates *rates);

} // namespace attnd

#endif
