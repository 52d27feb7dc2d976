/*
 * pool_rig.h - calls about memory and pools, made as the control plane makes them: one at a time,
 * by two clients, without loop and socket.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_POOL_RIG_H
#define ATTND_TESTS_SUPPORT_RIGS_POOL_RIG_H

#include "service/objects/lease.h"
#include "service/objects/pool_check.h"
#include "service/objects/ticket.h"
#include "service/rpc/calls.h"
#include "tests/support/stubs/data_stub.h"

#define MEMORY_BYTES (1u << 20)

struct pool_rig {
    struct attnd_service service;
    struct attnd_client *clients[2];
    struct attnd_fault fault;
    Attnd__Request request;
    Attnd__Reply reply;
    struct attnd_call call;
};
extern struct pool_rig pool_rig;

int pool_rig_setup(void **state);
/* As a session ends, without a loop and without a socket. */
void pool_rig_client_end(struct attnd_client *client);
int pool_rig_teardown(void **state);
int pool_rig_setup_with_loop(void **state);
int pool_rig_teardown_with_loop(void **state);
/* Begins a call of client @who; the fields of rig.request are the caller's to set. */
struct attnd_call *pool_rig_begin(uint32_t who);
Attnd__PoolCreate pool_rig_good_desc(void);
int pool_rig_create(uint32_t who, Attnd__PoolCreate *desc);
uint32_t pool_rig_make_memory(uint32_t who, uint64_t size_bytes);
/* A pool whose planes all are @plane, of one layer. */
int pool_rig_create_in(Attnd__Plane *plane, uint32_t page_owner);
Attnd__Plane pool_rig_good_plane(uint32_t memory);

#endif
