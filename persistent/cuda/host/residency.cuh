/*
 * residency.cuh - on how many SMs workers are, and for how long.
 */
#ifndef ATTND_PERSISTENT_CUDA_HOST_RESIDENCY_CUH
#define ATTND_PERSISTENT_CUDA_HOST_RESIDENCY_CUH

#include "persistent/cuda/host/state.cuh"

/* The mode asked for, or for "auto" the one that suits, and what it means in SMs.
 * Return: workers; 0 there is no such mode. */
int residency_choose(attnd_backend *backend, int sms);

#endif
