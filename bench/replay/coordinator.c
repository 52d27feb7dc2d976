/* coordinator.c - one replay: the parent makes the pool, decides who gets what, forks the engines,
 * watches them, and adds up what they counted.
 *
 * A pool belongs to the parent's session, so it outlives every engine: pages on their way from a
 * prefill engine that has exited to a decode engine stay. Engines share with the parent one block
 * of memory for what they count; only the progress figure is read while they write it. */
#include "bench/replay/replay.h"
#include "bench/support/private_service.h"
#include "ipc/wake.h"
#include "schemas/atomics.h"
#include "service/ctl/attnctl.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define POOL_BYTES_DEFAULT ((uint64_t)1 << 30) /* a pool chosen from the trace grows no larger */
#define POLL_NS 20000000

struct replay {
    struct replay_job job;
    struct attnd_session *session[REPLAY_SERVICES_MAX];
    uint32_t pool[REPLAY_SERVICES_MAX];
    uint16_t *routes; /* [2 x requests] */
    int pipes[REPLAY_ENGINES_MAX][2];
    size_t slot_bytes;
    pid_t pid[REPLAY_ENGINES_MAX];
    char *why;
    size_t why_bytes;
};

static int fail(struct replay *replay, const char *what, const char *detail)
{
    snprintf(replay->why, replay->why_bytes, "%s: %s", what, detail);
    return -1;
}

static int fail_call(struct replay *replay, const char *call)
{
    struct attnd_fault fault;
    char text[160];

    attnd_last_fault(&fault);
    return fail(replay, call, attnd_fault_string(&fault, text, sizeof(text)));
}

const char *replay_cache_title(enum replay_cache cache)
{
    static const char *const titles[] = {"one tree", "caches apart", "no cache"};
    return titles[cache];
}

/* ---- the pool ---- */

static uint64_t page_bytes(const struct replay_options *options)
{
    return 2ull * 2 * options->layers * options->page_size * options->heads_kv * options->head_dim;
}

/* Room for what can run at once and as much again for prefixes, but no more than the trace fills
 * and not without end; never less than the caches' half and the largest request beside it. */
static int choose_pool_pages(struct replay *replay)
{
    const struct replay_options *options = replay->job.options;
    const struct replay_trace *trace = replay->job.trace;
    uint64_t all = 0, largest = 0, wanted, least, room, room_bytes;

    for (uint32_t i = 0; i < trace->requests; i++) {
        uint64_t pages = replay_pages_of(&trace->request[i], options->page_size);
        all += pages;
        largest = pages > largest ? pages : largest;
    }
    least = 2 * largest + 2 * options->engines;
    wanted = 2 * (uint64_t)options->engines * options->batch * largest;
    if (wanted > 2 * all)
        wanted = 2 * all;
    if (wanted < least)
        wanted = least;
    room_bytes = options->pool_bytes ? options->pool_bytes : POOL_BYTES_DEFAULT;
    room = room_bytes / page_bytes(options);
    if (options->pool_bytes)
        wanted = room;
    else if (wanted > room)
        wanted = room > least ? room : least;
    if (wanted < least || wanted > INT32_MAX) {
        char text[160];
        snprintf(text, sizeof(text),
                 "it needs %llu pages of %llu bytes for the longest request; --pool-mib or "
                 "--max-context help",
                 (unsigned long long)least, (unsigned long long)page_bytes(options));
        return fail(replay, "the pool is too small", text);
    }
    replay->job.pool_pages = (uint32_t)wanted;
    replay->job.page_bytes = page_bytes(options);
    return 0;
}

static int make_prefix(struct replay *replay)
{
    struct attnd_prefix_desc desc = {.size = sizeof(desc), .block_pages = 1};
    uint32_t prefix;

    if (attnd_prefix_open(replay->session[0], replay->pool[0], &desc, &prefix))
        return fail_call(replay, "attnd_prefix_open");
    if (attnd_prefix_share(replay->session[0], prefix, 1, &replay->job.prefix_token))
        return fail_call(replay, "attnd_prefix_share");
    return 0;
}

static int make_pool(struct replay *replay, uint32_t service)
{
    const struct replay_options *options = replay->job.options;
    struct attnd_open_args open_args = {.size = sizeof(open_args),
                                        .socket_path = replay->job.socket_path[service],
                                        .name = "replay-parent"};
    struct attnd_pool_desc desc = {.size = sizeof(desc),
                                   .layers = options->layers,
                                   .pages = replay->job.pool_pages,
                                   .page_size = options->page_size,
                                   .heads_kv = options->heads_kv,
                                   .dim_qk = options->head_dim,
                                   .dim_vo = options->head_dim,
                                   .dtype = options->dtype,
                                   .page_owner = ATTND_PAGES_OF_SERVICE};

    if (attnd_open(&open_args, &replay->session[service]))
        return fail_call(replay, "attnd_open");
    if (attnd_pool_create(replay->session[service], &desc, &replay->pool[service]))
        return fail_call(replay, "attnd_pool_create");
    if (attnd_pool_share(replay->session[service], replay->pool[service], 1,
                         &replay->job.pool_token[service]))
        return fail_call(replay, "attnd_pool_share");
    return 0;
}

