/*
 * resident.cuh - the megakernel as the host sees it: a dispatcher of one CTA, and workers, one
 * kernel a variant. They are launched together and leave together.
 */
#ifndef ATTND_PERSISTENT_CUDA_RESIDENT_CUH
#define ATTND_PERSISTENT_CUDA_RESIDENT_CUH

#include "persistent/cuda/barrier.cuh"

#include <cuda_runtime.h>

namespace attnd
{

constexpr int dispatch_threads = 128; /* dispatch.cuh: a warp a duty */

/* A worker kernel: (Resident *, uint32_t variant, uint32_t first_worker). */
struct Variant {
    const void *kernel;
    const StuckRecord *stuck; /* a symbol */
    uint32_t shared_bytes;
};

/* @index: of variant_index(). */
Variant variant_get(uint32_t index);

/* Loads every kernel; with lazy loading the first launch behind a resident kernel would hang. */
cudaError_t resident_prepare();

/* Where each variant records that it is stuck, in device memory. @records: [variants_count] */
cudaError_t resident_stuck_records(const StuckRecord **records);

/* Writes the templates of tensor maps to device memory. */
cudaError_t resident_templates(TensorMap *to, cudaStream_t stream);

/* Launches the dispatcher and settings.workers workers, shared out evenly among the variants of
 * @variants (bit v), each on its own stream of @streams [1 + variants_count]. Nothing of @resident
 * may be running. @settings: the host's copy, brought up to date. */
cudaError_t resident_launch(Resident *resident, Resident *settings, uint32_t variants,
                            cudaStream_t *streams);

/* The kernels of the last launch once more, with settings as they were: next to nothing is written
 * before. */
cudaError_t resident_relaunch(Resident *resident, const Resident *settings, cudaStream_t *streams);

/* Workers beside those of the last launch, which was of one variant: settings.burst of them, on SMs
 * as they become free. They leave when nothing is left, and soon anyway. Those of the last burst
 * have left. */
cudaError_t resident_burst(Resident *resident, const Resident *settings, cudaStream_t stream);

} // namespace attnd

#endif
