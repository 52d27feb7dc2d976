/* kernel_portable.c - the kernels in plain vector C: any processor. */
#include "persistent/cpu/vec_portable.h"

#define KERNEL attnd_kernel_portable
#define KERNEL_NAME "portable"
#include "persistent/cpu/kernel_impl.h"
