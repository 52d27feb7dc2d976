/*
 * memory.cu - memory that comes and goes while kernels are resident.
 *
 * Four kinds (enum attnd_memory_kind), and what each costs beside a resident kernel, which sees a
 * new mapping at once:
 *
 *            in                                      out
 *   HOST     mmap, register: by and by               unregister: waits for the kernel to end
 *   DEVICE   import, reserve, map, allow: at once    unmap, unreserve: at once
 *   POOL     import pool and pointer: at once        free the pointer: waits for what is armed
 *   IPC      open: at once                           close: waits for the kernel to end
 *
 * Pages of host memory are made and pinned one by one, half a second a GiB, and the driver pins
 * under a lock that launches need too: `elastic`, which launches all the time, would stand still.
 * So HOST comes in pieces. The pages of a piece are made first, which is most of it and nobody's
 * lock; to pin them then takes a millisecond. Large memory is brought in on a thread of its own
 * (service/worker/memory.c), a piece of each in turn; on it HOST and IPC also go.
 *
 * HOST, POOL and IPC are let go with the kernels parked, all that are due at once but no more than
 * a few milliseconds of it, and DEVICE without anybody noticing. Giving the pages back takes longer
 * than to unpin them, and comes when the kernels are there again. The daemon has proved that no run
 * in flight names an index before it asks; the table is emptied and the copy waited for before an
 * address is given up, so a later mapping at the same address belongs to a later index and nobody
 * still means the old one.
 *
 * An engine may have sent anything. Every call here either fails with a code of its own or has
 * given a mapping whose real extent the driver knows; what the engine claims is held against that,
 * never trusted.
 */
#include "persistent/cuda/host/helper.cuh"
#include "persistent/cuda/host/kernels.cuh"
#include "persistent/cuda/host/memory.cuh"

extern "C" {
#include "schemas/crash.h"
}

#include <algorithm>
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

using attnd::Memory;

/* Bytes that are unpinned in one rest: 10 ms. */
constexpr uint64_t rest_bytes = 512ull << 20;

static_assert(sizeof(CUipcMemHandle) == ATTND_IPC_HANDLE_BYTES, "a handle is a handle");
static_assert(sizeof(CUmemPoolPtrExportData) == ATTND_IPC_HANDLE_BYTES, "a handle is a handle");

/* ---- the driver ---- */

static int driver_fault(CUresult result, attnd_fault *fault)
{
    int code = result == CUDA_ERROR_OUT_OF_MEMORY ? -ATTND_E_NO_MEMORY : -ATTND_E_DEVICE;
    return attnd_fault_set(fault, code, ATTND_F_MEMORY, 0, result, 0);
}

template <typename Function> static cudaError_t driver_call(const char *name, Function *function)
{
    cudaDriverEntryPointQueryResult found;
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, reinterpret_cast<void **>(function),
                                                         12000, cudaEnableDefault, &found);
    return error == cudaSuccess && found != cudaDriverEntryPointSuccess
               ? cudaErrorInsufficientDriver
               : error;
}

