/*
 * portable.cu - kernels of every GPU from sm_80 on, where there are no Hopper's: files beside the
 * worker program, which engines are given, too (service/supervise/kernels.c).
 *
 * Each is compiled from the sources of Hopper's kernel by nvcc for sm_80, and has that code for
 * GPUs of compute capability 8, and PTX, of which the driver makes code for others.
 */
#include "persistent/cuda/host/modules.cuh"
#include "persistent/cuda/host/portable.cuh"

extern "C" {
#include "schemas/kernels.h"
}

#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where there is nothing but PTX for a GPU, the driver makes code of it, seconds for each kernel,
 * and keeps that for the next time. The daemon waits for its worker no longer than it does for one
 * whose kernels are there: what is not made by then is missing until the next one starts. */
constexpr uint64_t load_ns = 4000000000;

/* Compute capability, major * 10 + minor. */
constexpr int portable_least = 80, hoppers = 90;

static int capability(const cudaDeviceProp *properties)
{
    return properties->major * 10 + properties->minor;
}

bool portable_chosen(const attnd_backend_config *config, const cudaDeviceProp *properties)
{
    return capability(properties) != hoppers || (config->isa && strcmp(config->isa, "sm_80") == 0);
}

/* A whole file. Return: for free(); NULL it is not there, or cannot be read. */
static void *read_file(const char *path)
{
    FILE *file = fopen(path, "rbe");
    char *bytes = NULL;
    if (!file)
        return NULL;
    if (fseek(file, 0, SEEK_END) == 0) {
        const long size = ftell(file);
        rewind(file);
        bytes = size > 0 ? static_cast<char *>(malloc(size_t(size))) : NULL;
        if (bytes && fread(bytes, 1, size_t(size), file) != size_t(size)) {
            free(bytes);
            bytes = NULL;
        }
    }
    fclose(file);
    return bytes;
}

namespace attnd
{

uint32_t portable_kernels(const char *folder,
                          void (*say)(void *context, const char *kernel, cudaError_t error),
                          void *context)
{
    char path[PATH_MAX], kernel[ATTND_KERNEL_NAME_BYTES];
    uint32_t loaded = 0;
    const uint64_t begin_ns = attnd_clock_ns();
    for (uint32_t v = 0; v < variants_count; v++) {
        if (attnd_clock_ns() - begin_ns > load_ns) {
            say(context, attnd_kernel_name(v, kernel), cudaErrorNotReady);
            break;
        }
        const int used =
            snprintf(path, sizeof(path), "%s/%s.fatbin", folder, attnd_kernel_name(v, kernel));
        void *image = used > 0 && size_t(used) < sizeof(path) ? read_file(path) : NULL;
        if (!image)
            continue;
        const cudaError_t error = variant_load(v, image);
        free(image);
        loaded += !error;
        if (error) {
            (void)cudaGetLastError();
            say(context, kernel, error);
        }
    }
    return loaded;
}

} // namespace attnd

static void say_refused(void *context, const char *kernel, cudaError_t error)
{
    backend_say(static_cast<const attnd_backend *>(context), "kernel %s: %s", kernel,
                cudaGetErrorString(error));
}

/* From one of the places where kernels lie. Return: how many there are. */
static uint32_t load_kernels(attnd_backend *backend)
{
    static const char *const places[] = {"kernels", "../lib/attnd/kernels"};
    char program[PATH_MAX], folder[PATH_MAX];
    const ssize_t used = readlink("/proc/self/exe", program, sizeof(program) - 1);
    uint32_t loaded = 0;
    if (used <= 0)
        return 0;
    program[used] = 0;
    const char *beside = dirname(program);
    for (const char *place : places) {
        const int length = snprintf(folder, sizeof(folder), "%s/%s/portable", beside, place);
        if (!loaded && length > 0 && size_t(length) < sizeof(folder))
            loaded = attnd::portable_kernels(folder, say_refused, backend);
    }
    return loaded;
}

int portable_load(attnd_backend *backend, const cudaDeviceProp *properties, attnd_fault *fault)
{
    int least = 0, most = 0;
    cudaError_t error;
    if (capability(properties) < portable_least)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_VERSION, 0,
                               capability(properties), portable_least);
    if ((error = cudaDeviceGetStreamPriorityRange(&least, &most)) ||
        (error = attnd::portable_prepare(most < least ? most + 1 : most)))
        return cuda_fault(error, fault);
    const uint32_t loaded = load_kernels(backend);
    if (!loaded) /* the build has Hopper's kernels alone */
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_VERSION, 0,
                               capability(properties), hoppers);
    backend_say(backend,
                "%s: compute capability %d.%d has the kernels of sm_80, not Hopper's: prefill by "
                "mma.sync, latents without tensor cores (%u kernels)",
                properties->name, properties->major, properties->minor, loaded);
    return 0;
}
