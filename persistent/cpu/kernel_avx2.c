/* kernel_avx2.c - the kernels in AVX2; built with its flags, called where the processor has it. */
#include "persistent/cpu/vec_avx2.h"

#define KERNEL attnd_kernel_avx2
#define KERNEL_NAME "avx2"
#include "persistent/cpu/kernel_impl.h"
