/*
 * device.h - which GPU is the service's.
 */
#ifndef ATTND_CLIENT_CUDA_DEVICE_H
#define ATTND_CLIENT_CUDA_DEVICE_H

#include "client/attnd.h"

#include <cuda.h>

/**
 * attnd_cuda_check_device() - is this the service's GPU?
 * Return: 0, also where the service does not say which it has; -ATTND_E_UNSUPPORTED, field device:
 * @device, and the number that the service's has in this process, -1 if it is not seen here;
 * -ATTND_E_DEVICE; -ATTND_E_FORKED.
 */
int attnd_cuda_check_device(struct attnd_session *session, CUdevice device);

#endif
