/* stage.c - sessions and pools as the control plane makes them, minus sockets and processes. */
#include "tests/support/trial/stage.h"

#include "schemas/attnd.pb-c.h"
#include "service/daemon/data.h"
#include "tests/support/harness/check.h"
#include "tests/support/harness/quiet_loop.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define ARENA_BYTES 65536u

static struct attnd_memory *new_memory(struct stage *stage, uint64_t bytes)
{
    struct attnd_memory *memory = NULL;
    struct attnd_fault fault = {0};
    int fd = -1;
    CHECK_EQUAL(attnd_shm_create_unmapped("stage", bytes, &fd, &fault), 0);
    const struct attnd_memory_source source = {
        .kind = ATTND_KIND_HOST, .fd = fd, .size_bytes = bytes};
    CHECK_EQUAL(attnd_memory_new(&stage->service, &source, NULL, 0, &memory, &fault), 0);
    return memory;
}

static void make_pool(struct stage *stage)
{
    const struct attnd_heap_pool shape = {.layers = STAGE_LAYERS,
                                          .pages = STAGE_PAGES,
                                          .page_size = STAGE_PAGE_SIZE,
                                          .heads_kv = 1,
                                          .dim_qk = STAGE_DIM,
                                          .dim_vo = STAGE_DIM,
                                          .dtype = ATTND_FP16};
    const uint64_t plane_bytes = 2ull * STAGE_PAGES * STAGE_PAGE_SIZE * STAGE_DIM;
    struct attnd_memory *memory = new_memory(stage, 2 * STAGE_LAYERS * plane_bytes);
    struct attnd_heap_plane planes[2 * STAGE_LAYERS];
    struct attnd_fault fault = {0};
    for (uint32_t i = 0; i < 2 * STAGE_LAYERS; i++)
        planes[i] = (struct attnd_heap_plane){.memory = memory->index,
                                              .offset_bytes = i * plane_bytes,
                                              .stride_page = STAGE_PAGE_SIZE * STAGE_DIM,
                                              .stride_token = STAGE_DIM,
                                              .stride_head = STAGE_DIM};
    CHECK_EQUAL(attnd_pool_new(&stage->maker, &shape, ATTND__PAGE_OWNER__OWNER_SERVICE, planes,
                               &memory, 1, &stage->pool, &fault),
                0);
    attnd_memory_unref(&stage->service, memory); /* the pool's now */
}

void stage_start(struct stage *stage)
{
    struct attnd_service *service = &stage->service;
    struct attnd_fault fault = {0};
    *stage = (struct stage){0};
    attnd_log_level(ATTND_LOG_ERROR);
    service->options.prefix_blocks = STAGE_PREFIX_BLOCKS;
    CHECK_EQUAL(quiet_loop_new(ATTND_LOOP_EPOLL, &service->loop), 0);
    service->options.heap_bytes = 1u << 20;
    service->options.daemon_memory_max_bytes = 1u << 30;
    stage->maker.service = service;
    CHECK_EQUAL(attnd_data_new(service, &fault), 0);
    service->queue->info = (struct attnd_worker_info){.backend = "stage",
                                                      .tile_workers = 2,
                                                      .rows_per_tile = 16,
                                                      .kv_granule = 16,
                                                      .scratch_bytes = STAGE_SCRATCH_BYTES};
    attnd_worker_port_init(&stage->worker, service->queue->head, -1);
    make_pool(stage);
    stage_memory_mapped(stage);
    CHECK_EQUAL(attnd_sched_resume(service->scheduler, STAGE_SCRATCH_BYTES), 0);
}

void stage_lose_worker(struct stage *stage)
{
    struct attnd_fault fault = {0};
    attnd_retire_lost(stage->service.scheduler);
    CHECK_EQUAL(attnd_queue_renew(stage->service.queue, &fault), 0);
}

void stage_stop(struct stage *stage)
{
    struct attnd_service *service = &stage->service;
    attnd_sched_pause(service->scheduler);
    attnd_retire_lost(service->scheduler);
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++)
        if (service->clients[i])
            attnd_client_end(service->clients[i]);
    attnd_pool_unref(service, stage->pool);
    attnd_deadline_stop(service->scheduler);
    attnd_client_reap(service, 1);
    attnd_loop_free(service->loop);
    stage_memory_mapped(stage);
    for (uint32_t i = 0; i < ATTND_MEMORIES_MAX; i++)
        CHECK(service->memories[i] == NULL);
    CHECK_EQUAL(service->queue->heap.used_bytes, 0);
    for (uint32_t kind = 0; kind < ATTND_QUOTA_KINDS; kind++)
        CHECK_EQUAL(service->used[kind], 0);
    attnd_data_free(service);
}

void stage_memory_mapped(struct stage *stage)
{
    struct attnd_maps *maps = &stage->service.supervisor->maps;
    uint32_t index;
    while (attnd_maps_due(maps, &index)) {
        int maps_it = maps->state[index] == ATTND_MAP_TO_MAP;
        attnd_maps_sent(maps);
        if (maps_it)
            attnd_maps_mapped(maps, index, 0);
        else if (attnd_maps_unmapped(maps, index))
            attnd_memory_unmapped(&stage->service, index);
    }
}

