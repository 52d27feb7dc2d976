/*
 * device.h - memory of the GPU, made by a process that never has a context on it.
 */
#ifndef ATTND_SERVICE_SUPERVISE_DEVICE_H
#define ATTND_SERVICE_SUPERVISE_DEVICE_H

#include "schemas/errors.h"

#include <stdint.h>

struct attnd_device;

/**
 * attnd_device_open() - load the driver and find the GPU that the worker has
 * @gpu_uuid: [ATTND_GPU_UUID_BYTES], as the worker tells it: under MPS it may count other GPUs
 * Blocks for as long as cuInit takes, some 100 ms. Threads: before others exist, for it sets an
 * environment variable for a moment. Return: 0; -ATTND_E_UNSUPPORTED: no driver or one without VMM;
 * -ATTND_E_UNKNOWN: none that this process sees is that (limit: the last one's number);
 * -ATTND_E_DEVICE with the driver's result in @fault->value.
 */
int attnd_device_open(const uint8_t *gpu_uuid, struct attnd_device **out,
                      struct attnd_fault *fault);
/** attnd_device_close() - memory that was made stays. NULL is fine. */
void attnd_device_close(struct attnd_device *device);

/** attnd_device_page_bytes() - what sizes must be a multiple of. */
uint64_t attnd_device_page_bytes(const struct attnd_device *device);

/**
 * attnd_device_make() - memory that lives as long as its descriptor, a duplicate or a mapping
 * @size_bytes: a multiple of attnd_device_page_bytes()
 * @fd:         the caller's, close-on-exec; for cuMemImportFromShareableHandle
 * Its bytes are those that the driver leaves there. Return: 0; -ATTND_E_NO_MEMORY the GPU is
 * full; -ATTND_E_DEVICE.
 */
int attnd_device_make(const struct attnd_device *device, uint64_t size_bytes, int *fd,
                      struct attnd_fault *fault);

/**
 * attnd_device_check_fd() - might this descriptor of a stranger be memory that the driver exported?
 * The driver will say whether it is. But others hold it from here on and close it, and a file of
 * some file systems asks its server at close() and is as slow as that likes. Never blocks. Return:
 * 0; -ATTND_E_INVALID, the type of file in @fault->value.
 */
int attnd_device_check_fd(int fd, struct attnd_fault *fault);

#endif
