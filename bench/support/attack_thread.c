/* attack_thread.c - what keeps the daemon's thread busy, within every budget. */
#include "bench/support/attack_thread.h"
#include "bench/support/attack_parts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define TIMERS 32u
#define POOLS 100u
#define LAYERS 1024u
#define MEMORIES 1000u
#define LEASES (1u << 22)
#define CALL_PAGES 16384u
#define REQUESTS (1u << 14)
#define COMMON_PAGES 256u

void bench_attack_timeouts(struct bench_suite *suite, int fd)
{
    struct attnd_session *session[TIMERS];
    uint32_t pool, plan[TIMERS], memory[TIMERS], timeout_us = 4000000000u;

    for (uint32_t i = 0; i < TIMERS; i++) {
        const struct attnd_pool_desc desc = attack_pool(4, ATTND_PAGES_OF_ENGINE);
        if (!attack_open(suite, 4096, 65536, &session[i]) ||
            !bench_suite_call(suite, "attnd_pool_create",
                              attnd_pool_create(session[i], &desc, &pool)) ||
            !bench_suite_call(suite, "attnd_memory_create",
                              attnd_memory_create(session[i], 65536, &memory[i], NULL)) ||
            !attack_plan(suite, session[i], pool, &plan[i]))
            return;
    }
    for (uint32_t i = 0;; i = (i + 1) % TIMERS) {
        const struct attnd_run_args run = {
            .size = sizeof(run), .q = {memory[i], 0}, .o = {memory[i], 4096}};
        int more = 1;
        for (uint16_t lane = 0; lane < ATTND_LANES_MAX && more > 0; lane++) {
            const struct attnd_op op = {.lane = lane, .timeout_us = timeout_us};
            timeout_us = timeout_us > 5000000u ? timeout_us - 1000u : 4000000000u;
            more = attack_submitted(suite, "attnd_run", attnd_run(session[i], plan[i], &run, &op));
        }
        if (more < 0 || attack_collected(suite, session[i]) < 0)
            return;
        attack_begun(&fd);
    }
}

void bench_attack_planes(struct bench_suite *suite, int fd)
{
    static struct attnd_plane planes[LAYERS];
    struct attnd_pool_desc desc = attack_pool(16, ATTND_PAGES_OF_ENGINE);
    struct attnd_completion done[ATTND_LANES_MAX];
    struct attnd_session *session;
    uint32_t memory, pool, plan;

    if (!attack_open(suite, 256, 65536, &session) ||
        !bench_suite_call(suite, "attnd_memory_create",
                          attnd_memory_create(session, 1u << 20, &memory, NULL)))
        return;
    for (uint32_t i = 0; i < LAYERS; i++)
        planes[i] = (struct attnd_plane){memory, 0, 16, 16, 16};
    desc.layers = LAYERS;
    desc.k = desc.v = planes;
    for (uint32_t i = 0; i < POOLS; i++)
        if (!bench_suite_call(suite, "attnd_pool_create", attnd_pool_create(session, &desc, &pool)))
            return;
    if (!attack_plan(suite, session, pool, &plan))
        return;
    const struct attnd_run_args run = {
        .size = sizeof(run), .q = {memory, 4096}, .o = {memory, 1u << 19}};
    for (uint16_t lane = 0;; lane = (uint16_t)((lane + 1) % ATTND_LANES_MAX)) {
        const struct attnd_op op = {.lane = lane};
        if (attnd_run(session, plan, &run, &op) < 0)
            (void)attnd_wait(session, done, ATTND_LANES_MAX, 0);
        attack_begun(&fd);
    }
}

void bench_attack_pools(struct bench_suite *suite, int fd)
{
    static struct attnd_plane planes[LAYERS];
    struct attnd_pool_desc desc = attack_pool(16, ATTND_PAGES_OF_ENGINE);
    struct attnd_session *session;
    uint32_t pool;

    (void)attack_raise_descriptors();
    if (!attack_open(suite, 8, 65536, &session))
        return;
    const int memories = attack_memories(suite, session, MEMORIES, 65536);
    if (memories <= 0)
        return;
    for (uint32_t i = 0; i < LAYERS; i++)
        planes[i] = (struct attnd_plane){1 + i % (uint32_t)memories, 0, 16, 16, 16};
    desc.layers = LAYERS;
    desc.k = desc.v = planes;
    while (!suite->failed) {
        if (bench_suite_call(suite, "attnd_pool_create", attnd_pool_create(session, &desc, &pool)))
            bench_suite_call(suite, "attnd_pool_release", attnd_pool_release(session, pool));
        attack_begun(&fd);
    }
}