static void make_segments(struct attnd_client *client)
{
    struct attnd_fault fault = {0};
    uint64_t slots_bytes = (uint64_t)client->ring_entries * ATTND_SLOT_BYTES;
    client->arena_bytes = ARENA_BYTES;
    client->arena_offset_bytes = ATTND_PAGE_BYTES + (slots_bytes + ATTND_PAGE_BYTES - 1) /
                                                        ATTND_PAGE_BYTES * ATTND_PAGE_BYTES;
    CHECK_EQUAL(attnd_shm_create("stage", client->arena_offset_bytes + ARENA_BYTES,
                                 &client->submission, &fault),
                0);
    client->results_offset_bytes = client->arena_offset_bytes;
    CHECK_EQUAL(attnd_shm_create(
                    "stage", client->results_offset_bytes + ATTND_RESULT_WORDS * sizeof(int32_t),
                    &client->completion, &fault),
                0);
    struct attnd_submit_head *submit = client->submission.address;
    struct attnd_complete_head *complete = client->completion.address;
    attnd_consumer_init(&client->sq, (char *)client->submission.address + ATTND_PAGE_BYTES,
                        &submit->sq_tail, &complete->sq_head, client->ring_entries);
    attnd_producer_init(&client->cq, (char *)client->completion.address + ATTND_PAGE_BYTES,
                        &complete->cq_tail, &submit->cq_head, client->ring_entries);
}

void stage_connect(struct stage *stage, struct stage_client *out, uint32_t ring_entries,
                   int writable)
{
    struct attnd_client *client = calloc(1, sizeof(*client));
    struct attnd_fault fault = {0};
    uint32_t handle, pair_handle;
    int32_t pages[STAGE_PAGES];

    CHECK(client != NULL);
    client->service = &stage->service;
    client->pidfd = client->doorbell_fd = client->notify_peer_fd = client->submission.fd =
        client->completion.fd = -1;
    client->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    client->notify_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    client->ring_entries = ring_entries;
    CHECK_EQUAL(attnd_client_enroll(client, &fault), 0);
    make_segments(client);
    attnd_memory_ref(stage->pool->memories[0]);
    CHECK_EQUAL(attnd_memory_bind(client, stage->pool->memories[0], &pair_handle, &fault), 0);
    CHECK_EQUAL(
        attnd_memory_bind(client, new_memory(stage, STAGE_TENSOR_BYTES), &pair_handle, &fault), 0);
    CHECK_EQUAL(pair_handle, STAGE_TENSORS);
    CHECK_EQUAL(attnd_client_attach(client, stage->pool, writable, &handle, &fault), 0);
    uint32_t left = STAGE_PAGES - attnd_lease_count(stage->pool);
    if (left)
        CHECK_EQUAL(attnd_lease_alloc(client->attachments[0], left, pages, &fault), 0);
    CHECK_EQUAL(attnd_sched_open(client, &fault), 0);
    client->state = ATTND_CLIENT_OPEN;
    stage_memory_mapped(stage);

    struct attnd_submit_head *submit = client->submission.address;
    struct attnd_complete_head *complete = client->completion.address;
    *out = (struct stage_client){.stage = stage, .daemon = client};
    out->arena = (char *)client->submission.address + client->arena_offset_bytes;
    attnd_producer_init(&out->sq, (char *)client->submission.address + ATTND_PAGE_BYTES,
                        &submit->sq_tail, &complete->sq_head, ring_entries);
    attnd_consumer_init(&out->cq, (char *)client->completion.address + ATTND_PAGE_BYTES,
                        &complete->cq_tail, &submit->cq_head, ring_entries);
}

uint32_t stage_plan(struct stage_client *client)
{
    struct attnd_client *daemon = client->daemon;
    struct attnd_fault fault = {0};
    const struct attnd_batch_limits limits = {.pool_pages = STAGE_PAGES,
                                              .page_size = STAGE_PAGE_SIZE,
                                              .heads_kv = 1,
                                              .dim_qk = STAGE_DIM,
                                              .dim_vo = STAGE_DIM,
                                              .pool_dtype = ATTND_FP16,
                                              .requests = 8,
                                              .rows = 64,
                                              .pages = 16,
                                              .levels = 1,
                                              .heads_q = 1};
    uint32_t handle = attnd_client_vacant((void *const *)daemon->plans);
    CHECK_EQUAL(attnd_planobj_create(daemon, daemon->attachments[0], &limits,
                                     &daemon->plans[handle - 1], &fault),
                0);
    daemon->attachments[0]->plans++;
    return handle;
}

int stage_sweep(struct stage *stage)
{
    int moved = 0, more;
    do { /* one ends early, at any place, when its time is over: this machine may be busy */
        more = attnd_sched_sweep(&stage->service);
        attnd_client_reap(&stage->service, 0);
        moved += more;
    } while (more > 0);
    return moved;
}

/* ---- the client ---- */

int stage_submit(struct stage_client *client, const struct attnd_sqe *sqe)
{
    return attnd_producer_push(&client->sq, sqe);
}