static cudaError_t find_page_bytes(Driver *driver)
{
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = driver->device;
    return driver->granularity(&driver->page_bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ||
                   driver->page_bytes == 0
               ? cudaErrorNotSupported
               : cudaSuccess;
}

cudaError_t driver_load(Driver *driver, int device)
{
    cudaError_t error;
    driver->device = device;
    if ((error = driver_call("cuMemImportFromShareableHandle", &driver->import)) ||
        (error = driver_call("cuMemRelease", &driver->release)) ||
        (error = driver_call("cuMemGetAllocationGranularity", &driver->granularity)) ||
        (error = driver_call("cuMemAddressReserve", &driver->reserve)) ||
        (error = driver_call("cuMemAddressFree", &driver->unreserve)) ||
        (error = driver_call("cuMemMap", &driver->map)) ||
        (error = driver_call("cuMemUnmap", &driver->unmap)) ||
        (error = driver_call("cuMemSetAccess", &driver->set_access)) ||
        (error = driver_call("cuMemPoolImportFromShareableHandle", &driver->pool_import)) ||
        (error = driver_call("cuMemPoolSetAccess", &driver->pool_set_access)) ||
        (error = driver_call("cuMemPoolImportPointer", &driver->pool_import_pointer)) ||
        (error = driver_call("cuMemPoolDestroy", &driver->pool_destroy)) ||
        (error = driver_call("cuMemFree", &driver->free)) ||
        (error = driver_call("cuIpcOpenMemHandle", &driver->ipc_open)) ||
        (error = driver_call("cuIpcCloseMemHandle", &driver->ipc_close)) ||
        (error = driver_call("cuMemGetAddressRange", &driver->range)) ||
        (error = driver_call("cuMemGetAllocationPropertiesFromHandle", &driver->properties)) ||
        (error = driver_call("cuPointerGetAttribute", &driver->attribute)) ||
        (error = driver_call("cuStreamWaitValue32", &driver->wait_value)) ||
        (error = find_page_bytes(driver)))
        return error;
    return cudaSuccess;
}

/* By its name in the library: what the runtime tells and what is found by version is, by toolkit,
 * that of a whole GPU where a slice of it is ours. */
cudaError_t driver_uuid(int device, uint8_t *uuid)
{
    CUresult (*get)(CUuuid *, CUdevice) = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* is there already, and stays */
    if (library)
        get = reinterpret_cast<decltype(get)>(dlsym(library, "cuDeviceGetUuid_v2"));
    return get && get(reinterpret_cast<CUuuid *>(uuid), device) == CUDA_SUCCESS
               ? cudaSuccess
               : cudaErrorInsufficientDriver;
}

static CUmemAccessDesc read_write(const Driver *driver)
{
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = driver->device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return access;
}

/* ---- in: each fills a Mapping that take_out() undoes ---- */

static int pin_fault(cudaError_t error, const Mapping *mapping, attnd_fault *fault)
{
    (void)cudaGetLastError(); /* it is told here, not at the next launch */
    return error == cudaErrorMemoryAllocation
               ? attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_SIZE, 0,
                                 int64_t(mapping->mapped_bytes), 0)
               : cuda_fault(error, fault);
}

static uint64_t piece_bytes(const Mapping *mapping, uint64_t at_bytes)
{
    return std::min(pin_bytes, mapping->mapped_bytes - at_bytes);
}

/* The next piece. Return: 0 it was the last; ATTND_BACKEND_MORE; a fault. */
static int pin(Mapping *mapping, attnd_fault *fault)
{
    const uint64_t at_bytes = mapping->pinned_bytes, bytes = piece_bytes(mapping, at_bytes);
    char *piece = static_cast<char *>(mapping->host) + at_bytes;
    void *device;
    (void)madvise(piece, bytes, MADV_POPULATE_WRITE); /* before Linux 5.14 the driver does that */
    cudaError_t error = cudaHostRegister(piece, bytes, cudaHostRegisterMapped);
    if (error)
        return pin_fault(error, mapping, fault);
    mapping->pinned_bytes += bytes;
    if ((error = cudaHostGetDevicePointer(&device, piece, 0)))
        return pin_fault(error, mapping, fault);
    if (at_bytes == 0)
        mapping->device = reinterpret_cast<CUdeviceptr>(device);
    /* One address space: what lies together here lies together there. */
    if (reinterpret_cast<CUdeviceptr>(device) != mapping->device + at_bytes)
        return pin_fault(cudaErrorNotSupported, mapping, fault);
    return mapping->pinned_bytes < mapping->mapped_bytes ? ATTND_BACKEND_MORE : 0;
}

/* Another service's: no kernel reads it. */
static int map_lent_host(const attnd_memory_source *source, Mapping *mapping, attnd_fault *fault)
{
    void *address = mmap(NULL, source->size_bytes, PROT_READ, MAP_SHARED, source->fd, 0);
    if (address == MAP_FAILED)
        return attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_MEMORY, 0, errno, 0);
    mapping->host = address;
    mapping->mapped_bytes = source->size_bytes;
    return 0;
}

static int map_host(const attnd_memory_source *source, Mapping *mapping, attnd_fault *fault)
{
    if (mapping->host)
        return pin(mapping, fault);
    void *address =
        mmap(NULL, source->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, source->fd, 0);
    if (address == MAP_FAILED)
        return attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_MEMORY, 0, errno, 0);
    mapping->host = address;
    mapping->mapped_bytes = source->size_bytes;
    int code = pin(mapping, fault);
    if (code < 0 && !mapping->pinned_bytes)
        munmap(address, source->size_bytes);
    return code;
}

