/* attack.c - what a tenant does that thinks of nobody else. */
#include "bench/support/attack.h"
#include "bench/support/attack_kernel.h"
#include "bench/support/attack_parts.h"
#include "bench/support/attack_prefix.h"
#include "bench/support/attack_thread.h"
#include "bench/support/private_service.h"
#include "bench/support/uniform.h"
#include "ipc/wake.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define FLOOD_LANES 32u
#define PLANNER_REQUESTS (1u << 18)
#define PLANNER_SETS 2u /* in flight */
#define PAGE_TOKENS (1u << 20)
#define PAGES_MAX 2048u

/* Runs of a plan on all @lanes, each followed by the next; never returns but after a failure. */
static void run_on(struct bench_suite *suite, struct attnd_session *session, uint32_t plan,
                   const struct attnd_run_args *run, uint32_t lanes, int fd)
{
    struct attnd_completion done[ATTND_LANES_MAX];
    int count = (int)lanes;

    for (uint32_t i = 0; i < lanes; i++)
        done[i].lane = i;
    while (!suite->failed) {
        for (int i = 0; i < count; i++) {
            const struct attnd_op op = {.lane = (uint16_t)done[i].lane};
            if (!bench_suite_call(suite, "attnd_run", attnd_run(session, plan, run, &op)))
                return;
        }
        attack_begun(&fd);
        count = attnd_wait(session, done, ATTND_LANES_MAX, ATTND_FOREVER);
        bench_suite_call(suite, "attnd_wait", count);
    }
}

static void flood(struct bench_suite *suite, int fd)
{
    const struct bench_uniform uniform = {.dtype = ATTND_DTYPE_FP16,
                                          .layers = 1,
                                          .requests = 1,
                                          .qo_len = 512,
                                          .kv_len = 2048,
                                          .page_size = 16,
                                          .heads_q = 8,
                                          .heads_kv = 8,
                                          .dim = 128};
    const uint64_t q_bytes = bench_uniform_q_bytes(&uniform);
    struct attnd_session *session;
    struct attnd_pool_info info;
    uint32_t pool, plan, memory;
    void *address;

    if (!attack_open(suite, 0, 0, &session) ||
        !bench_suite_call(suite, "attnd_memory_create",
                          attnd_memory_create(session, 2 * q_bytes, &memory, &address)) ||
        !bench_uniform_pool(suite, session, &uniform, &pool, &info))
        return;
    bench_uniform_fill(address, q_bytes, uniform.dtype);
    bench_uniform_fill(info.address, info.memory_bytes, uniform.dtype);
    if (!bench_uniform_plan(suite, session, &uniform, pool, &plan))
        return;
    const struct attnd_run_args run = {
        .size = sizeof(run), .q = {memory, 0}, .o = {memory, q_bytes}};
    run_on(suite, session, plan, &run, FLOOD_LANES, fd);
}

bool bench_endless_open(struct bench_suite *suite, uint32_t kv_len, struct attnd_session **session,
                        uint32_t *plan, uint32_t *memory)
{
    static const int32_t qo_indptr[] = {0, 1}, pages[PAGES_MAX]; /* all of them page 0 */
    const int32_t count = (int32_t)((kv_len + (uint64_t)PAGE_TOKENS - 1) / PAGE_TOKENS);
    const int32_t kv_indptr[] = {0, count};
    const int32_t last = (int32_t)(kv_len - (uint32_t)(count - 1) * PAGE_TOKENS);
    const struct attnd_level level = {1, qo_indptr, kv_indptr, pages, &last};
    const struct attnd_batch batch = {.size = sizeof(batch), .levels = 1, .level = &level};
    struct attnd_plan_args args = {.size = sizeof(args),
                                   .requests = 1,
                                   .rows = 1,
                                   .pages = PAGES_MAX,
                                   .levels = 1,
                                   .heads_q = 1};
    struct attnd_plane plane = {.offset_bytes = 8192};
    struct attnd_pool_desc desc = {.size = sizeof(desc),
                                   .layers = 1,
                                   .pages = 1,
                                   .page_size = PAGE_TOKENS,
                                   .heads_kv = 1,
                                   .dim_qk = 64,
                                   .dim_vo = 64,
                                   .dtype = ATTND_DTYPE_FP16,
                                   .page_owner = ATTND_PAGES_OF_ENGINE,
                                   .k = &plane,
                                   .v = &plane};
    struct attnd_op op = {0};

    if (!attack_open(suite, 0, 0, session) ||
        !bench_suite_call(suite, "attnd_memory_create",
                          attnd_memory_create(*session, 16384, memory, NULL)))
        return false;
    plane.memory = *memory;
    return bench_suite_call(suite, "attnd_pool_create",
                            attnd_pool_create(*session, &desc, &args.pool)) &&
           bench_suite_call(suite, "attnd_plan_create", attnd_plan_create(*session, &args, plan)) &&
           bench_suite_call(suite, "attnd_plan_set",
                            attnd_plan_set(*session, *plan, &batch, &op)) &&
           bench_wait_all(suite, *session, 1, NULL);
}

