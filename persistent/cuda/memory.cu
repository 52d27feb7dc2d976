/*
 * memory.cu - memory that comes and goes while kernels are resident.
 *
 * Four kinds (enum attnd_memory_kind), and what each costs beside a resident kernel, which sees a
 * new mapping at once:
 *
 *            in                                      out
 *   HOST     mmap, register: at once                 unregister: waits for the kernel to end
 *   DEVICE   import, reserve, map, allow: at once    unmap, unreserve: at once
 *   POOL     import pool and pointer: at once        free the pointer: at once
 *   IPC      open: at once                           close: waits for the kernel to end
 *
 * At once is for small ones: pages of host memory are made and pinned one by one, some seconds for
 * many GiB. So large HOST comes in on a thread of its own (service/worker_memory.c), on which HOST
 * and IPC also go, and whatever is done at once does not wait for it.
 *
 * HOST and IPC are let go with the kernels parked, all that are due at once, and the others
 * without anybody noticing. The daemon has proved that no run in flight names an index before it
 * asks; the table is emptied and the copy waited for before an address is given up, so a later
 * mapping at the same address belongs to a later index and nobody still means the old one.
 *
 * What an engine sent may be anything. Every call here either fails with a code of its own or has
 * given a mapping whose real extent the driver knows; what the engine claims is held against that,
 * never trusted.
 */
#include "persistent/cuda/backend.cuh"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

using attnd::Memory;

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
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE; /* number 0, as cudaSetDevice() */
    return driver->granularity(&driver->page_bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ||
                   driver->page_bytes == 0
               ? cudaErrorNotSupported
               : cudaSuccess;
}

cudaError_t driver_load(Driver *driver)
{
    cudaError_t error;
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
        (error = find_page_bytes(driver)))
        return error;
    return cudaSuccess;
}

static CUmemAccessDesc read_write()
{
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE; /* number 0, as cudaSetDevice() */
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return access;
}

/* ---- in: each fills a Mapping that take_out() undoes ---- */

static int map_host(const attnd_memory_source *source, Mapping *mapping, attnd_fault *fault)
{
    void *address =
        mmap(NULL, source->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, source->fd, 0);
    if (address == MAP_FAILED)
        return attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_MEMORY, 0, errno, 0);
    void *device;
    cudaError_t error;
    if ((error = cudaHostRegister(address, source->size_bytes, cudaHostRegisterMapped)) ||
        (error = cudaHostGetDevicePointer(&device, address, 0))) {
        munmap(address, source->size_bytes);
        (void)cudaGetLastError(); /* it is told here, not at the next launch */
        return error == cudaErrorMemoryAllocation
                   ? attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_SIZE, 0,
                                     int64_t(source->size_bytes), 0)
                   : cuda_fault(error, fault);
    }
    mapping->host = address;
    mapping->device = reinterpret_cast<CUdeviceptr>(device);
    mapping->mapped_bytes = source->size_bytes;
    return 0;
}

static void unmap_device(const Driver *driver, CUdeviceptr address, uint64_t bytes)
{
    driver->unmap(address, bytes);
    driver->unreserve(address, bytes);
}

/* The driver maps whole pages, and refuses more of them than the allocation has. */
static CUresult map_handle(const Driver *driver, CUmemGenericAllocationHandle handle,
                           uint64_t bytes, CUdeviceptr *address)
{
    const CUmemAccessDesc access = read_write();
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
    result = map_handle(driver, handle, bytes, &mapping->device);
    driver->release(handle); /* the mapping keeps the memory */
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
    const CUmemAccessDesc access = read_write();
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
    return mapping->kind == ATTND_KIND_HOST || mapping->kind == ATTND_KIND_IPC;
}

