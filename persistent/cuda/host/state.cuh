/*
 * state.cuh - the state of the backend's host half, which its files share.
 */
#ifndef ATTND_PERSISTENT_CUDA_HOST_STATE_CUH
#define ATTND_PERSISTENT_CUDA_HOST_STATE_CUH

#include "persistent/cuda/host/launch.cuh"

extern "C" {
#include "persistent/backend.h"
#include "schemas/clock.h"
}

#include "persistent/recent.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <time.h>

/* One memory object, as memory.cu brought it in. */
struct Mapping {
    uint32_t kind;         /* enum attnd_memory_kind; 0: none */
    void *host;            /* HOST: the memfd's mapping */
    CUdeviceptr device;    /* where the device sees it */
    CUmemoryPool pool;     /* POOL: imported for this pointer alone */
    uint64_t mapped_bytes; /* HOST, DEVICE: whole pages */
    uint64_t pinned_bytes; /* HOST: of them, from the first on */
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
    decltype(&cuMemGetAllocationPropertiesFromHandle) properties;
    decltype(&cuPointerGetAttribute) attribute;
    decltype(&cuStreamWaitValue32) wait_value;
    int device;        /* ours */
    size_t page_bytes; /* what device memory is mapped in multiples of */
};

/* What check() looks at (health.cu). */
struct Health {
    struct Snapshot *snapshot; /* pinned */
    int asked;                 /* a snapshot is on its way */
    uint64_t asked_ns;         /* since when */
    cudaStream_t stream;       /* it comes by this one */
    int injected;
    uint32_t looks;
    uint64_t progress, moved_ns; /* what was seen last, and when it was another */
    uint64_t left_ns;            /* when no worker outstayed its dispatcher yet */
    uint32_t running;            /* the gang that was there then */
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
    /* The dispatcher's, and one a variant; elastic: gangs are all in the first. */
    cudaStream_t streams[attnd::variant_streams];
    uint32_t streams_count;
    cudaStream_t extras_stream;   /* elastic, and some workers stay: the others' */
    cudaStream_t side_stream;     /* all that the host copies; nothing in it ever waits */
    cudaStream_t pages_stream[3]; /* copies.cu: into pools, out of them, and from other services */
    cudaEvent_t pages_copied[3];
    attnd_residency residency;
    bool portable; /* kernels are those of every GPU from sm_80 on (portable.cu) */
    int workers;
    int mps;              /* contexts share the GPU */
    pthread_mutex_t rest; /* held by the thread that lets the kernels rest and begin again */
    int running;          /* between start() and quiesce: there is a helper */
    pthread_t helper;
    uint32_t helper_leave;
    uint32_t variants;       /* resident, or to be at the next launch */
    uint32_t launched;       /* helper: kernels are there, or have not been seen to be gone */
    uint32_t failed;         /* helper: the cudaError_t it gave up with */
    int settings_fresh;      /* helper: not yet on the device */
    uint32_t gang;           /* helper: number of the last launch, or of the last that is armed */
    uint32_t extras;         /* helper: number of the last extras that are armed */
    uint32_t variants_there; /* bit v: its kernel is there; more may come (modules.cu) */
    attnd_recent recent;     /* helper: which of them had runs lately */
    uint64_t recent_ns;      /* helper: when it last looked */
    uint32_t keep;           /* helper: those whose runs come; the others leave. 0: none need to */
    uint64_t modules_ns;     /* helper: when it last looked for more */
    struct timespec modules_changed; /* and how old the directory was that it has read */
    uint32_t woken;                  /* helper: the gang that was called last */
    attnd_wake *own_wake;            /* pinned; used until there is one that engines see */
    uint32_t wake_memory;            /* helper: 1 + the memory of that one; 0: own_wake */
    uint32_t batch;                  /* helper: the last that stands behind the gate */
    uint64_t compared_ns;            /* helper: when it last compared the clocks */
    int flushing;                    /* helper: what is armed comes and goes, before others are */
    uint32_t last_left;              /* helper: as it was when called_ns was now */
    uint64_t called_ns;
    Health health;
};

/* Of the queue segment, as the host or the device has it. */
inline attnd_trace_head *trace_head(attnd_queue_head *queue, uint64_t offset_bytes)
{
    return reinterpret_cast<attnd_trace_head *>(reinterpret_cast<char *>(queue) + offset_bytes);
}

/* A runtime error as a fault. Return: its code. */
inline int cuda_fault(cudaError_t error, attnd_fault *fault)
{
    int code = error == cudaErrorMemoryAllocation ? -ATTND_E_NO_MEMORY
               : error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver
                   ? -ATTND_E_UNSUPPORTED
                   : -ATTND_E_DEVICE;
    return attnd_fault_set(fault, code, ATTND_F_NONE, 0, error, 0);
}

#endif
