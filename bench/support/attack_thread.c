/* attack_thread.c - what keeps the daemon's thread busy, within every budget. */
#include "bench/support/attack_thread.h"
#include "schemas/abi.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEYS 4096u
#define CLAIMERS 16u
#define TIMERS 32u
#define POOLS 100u
#define LAYERS 1024u
#define LEASES (1u << 22)
#define CALL_PAGES 16384u
#define REQUESTS (1u << 14)
#define COMMON_PAGES 256u

static void begun(int *fd)
{
    if (*fd >= 0 && write(*fd, "", 1) == 1)
        close(*fd);
    *fd = -1;
}

static bool open_session(struct bench_suite *suite, uint32_t ring_entries, uint64_t arena_bytes,
                         struct attnd_session **session)
{
    struct attnd_open_args args = {.size = sizeof(args),
                                   .socket_path = suite->socket_path,
                                   .name = "thread",
                                   .ring_entries = ring_entries,
                                   .arena_bytes = arena_bytes};

    return bench_suite_call(suite, "attnd_open", attnd_open(&args, session));
}

/* Keys of one head of 16, a token a page. */
static struct attnd_pool_desc small_pool(uint32_t pages, uint32_t owner)
{
    return (struct attnd_pool_desc){.size = sizeof(struct attnd_pool_desc),
                                    .layers = 1,
                                    .pages = pages,
                                    .page_size = 1,
                                    .heads_kv = 1,
                                    .dim_qk = 16,
                                    .dim_vo = 16,
                                    .dtype = ATTND_DTYPE_FP16,
                                    .page_owner = owner};
}

static bool open_cache(struct bench_suite *suite, struct attnd_session *session, uint32_t pages,
                       uint32_t *pool, uint32_t *prefix)
{
    const struct attnd_pool_desc desc = small_pool(pages, ATTND_PAGES_OF_SERVICE);
    const struct attnd_prefix_desc args = {.size = sizeof(args), .block_pages = 1};

    return bench_suite_call(suite, "attnd_pool_create", attnd_pool_create(session, &desc, pool)) &&
           bench_suite_call(suite, "attnd_prefix_open",
                            attnd_prefix_open(session, *pool, &args, prefix));
}

/* Return: 1 go on; 0 the ring or the arena is full, for now; -1 after bench_suite_fail(). */
static int submitted(struct bench_suite *suite, const char *what, int rc)
{
    if (rc == -ATTND_E_FULL)
        return 0;
    return bench_suite_call(suite, what, rc) ? 1 : -1;
}

/* What has ended, without waiting. Return: as submitted(). */
static int collected(struct bench_suite *suite, struct attnd_session *session)
{
    struct attnd_completion done[ATTND_LANES_MAX];
    int got;

    while ((got = attnd_wait(session, done, ATTND_LANES_MAX, 0)) > 0)
        ;
    return submitted(suite, "attnd_wait", got);
}

static void fill_keys(struct attnd_prefix_key *keys, uint64_t *next)
{
    for (uint32_t i = 0; i < KEYS; i++) {
        keys[i].word[0] = ++*next * 0x9e3779b97f4a7c15u;
        keys[i].word[1] = *next;
    }
}

void bench_attack_claims(struct bench_suite *suite, int fd)
{
    static struct attnd_prefix_key keys[KEYS];
    struct attnd_session *session[CLAIMERS];
    uint32_t pool, prefix[CLAIMERS];
    uint64_t next = 0;
    const struct attnd_op op = {.flags = ATTND_SKIP_SUCCESS};

    fill_keys(keys, &next);
    for (uint32_t i = 0; i < CLAIMERS; i++)
        if (!open_session(suite, 64, 8u << 20, &session[i]) ||
            !open_cache(suite, session[i], 65536, &pool, &prefix[i]))
            return;
    for (uint32_t i = 0;; i = (i + 1) % CLAIMERS) {
        const struct attnd_prefix_args args = {
            .size = sizeof(args), .prefix = prefix[i], .blocks = KEYS, .keys = keys};
        int more = 1;
        while (more > 0) {
            more =
                submitted(suite, "attnd_prefix_claim", attnd_prefix_claim(session[i], &args, &op));
            if (more > 0)
                more = submitted(suite, "attnd_prefix_abandon",
                                 attnd_prefix_abandon(session[i], &args, &op));
        }
        if (more < 0)
            return;
        begun(&fd);
    }
}

/* A plan of one request, which is set. Return: false after bench_suite_fail(). */
static bool set_one(struct bench_suite *suite, struct attnd_session *session, uint32_t pool,
                    uint32_t *plan)
{
    static const int32_t indptr[] = {0, 1}, page[] = {0}, last[] = {1};
    const struct attnd_level level = {1, indptr, indptr, page, last};
    const struct attnd_batch batch = {.size = sizeof(batch), .levels = 1, .level = &level};
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = pool,
                                         .requests = 1,
                                         .rows = 1,
                                         .pages = 1,
                                         .levels = 1,
                                         .heads_q = 1};
    const struct attnd_op op = {0};

    return bench_suite_call(suite, "attnd_plan_create", attnd_plan_create(session, &args, plan)) &&
           bench_suite_call(suite, "attnd_plan_set", attnd_plan_set(session, *plan, &batch, &op)) &&
           bench_wait_all(suite, session, 1, NULL);
}