static int make_pools(struct replay *replay, struct attnd_info *info)
{
    for (uint32_t i = 0; i < replay->job.options->services; i++)
        if (make_pool(replay, i))
            return -1;
    info->size = sizeof(*info);
    if (attnd_info(replay->session[0], info))
        return fail_call(replay, "attnd_info");
    return replay->job.cache == REPLAY_CACHE_SERVICE ? make_prefix(replay) : 0;
}

/* Of engines too: the parent's, of which they have a copy. */
static void close_sessions(struct replay *replay)
{
    for (uint32_t i = 0; i < replay->job.options->services; i++)
        attnd_close(replay->session[i]);
}

/* ---- the engines ---- */

static int make_routes(struct replay *replay)
{
    uint32_t requests = replay->job.trace->requests;

    replay->routes = calloc(2 * (size_t)requests, sizeof(replay->routes[0]));
    if (!replay->routes || replay_route(replay->job.options, replay->job.trace, replay->job.cache,
                                        replay->routes, replay->routes + requests))
        return fail(replay, "routes", "out of memory");
    replay->job.prefill_of = replay->routes;
    replay->job.decode_of = replay->routes + requests;
    return 0;
}

static int make_pipes(struct replay *replay)
{
    const struct replay_options *options = replay->job.options;

    for (uint32_t i = options->prefill_engines; i < options->engines; i++)
        if (options->mode == REPLAY_DISAGGREGATED && pipe2(replay->pipes[i], O_CLOEXEC))
            return fail(replay, "pipe", strerror(errno));
    return 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void close_pipes(struct replay *replay)
{
    for (uint32_t i = 0; i < REPLAY_ENGINES_MAX; i++) {
        close_fd(&replay->pipes[i][0]);
        close_fd(&replay->pipes[i][1]);
    }
}

/* An end that nobody reads or writes any more must show: each engine keeps its own only. */
static void close_foreign_pipes(struct replay *replay, uint32_t index)
{
    bool prefills = index < replay->job.options->prefill_engines;

    for (uint32_t i = 0; i < REPLAY_ENGINES_MAX; i++) {
        if (i != index)
            close_fd(&replay->pipes[i][0]);
        if (!prefills)
            close_fd(&replay->pipes[i][1]);
    }
}

static void engine_process(struct replay *replay, uint32_t index, pid_t parent)
{
    bench_private_leave();
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
        _exit(EXIT_FAILURE);
    close_foreign_pipes(replay, index);
    close_sessions(replay);
    _exit(replay_engine_main(&replay->job, index));
}

static int fork_engines(struct replay *replay)
{
    pid_t parent = getpid();

    fflush(NULL);
    replay->job.start_ns = attnd_clock_ns();
    for (uint32_t i = 0; i < replay->job.options->engines; i++) {
        pid_t pid = fork();

        if (pid < 0)
            return fail(replay, "fork", strerror(errno));
        if (!pid)
            engine_process(replay, i, parent);
        bench_private_child(pid);
        replay->pid[i] = pid;
    }
    close_pipes(replay);
    return 0;
}

static uint64_t tokens_done(const struct replay *replay)
{
    uint64_t done = 0;

    for (uint32_t i = 0; i < replay->job.options->engines; i++)
        done += attnd_peek64(&replay->job.slot[i].stats.tokens_done);
    return done;
}

static int engine_ended(struct replay *replay, pid_t pid, int status)
{
    const struct replay_options *options = replay->job.options;
    char what[64], text[64];

    bench_private_gone(pid);
    for (uint32_t i = 0; i < options->engines; i++) {
        const struct replay_engine_slot *slot = &replay->job.slot[i];

        if (replay->pid[i] != pid)
            continue;
        replay->pid[i] = 0;
        if (WIFEXITED(status) && !WEXITSTATUS(status))
            return 0;
        snprintf(what, sizeof(what), "engine %u", i);
        snprintf(text, sizeof(text), "ended by signal %d",
                 WIFSIGNALED(status) ? WTERMSIG(status) : 0);
        return fail(replay, what, slot->error[0] ? slot->error : text);
    }
    return 0; /* somebody else's child */
}

static int await_engines(struct replay *replay, struct replay_progress *progress)
{
    uint32_t left = replay->job.options->engines;

    while (left) {
        static const struct timespec period = {.tv_nsec = POLL_NS};
        int status;
        pid_t pid;

        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
            if (bench_private_is_daemon(pid)) {
                bench_private_gone(pid);
                return fail(replay, "attnd", "it ended during the replay");
            }
            left -= left > 0;
            if (engine_ended(replay, pid, status))
                return -1;
        }
        replay_progress_show(progress, tokens_done(replay));
        if (left)
            nanosleep(&period, NULL);
    }
    return 0;
}