int stage_completion(struct stage_client *client, struct attnd_cqe *cqe)
{
    return attnd_consumer_pop(&client->cq, cqe);
}

struct attnd_cqe stage_expect(struct stage_client *client, uint64_t user_data, int code)
{
    struct attnd_cqe cqe = {0};
    CHECK_EQUAL(stage_completion(client, &cqe), 1);
    CHECK_EQUAL(cqe.user_data, user_data);
    CHECK_EQUAL(cqe.code, code);
    CHECK(cqe.begin_ns <= cqe.end_ns);
    return cqe;
}

void stage_expect_none(struct stage_client *client)
{
    struct attnd_cqe cqe;
    CHECK_EQUAL(stage_completion(client, &cqe), 0);
}

struct attnd_sqe stage_batch(struct stage_client *client, uint32_t plan, uint64_t offset_bytes,
                             int32_t rows, int32_t kv_len, int32_t first_page, uint32_t reserve)
{
    int32_t *words = (int32_t *)(void *)(client->arena + offset_bytes);
    int32_t page_size = (int32_t)STAGE_PAGE_SIZE;
    int32_t pages = (kv_len + page_size - 1) / page_size;
    Attnd__Level level = ATTND__LEVEL__INIT;
    Attnd__Level *levels[] = {&level};
    Attnd__Batch batch = ATTND__BATCH__INIT;

    level.entries = 1;
    level.pages = (uint32_t)pages;
    level.qo_indptr = offset_bytes;
    level.kv_indptr = offset_bytes + 8;
    level.kv_last_page_len = offset_bytes + 16;
    level.kv_indices = offset_bytes + 20;
    words[0] = 0;
    words[1] = rows;
    words[2] = 0;
    words[3] = pages;
    words[4] = kv_len - page_size * (pages - 1);
    for (int32_t i = 0; i < pages; i++)
        words[5 + i] = first_page + i;
    batch.rows = (uint32_t)rows;
    batch.heads_q = 1;
    batch.dtype = ATTND_FP16;
    batch.flags = ATTND_BATCH_CAUSAL;
    batch.has_reserve_pages = 1;
    batch.reserve_pages = reserve;
    batch.n_level = 1;
    batch.level = levels;

    uint64_t header_offset = offset_bytes + 256;
    size_t header_bytes = attnd__batch__pack(&batch, (uint8_t *)client->arena + header_offset);
    return (struct attnd_sqe){
        .opcode = ATTND_OP_PLAN_SET,
        .plan = plan,
        .u.set = {.header_offset_bytes = header_offset, .header_bytes = (uint32_t)header_bytes}};
}

struct attnd_sqe stage_advance(struct stage_client *client, uint32_t plan, uint64_t offset_bytes,
                               int32_t kv_len)
{
    memcpy(client->arena + offset_bytes, &kv_len, sizeof(kv_len));
    return (struct attnd_sqe){.opcode = ATTND_OP_PLAN_ADVANCE,
                              .plan = plan,
                              .u.advance = {.arrays_offset_bytes = offset_bytes, .entries = 1}};
}

struct attnd_sqe stage_run(uint32_t plan, uint16_t lane, uint64_t user_data)
{
    return (struct attnd_sqe){.opcode = ATTND_OP_RUN,
                              .lane = lane,
                              .plan = plan,
                              .user_data = user_data,
                              .u.run = {.q_memory = STAGE_TENSORS,
                                        .o_memory = STAGE_TENSORS,
                                        .o_offset_bytes = 16384,
                                        .lse_memory = STAGE_TENSORS,
                                        .lse_offset_bytes = 32768}};
}

struct attnd_sqe stage_append(uint32_t plan, uint16_t lane, uint64_t user_data)
{
    return (struct attnd_sqe){.opcode = ATTND_OP_APPEND,
                              .lane = lane,
                              .plan = plan,
                              .user_data = user_data,
                              .u.append = {.k_memory = STAGE_TENSORS,
                                           .v_memory = STAGE_TENSORS,
                                           .v_offset_bytes = 16384}};
}

struct attnd_sqe stage_cancel(uint64_t user_data)
{
    return (struct attnd_sqe){.opcode = ATTND_OP_CANCEL,
                              .u.cancel = {.target_user_data = user_data}};
}

/* ---- the worker ---- */

struct attnd_run *stage_command(struct stage *stage)
{
    struct attnd_command command;
    if (!stage->worker.port.next(stage->worker.port.context, &command))
        return NULL;
    CHECK_EQUAL(command.kind, ATTND_COMMAND_RUN);
    return &stage->service.queue->runs[command.run];
}

void stage_retire(struct stage *stage, const struct attnd_run *run, int code)
{
    uint64_t now_ns = attnd_clock_ns();
    const struct attnd_retire retire = {.run = (uint32_t)(run - stage->service.queue->runs),
                                        .code = code,
                                        .begin_ns = now_ns,
                                        .end_ns = now_ns,
                                        .busy_ns = 10,
                                        .kv_bytes = 100,
                                        .tiles = 1};
    stage->worker.port.retire(stage->worker.port.context, &retire);
}