static void unmap_device(const Driver *driver, CUdeviceptr address, uint64_t bytes)
{
    driver->unmap(address, bytes);
    driver->unreserve(address, bytes);
}

/* The driver would map what lies on another GPU too, and kernels reach it over the link between
 * them. But they take doorbells and hand results on at device scope, which is of one GPU. */
static int check_place(const Driver *driver, int lies_on, attnd_fault *fault)
{
    return lies_on == driver->device ? 0
                                     : attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_DEVICE,
                                                       0, lies_on, driver->device);
}

/* Before it is mapped: of a GPU that this one does not reach the driver says only that it cannot.
 */
static int check_handle(const Driver *driver, CUmemGenericAllocationHandle handle,
                        attnd_fault *fault)
{
    CUmemAllocationProp prop = {};
    if (driver->properties(&prop, handle) || prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return 0; /* for check_extent() to say */
    return check_place(driver, prop.location.id, fault);
}

/* The driver maps whole pages, and refuses more of them than the allocation has. */
static CUresult map_handle(const Driver *driver, CUmemGenericAllocationHandle handle,
                           uint64_t bytes, int lent, CUdeviceptr *address)
{
    CUmemAccessDesc access = read_write(driver);
    if (lent)
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    CUresult result = driver->reserve(address, bytes, 0, 0, 0);
    if (result)
        return result;
    result = driver->map(*address, bytes, 0, handle, 0);
    if (result)
        driver->unreserve(*address, bytes);
    else if ((result = driver->set_access(*address, bytes, &access, 1)))
        unmap_device(driver, *address, bytes);
    return result;
}

static int map_device(const Driver *driver, const attnd_memory_source *source, Mapping *mapping,
                      attnd_fault *fault)
{
    const uint64_t page_bytes = driver->page_bytes;
    if (source->size_bytes > UINT64_MAX - page_bytes)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_SIZE, 0, INT64_MAX, INT64_MAX);
    uint64_t bytes = (source->size_bytes + page_bytes - 1) / page_bytes * page_bytes;
    CUmemGenericAllocationHandle handle;
    CUresult result = driver->import(&handle, (void *)(uintptr_t)source->fd,
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result)
        return driver_fault(result, fault);
    const int lent = source->kind == ATTND_KIND_LENT_DEVICE; /* of another GPU, most often */
    int code = lent ? 0 : check_handle(driver, handle, fault);
    if (code == 0)
        result = map_handle(driver, handle, bytes, lent, &mapping->device);
    driver->release(handle); /* the mapping keeps the memory */
    if (code)
        return code;
    /* The handle was good: there is less of it. How much, the driver does not tell. */
    if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_SIZE, 0, (int64_t)bytes, 0);
    if (result)
        return driver_fault(result, fault);
    mapping->mapped_bytes = bytes;
    return 0;
}

static int map_pool(const Driver *driver, const attnd_memory_source *source, Mapping *mapping,
                    attnd_fault *fault)
{
    const CUmemAccessDesc access = read_write(driver);
    CUmemPoolPtrExportData data;
    memcpy(&data, source->handle, sizeof(data));
    CUresult result = driver->pool_import(&mapping->pool, (void *)(uintptr_t)source->fd,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result)
        return driver_fault(result, fault);
    if ((result = driver->pool_set_access(mapping->pool, &access, 1)) ||
        (result = driver->pool_import_pointer(&mapping->device, mapping->pool, &data))) {
        driver->pool_destroy(mapping->pool);
        return driver_fault(result, fault);
    }
    mapping->mapped_bytes = source->size_bytes;
    return 0;
}

static int map_ipc(const Driver *driver, const attnd_memory_source *source, Mapping *mapping,
                   attnd_fault *fault)
{
    CUipcMemHandle handle;
    memcpy(&handle, source->handle, sizeof(handle));
    CUresult result =
        driver->ipc_open(&mapping->device, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result)
        return driver_fault(result, fault);
    mapping->mapped_bytes = source->size_bytes;
    return 0;
}

/* ---- out ---- */

static int needs_rest(const Mapping *mapping)
{
    return mapping->pinned_bytes || mapping->kind == ATTND_KIND_POOL ||
           mapping->kind == ATTND_KIND_IPC;
}

