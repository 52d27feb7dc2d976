/*
 * modules.cuh - kernels that were not built in.
 */
#ifndef ATTND_PERSISTENT_CUDA_HOST_MODULES_CUH
#define ATTND_PERSISTENT_CUDA_HOST_MODULES_CUH

#include "persistent/cuda/host/state.cuh"

/* A line in the log. */
void backend_say(const attnd_backend *backend, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Of kernels that runs want, a bit each, those that are there and execute them. */
uint32_t kernels_for(uint32_t wanted);
/* Whether kernels may have come that were not there. Looks now and then. */
bool modules_due(attnd_backend *backend);
/* Takes in those that have come, and tells the daemon what is missing. Nothing may be resident.
 */
void modules_take(attnd_backend *backend);

#endif
