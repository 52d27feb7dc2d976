/*
 * device.c - is a GPU the service's?
 *
 * Told apart by UUID. Numbers are each process's own (CUDA_VISIBLE_DEVICES), and of memory that was
 * made on a GPU which this process does not see the driver says that it lies on the one it was
 * mapped for. The second version of the call by name: a slice of a GPU (MIG) has a UUID of its own,
 * which is what the service tells.
 */
#include "client/cuda/device.h"

#include "client/internal.h"

#include <string.h>

#define UUID_BYTES sizeof(((struct attnd_info *)NULL)->gpu_uuid)
_Static_assert(sizeof(((CUuuid *)NULL)->bytes) == UUID_BYTES, "as the driver has them");

/* Return: the number it has here; -1: none. */
static int number_of(const uint8_t *uuid)
{
    CUuuid at;
    int count = 0;

    if (cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return -1;
    for (int i = 0; i < count; i++)
        if (cuDeviceGetUuid_v2(&at, i) == CUDA_SUCCESS && memcmp(at.bytes, uuid, UUID_BYTES) == 0)
            return i;
    return -1;
}

int attnd_cuda_check_device(struct attnd_session *session, CUdevice device)
{
    static const uint8_t unknown[UUID_BYTES];
    struct attnd_info info = {.size = sizeof(info)};
    CUuuid uuid;
    int rc = attnd_info(session, &info);

    if (rc < 0 || memcmp(info.gpu_uuid, unknown, UUID_BYTES) == 0)
        return rc < 0 ? rc : 0;
    CUresult result = cuDeviceGetUuid_v2(&uuid, device);
    if (result != CUDA_SUCCESS)
        return attnd_fault_raise(-ATTND_E_DEVICE, ATTND_F_DEVICE, 0, result, 0);
    if (memcmp(uuid.bytes, info.gpu_uuid, UUID_BYTES) == 0)
        return 0;
    return attnd_fault_raise(-ATTND_E_UNSUPPORTED, ATTND_F_DEVICE, 0, device,
                             number_of(info.gpu_uuid));
}
