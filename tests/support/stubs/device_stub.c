/*
 * device_stub.c - memory of a GPU that is not there: a stand-in makes memfds where the driver would
 * make memory. The Makefile links it before the library, in the place of device.c.
 */
#include "tests/support/stubs/device_stub.h"

#include "ipc/shm.h"

struct attnd_device device_stub;

int attnd_device_open(const uint8_t *gpu_uuid, struct attnd_device **out, struct attnd_fault *fault)
{
    (void)gpu_uuid;
    (void)fault;
    *out = &device_stub;
    return 0;
}

void attnd_device_close(struct attnd_device *device)
{
    (void)device;
}

uint64_t attnd_device_page_bytes(const struct attnd_device *device)
{
    (void)device;
    return DEVICE_PAGE_BYTES;
}

int attnd_device_make(const struct attnd_device *device, uint64_t size_bytes, int *fd,
                      struct attnd_fault *fault)
{
    (void)device;
    device_stub.made++;
    device_stub.last_bytes = size_bytes;
    if (device_stub.make_rc < 0)
        return attnd_fault_set(fault, device_stub.make_rc, ATTND_F_SIZE, 0, (int64_t)size_bytes, 0);
    return attnd_shm_create_unmapped("gpu", 4096, fd, fault);
}

int attnd_device_check_fd(int fd, struct attnd_fault *fault)
{
    return device_stub.fds_are_memory
               ? 0
               : attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_MEMORY, 0, fd, 0);
}
