/* deaths.c - lives that end in the middle of everything. */
#include "bench/support/deaths.h"
#include "bench/support/amounts.h"
#include "bench/support/attack.h"
#include "bench/support/attack_parts.h"
#include "bench/support/private_service.h"
#include "client/attnd_launch.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TOGETHER 8u
#define MEMORIES 8
#define PAGES 64u
#define BLOCKS 16u
#define TICKET_MS 1000u
#define LONG_KEYS (64u << 20)
#define LOOKS 600u
#define LOOK_NS 50000000
#define RESTS_FOR 30u /* looks */

/* ---- a life ---- */

static bool lease_and_offer(struct bench_suite *suite, struct attnd_session *session, uint32_t pool)
{
    int32_t pages[PAGES / 2];
    struct attnd_token ticket, shared;
    uint32_t attached;

    return bench_suite_call(suite, "attnd_pages_alloc",
                            attnd_pages_alloc(session, pool, PAGES / 2, pages)) &&
           bench_suite_call(suite, "attnd_pages_offer",
                            attnd_pages_offer(session, pool, 4, pages, TICKET_MS, &ticket)) &&
           bench_suite_call(
               suite, "attnd_pages_offer_layers",
               attnd_pages_offer_layers(session, pool, 4, pages + 4, TICKET_MS, &ticket)) &&
           bench_suite_call(suite, "attnd_pool_share",
                            attnd_pool_share(session, pool, 1, &shared)) &&
           bench_suite_call(suite, "attnd_pool_attach",
                            attnd_pool_attach(session, &shared, &attached));
}

/* Half of its blocks are published; the others are claimed, and a match waits for them. */
static bool claim_and_wait(struct bench_suite *suite, struct attnd_session *session, uint32_t pool,
                           uint32_t prefix)
{
    struct attnd_prefix_key keys[BLOCKS];
    int32_t pages[BLOCKS / 2];
    uint64_t next = 0;
    struct attnd_prefix_args args = {
        .size = sizeof(args), .prefix = prefix, .blocks = BLOCKS, .keys = keys};
    const struct attnd_op op = {0};

    attack_keys(keys, BLOCKS, &next);
    if (!bench_suite_call(suite, "attnd_pages_alloc",
                          attnd_pages_alloc(session, pool, BLOCKS / 2, pages)) ||
        !bench_suite_call(suite, "attnd_prefix_claim", attnd_prefix_claim(session, &args, &op)))
        return false;
    args.blocks = BLOCKS / 2;
    if (!bench_suite_call(suite, "attnd_prefix_publish",
                          attnd_prefix_publish(session, &args, pages, &op)) ||
        !bench_wait_all(suite, session, 2, NULL))
        return false;
    args.blocks = BLOCKS;
    args.flags = ATTND_PREFIX_MATCH_WAITS;
    return bench_suite_call(suite, "attnd_prefix_match", attnd_prefix_match(session, &args, &op));
}

static bool run_and_launch(struct bench_suite *suite, struct attnd_session *session, uint32_t plan,
                           uint32_t memory)
{
    const struct attnd_run_args run = {.size = sizeof(run), .q = {memory, 0}, .o = {memory, 4096}};
    const struct attnd_prepare_args args = {
        .size = sizeof(args), .q = {memory, 0}, .o = {memory, 4096}};
    uint32_t prepared;

    if (!bench_suite_call(suite, "attnd_prepare", attnd_prepare(session, plan, &args, &prepared)) ||
        !bench_suite_call(suite, "attnd_launch", attnd_launch(session, 0, prepared)))
        return false;
    for (uint16_t lane = 0; lane < 4; lane++) {
        const struct attnd_op op = {.lane = lane};
        if (!bench_suite_call(suite, "attnd_run", attnd_run(session, plan, &run, &op)))
            return false;
    }
    return true;
}

static void live(struct bench_suite *suite, int fd)
{
    struct attnd_session *session;
    uint32_t plan, memory, pool, prefix;
    int32_t page;

    if (!bench_endless_open(suite, LONG_KEYS, &session, &plan, &memory) ||
        attack_memories(suite, session, MEMORIES, 65536) < MEMORIES ||
        !attack_cache(suite, session, PAGES, &pool, &prefix) ||
        !lease_and_offer(suite, session, pool) || !claim_and_wait(suite, session, pool, prefix) ||
        !run_and_launch(suite, session, plan, memory))
        return;
    attack_begun(&fd);
    while (attnd_pages_alloc(session, pool, 1, &page) == 0 &&
           attnd_pages_free(session, pool, 1, &page) == 0)
        ;
}

/* ---- many ---- */

bool bench_deaths(struct bench_suite *suite, uint64_t count)
{
    pid_t pids[TOGETHER];
    bool well = true;

    for (uint32_t i = 0; i < TOGETHER; i++) {
        pids[i] = bench_private_fork();
        if (pids[i] != 0)
            continue;
        for (uint64_t n = i; n < count; n += TOGETHER)
            if (!attack_die(suite, live))
                _exit(1);
        _exit(0);
    }
    for (uint32_t i = 0; i < TOGETHER; i++) {
        int status = 1;
        well &= pids[i] > 0 && waitpid(pids[i], &status, 0) == pids[i] && status == 0;
        if (pids[i] > 0)
            bench_private_gone(pids[i]);
    }
    if (!well)
        bench_suite_fail(suite, "a process that was to be killed did not come so far");
    return well;
}

/* ---- what is left ---- */

static uint64_t descriptors_of(pid_t pid)
{
    char path[64];
    uint64_t count = 0;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && (entry = readdir(folder));)
        count += entry->d_name[0] != '.';
    if (folder)
        closedir(folder);
    return count;
}

static bool look(struct bench_suite *suite, struct bench_estate *estate)
{
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    Attnd__Reply *reply = bench_suite_status(suite);

    if (!reply)
        return false;
    nanosleep(&pause, NULL); /* this question's own descriptors are closed */
    const Attnd__Status *status = reply->status;
    *estate = (struct bench_estate){
        .descriptors = descriptors_of(bench_private_pid()),
        .worker_descriptors = descriptors_of((pid_t)status->worker_pid),
        .bytes = status->host_memory_bytes + status->heap_used_bytes + status->closing_bytes,
        .objects = status->n_sessions + status->n_pools + status->plans + status->queue_runs +
                   status->queue_waiting + status->closing};
    for (size_t i = 0; i < status->n_quotas; i++)
        estate->objects += status->quotas[i]->used;
    attnd__reply__free_unpacked(reply, NULL);
    return true;
}

/* Threads close descriptors behind those who had them: the least of the looks counts. */
bool bench_estate(struct bench_suite *suite, struct bench_estate *estate)
{
    struct bench_estate now = {0};
    uint32_t rests = 0;

    *estate = now;
    for (uint32_t i = 0; i < LOOKS && rests < RESTS_FOR; i++) {
        if (!look(suite, &now))
            return false;
        const bool same = now.bytes == estate->bytes && now.objects == estate->objects;
        rests = same ? rests + 1 : 0;
        if (same) {
            now.descriptors = bench_least(now.descriptors, estate->descriptors);
            now.worker_descriptors =
                bench_least(now.worker_descriptors, estate->worker_descriptors);
        }
        *estate = now;
    }
    return true;
}
