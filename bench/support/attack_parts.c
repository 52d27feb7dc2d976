/* attack_parts.c - what attackers are made of. */
#include "bench/support/attack_parts.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

void attack_begun(int *fd)
{
    if (*fd >= 0 && write(*fd, "", 1) == 1)
        close(*fd);
    *fd = -1;
}

bool attack_open(struct bench_suite *suite, uint32_t ring_entries, uint64_t arena_bytes,
                 struct attnd_session **session)
{
    struct attnd_open_args args = {.size = sizeof(args),
                                   .socket_path = suite->socket_path,
                                   .name = "attacker",
                                   .ring_entries = ring_entries,
                                   .arena_bytes = arena_bytes};

    return bench_suite_call(suite, "attnd_open", attnd_open(&args, session));
}

struct attnd_pool_desc attack_pool(uint32_t pages, uint32_t owner)
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

bool attack_cache(struct bench_suite *suite, struct attnd_session *session, uint32_t pages,
                  uint32_t *pool, uint32_t *prefix)
{
    const struct attnd_pool_desc desc = attack_pool(pages, ATTND_PAGES_OF_SERVICE);
    const struct attnd_prefix_desc args = {.size = sizeof(args), .block_pages = 1};

    return bench_suite_call(suite, "attnd_pool_create", attnd_pool_create(session, &desc, pool)) &&
           bench_suite_call(suite, "attnd_prefix_open",
                            attnd_prefix_open(session, *pool, &args, prefix));
}

bool attack_plan(struct bench_suite *suite, struct attnd_session *session, uint32_t pool,
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

void attack_keys(struct attnd_prefix_key *keys, uint32_t count, uint64_t *next)
{
    for (uint32_t i = 0; i < count; i++) {
        keys[i].word[0] = ++*next * 0x9e3779b97f4a7c15u;
        keys[i].word[1] = *next;
    }
}

int attack_submitted(struct bench_suite *suite, const char *call, int code)
{
    if (code == -ATTND_E_FULL)
        return 0;
    return bench_suite_call(suite, call, code) ? 1 : -1;
}

int attack_collected(struct bench_suite *suite, struct attnd_session *session)
{
    struct attnd_completion done[ATTND_LANES_MAX];
    int got;

    while ((got = attnd_wait(session, done, ATTND_LANES_MAX, 0)) > 0)
        ;
    return attack_submitted(suite, "attnd_wait", got);
}

int attack_memories(struct bench_suite *suite, struct attnd_session *session, uint32_t count,
                    uint64_t bytes)
{
    for (uint32_t i = 0; i < count; i++) {
        const int file = memfd_create("attacker", MFD_ALLOW_SEALING | MFD_CLOEXEC);
        uint32_t memory;

        if (file < 0 || ftruncate(file, (off_t)bytes) < 0 ||
            fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) < 0) {
            bench_suite_fail(suite, "no memory for an attacker");
            return -1;
        }
        const int rc = attnd_memory_register(session, file, bytes, &memory);
        close(file);
        if (rc == -ATTND_E_NO_SPACE || rc == -ATTND_E_NO_MEMORY)
            return (int)i;
        if (!bench_suite_call(suite, "attnd_memory_register", rc))
            return -1;
    }
    return (int)count;
}

uint32_t attack_raise_descriptors(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 0;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    return (uint32_t)limit.rlim_cur;
}

bool attack_die(struct bench_suite *suite, void (*live)(struct bench_suite *suite, int fd))
{
    int ends[2];
    char byte;
    const pid_t pid = pipe(ends) < 0 ? -1 : fork();

    if (pid < 0)
        return false;
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        live(suite, ends[1]);
        _exit(1);
    }
    close(ends[1]);
    const bool there = read(ends[0], &byte, 1) == 1;
    close(ends[0]);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return there;
}