/* One that is killed when it has all of them. */
static void lease_many(struct bench_suite *suite, int fd)
{
    static int32_t pages[CALL_PAGES];
    const uint64_t plane_bytes = (uint64_t)LEASES * 16;
    struct attnd_pool_desc desc = attack_pool(LEASES, ATTND_PAGES_OF_SERVICE);
    const int file = memfd_create("leases", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    struct attnd_session *session;
    uint32_t memory, pool;

    if (file < 0 || ftruncate(file, (off_t)(2 * plane_bytes)) < 0 ||
        fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) < 0 || !attack_open(suite, 8, 65536, &session) ||
        !bench_suite_call(suite, "attnd_memory_register",
                          attnd_memory_register(session, file, 2 * plane_bytes, &memory)))
        return;
    const struct attnd_plane k = {memory, 0, 16, 16, 16}, v = {memory, plane_bytes, 16, 16, 16};
    desc.dtype = ATTND_DTYPE_FP8_E4M3;
    desc.k = &k;
    desc.v = &v;
    if (!bench_suite_call(suite, "attnd_pool_create", attnd_pool_create(session, &desc, &pool)))
        return;
    for (uint32_t i = 0; i < LEASES / CALL_PAGES; i++)
        if (!bench_suite_call(suite, "attnd_pages_alloc",
                              attnd_pages_alloc(session, pool, CALL_PAGES, pages)))
            return;
    attack_begun(&fd);
    pause();
}

void bench_attack_deaths(struct bench_suite *suite, int fd)
{
    while (attack_die(suite, lease_many))
        attack_begun(&fd);
}

/* All requests begin with the same pages, and have one of their own. */
static int32_t *batch_arrays(struct attnd_level *level)
{
    const size_t pages = (size_t)REQUESTS * COMMON_PAGES;
    int32_t *qo = calloc(4 * (size_t)REQUESTS + 2 + pages, sizeof(*qo));
    int32_t *kv = qo + REQUESTS + 1, *last = kv + REQUESTS + 1, *ids = last + REQUESTS;

    for (uint32_t i = 0; qo && i < REQUESTS; i++) {
        qo[i + 1] = (int32_t)i + 1;
        kv[i + 1] = (int32_t)((i + 1) * COMMON_PAGES);
        last[i] = 64;
        for (uint32_t j = 0; j < COMMON_PAGES; j++)
            ids[(size_t)i * COMMON_PAGES + j] =
                (int32_t)(j + 1 < COMMON_PAGES ? j : COMMON_PAGES + i);
    }
    *level = (struct attnd_level){REQUESTS, qo, kv, ids, last};
    return qo;
}

void bench_attack_batches(struct bench_suite *suite, int fd)
{
    struct attnd_pool_desc desc = attack_pool(COMMON_PAGES + REQUESTS, ATTND_PAGES_OF_ENGINE);
    struct attnd_plan_args args = {.size = sizeof(args),
                                   .requests = REQUESTS,
                                   .rows = REQUESTS,
                                   .pages = REQUESTS * COMMON_PAGES,
                                   .levels = 1,
                                   .heads_q = 1};
    struct attnd_session *session;
    struct attnd_level level;
    static int32_t lengths[REQUESTS];
    uint32_t plan;
    const struct attnd_op op = {0};
    const struct attnd_batch batch = {
        .size = sizeof(batch), .levels = 1, .level = &level, .flags = ATTND_SHARED_PAGES};
    const struct attnd_advance advance = {
        .size = sizeof(advance), .entries = REQUESTS, .kv_len = lengths};

    for (uint32_t i = 0; i < REQUESTS; i++)
        lengths[i] = 1;
    desc.page_size = 64;
    if (!batch_arrays(&level) || !attack_open(suite, 64, 128u << 20, &session) ||
        !bench_suite_call(suite, "attnd_pool_create",
                          attnd_pool_create(session, &desc, &args.pool)) ||
        !bench_suite_call(suite, "attnd_plan_create", attnd_plan_create(session, &args, &plan)))
        return;
    while (!suite->failed) {
        if (bench_suite_call(suite, "attnd_plan_set", attnd_plan_set(session, plan, &batch, &op)) &&
            bench_wait_all(suite, session, 1, NULL) &&
            bench_suite_call(suite, "attnd_plan_advance",
                             attnd_plan_advance(session, plan, &advance, &op)))
            bench_wait_all(suite, session, 1, NULL);
        attack_begun(&fd);
    }
}
