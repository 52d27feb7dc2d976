/*
 * device_rig.h - memory of the GPU as the control plane handles it: one call at a time, without
 * loop and socket; a stand-in makes memfds where the driver would make memory.
 *
 * Included by the one .c file of a test program, as data_stub.h is.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_DEVICE_RIG_H
#define ATTND_TESTS_SUPPORT_RIGS_DEVICE_RIG_H

#include "service/objects/lease.h"
#include "service/rpc/calls.h"
#include "service/supervise/device.h"
#include "tests/support/rigs/data_stub.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define DEVICE_PAGE_BYTES (2u << 20)

/* ---- the stand-in: these definitions take the place of device.c ---- */

struct attnd_device {
    int make_rc, fds_are_memory;
    uint32_t made;
    uint64_t last_bytes;
};

static struct attnd_device gpu;

int attnd_device_open(const uint8_t *gpu_uuid, struct attnd_device **out, struct attnd_fault *fault)
{
    (void)gpu_uuid;
    (void)fault;
    *out = &gpu;
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
    gpu.made++;
    gpu.last_bytes = size_bytes;
    if (gpu.make_rc < 0)
        return attnd_fault_set(fault, gpu.make_rc, ATTND_F_SIZE, 0, (int64_t)size_bytes, 0);
    return attnd_shm_create_unmapped("gpu", 4096, fd, fault);
}

int attnd_device_check_fd(int fd, struct attnd_fault *fault)
{
    return gpu.fds_are_memory ? 0
                              : attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_MEMORY, 0, fd, 0);
}

/* ---- one call at a time, without the socket ---- */

static struct {
    struct attnd_service service;
    struct attnd_client *client;
    int peer; /* the client's end of its socket */
    struct attnd_fault fault;
    Attnd__Request request;
    Attnd__Reply reply;
    struct attnd_call call;
} rig;

static inline int setup(void **state)
{
    (void)state;
    memset(&rig, 0, sizeof(rig));
    memset(&gpu, 0, sizeof(gpu));
    rig.service.options.memory_max_bytes = DEVICE_PAGE_BYTES;
    rig.service.options.host_memory_max_bytes = DEVICE_PAGE_BYTES;
    rig.service.device = &gpu;
    assert_int_equal(attnd_data_start(&rig.service, &rig.fault), 0);
    assert_int_equal(attnd_control_new(&rig.service), 0);
    rig.client = calloc(1, sizeof(*rig.client));
    assert_non_null(rig.client);
    rig.client->service = &rig.service;
    rig.client->id = 1;
    rig.client->state = ATTND_SESSION_OPEN;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    rig.client->socket = pair[0];
    rig.peer = pair[1];
    stub.maps = stub.unmaps = 0;
    stub_worker = stub_worker_able;
    rig.service.clients[0] = rig.client;
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    for (uint32_t h = 1; h <= ATTND_HANDLES_MAX; h++)
        if (rig.client->attachments[h - 1])
            attnd_client_detach(rig.client, h);
    for (uint32_t h = 1; h <= ATTND_HANDLES_MAX; h++)
        if (rig.client->memories[h - 1])
            attnd_memory_unbind(rig.client, h);
    assert_int_equal(rig.client->used[ATTND_QUOTA_HOST] + rig.client->device_memory_bytes, 0);
    close(rig.client->socket);
    close(rig.peer);
    free(rig.client);
    attnd_control_free(&rig.service);
    attnd_data_free(&rig.service);
    return 0;
}

static inline struct attnd_call *begin(void)
{
    memset(&rig.fault, 0, sizeof(rig.fault));
    attnd__request__init(&rig.request);
    attnd__reply__init(&rig.reply);
    attnd_control_reset(&rig.service);
    rig.call = (struct attnd_call){.service = &rig.service,
                                   .client = rig.client,
                                   .request = &rig.request,
                                   .reply = &rig.reply,
                                   .fault = &rig.fault};
    return &rig.call;
}

static inline int make(uint32_t kind, uint64_t size_bytes)
{
    static Attnd__MemoryRegister message;
    struct attnd_call *call = begin();

    attnd__memory_register__init(&message);
    message.size_bytes = size_bytes;
    message.has_memory_kind = 1;
    message.memory_kind = (Attnd__MemoryKind)kind;
    rig.request.memory_register = &message;
    return attnd_call_memory_register(call);
}

#endif