/* From the end. The rest of @left_bytes says how much more may go in this rest. */
static int unpin(Mapping *mapping, uint64_t *left_bytes)
{
    int failed = 0;
    while (mapping->pinned_bytes && *left_bytes) {
        const uint64_t at_bytes = (mapping->pinned_bytes - 1) / pin_bytes * pin_bytes;
        failed |= cudaHostUnregister(static_cast<char *>(mapping->host) + at_bytes) != cudaSuccess;
        mapping->pinned_bytes = at_bytes;
        *left_bytes -= std::min(*left_bytes, pin_bytes);
    }
    return failed;
}

/* With the kernels parked. Return: 0, or not a thing more can be done about it. */
static int let_go(const Driver *driver, Mapping *mapping, uint64_t *left_bytes)
{
    int failed;
    switch (mapping->kind) {
    case ATTND_KIND_POOL:
        failed = driver->free(mapping->device) != CUDA_SUCCESS;
        driver->pool_destroy(mapping->pool);
        break;
    case ATTND_KIND_IPC:
        failed = driver->ipc_close(mapping->device) != CUDA_SUCCESS;
        break;
    default:
        return unpin(mapping, left_bytes);
    }
    *mapping = Mapping{};
    return failed;
}

/* Where kernels may be. Host memory that is pinned no more; of the GPU's, all. */
static void take_out(const Driver *driver, Mapping *mapping)
{
    switch (mapping->kind) {
    case ATTND_KIND_HOST:
        munmap(static_cast<char *>(mapping->host) + mapping->pinned_bytes,
               mapping->mapped_bytes - mapping->pinned_bytes);
        mapping->mapped_bytes = mapping->pinned_bytes;
        if (mapping->pinned_bytes)
            return;
        break;
    case ATTND_KIND_LENT_HOST:
        munmap(mapping->host, mapping->mapped_bytes);
        break;
    case ATTND_KIND_DEVICE:
    case ATTND_KIND_LENT_DEVICE:
        unmap_device(driver, mapping->device, mapping->mapped_bytes);
        break;
    }
    *mapping = Mapping{};
}

/* ---- the table ---- */

/* The driver knows where an allocation lies and how far it reaches; the engine only says so. */
static int check_extent(const Driver *driver, const Mapping *mapping, uint64_t size_bytes,
                        attnd_fault *fault)
{
    CUdeviceptr base;
    size_t bytes;
    int lies_on = driver->device, code = 0;
    if (mapping->kind != ATTND_KIND_HOST &&
        driver->attribute(&lies_on, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, mapping->device) == 0)
        code = check_place(driver, lies_on, fault);
    if (code)
        return code;
    if (mapping->kind != ATTND_KIND_POOL && mapping->kind != ATTND_KIND_IPC)
        return 0;
    CUresult result = driver->range(&base, &bytes, mapping->device);
    if (result)
        return driver_fault(result, fault);
    uint64_t left_bytes = bytes - (mapping->device - base);
    return size_bytes <= left_bytes ? 0
                                    : attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_SIZE, 0,
                                                      (int64_t)size_bytes, (int64_t)left_bytes);
}

/* Where the device finds the memory of an index; runs that name it come after this. */
static cudaError_t set_memory(attnd_backend *backend, uint32_t index, const Memory *memory)
{
    cudaError_t error = cudaMemcpyAsync(&backend->memories[index], memory, sizeof(*memory),
                                        cudaMemcpyHostToDevice, backend->side_stream);
    error = error ? error : side_wait(backend);
    attnd_crash(ATTND_CRASH_GPU_MEMORY_SET);
    return error;
}

static int bring_in(const Driver *driver, const attnd_memory_source *source, Mapping *mapping,
                    attnd_fault *fault)
{
    mapping->kind = source->kind;
    switch (source->kind) {
    case ATTND_KIND_HOST:
        return map_host(source, mapping, fault);
    case ATTND_KIND_LENT_HOST:
        return map_lent_host(source, mapping, fault);
    case ATTND_KIND_DEVICE:
    case ATTND_KIND_LENT_DEVICE:
        return map_device(driver, source, mapping, fault);
    case ATTND_KIND_POOL:
        return map_pool(driver, source, mapping, fault);
    case ATTND_KIND_IPC:
        return map_ipc(driver, source, mapping, fault);
    default:
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_MEMORY_KIND, 0, source->kind,
                               ATTND_KIND_IPC);
    }
}

