/*
 * kernel_find.c - which instruction set: asked once, at run time, best first.
 *
 * The names are what --isa takes and what status shows.
 */
#include <string.h>

#include "persistent/cpu/kernel.h"

struct candidate {
    const struct attnd_kernel *kernel;
    int usable;
};

const struct attnd_kernel *attnd_kernel_find(const char *isa)
{
    const struct candidate candidates[] = {
#ifdef __x86_64__
        {&attnd_kernel_avx512,
         __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")},
        /* F16C came before AVX2; compilers disagree on whether they know its name. */
        {&attnd_kernel_avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
#endif
        {&attnd_kernel_portable, 1},
    };
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
        const struct candidate *c = &candidates[i];
        if (isa != NULL && strcmp(isa, c->kernel->name) != 0)
            continue;
        if (c->usable)
            return c->kernel;
    }
    return NULL;
}