void bench_attack_timeouts(struct bench_suite *suite, int fd)
{
    struct attnd_session *session[TIMERS];
    uint32_t pool, plan[TIMERS], memory[TIMERS], timeout_us = 4000000000u;

    for (uint32_t i = 0; i < TIMERS; i++) {
        const struct attnd_pool_desc desc = small_pool(4, ATTND_PAGES_OF_ENGINE);
        if (!open_session(suite, 4096, 65536, &session[i]) ||
            !bench_suite_call(suite, "attnd_pool_create",
                              attnd_pool_create(session[i], &desc, &pool)) ||
            !bench_suite_call(suite, "attnd_memory_create",
                              attnd_memory_create(session[i], 65536, &memory[i], NULL)) ||
            !set_one(suite, session[i], pool, &plan[i]))
            return;
    }
    for (uint32_t i = 0;; i = (i + 1) % TIMERS) {
        const struct attnd_run_args run = {
            .size = sizeof(run), .q = {memory[i], 0}, .o = {memory[i], 4096}};
        int more = 1;
        for (uint16_t lane = 0; lane < ATTND_LANES_MAX && more > 0; lane++) {
            const struct attnd_op op = {.lane = lane, .timeout_us = timeout_us};
            timeout_us = timeout_us > 5000000u ? timeout_us - 1000u : 4000000000u;
            more = submitted(suite, "attnd_run", attnd_run(session[i], plan[i], &run, &op));
        }
        if (more < 0 || collected(suite, session[i]) < 0)
            return;
        begun(&fd);
    }
}

void bench_attack_planes(struct bench_suite *suite, int fd)
{
    static struct attnd_plane planes[LAYERS];
    struct attnd_pool_desc desc = small_pool(16, ATTND_PAGES_OF_ENGINE);
    struct attnd_completion done[ATTND_LANES_MAX];
    struct attnd_session *session;
    uint32_t memory, pool, plan;

    if (!open_session(suite, 256, 65536, &session) ||
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
    if (!set_one(suite, session, pool, &plan))
        return;
    const struct attnd_run_args run = {
        .size = sizeof(run), .q = {memory, 4096}, .o = {memory, 1u << 19}};
    for (uint16_t lane = 0;; lane = (uint16_t)((lane + 1) % ATTND_LANES_MAX)) {
        const struct attnd_op op = {.lane = lane};
        if (attnd_run(session, plan, &run, &op) < 0)
            (void)attnd_wait(session, done, ATTND_LANES_MAX, 0);
        begun(&fd);
    }
}

/* One that is killed when it has all of them. */
static void lease_many(struct bench_suite *suite, int fd)
{
    static int32_t pages[CALL_PAGES];
    const uint64_t plane_bytes = (uint64_t)LEASES * 16;
    struct attnd_pool_desc desc = small_pool(LEASES, ATTND_PAGES_OF_SERVICE);
    const int file = memfd_create("leases", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    struct attnd_session *session;
    uint32_t memory, pool;

    if (file < 0 || ftruncate(file, (off_t)(2 * plane_bytes)) < 0 ||
        fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) < 0 || !open_session(suite, 8, 65536, &session) ||
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
    begun(&fd);
    pause();
}

void bench_attack_deaths(struct bench_suite *suite, int fd)
{
    char byte;

    for (;;) {
        int ends[2];
        const pid_t pid = pipe(ends) < 0 ? -1 : fork();
        if (pid < 0)
            return;
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(ends[0]);
            lease_many(suite, ends[1]);
            _exit(1);
        }
        close(ends[1]);
        const bool there = read(ends[0], &byte, 1) == 1;
        close(ends[0]);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        if (!there)
            return;
        begun(&fd);
    }
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
    struct attnd_pool_desc desc = small_pool(COMMON_PAGES + REQUESTS, ATTND_PAGES_OF_ENGINE);
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
    if (!batch_arrays(&level) || !open_session(suite, 64, 128u << 20, &session) ||
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
        begun(&fd);
    }
}

void bench_attack_evictions(struct bench_suite *suite, int fd)
{
    static struct attnd_prefix_key keys[KEYS];
    static int32_t pages[CALL_PAGES];
    struct attnd_session *session;
    uint32_t pool, prefix;
    uint64_t next = 0;
    const struct attnd_op op = {0};

    if (!open_session(suite, 64, 8u << 20, &session) ||
        !open_cache(suite, session, 2 * CALL_PAGES, &pool, &prefix))
        return;
    while (!suite->failed) {
        if (!bench_suite_call(suite, "attnd_pages_alloc",
                              attnd_pages_alloc(session, pool, CALL_PAGES, pages)))
            return;
        for (uint32_t i = 0; i < CALL_PAGES && !suite->failed; i += KEYS) {
            const struct attnd_prefix_args args = {
                .size = sizeof(args), .prefix = prefix, .blocks = KEYS, .keys = keys};
            fill_keys(keys, &next);
            if (bench_suite_call(suite, "attnd_prefix_publish",
                                 attnd_prefix_publish(session, &args, pages + i, &op)))
                bench_wait_all(suite, session, 1, NULL);
        }
        bench_suite_call(suite, "attnd_pages_free",
                         attnd_pages_free(session, pool, CALL_PAGES, pages));
        begun(&fd);
    }
}
