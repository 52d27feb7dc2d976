/*
 * backend.cuh - what the files of the backend's host half share.
 */
#ifndef ATTND_PERSISTENT_CUDA_BACKEND_CUH
#define ATTND_PERSISTENT_CUDA_BACKEND_CUH

#include "persistent/cuda/resident.cuh"

extern "C" {
#include "persistent/backend.h"
}

#include <cuda.h>
#include <cuda_runtime.h>
#include <pthread.h>

/* One memory object, as memory.cu brought it in. */
struct Mapping {
    uint32_t kind;         /* enum attnd_memory_kind; 0: none */
    void *host;            /* HOST: the memfd's mapping */
    CUdeviceptr device;    /* where the device sees it */
    CUmemoryPool pool;     /* POOL: imported for this pointer alone */
    uint64_t mapped_bytes; /* HOST, DEVICE: whole pages */
};

/* The driver's own calls that device memory needs. Asked for by name: the program must load where
 * there is no driver. */
struct Driver {
    decltype(&cuMemImportFromShareableHandle) import;
    decltype(&cuMemRelease) release;
    decltype(&cuMemAddressReserve) reserve;
    decltype(&cuMemAddressFree) unreserve;
    decltype(&cuMemMap) map;
    decltype(&cuMemUnmap) unmap;
    decltype(&cuMemSetAccess) set_access;
    decltype(&cuMemGetAllocationGranularity) granularity;
    decltype(&cuMemPoolImportFromShareableHandle) pool_import;
    decltype(&cuMemPoolSetAccess) pool_set_access;
    decltype(&cuMemPoolImportPointer) pool_import_pointer;
    decltype(&cuMemPoolDestroy) pool_destroy;
    decltype(&cuMemFree) free;
    decltype(&cuIpcOpenMemHandle) ipc_open;
    decltype(&cuIpcCloseMemHandle) ipc_close;
    decltype(&cuMemGetAddressRange) range;
    size_t page_bytes; /* what device memory is mapped in multiples of */
};

struct attnd_backend {
    attnd_backend_config config;
    Driver driver;
    attnd_queue_head *queue_device; /* the queue segment as the device sees it */
    attnd::Resident *resident;      /* device memory */
    attnd::Resident settings;       /* what was last written there before a launch */
    attnd::Memory *memories;        /* device memory */
    Mapping mappings[ATTND_MEMORIES_MAX];
    attnd::HostWords *words; /* pinned */
    cudaStream_t streams[1 + attnd::variants_count], copy_stream;
    uint32_t variants; /* resident, or to be at the next start */
    int failed;        /* the helper could not launch */
    int running;
    pthread_t helper;
    uint32_t helper_leave;
    int workers;
};

/* memory.cu: map() and unmap() of the vtable. */
int memory_map(attnd_backend *backend, uint32_t index, const attnd_memory_source *source,
               attnd_fault *fault);
int memory_unmap(attnd_backend *backend, const uint32_t *indices, uint32_t count);

/* memory.cu: finds the driver's own calls. */
cudaError_t driver_load(Driver *driver);

/* backend.cu: the kernels finish what they published and leave; nothing to do if there are none. */
int backend_quiesce(attnd_backend *backend);

/* backend.cu: launches them; start() of the vtable. */
int backend_start(attnd_backend *backend);

/* A runtime error as a fault. Return: its code. */
int cuda_fault(cudaError_t error, attnd_fault *fault);

#endif
