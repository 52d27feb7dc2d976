/* kernels.c - see kernels.h. */
#include "schemas/kernels.h"

#include <stdio.h>

const char *attnd_kernel_name(uint32_t number, char text[ATTND_KERNEL_NAME_BYTES])
{
    static const uint32_t dims[ATTND_KERNEL_DIMS] = {64, 128, 256, 576};
    static const char *const policies[] = {"plain", "varied", "fp8"};

    if (number >= ATTND_KERNELS)
        return "?";
    snprintf(text, ATTND_KERNEL_NAME_BYTES, "%u_%s_%s", dims[number % ATTND_KERNELS_PLAIN / 2],
             number % 2 ? "bf16" : "fp16", policies[number / ATTND_KERNELS_PLAIN]);
    return text;
}
