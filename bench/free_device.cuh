/*
 * free_device.cuh - letting go of device memory in a program that measures.
 *
 * For some time behind cudaFree(), a millisecond for 0.4 GB, every reader of memory has lost five
 * sixths of its bandwidth, as if what was freed were being cleared (H100, driver 580: 4 GiB for 10
 * ms, 16 GiB for 40).
 */
#ifndef ATTND_BENCH_FREE_DEVICE_CUH
#define ATTND_BENCH_FREE_DEVICE_CUH

#include <cuda_runtime.h>
#include <initializer_list>
#include <unistd.h>

/* Frees what is in @list and waits until that is over, of up to 40 GB. */
inline void free_and_wait(std::initializer_list<void *> list)
{
    for (void *memory : list)
        cudaFree(memory);
    usleep(100000);
}

#endif