static void end_engines(struct replay *replay)
{
    for (uint32_t i = 0; i < replay->job.options->engines; i++) {
        if (!replay->pid[i])
            continue;
        kill(replay->pid[i], SIGKILL);
        waitpid(replay->pid[i], NULL, 0);
        bench_private_gone(replay->pid[i]);
    }
}

/* ---- the whole ---- */

static uint64_t tokens_in(const struct replay_trace *trace)
{
    uint64_t tokens = 0;

    for (uint32_t i = 0; i < trace->requests; i++)
        tokens += trace->request[i].input_tokens + trace->request[i].output_tokens;
    return tokens;
}

/* By the service's own account, of the newest pool: the trees of others do not count. */
static uint64_t pages_evicted(const struct replay *replay)
{
    Attnd__PrefixQuery query = ATTND__PREFIX_QUERY__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    Attnd__Reply *reply;
    uint64_t evicted = 0;
    uint32_t newest = 0;

    request.call_case = ATTND__REQUEST__CALL_PREFIX_QUERY;
    request.prefix_query = &query;
    if (attnctl_ask(replay->job.socket_path[0], &request, &reply))
        return 0;
    for (size_t i = 0; reply->prefix_status && i < reply->prefix_status->n_space; i++) {
        const Attnd__PrefixSpace *space = reply->prefix_status->space[i];

        if (space->pool < newest)
            continue;
        newest = space->pool;
        evicted = space->evicted;
    }
    attnd__reply__free_unpacked(reply, NULL);
    return evicted;
}

static int run(struct replay *replay, struct replay_result *result)
{
    const struct replay_options *options = replay->job.options;
    struct replay_progress progress;
    int failed;

    if (choose_pool_pages(replay) || make_routes(replay) || make_pipes(replay) ||
        make_pools(replay, &result->service) || fork_engines(replay))
        return -1;
    replay_progress_begin(&progress, replay_cache_title(replay->job.cache),
                          tokens_in(replay->job.trace));
    failed = await_engines(replay, &progress);
    replay_progress_end(&progress);
    for (uint32_t i = 0; i < options->engines; i++) {
        const struct replay_engine_slot *slot = &replay->job.slot[i];

        result->engine[i] = slot->stats;
        replay_stats_merge(&result->total, &slot->stats);
        if (slot->mismatch[0])
            fprintf(stderr, "attnd-replay: engine %u: mismatch: %s\n", i, slot->mismatch);
    }
    result->wall_ns = result->total.end_ns - replay->job.start_ns;
    if (replay->job.cache == REPLAY_CACHE_SERVICE)
        result->total.pages_evicted = pages_evicted(replay);
    result->cache = replay->job.cache;
    result->pool_pages = replay->job.pool_pages;
    result->page_bytes = replay->job.page_bytes;
    result->page_tokens = options->page_size;
    return failed;
}

int replay_run(const struct replay_options *options, const struct replay_trace *trace,
               const char *const *socket_path, enum replay_cache cache,
               struct replay_result *result, char *why, size_t why_bytes)
{
    struct replay replay = {
        .job = {.options = options, .trace = trace, .cache = cache, .socket_path = socket_path},
        .slot_bytes = options->engines * sizeof(struct replay_engine_slot),
        .why = why,
        .why_bytes = why_bytes};
    int failed;

    memset(result, 0, sizeof(*result));
    for (uint32_t i = 0; i < REPLAY_ENGINES_MAX; i++)
        replay.pipes[i][0] = replay.pipes[i][1] = -1;
    replay.job.pipe = replay.pipes;
    replay.job.slot =
        mmap(NULL, replay.slot_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (replay.job.slot == MAP_FAILED)
        return fail(&replay, "mmap", strerror(errno));
    failed = run(&replay, result);
    if (failed)
        end_engines(&replay);
    close_pipes(&replay);
    close_sessions(&replay);
    free(replay.routes);
    munmap(replay.job.slot, replay.slot_bytes);
    return failed;
}
