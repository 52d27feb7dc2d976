/*
 * device_rig.h - memory of the GPU as the control plane handles it: one call at a time, without
 * loop and socket.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_DEVICE_RIG_H
#define ATTND_TESTS_SUPPORT_RIGS_DEVICE_RIG_H

#include "service/objects/lease.h"
#include "service/objects/pool_check.h"
#include "service/objects/ticket.h"
#include "service/rpc/calls.h"
#include "tests/support/stubs/data_stub.h"
#include "tests/support/stubs/device_stub.h"

struct device_rig {
    struct attnd_service service;
    struct attnd_client *client;
    int peer; /* the client's end of its socket */
    struct attnd_fault fault;
    Attnd__Request request;
    Attnd__Reply reply;
    struct attnd_call call;
};
extern struct device_rig device_rig;

int device_rig_setup(void **state);
int device_rig_teardown(void **state);
struct attnd_call *device_rig_begin(void);
int device_rig_make(uint32_t kind, uint64_t size_bytes);

#endif
