/* kernels.c - see kernels.h. */
#include "schemas/kernels.h"

#include <stdio.h>

const char *attnd_kernel_name(uint32_t number, char text[ATTND_KERNEL_NAME_BYTES])
{
    static const uint32_t dims[ATTND_KERNEL_DIMS] = {64, 128, 256, 576};
    static const char *const policies[] = {"plain", "varied", "fp8"};

    if (number >= ATTND_KERNELS)
        return "?";
    const int of_192 = number >= ATTND_KERNELS_192;
    const uint32_t dim = of_192 ? 192 : dims[number % ATTND_KERNELS_PLAIN / 2];
    const uint32_t policy =
        of_192 ? (number - ATTND_KERNELS_192) / 2 : number / ATTND_KERNELS_PLAIN;

    snprintf(text, ATTND_KERNEL_NAME_BYTES, "%u_%s_%s", dim, number % 2 ? "bf16" : "fp16",
             policies[policy]);
    return text;
}