static void endless(struct bench_suite *suite, int fd)
{
    struct attnd_session *session;
    uint32_t plan, memory;

    if (!bench_endless_open(suite, INT32_MAX, &session, &plan, &memory))
        return;
    const struct attnd_run_args run = {.size = sizeof(run), .q = {memory, 0}, .o = {memory, 4096}};
    run_on(suite, session, plan, &run, ATTND_LANES_MAX, fd);
}

/* One key and one row for each of very many requests. */
static void planner(struct bench_suite *suite, int fd)
{
    const struct bench_uniform uniform = {.dtype = ATTND_DTYPE_FP16,
                                          .layers = 1,
                                          .requests = 1,
                                          .qo_len = 1,
                                          .kv_len = 1,
                                          .page_size = 1,
                                          .heads_q = 1,
                                          .heads_kv = 1,
                                          .dim = 64};
    struct attnd_plan_args args = {.size = sizeof(args),
                                   .requests = PLANNER_REQUESTS,
                                   .rows = PLANNER_REQUESTS,
                                   .pages = PLANNER_REQUESTS,
                                   .levels = 1,
                                   .heads_q = 1};
    int32_t *indptr = calloc(PLANNER_REQUESTS + 1, sizeof(*indptr));
    int32_t *pages = calloc(PLANNER_REQUESTS, sizeof(*pages));
    int32_t *ones = calloc(PLANNER_REQUESTS, sizeof(*ones));
    const struct attnd_level level = {PLANNER_REQUESTS, indptr, indptr, pages, ones};
    const struct attnd_batch batch = {.size = sizeof(batch), .levels = 1, .level = &level};
    struct attnd_session *session = NULL;
    struct attnd_pool_info info;
    struct attnd_op op = {0};
    uint32_t plan = 0, in_flight = 0;

    for (uint32_t i = 0; indptr && ones && i < PLANNER_REQUESTS; i++) {
        indptr[i + 1] = (int32_t)i + 1;
        ones[i] = 1;
    }
    if (!indptr || !pages || !ones)
        bench_suite_fail(suite, "out of memory");
    else if (attack_open(suite, 0, 16u << 20, &session) &&
             bench_uniform_pool(suite, session, &uniform, &args.pool, &info))
        bench_suite_call(suite, "attnd_plan_create", attnd_plan_create(session, &args, &plan));
    while (!suite->failed) {
        for (; in_flight < PLANNER_SETS && !suite->failed; in_flight++)
            bench_suite_call(suite, "attnd_plan_set", attnd_plan_set(session, plan, &batch, &op));
        bench_wait_all(suite, session, 1, NULL);
        in_flight--;
        attack_begun(&fd);
    }
    free(indptr);
    free(pages);
    free(ones);
}

/* What the scheduler of the machine alone does to a neighbour. */
static void outside(struct bench_suite *suite, int fd)
{
    attack_begun(&fd);
    while (!suite->failed)
        attnd_clock_ns();
}

uint32_t bench_attack_processors(void)
{
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

    return (uint32_t)count;
}

pid_t bench_attack_start(struct bench_suite *suite, enum bench_attack attack)
{
    static void (*const attacks[])(struct bench_suite *, int) = {
        [BENCH_ATTACK_FLOOD] = flood,
        [BENCH_ATTACK_ENDLESS] = endless,
        [BENCH_ATTACK_PLANNER] = planner,
        [BENCH_ATTACK_OUTSIDE] = outside,
        [BENCH_ATTACK_CLAIMS] = bench_attack_claims,
        [BENCH_ATTACK_TIMEOUTS] = bench_attack_timeouts,
        [BENCH_ATTACK_PLANES] = bench_attack_planes,
        [BENCH_ATTACK_POOLS] = bench_attack_pools,
        [BENCH_ATTACK_DEATHS] = bench_attack_deaths,
        [BENCH_ATTACK_BATCHES] = bench_attack_batches,
        [BENCH_ATTACK_EVICTIONS] = bench_attack_evictions,
        [BENCH_ATTACK_PARKED] = bench_attack_parked,
        [BENCH_ATTACK_READERS] = bench_attack_readers,
        [BENCH_ATTACK_TICKETS] = bench_attack_tickets,
        [BENCH_ATTACK_FUTEXES] = bench_attack_futexes,
        [BENCH_ATTACK_WAITERS] = bench_attack_waiters,
        [BENCH_ATTACK_MEMORIES] = bench_attack_memories,
        [BENCH_ATTACK_ASKERS] = bench_attack_askers,
        [BENCH_ATTACK_VISITS] = bench_attack_visits,
    };
    int ends[2];
    char byte;
    pid_t pid;

    if (pipe(ends) < 0 || (pid = fork()) < 0) {
        bench_suite_fail(suite, "no process for an attacker");
        return 0;
    }
    if (pid == 0) {
        bench_private_leave();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        attacks[attack](suite, ends[1]);
        _exit(1);
    }
    bench_private_child(pid);
    close(ends[1]);
    if (read(ends[0], &byte, 1) != 1)
        bench_suite_fail(suite, "an attacker did not come so far");
    close(ends[0]);
    return pid;
}

void bench_attack_stop(pid_t pid)
{
    if (pid <= 0)
        return;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    bench_private_gone(pid);
}