/* The kernels are parked if needs_rest(). Return: 0, or not a thing more can be done about it. */
static int take_out(const Driver *driver, Mapping *mapping)
{
    int failed = 0;
    switch (mapping->kind) {
    case ATTND_KIND_HOST:
        failed = cudaHostUnregister(mapping->host) != cudaSuccess;
        munmap(mapping->host, mapping->mapped_bytes);
        break;
    case ATTND_KIND_DEVICE:
        unmap_device(driver, mapping->device, mapping->mapped_bytes);
        break;
    case ATTND_KIND_POOL:
        failed = driver->free(mapping->device) != CUDA_SUCCESS;
        driver->pool_destroy(mapping->pool);
        break;
    case ATTND_KIND_IPC:
        failed = driver->ipc_close(mapping->device) != CUDA_SUCCESS;
        break;
    }
    *mapping = Mapping{};
    return failed ? -ATTND_E_DEVICE : 0;
}

/* ---- the table ---- */

/* The driver knows how far an allocation reaches; the engine only says so. */
static int check_extent(const Driver *driver, const Mapping *mapping, uint64_t size_bytes,
                        attnd_fault *fault)
{
    CUdeviceptr base;
    size_t bytes;
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
                                        cudaMemcpyHostToDevice, backend->copy_stream);
    return error ? error : cudaStreamSynchronize(backend->copy_stream);
}

static int bring_in(const Driver *driver, const attnd_memory_source *source, Mapping *mapping,
                    attnd_fault *fault)
{
    mapping->kind = source->kind;
    switch (source->kind) {
    case ATTND_KIND_HOST:
        return map_host(source, mapping, fault);
    case ATTND_KIND_DEVICE:
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

int memory_map(attnd_backend *backend, uint32_t index, const attnd_memory_source *source,
               attnd_fault *fault)
{
    const Driver *driver = &backend->driver;
    Mapping mapping = {};
    (void)cudaSetDevice(0); /* the driver's own calls want a context of the thread's */
    if (index >= ATTND_MEMORIES_MAX || backend->mappings[index].kind)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_MEMORY, 0, index,
                               ATTND_MEMORIES_MAX);
    int code = bring_in(driver, source, &mapping, fault);
    if (code)
        return code;
    code = check_extent(driver, &mapping, source->size_bytes, fault);
    if (code == 0) {
        Memory memory = {reinterpret_cast<char *>(mapping.device), source->size_bytes,
                         source->kind == ATTND_KIND_HOST, 0};
        cudaError_t error = set_memory(backend, index, &memory);
        if (error)
            code = cuda_fault(error, fault);
    }
    backend->mappings[index] = mapping;
    if (code) /* nobody has used it, but to be let go it may want the kernels at rest */
        (void)memory_unmap(backend, &index, 1);
    return code;
}

int memory_unmap(attnd_backend *backend, const uint32_t *indices, uint32_t count)
{
    const Memory none = {NULL, 0, 0, 0};
    int code = 0, rests = 0;
    (void)cudaSetDevice(0);
    for (uint32_t i = 0; i < count; i++) {
        if (indices[i] >= ATTND_MEMORIES_MAX || !backend->mappings[indices[i]].kind) {
            code = code ? code : -ATTND_E_UNKNOWN; /* no harm, and must not hide any */
            continue;
        }
        if (set_memory(backend, indices[i], &none))
            code = -ATTND_E_DEVICE;
        rests |= needs_rest(&backend->mappings[indices[i]]);
    }
    if (rests)
        pthread_mutex_lock(&backend->rest);
    const int begins_again = rests && backend->running;
    if (rests)
        backend_quiesce(backend);
    for (uint32_t i = 0; i < count; i++) {
        if (indices[i] >= ATTND_MEMORIES_MAX)
            continue;
        if (take_out(&backend->driver, &backend->mappings[indices[i]]))
            code = -ATTND_E_DEVICE;
    }
    const int started = begins_again ? backend_start(backend) : 0;
    if (rests)
        pthread_mutex_unlock(&backend->rest);
    return started ? started : code;
}
