/*
 * export.c - any pointer of the engine's becomes memory of the session and an offset.
 *
 * The driver is asked what allocation the pointer lies in, and whether that came from a pool, from
 * cuMemAlloc() or from cuMemCreate(): each is exported by a call of its own. The message has always
 * the whole allocation, so that a framework which cuts thousands of tensors out of one costs one
 * import.
 */
#include "client/cuda/attnd_cuda.h"

#include "client/cuda/device.h"
#include "client/internal.h"

#include <string.h>
#include <unistd.h>

struct allocation {
    CUdeviceptr base;
    size_t bytes;
    unsigned long long id;
    CUmemoryPool pool; /* NULL: of none */
    int legacy;        /* of cuMemAlloc(): has an IPC handle */
    int device;        /* that it lies on */
};

/* Attributes of a pointer that the driver does not know it leaves zero, and fails only if it knows
 * nothing. */
static int look_up(CUdeviceptr address, struct allocation *found)
{
    CUmemorytype type = 0;
    CUdeviceptr mapping = 0;
    size_t mapping_bytes = 0;
    CUpointer_attribute names[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE,   CU_POINTER_ATTRIBUTE_BUFFER_ID,
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *values[] = {&type,      &found->base, &found->bytes,  &mapping,      &mapping_bytes,
                      &found->id, &found->pool, &found->legacy, &found->device};

    CUresult result =
        cuPointerGetAttributes(sizeof(names) / sizeof(names[0]), names, values, address);
    if (result != CUDA_SUCCESS)
        return attnd_fault_raise(-ATTND_E_DEVICE, ATTND_F_MEMORY, 0, result, 0);
    if (type != CU_MEMORYTYPE_DEVICE || found->base == 0)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_MEMORY, 0, type, CU_MEMORYTYPE_DEVICE);
    /* Of cuMemCreate() every mapping is an allocation, and the range all that was reserved. */
    if (!found->pool && !found->legacy && mapping) {
        found->base = mapping;
        found->bytes = mapping_bytes;
    }
    return 0;
}

static CUresult export_pool(const struct allocation *allocation, struct attnd_memory_desc *desc)
{
    CUmemPoolPtrExportData data;
    CUresult result = cuMemPoolExportToShareableHandle(&desc->fd, allocation->pool,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);

    if (result != CUDA_SUCCESS)
        return result;
    result = cuMemPoolExportPointer(&data, allocation->base);
    memcpy(desc->handle, &data, sizeof(desc->handle));
    desc->memory_kind = ATTND_MEMORY_POOL;
    return result;
}

static CUresult export_legacy(const struct allocation *allocation, struct attnd_memory_desc *desc)
{
    CUipcMemHandle handle;
    CUresult result = cuIpcGetMemHandle(&handle, allocation->base);

    memcpy(desc->handle, &handle, sizeof(desc->handle));
    desc->memory_kind = ATTND_MEMORY_IPC;
    return result;
}

static CUresult export_created(const struct allocation *allocation, struct attnd_memory_desc *desc)
{
    CUmemGenericAllocationHandle handle;
    CUresult result = cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)allocation->base);

    if (result != CUDA_SUCCESS)
        return result;
    result = cuMemExportToShareableHandle(&desc->fd, handle,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    (void)cuMemRelease(handle); /* the descriptor has it from here */
    desc->memory_kind = ATTND_MEMORY_DEVICE;
    return result;
}

_Static_assert(sizeof(CUmemPoolPtrExportData) == ATTND_MEMORY_HANDLE_BYTES, "as the header says");
_Static_assert(sizeof(CUipcMemHandle) == ATTND_MEMORY_HANDLE_BYTES, "as the header says");

static int import(struct attnd_session *session, const struct allocation *allocation,
                  const struct attnd_origin *origin, uint32_t *memory)
{
    struct attnd_memory_desc desc = {
        .size = sizeof(desc), .fd = -1, .size_bytes = allocation->bytes};
    CUresult result = allocation->pool     ? export_pool(allocation, &desc)
                      : allocation->legacy ? export_legacy(allocation, &desc)
                                           : export_created(allocation, &desc);
    int rc = result == CUDA_SUCCESS
                 ? attnd_import(session, &desc, origin, memory)
                 : attnd_fault_raise(-ATTND_E_UNSUPPORTED, ATTND_F_MEMORY, 0, result, 0);

    if (desc.fd >= 0)
        close(desc.fd);
    return rc;
}

static int export_tensor(struct attnd_session *session, CUdeviceptr address, uint64_t size_bytes,
                         struct attnd_tensor *tensor)
{
    struct allocation allocation = {.base = 0};
    int rc = attnd_session_check(session);

    if (tensor == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_MEMORY, 0, 0, 0);
    if (rc == 0)
        rc = look_up(address, &allocation);
    if (rc == 0)
        rc = attnd_cuda_check_device(session, allocation.device);
    if (rc < 0)
        return rc;
    uint64_t offset_bytes = address - allocation.base;
    if (offset_bytes > allocation.bytes || size_bytes > allocation.bytes - offset_bytes)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_SIZE, 0, (int64_t)size_bytes,
                                 (int64_t)(allocation.bytes - offset_bytes));
    const struct attnd_origin origin = {.address = allocation.base, .id = allocation.id};
    uint32_t memory = attnd_import_find(session, &origin), stale = 0;
    /* What was freed here goes back, unless something still names it: that has errors of its own.
     */
    while (memory == 0 && (stale = attnd_import_stale(session, &origin, allocation.bytes)) != 0)
        if (attnd_memory_release(session, stale) < 0)
            break;
    if (memory == 0)
        rc = import(session, &allocation, &origin, &memory);
    if (rc < 0)
        return rc;
    *tensor = (struct attnd_tensor){.memory = memory, .offset_bytes = offset_bytes};
    return 0;
}

/* An engine may capture a stream meanwhile, in which this has no part. */
int attnd_cuda_export(struct attnd_session *session, CUdeviceptr address, uint64_t size_bytes,
                      struct attnd_tensor *tensor)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    (void)cuThreadExchangeStreamCaptureMode(&mode);
    int rc = export_tensor(session, address, size_bytes, tensor);
    (void)cuThreadExchangeStreamCaptureMode(&mode);
    return rc;
}
