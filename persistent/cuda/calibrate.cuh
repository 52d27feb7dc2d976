/*
 * calibrate.cuh - the rates that plans are made with.
 */
#ifndef ATTND_PERSISTENT_CUDA_CALIBRATE_CUH
#define ATTND_PERSISTENT_CUDA_CALIBRATE_CUH

#include "persistent/cuda/solo.cuh"

/* Those of clocks: what attention reached of the peaks of an H200. @workers: of so many @sms. */
attnd_rates rates_derived(int device, uint32_t workers, uint32_t sms);

/* Replaces @rates by what the kernels do on this device now, in some milliseconds; leaves them
 * where that cannot be so: another process computes, or memory is short. Where others hold the SMs
 * all the time, memory for it stays taken, and half a second is lost. No kernel of this process may
 * be there. Return: an error only if the device has failed. */
cudaError_t rates_measure(uint32_t workers, attnd_rates *rates);

#endif
