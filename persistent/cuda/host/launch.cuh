/*
 * launch.cuh - the megakernel as the host sees it: a dispatcher of one CTA, and workers, one
 * kernel a variant. They are launched together and leave together.
 */
#ifndef ATTND_PERSISTENT_CUDA_HOST_LAUNCH_CUH
#define ATTND_PERSISTENT_CUDA_HOST_LAUNCH_CUH

#include "persistent/cuda/state/resident.cuh"

#include <cuda_runtime.h>

namespace attnd
{

/* @index: of variant_index(). */
Variant variant_get(uint32_t index);

/* Those whose kernels are there, a bit each. */
uint32_t variants_there();

/* Takes in a kernel that was not built in. @image: a module's; borrowed for the call. Nothing may
 * be resident. cudaErrorInvalidKernelImage: it is another variant, or of other sources. */
cudaError_t variant_load(uint32_t index, const void *image);

/* Loads every kernel that was built in; with lazy loading the first launch behind a resident kernel
 * would hang. */
cudaError_t resident_prepare();

/* The same where kernels are those of every GPU from sm_80 on: of what was built in only the
 * dispatcher; the others come by variant_load(). No launch begins early then. @priority: of
 * streams. cudaErrorNoKernelImageForDevice: it was built for others. */
cudaError_t portable_prepare(int priority);

/* portable.cu: takes in such kernels from the files in @folder, where nothing is resident. @say:
 * called with those that the driver refuses. Return: how many there are. */
uint32_t portable_kernels(const char *folder,
                          void (*say)(void *context, const char *kernel, cudaError_t error),
                          void *context);

/* Writes the templates of tensor maps to device memory; zeros, behind portable_prepare(). */
cudaError_t resident_templates(TensorMap *to, cudaStream_t stream);

/* Brings settings to the device before a launch, with workers of @variants (bit v) then. Nothing of
 * @resident may be running. @settings: the host's copy. */
cudaError_t resident_upload(Resident *resident, Resident *settings, uint32_t variants);

/* Launches the dispatcher and settings.workers workers, shared out evenly among the variants, each
 * on its own stream of @streams [variant_streams]; or, with settings.reserved, those that stay, all
 * on the first: the more streams there are, the sooner one of them gets the queue in which extra
 * workers wait. The launch before must be over. @gang: its number, one more than the last. */
cudaError_t resident_launch(Resident *resident, const Resident *settings, uint32_t gang,
                            const cudaStream_t *streams);

/* The same, all in one stream, in which it may wait behind others: workers begin beside
 * their dispatcher, and what follows in the stream begins when all of them are gone. Or, where some
 * workers stay, the extra ones, without a dispatcher; @gang is the number of these then. */
cudaError_t resident_arm(Resident *resident, const Resident *settings, uint32_t gang,
                         cudaStream_t stream);

} // namespace attnd

#endif
