/*
 * modules.cu - kernels that were not built in, from files that attnd-variant made (MODULES.md).
 *
 * A file is named after its kernel and after the sources it was made of, so one of another version
 * is not even opened. Files are read where nothing is resident: when the worker begins, and, once
 * the directory has changed, when the next gang is launched. A kernel that came stays.
 */
#include "persistent/cuda/host/modules.cuh"
#include "persistent/cuda/host/sources.h"

extern "C" {
#include "persistent/modules.h"
#include "schemas/atomics.h"
#include "schemas/kernels.h"
}

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

constexpr uint64_t look_ns = 500000000;
constexpr uint32_t all_variants = (1u << attnd::variants_count) - 1;

uint32_t kernels_for(uint32_t wanted)
{
    const uint32_t there = attnd::variants_there();
    return attnd::variants_needed((wanted | attnd_kernels_varied_of(wanted & ~there)) & there);
}

void backend_say(const attnd_backend *backend, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (backend->config.say)
        backend->config.say(text);
}

static bool changed_since(attnd_backend *backend, const struct stat &directory)
{
    return directory.st_mtim.tv_sec != backend->modules_changed.tv_sec ||
           directory.st_mtim.tv_nsec != backend->modules_changed.tv_nsec;
}

bool modules_due(attnd_backend *backend)
{
    struct stat directory;
    if (!backend->config.modules || backend->settings.missing == 0 ||
        attnd_clock_ns() - backend->modules_ns < look_ns)
        return false;
    if (stat(backend->config.modules, &directory) == 0 && changed_since(backend, directory))
        return true;
    backend->modules_ns = attnd_clock_ns();
    return false;
}

static void take(const attnd_backend *backend, int directory, uint32_t variant)
{
    char kernel[ATTND_KERNEL_NAME_BYTES], name[ATTND_KERNEL_NAME_BYTES + 64], why[300];
    void *image = NULL;
    snprintf(name, sizeof(name), "%s." ATTND_SOURCES ".%s", attnd_kernel_name(variant, kernel),
             backend->portable ? "sm_80.fatbin" : "cubin");
    const int found = attnd_modules_read(directory, name, &image, why, sizeof(why));
    if (found < 0)
        backend_say(backend, "module %s", why);
    if (found <= 0)
        return;
    const cudaError_t error = attnd::variant_load(variant, image);
    free(image);
    if (error) {
        (void)cudaGetLastError();
        backend_say(backend, "module %s: %s", name, cudaGetErrorString(error));
    } else {
        backend_say(backend, "module %s: loaded", name);
    }
}

void modules_take(attnd_backend *backend)
{
    struct stat status;
    char why[300];
    int directory = -1;
    backend->modules_ns = attnd_clock_ns();
    if (backend->config.modules && attnd::variants_there() != all_variants) {
        directory = attnd_modules_open(backend->config.modules, why, sizeof(why));
        if (directory < 0)
            backend_say(backend, "--modules: %s", why);
    }
    /* Its time first: what comes meanwhile is found at the next look. */
    if (directory >= 0 && fstat(directory, &status) == 0)
        backend->modules_changed = status.st_mtim;
    for (uint32_t v = 0; directory >= 0 && v < attnd::variants_count; v++)
        if (!(attnd::variants_there() >> v & 1))
            take(backend, directory, v);
    if (directory >= 0)
        close(directory);
    const uint32_t there = attnd::variants_there();
    attnd_publish32(&backend->variants_there, there); /* R1 */
    backend->settings.missing = all_variants & ~attnd_kernels_executed(there);
    backend->settings_fresh = 1;
    attnd_publish32(&backend->config.queue->missing, backend->settings.missing);
}
