/*
 * kernels.cuh - the kernels begin, and rest.
 */
#ifndef ATTND_PERSISTENT_CUDA_HOST_KERNELS_CUH
#define ATTND_PERSISTENT_CUDA_HOST_KERNELS_CUH

#include "persistent/cuda/host/state.cuh"

/* Launches them; start() of the vtable. */
int backend_start(attnd_backend *backend);

/* They finish what they published and leave; nothing to do if there are none. */
int backend_quiesce(attnd_backend *backend);

#endif
