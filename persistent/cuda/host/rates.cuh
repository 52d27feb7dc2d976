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

#include "persistent/cuda/host/state.cuh"

namespace attnd
{

/* As struct attnd_rates has them: 10^9 operations and bytes a second. */
struct MeasuredRates {
    double worker_gflops, worker_gbps, worker_l2_gbps, memory_gbps;
};

/**
 * rates_measure() - before the first kernel of the service, for as many workers as it will have
 * @backend: of whose gate it makes use
 * @rates:   written where this succeeds
 *
 * It wants the kernel of 128 dims, fp16 and no options, and takes all SMs and 4 MiB of device
 * memory a worker for some tens of milliseconds; 2 s at most, where others keep the GPU busy.
 * Return: cudaSuccess; cudaErrorNotSupported without that kernel, or with workers so few that their
 * keys would find room in the L2; cudaErrorNotReady if the GPU is so busy with others that nothing
 * can be told; other errors as they come.
 */
cudaError_t rates_measure(attnd_backend *backend, MeasuredRates *rates);

} // namespace attnd

#endif
