/*
 * map.c - a descriptor of device memory becomes an address.
 *
 * Import, reserve, map, allow: four calls of the driver, none of which waits for running kernels.
 * The handle of the import is released at once, because the mapping keeps the memory; so a mapping
 * is all there is to undo, and the driver can be asked how long it is. To undo it waits: a kernel
 * that is still to run may use it.
 */
#include "client/cuda/attnd_cuda.h"

#include "client/internal.h"

#include <unistd.h>

static int driver_fault(CUresult result)
{
    int code = result == CUDA_ERROR_OUT_OF_MEMORY ? -ATTND_E_NO_MEMORY : -ATTND_E_DEVICE;
    return attnd_fault_raise(code, ATTND_F_MEMORY, 0, result, 0);
}

/* Return: the driver's result; on success *address is mapped and accessible from @device. */
static CUresult map_handle(CUmemGenericAllocationHandle handle, size_t bytes, CUdevice device,
                           CUdeviceptr *address)
{
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = cuMemAddressReserve(address, bytes, 0, 0, 0);

    if (result != CUDA_SUCCESS)
        return result;
    result = cuMemMap(*address, bytes, 0, handle, 0);
    if (result == CUDA_SUCCESS) {
        result = cuMemSetAccess(*address, bytes, &access, 1);
        if (result == CUDA_SUCCESS)
            return result;
        (void)cuMemUnmap(*address, bytes);
    }
    (void)cuMemAddressFree(*address, bytes);
    return result;
}

int attnd_cuda_map(struct attnd_session *session, uint32_t memory, CUdeviceptr *address)
{
    struct attnd_memory_info info = {.size = sizeof(info)};
    CUmemGenericAllocationHandle handle;
    CUdevice device;

    if (address == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_MEMORY, 0, 0, 0);
    int rc = attnd_memory_info(session, memory, &info);
    if (rc < 0)
        return rc;
    CUresult result = cuCtxGetDevice(&device);
    if (result != CUDA_SUCCESS)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_NONE, 0, result, 0);
    int fd = attnd_memory_fd(session, memory);
    if (fd < 0)
        return fd;
    result = cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(fd);
    if (result == CUDA_SUCCESS) {
        result = map_handle(handle, info.size_bytes, device, address);
        (void)cuMemRelease(handle);
    }
    return result == CUDA_SUCCESS ? 0 : driver_fault(result);
}

int attnd_cuda_unmap(CUdeviceptr address)
{
    CUdeviceptr base = 0;
    size_t bytes = 0;
    CUresult result = cuCtxSynchronize();

    if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        return attnd_fault_raise(-ATTND_E_BUSY, ATTND_F_MEMORY, 0, result, 0);
    result = cuMemGetAddressRange(&base, &bytes, address);
    if (result == CUDA_SUCCESS)
        result = cuMemUnmap(base, bytes);
    if (result == CUDA_SUCCESS)
        result = cuMemAddressFree(base, bytes);
    return result == CUDA_SUCCESS ? 0 : driver_fault(result);
}
