/*
 * memory.cu - memory that comes and goes while kernels are resident.
 *
 * Host memory (a memfd) is mapped and registered with the driver; device memory is an exported
 * allocation that is imported and mapped. Neither waits for a resident kernel, which sees both at
 * once. Giving registered memory back does wait, so that is done with the kernels parked.
 */
#include "persistent/cuda/backend.cuh"

#include <errno.h>
#include <sys/mman.h>

using attnd::Memory;

static int driver_fault(CUresult result, uint32_t index, attnd_fault *fault)
{
    int code = result == CUDA_ERROR_OUT_OF_MEMORY ? -ATTND_E_NO_MEMORY : -ATTND_E_SYSTEM;
    return attnd_fault_set(fault, code, ATTND_F_MEMORY, index, result, 0);
}

template <typename Function> static cudaError_t driver_call(const char *name, Function *function)
{
    cudaDriverEntryPointQueryResult found;
    cudaError_t error = cudaGetDriverEntryPointByVersion(
        name, reinterpret_cast<void **>(function), 12000, cudaEnableDefault, &found);
    return error == cudaSuccess && found != cudaDriverEntryPointSuccess
               ? cudaErrorInsufficientDriver
               : error;
}

cudaError_t driver_load(Driver *driver)
{
    cudaError_t error;
    if ((error = driver_call("cuMemImportFromShareableHandle", &driver->import)) ||
        (error = driver_call("cuMemRelease", &driver->release)) ||
        (error = driver_call("cuMemAddressReserve", &driver->reserve)) ||
        (error = driver_call("cuMemAddressFree", &driver->unreserve)) ||
        (error = driver_call("cuMemMap", &driver->map)) ||
        (error = driver_call("cuMemUnmap", &driver->unmap)) ||
        (error = driver_call("cuMemSetAccess", &driver->set_access)))
        return error;
    return cudaSuccess;
}

/* Where the device finds the memory of an index; runs that name it come after this. */
static cudaError_t set_memory(attnd_backend *backend, uint32_t index, const Memory *memory)
{
    cudaError_t error =
        cudaMemcpyAsync(&backend->memories[index], memory, sizeof(*memory), cudaMemcpyHostToDevice,
                        backend->copy_stream);
    return error ? error : cudaStreamSynchronize(backend->copy_stream);
}

static int map_host(attnd_backend *backend, uint32_t index, int fd, uint64_t size_bytes,
                    attnd_fault *fault)
{
    void *address = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED)
        return attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_MEMORY, index, errno, 0);
    Memory memory = {NULL, size_bytes};
    cudaError_t error;
    if ((error = cudaHostRegister(address, size_bytes, cudaHostRegisterMapped)) ||
        (error = cudaHostGetDevicePointer((void **)&memory.base, address, 0)) ||
        (error = set_memory(backend, index, &memory))) {
        munmap(address, size_bytes);
        return cuda_fault(error, fault);
    }
    backend->mappings[index].address = address;
    backend->mappings[index].size_bytes = size_bytes;
    return 0;
}

static void unmap_device(const Driver *driver, CUdeviceptr address, uint64_t size_bytes)
{
    driver->unmap(address, size_bytes);
    driver->unreserve(address, size_bytes);
}

/* None of these calls waits for a resident kernel, which sees the mapping at once. */
static CUresult import_device(const Driver *driver, int fd, uint64_t size_bytes,
                              CUdeviceptr *address)
{
    CUmemGenericAllocationHandle handle;
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE; /* number 0, as cudaSetDevice() */
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUresult result = driver->import(&handle, (void *)(uintptr_t)fd,
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result)
        return result;
    result = driver->reserve(address, size_bytes, 0, 0, 0);
    if (!result) {
        result = driver->map(*address, size_bytes, 0, handle, 0);
        if (result)
            driver->unreserve(*address, size_bytes);
        else if ((result = driver->set_access(*address, size_bytes, &access, 1)))
            unmap_device(driver, *address, size_bytes);
    }
    driver->release(handle); /* the mapping keeps the memory */
    return result;
}

static int map_device(attnd_backend *backend, uint32_t index, int fd, uint64_t size_bytes,
                      attnd_fault *fault)
{
    CUdeviceptr address;
    CUresult result = import_device(&backend->driver, fd, size_bytes, &address);
    if (result)
        return driver_fault(result, index, fault);
    Memory memory = {NULL, size_bytes};
    memory.base = reinterpret_cast<decltype(memory.base)>(address);
    cudaError_t error = set_memory(backend, index, &memory);
    if (error) {
        unmap_device(&backend->driver, address, size_bytes);
        return cuda_fault(error, fault);
    }
    backend->mappings[index].device = address;
    backend->mappings[index].size_bytes = size_bytes;
    return 0;
}

int memory_map(attnd_backend *backend, uint32_t index, int fd, uint64_t size_bytes,
                    uint32_t kind, attnd_fault *fault)
{
    if (index >= ATTND_MEMORIES_MAX || backend->mappings[index].size_bytes)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_MEMORY, 0, index,
                               ATTND_MEMORIES_MAX);
    return kind == ATTND_KIND_DEVICE ? map_device(backend, index, fd, size_bytes, fault)
                                     : map_host(backend, index, fd, size_bytes, fault);
}

int memory_unmap(attnd_backend *backend, uint32_t index)
{
    Memory none = {NULL, 0};
    int was_running = backend->running;
    if (index >= ATTND_MEMORIES_MAX || !backend->mappings[index].size_bytes)
        return -ATTND_E_UNKNOWN;
    Mapping *mapping = &backend->mappings[index];
    set_memory(backend, index, &none);
    backend_quiesce(backend); /* unregistering waits for a resident kernel */
    if (mapping->address) {
        cudaHostUnregister(mapping->address);
        munmap(mapping->address, mapping->size_bytes);
    } else {
        unmap_device(&backend->driver, mapping->device, mapping->size_bytes);
    }
    *mapping = Mapping{};
    return was_running ? backend_start(backend) : 0;
}
