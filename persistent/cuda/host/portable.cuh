/*
 * portable.cuh - kernels of GPUs other than Hopper.
 */
#ifndef ATTND_PERSISTENT_CUDA_HOST_PORTABLE_CUH
#define ATTND_PERSISTENT_CUDA_HOST_PORTABLE_CUH

#include "persistent/cuda/host/state.cuh"

/* Whether the GPU's kernels are not Hopper's, by what it is and what --isa says. */
bool portable_chosen(const attnd_backend_config *config, const cudaDeviceProp *properties);
/* Loads those kernels, from the files beside the worker program. Return: 0; a fault. */
int portable_load(attnd_backend *backend, const cudaDeviceProp *properties, attnd_fault *fault);

#endif
