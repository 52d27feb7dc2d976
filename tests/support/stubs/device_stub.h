/*
 * device_stub.h - what the stand-in for the driver was asked, and what it says.
 */
#ifndef ATTND_TESTS_SUPPORT_STUBS_DEVICE_STUB_H
#define ATTND_TESTS_SUPPORT_STUBS_DEVICE_STUB_H

#include "service/supervise/device.h"

#define DEVICE_PAGE_BYTES (2u << 20)

struct attnd_device {
    int make_rc, fds_are_memory;
    uint32_t made;
    uint64_t last_bytes;
};
extern struct attnd_device device_stub;

#endif
