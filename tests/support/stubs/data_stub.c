/*
 * data_stub.c - a data plane without a worker, for tests of the control plane: a heap in malloc'ed
 * memory, plans that are only counted, sessions that are drained as soon as they close.
 *
 * The Makefile links it before the library, so these definitions stand in for the library's.
 */
#include "tests/support/stubs/data_stub.h"

#include "service/daemon/data.h"
#include "service/objects/memory.h"
#include "service/objects/planobj.h"
#include "service/prepared/prepared.h"
#include "service/rpc/calls.h"
#include "service/rpc/data_status.h"
#include "service/sched/sched.h"
#include "service/session/session.h"
#include "service/supervise/supervise.h"

#include <stdlib.h>

#define STUB_HEAP_BYTES (1u << 20)

static struct {
    uint8_t *bytes;
    uint64_t next; /* offsets are never reused */
    uint64_t used_bytes;
} stub_heap;

struct data_stub data_stub = {.unmaps_answered = 1};

static struct attnd_service *stub_service;

const struct attnd_worker_info stub_worker_able = {
    .backend = "stub",
    .memory_kinds = 1u << ATTND_KIND_HOST | 1u << ATTND_KIND_DEVICE | 1u << ATTND_KIND_POOL |
                    1u << ATTND_KIND_IPC | ATTND_KIND_TRIED(ATTND_KIND_DEVICE) |
                    ATTND_KIND_TRIED(ATTND_KIND_POOL) | ATTND_KIND_TRIED(ATTND_KIND_IPC),
    .head_dims = {0, 0x8088, 0x8088, 0}}; /* 64, 128, 256 */

struct attnd_worker_info stub_worker;

const struct attnd_worker_info *attnd_supervisor_worker(const struct attnd_service *service)
{
    (void)service;
    return &stub_worker;
}

uint64_t data_stub_heap_used(void)
{
    return stub_heap.used_bytes;
}

int attnd_data_start(struct attnd_service *service, struct attnd_fault *fault)
{
    (void)fault;
    stub_service = service;
    stub_worker = stub_worker_able;
    static const struct attnd_memory_events events = {.released = attnd_memory_released};
    service->memory_events = &events;
    service->queue = calloc(1, sizeof(*service->queue));
    service->queue->heap.bytes = 2 * STUB_HEAP_BYTES; /* half is a session's */
    service->options.daemon_memory_max_bytes = 1u << 30;
    stub_heap.bytes = calloc(1, STUB_HEAP_BYTES);
    stub_heap.next = ATTND_CACHE_LINE;
    stub_heap.used_bytes = 0;
    return 0;
}

int attnd_supervisor_running(const struct attnd_service *service)
{
    (void)service;
    return !data_stub.down;
}

void attnd_data_stop(struct attnd_service *service, uint64_t timeout_ns)
{
    (void)service;
    (void)timeout_ns;
}

void attnd_data_free(struct attnd_service *service)
{
    if (service->queue)
        free(stub_heap.bytes);
    stub_heap.bytes = NULL;
    free(service->queue);
    service->queue = NULL;
}

int attnd_sched_sweep(void *context)
{
    struct attnd_service *service = context;

    attnd_work_begin(&service->works);
    return attnd_work_turn(&service->works);
}

int attnd_sched_caught_up(struct attnd_client *client)
{
    (void)client;
    data_stub.sweeps++;
    return 1;
}

int attnd_sched_expecting(void *service)
{
    (void)service;
    return 0;
}

void attnd_sched_asleep(void *service, int asleep)
{
    (void)service;
    (void)asleep;
}

uint64_t attnd_heap_alloc(struct attnd_queue *queue, uint64_t bytes)
{
    uint64_t rounded = (bytes + ATTND_CACHE_LINE - 1) / ATTND_CACHE_LINE * ATTND_CACHE_LINE;
    (void)queue;
    uint64_t at = stub_heap.next;
    if (rounded > STUB_HEAP_BYTES - at)
        return 0;
    stub_heap.next += rounded;
    stub_heap.used_bytes += bytes;
    return at;
}

