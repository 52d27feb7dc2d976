/* kernel_avx512.c - the kernels in AVX-512; built with its flags, called where the processor has
 * it. */
#include "persistent/cpu/vec_avx512.h"

#define KERNEL attnd_kernel_avx512
#define KERNEL_NAME "avx512"
#include "persistent/cpu/kernel_impl.h"