static int is_coming(const Mapping *mapping)
{
    return mapping->kind == ATTND_KIND_HOST && mapping->pinned_bytes < mapping->mapped_bytes;
}

/* No run names it, and the device is not told of it. */
static int is_lent(const Mapping *mapping)
{
    return mapping->kind == ATTND_KIND_LENT_HOST || mapping->kind == ATTND_KIND_LENT_DEVICE;
}

static int begin_use(attnd_backend *backend, uint32_t index, const attnd_memory_source *source,
                     const Mapping *mapping, attnd_fault *fault)
{
    if (is_lent(mapping))
        return 0;
    int code = check_extent(&backend->driver, mapping, source->size_bytes, fault);
    if (code)
        return code;
    Memory memory = {reinterpret_cast<char *>(mapping->device), source->size_bytes,
                     source->kind == ATTND_KIND_HOST, 0};
    cudaError_t error = set_memory(backend, index, &memory);
    return error ? cuda_fault(error, fault) : 0;
}

int memory_map(attnd_backend *backend, uint32_t index, const attnd_memory_source *source,
               attnd_fault *fault)
{
    (void)cudaSetDevice(backend->driver.device); /* the driver's own calls want a context */
    if (index >= ATTND_MEMORIES_MAX ||
        (backend->mappings[index].kind && !is_coming(&backend->mappings[index])))
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_MEMORY, 0, index,
                               ATTND_MEMORIES_MAX);
    Mapping mapping = backend->mappings[index];
    int code = bring_in(&backend->driver, source, &mapping, fault);
    if (code < 0 && !mapping.pinned_bytes)
        return code;
    backend->mappings[index] = mapping;
    if (code == ATTND_BACKEND_MORE)
        return code;
    if (code == 0)
        code = begin_use(backend, index, source, &mapping, fault);
    if (code) /* nobody has used it, but to be let go it may want the kernels at rest */
        while (memory_unmap(backend, &index, 1) == ATTND_BACKEND_MORE)
            ;
    return code;
}

/* As much as one rest may take. Return: 0, or the code of the first that failed. */
static int let_go_at_rest(attnd_backend *backend, const uint32_t *indices, uint32_t count)
{
    uint64_t left_bytes = rest_bytes;
    int failed = 0;
    pthread_mutex_lock(&backend->rest);
    const int begins_again = backend->running;
    backend_quiesce(backend);
    for (uint32_t i = 0; i < count; i++)
        if (indices[i] < ATTND_MEMORIES_MAX)
            failed |= let_go(&backend->driver, &backend->mappings[indices[i]], &left_bytes);
    const int started = begins_again ? backend_start(backend) : 0;
    pthread_mutex_unlock(&backend->rest);
    return started ? started : failed ? -ATTND_E_DEVICE : 0;
}

int memory_unmap(attnd_backend *backend, const uint32_t *indices, uint32_t count)
{
    const Memory none = {NULL, 0, 0, 0};
    int code = 0, rests = 0, more = 0;
    (void)cudaSetDevice(backend->driver.device);
    for (uint32_t i = 0; i < count; i++) {
        if (indices[i] >= ATTND_MEMORIES_MAX || !backend->mappings[indices[i]].kind) {
            code = code ? code : -ATTND_E_UNKNOWN; /* no harm, and must not hide any */
            continue;
        }
        if (!is_lent(&backend->mappings[indices[i]]) && set_memory(backend, indices[i], &none))
            code = -ATTND_E_DEVICE;
        rests |= needs_rest(&backend->mappings[indices[i]]);
    }
    const int rested = rests ? let_go_at_rest(backend, indices, count) : 0;
    code = rested ? rested : code;
    for (uint32_t i = 0; i < count; i++) {
        if (indices[i] >= ATTND_MEMORIES_MAX)
            continue;
        Mapping *mapping = &backend->mappings[indices[i]];
        if (mapping->kind)
            take_out(&backend->driver, mapping);
        more |= mapping->kind != 0;
    }
    return more && (code == 0 || code == -ATTND_E_UNKNOWN) ? ATTND_BACKEND_MORE : code;
}