void attnd_heap_free(struct attnd_queue *queue, uint64_t offset_bytes, uint64_t bytes)
{
    (void)queue;
    (void)offset_bytes;
    stub_heap.used_bytes -= bytes;
}

void *attnd_heap_at(struct attnd_queue *queue, uint64_t offset_bytes)
{
    (void)queue;
    return stub_heap.bytes + offset_bytes;
}

void attnd_heap_usage(const struct attnd_queue *queue, uint64_t *bytes, uint64_t *used_bytes)
{
    *bytes = STUB_HEAP_BYTES;
    (void)queue;
    *used_bytes = stub_heap.used_bytes;
}

int attnd_supervisor_map(struct attnd_supervisor *supervisor, uint32_t index,
                         const struct attnd_memory_source *source)
{
    (void)supervisor;
    (void)index;
    (void)source;
    data_stub.maps += data_stub.map_rc == 0;
    return data_stub.map_rc;
}

void attnd_supervisor_unmap(struct attnd_supervisor *supervisor, uint32_t index)
{
    (void)supervisor;
    data_stub.unmaps++;
    data_stub.last_unmapped = index;
    if (data_stub.unmaps_answered)
        attnd_memory_unmapped(stub_service, index);
}

int attnd_planobj_create(struct attnd_client *client, struct attnd_attachment *attachment,
                         const struct attnd_batch_limits *limits, struct attnd_plan_object **out,
                         struct attnd_fault *fault)
{
    (void)client;
    (void)fault;
    *out = calloc(1, sizeof(**out));
    (*out)->attachment = attachment;
    (*out)->limits = *limits;
    data_stub.plans++;
    return 0;
}

void attnd_planobj_destroy(struct attnd_service *service, struct attnd_plan_object *object)
{
    (void)service;
    data_stub.plans--;
    free(object);
}

void attnd_sched_wake(struct attnd_tree *tree)
{
    (void)tree;
}

int attnd_sched_open(struct attnd_client *client, struct attnd_fault *fault)
{
    (void)client;
    (void)fault;
    data_stub.sessions++;
    return 0;
}

void attnd_sched_close(struct attnd_client *client)
{
    data_stub.sessions--;
    attnd_client_drained(client);
}

int attnd_prepared_open(struct attnd_client *client, uint64_t id, uint32_t wish, int counts,
                        struct attnd_fault *fault)
{
    (void)client;
    (void)id;
    (void)wish;
    (void)counts;
    return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_MAILBOX, 0, 0, 0);
}

int attnd_prepared_add(struct attnd_client *client, uint64_t id, uint32_t plan, uint32_t lane,
                       const struct attnd_sqe_run *wish, struct attnd_fault *fault)
{
    (void)plan;
    (void)lane;
    (void)wish;
    return attnd_prepared_open(client, id, 0, 0, fault);
}

int attnd_prepared_remove(struct attnd_client *client, uint64_t id, uint32_t run,
                          struct attnd_fault *fault)
{
    (void)run;
    return attnd_prepared_open(client, id, 0, 0, fault);
}

int attnd_prepared_status(const struct attnd_client *client, struct attnd_prepared_status *status)
{
    (void)client;
    (void)status;
    return 0;
}

uint64_t attnd_sched_oldest_ns(const struct attnd_client *client)
{
    return client->in_flight ? client->service->start_ns : 0;
}

void attnd_data_status(const struct attnd_service *service, struct attnd_data_status *status)
{
    (void)service;
    *status = (struct attnd_data_status){.backend = "stub",
                                         .isa = "none",
                                         .worker_state = "running",
                                         .tile_workers = 1,
                                         .residency = data_stub.residency,
                                         .switch_cost_us = data_stub.switch_cost_us};
}
