/*
 * device.c - memory of the GPU, made by a process that never has a context on it.
 *
 * A process that holds a context shares its fate: a fault of any process under MPS ends the
 * contexts of all, and memory with them. Virtual memory management needs cuInit and no context. The
 * allocation is exported as a descriptor, and the driver keeps it for as long as the descriptor, a
 * duplicate or a mapping lives; so the handle is released at once and the descriptor is the memory,
 * like a memfd.
 *
 * The driver is loaded by name, or not at all: the daemon must start where there is none. The few
 * declarations here are its stable ABI, so that building needs no CUDA either.
 */
#include "service/supervise/device.h"
#include "schemas/abi.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- from cuda.h ---- */

typedef int cu_result;
typedef unsigned long long cu_handle;

enum {
    CU_SUCCESS = 0,
    CU_ERROR_OUT_OF_MEMORY = 2,
    CU_ALLOCATION_PINNED = 1,
    CU_HANDLE_POSIX_FD = 1,
    CU_LOCATION_DEVICE = 1,
    CU_GRANULARITY_MINIMUM = 0
};

struct cu_allocation_prop {
    int type, handle_types;
    int location_type, location_id;
    void *win32;
    uint8_t flags[8];
};
_Static_assert(sizeof(struct cu_allocation_prop) == 32, "CUmemAllocationProp");

struct attnd_device {
    int ordinal;
    size_t page_bytes;
    cu_result (*init)(unsigned int flags);
    cu_result (*count)(int *count);
    cu_result (*get)(int *device, int ordinal);
    cu_result (*get_uuid)(void *uuid, int device);
    cu_result (*granularity)(size_t *bytes, const struct cu_allocation_prop *prop, int option);
    cu_result (*create)(cu_handle *handle, size_t bytes, const struct cu_allocation_prop *prop,
                        unsigned long long flags);
    cu_result (*export)(void *fd, cu_handle handle, int type, unsigned long long flags);
    cu_result (*release)(cu_handle handle);
};

/* ---- loading ---- */

static int load(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);

    memcpy(function, &symbol, sizeof(symbol)); /* ISO C has no such conversion */
    return symbol != NULL;
}

static int load_all(struct attnd_device *device)
{
    /* Never unloaded: the driver does not expect it. */
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    return library && load(library, "cuInit", &device->init) &&
           load(library, "cuDeviceGetCount", &device->count) &&
           load(library, "cuDeviceGet", &device->get) &&
           load(library, "cuDeviceGetUuid_v2", &device->get_uuid) &&
           load(library, "cuMemGetAllocationGranularity", &device->granularity) &&
           load(library, "cuMemCreate", &device->create) &&
           load(library, "cuMemExportToShareableHandle", &device->export) &&
           load(library, "cuMemRelease", &device->release);
}

static struct cu_allocation_prop describe(const struct attnd_device *device)
{
    return (struct cu_allocation_prop){.type = CU_ALLOCATION_PINNED,
                                       .handle_types = CU_HANDLE_POSIX_FD,
                                       .location_type = CU_LOCATION_DEVICE,
                                       .location_id = device->ordinal};
}

/* A client of MPS shares everybody's fate even without a context. The driver looks for MPS when it
 * is initialised, so for that moment it is sent where there is none; the worker is to find it. */
static cu_result init_outside_mps(const struct attnd_device *device)
{
    static const char name[] = "CUDA_MPS_PIPE_DIRECTORY";
    const char *value = getenv(name);
    char *kept = value ? strdup(value) : NULL;

    (void)setenv(name, "/nonexistent", 1);
    cu_result result = device->init(0);
    if (kept)
        (void)setenv(name, kept, 1);
    else
        (void)unsetenv(name);
    free(kept);
    return result;
}

/* Which of the @count devices that this process sees it is. Return: CU_SUCCESS, and the ordinal if
 * it is one of them; else that is -1. */
static cu_result find(struct attnd_device *device, const uint8_t *gpu_uuid, int count)
{
    uint8_t uuid[ATTND_GPU_UUID_BYTES];
    cu_result result = CU_SUCCESS;
    int ordinal = -1;

    device->ordinal = -1;
    for (int i = 0; i < count && result == CU_SUCCESS && device->ordinal < 0; i++) {
        result = device->get(&ordinal, i);
        if (result == CU_SUCCESS)
            result = device->get_uuid(uuid, ordinal);
        if (result == CU_SUCCESS && memcmp(uuid, gpu_uuid, sizeof(uuid)) == 0)
            device->ordinal = ordinal;
    }
    return result;
}

int attnd_device_open(const uint8_t *gpu_uuid, struct attnd_device **out, struct attnd_fault *fault)
{
    struct attnd_device *device = calloc(1, sizeof(*device));

    *out = NULL;
    if (!device)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    if (!load_all(device)) {
        free(device);
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_NONE, 0, 0, 0);
    }
    int count = 0;
    cu_result result = init_outside_mps(device);
    if (result == CU_SUCCESS)
        result = device->count(&count);
    if (result == CU_SUCCESS)
        result = find(device, gpu_uuid, count);
    if (result == CU_SUCCESS && device->ordinal < 0) {
        free(device);
        return attnd_fault_set(fault, -ATTND_E_UNKNOWN, ATTND_F_DEVICE, 0, -1, count - 1);
    }
    if (result == CU_SUCCESS) {
        const struct cu_allocation_prop prop = describe(device);
        result = device->granularity(&device->page_bytes, &prop, CU_GRANULARITY_MINIMUM);
    }
    if (result != CU_SUCCESS || device->page_bytes == 0) {
        free(device);
        return attnd_fault_set(fault, -ATTND_E_DEVICE, ATTND_F_NONE, 0, result, 0);
    }
    *out = device;
    return 0;
}

void attnd_device_close(struct attnd_device *device)
{
    free(device);
}

/* ---- memory ---- */

uint64_t attnd_device_page_bytes(const struct attnd_device *device)
{
    return device->page_bytes;
}

/* Of NVIDIA's control and GPU devices, which what the driver exports is a descriptor of. */
#define DRIVER_MAJOR 195u

int attnd_device_check_fd(int fd, struct attnd_fault *fault)
{
    struct statx file;
    /* Without AT_STATX_DONT_SYNC the question itself would go to the file's server. */
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &file) < 0)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_MEMORY, 0, 0, 0);
    if (!S_ISCHR(file.stx_mode) || file.stx_rdev_major != DRIVER_MAJOR)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_MEMORY, 0, file.stx_mode & S_IFMT,
                               S_IFCHR);
    return 0;
}

int attnd_device_make(const struct attnd_device *device, uint64_t size_bytes, int *fd,
                      struct attnd_fault *fault)
{
    const struct cu_allocation_prop prop = describe(device);
    cu_handle handle;
    cu_result result = device->create(&handle, size_bytes, &prop, 0);

    if (result != CU_SUCCESS)
        return attnd_fault_set(
            fault, result == CU_ERROR_OUT_OF_MEMORY ? -ATTND_E_NO_MEMORY : -ATTND_E_DEVICE,
            ATTND_F_SIZE, 0, result == CU_ERROR_OUT_OF_MEMORY ? (int64_t)size_bytes : result, 0);
    result = device->export(fd, handle, CU_HANDLE_POSIX_FD, 0);
    (void)device->release(handle); /* the descriptor has it from here */
    if (result != CU_SUCCESS)
        return attnd_fault_set(fault, -ATTND_E_DEVICE, ATTND_F_MEMORY, 0, result, 0);
    (void)fcntl(*fd, F_SETFD, FD_CLOEXEC);
    return 0;
}
