/* device_rig.c - memory of the GPU as the control plane handles it: one call at a time, without
 * loop and socket. */
#include "tests/support/rigs/device_rig.h"
#include "service/daemon/data.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

struct device_rig device_rig;

/* ---- one call at a time, without the socket ---- */

int device_rig_setup(void **state)
{
    (void)state;
    memset(&device_rig, 0, sizeof(device_rig));
    memset(&device_stub, 0, sizeof(device_stub));
    device_rig.service.options.memory_max_bytes = DEVICE_PAGE_BYTES;
    device_rig.service.options.host_memory_max_bytes = DEVICE_PAGE_BYTES;
    device_rig.service.device = &device_stub;
    assert_int_equal(attnd_data_start(&device_rig.service, &device_rig.fault), 0);
    assert_int_equal(attnd_control_new(&device_rig.service), 0);
    device_rig.client = calloc(1, sizeof(*device_rig.client));
    assert_non_null(device_rig.client);
    device_rig.client->service = &device_rig.service;
    device_rig.client->id = 1;
    device_rig.client->state = ATTND_CLIENT_OPEN;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    device_rig.client->socket = pair[0];
    device_rig.peer = pair[1];
    data_stub.maps = data_stub.unmaps = 0;
    stub_worker = stub_worker_able;
    device_rig.service.clients[0] = device_rig.client;
    return 0;
}

int device_rig_teardown(void **state)
{
    (void)state;
    for (uint32_t h = 1; h <= ATTND_HANDLES_MAX; h++)
        if (device_rig.client->attachments[h - 1])
            attnd_client_detach(device_rig.client, h);
    for (uint32_t h = 1; h <= ATTND_HANDLES_MAX; h++)
        if (device_rig.client->memories[h - 1])
            attnd_memory_unbind(device_rig.client, h);
    assert_int_equal(
        device_rig.client->used[ATTND_QUOTA_HOST] + device_rig.client->device_memory_bytes, 0);
    close(device_rig.client->socket);
    close(device_rig.peer);
    free(device_rig.client);
    attnd_control_free(&device_rig.service);
    attnd_data_free(&device_rig.service);
    return 0;
}

struct attnd_call *device_rig_begin(void)
{
    memset(&device_rig.fault, 0, sizeof(device_rig.fault));
    attnd__request__init(&device_rig.request);
    attnd__reply__init(&device_rig.reply);
    attnd_control_reset(&device_rig.service);
    device_rig.call = (struct attnd_call){.service = &device_rig.service,
                                          .client = device_rig.client,
                                          .request = &device_rig.request,
                                          .reply = &device_rig.reply,
                                          .fault = &device_rig.fault};
    return &device_rig.call;
}

int device_rig_make(uint32_t kind, uint64_t size_bytes)
{
    static Attnd__MemoryRegister message;
    struct attnd_call *call = device_rig_begin();

    attnd__memory_register__init(&message);
    message.size_bytes = size_bytes;
    message.has_memory_kind = 1;
    message.memory_kind = (Attnd__MemoryKind)kind;
    device_rig.request.memory_register = &message;
    return attnd_call_memory_register(call);
}
