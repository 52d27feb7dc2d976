/*
 * stage.h - the data plane with both of its neighbours played by the test: a client that writes
 * slots into its ring, and a worker that takes commands and retires them when the test says so.
 *
 * One pool (2 layers, 512 pages of 4 tokens, 1 head of 64, fp16, leased from the service) lies in
 * memory 1 of every client; memory 2 is 64 KiB for tensors.
 */
#ifndef ATTND_TESTS_SUPPORT_TRIAL_STAGE_H
#define ATTND_TESTS_SUPPORT_TRIAL_STAGE_H

#include "service/objects/ticket.h"
#include "service/sched/sched.h"
#include "service/sched/scheduler.h"
#include "service/session/session.h"
#include "service/supervise/supervise.h"
#include "service/worker/port.h"

#define STAGE_LAYERS 2u
#define STAGE_PAGES 512u
#define STAGE_PREFIX_BLOCKS 100000u
#define STAGE_PAGE_SIZE 4u
#define STAGE_DIM 64u
#define STAGE_TENSORS 2u /* handle */
#define STAGE_TENSOR_BYTES 65536u
#define STAGE_SCRATCH_BYTES 65536u

struct stage {
    struct attnd_service service;
    struct attnd_client maker; /* of the pool; it is no session */
    struct attnd_pool *pool;
    struct attnd_worker_port worker;
};

struct stage_client {
    struct stage *stage;
    struct attnd_client *daemon; /* the daemon's view; gone once drained and reaped */
    struct attnd_producer sq;
    struct attnd_consumer cq;
    char *arena;
};

void stage_start(struct stage *stage);
void stage_stop(struct stage *stage);

/** stage_lose_worker() - it is dead, and there is a place for the next one. */
void stage_lose_worker(struct stage *stage);

/** stage_connect() - a session with 64 KiB of arena, attached to the pool, holding all its pages
 * that nobody holds. */
void stage_connect(struct stage *stage, struct stage_client *client, uint32_t ring_entries,
                   int writable);
/** stage_plan() - a plan of up to 8 requests, 64 rows, 16 pages. Return: its handle. */
uint32_t stage_plan(struct stage_client *client);

/** stage_sweep() - as the loop would until nothing moves, reaping included. Return: slots moved. */
int stage_sweep(struct stage *stage);
/** stage_memory_mapped() - the worker maps what it has not heard of yet. */
void stage_memory_mapped(struct stage *stage);

/* ---- the client ---- */

/** stage_submit() - one slot. Return: as attnd_producer_push(). */
int stage_submit(struct stage_client *client, const struct attnd_sqe *sqe);
/** stage_completion() - Return: 1 and *cqe, or 0. */
int stage_completion(struct stage_client *client, struct attnd_cqe *cqe);
/** stage_expect() - the next completion is that of @user_data, with @code (0 or -ATTND_E_*). */
struct attnd_cqe stage_expect(struct stage_client *client, uint64_t user_data, int code);
/** stage_expect_none() - no completion is there. */
void stage_expect_none(struct stage_client *client);

/** stage_batch() - pack a batch of one request into the arena at @offset_bytes: @rows new tokens of
 * @kv_len, on pages first_page, first_page + 1, ... with @reserve more. Return: a PLAN_SET slot. */
struct attnd_sqe stage_batch(struct stage_client *client, uint32_t plan, uint64_t offset_bytes,
                             int32_t rows, int32_t kv_len, int32_t first_page, uint32_t reserve);
struct attnd_sqe stage_advance(struct stage_client *client, uint32_t plan, uint64_t offset_bytes,
                               int32_t kv_len);
struct attnd_sqe stage_run(uint32_t plan, uint16_t lane, uint64_t user_data);
struct attnd_sqe stage_append(uint32_t plan, uint16_t lane, uint64_t user_data);
struct attnd_sqe stage_cancel(uint64_t user_data);

/* ---- the worker ---- */

/** stage_command() - take a command. Return: the run, or NULL. */
struct attnd_run *stage_command(struct stage *stage);
void stage_retire(struct stage *stage, const struct attnd_run *run, int code);

#endif
