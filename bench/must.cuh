/*
 * must.cuh - calls of the CUDA runtime without which a program that measures cannot go on.
 */
#ifndef ATTND_BENCH_MUST_CUH
#define ATTND_BENCH_MUST_CUH

#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

inline void must(cudaError_t error, const char *file, int line)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s:%d: %s\n", file, line, cudaGetErrorString(error));
    exit(1);
}
#define MUST(call) must((call), __FILE__, __LINE__)

#endif
