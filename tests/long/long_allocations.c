/*
 * long_allocations.c - each allocation of the daemon fails once, and nothing is lost.
 *
 *   long_allocations [--rounds N] [--seed S] [--loop KIND]
 *
 * A session does one of everything that sessions do: memory, pools, leases, tickets, plans, runs,
 * the prefix tree, prepared runs, status. Another one sets plans that the planner's thread makes.
 * An operator asks for all that attnctl shows, and a scraper for metrics. The worker dies. In round
 * n of each the daemon's nth allocation since then fails (tests/support/preload/fail_allocation.c).
 * A session may be refused or ended, and no call waits longer than libattnd does. Then the daemon
 * must be alive with a worker, and have as many descriptors, and count as many sessions, plans and
 * bytes, as before; and another session must compute what is right. It is over when a round has
 * fewer allocations than its number.
 *
 * In round n of a start its nth allocation fails. The daemon then is as ever, or ends by itself
 * with a message, and leaves nothing.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/harness.h"
#include "tests/support/harness/long_options.h"
#include "tests/support/preload/fail_allocation.h"
#include "tests/support/trial/trial.h"

#include "client/attnd.h"
#include "schemas/atomics.h"

#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 8u
#define WAIT_NS 2000000000u
#define QUIET_LOOKS 50u
#define COMPUTE_EACH 20u /* rounds between two batches of another session */

struct scene {
    struct attnd_session *session;
    uint32_t memory, pool, plan, prefix, prepared;
    int32_t pages[PAGES];
    uint32_t in_flight;
};

struct books {
    const struct harness *harness;
    uint32_t workers, looks, descriptors, plans;
    uint64_t heap_bytes, host_bytes;
};

static struct fail_control *control;

/* ---- what a session does; each may be refused, and the rest goes on ---- */

static void count(struct scene *scene, int submitted)
{
    scene->in_flight += submitted == 0;
}

static void collect(struct scene *scene)
{
    struct attnd_completion completions[8];
    while (scene->in_flight) {
        const int got = attnd_wait(scene->session, completions, 8, WAIT_NS);
        if (got <= 0)
            return;
        scene->in_flight -= (uint32_t)got;
    }
}

static void make_objects(struct scene *scene)
{
    struct attnd_plan_args room = ATTND_ARGS(plan_args, 0, 2, 8, PAGES, 1, .heads_q = 2);
    struct attnd_token token, ticket;
    uint32_t pool, given;
    int32_t pages[2];
    void *at;

    (void)attnd_memory_create(scene->session, 65536, &scene->memory, &at);
    (void)attnd_pool_create_leased(scene->session, 1, PAGES, 16, 1, 16, ATTND_DTYPE_FP16,
                                   &scene->pool);
    (void)attnd_pages_alloc(scene->session, scene->pool, PAGES, scene->pages);
    room.pool = scene->pool;
    (void)attnd_plan_create(scene->session, &room, &scene->plan);
    if (attnd_pool_share(scene->session, scene->pool, 0, &token) == 0 &&
        attnd_pool_attach(scene->session, &token, &pool) == 0)
        (void)attnd_pool_release(scene->session, pool);
    if (attnd_pages_offer(scene->session, scene->pool, 2, scene->pages + 6, 1000, &ticket) == 0)
        (void)attnd_pages_claim(scene->session, &ticket, &given, pages, 2);
}

static void compute(struct scene *scene)
{
    const int32_t rows[] = {0, 1, 2}, starts[] = {0, 1, 2}, last[] = {8, 16};
    const int32_t lengths[] = {9, 16};
    struct attnd_level level = {2, rows, starts, scene->pages, last};
    struct attnd_batch batch = ATTND_ARGS(batch, .flags = ATTND_CAUSAL, .level = &level);
    struct attnd_advance advance = ATTND_ARGS(advance, 2, lengths, NULL, NULL);
    struct attnd_append_args append =
        ATTND_ARGS(append_args, 0, {scene->memory, 8192}, {scene->memory, 12288});
    struct attnd_run_args run =
        ATTND_ARGS(run_args, 0, {scene->memory, 0}, {scene->memory, 4096}, {scene->memory, 16384});

    count(scene, attnd_plan_set(scene->session, scene->plan, &batch, NULL));
    count(scene, attnd_append(scene->session, scene->plan, &append, NULL));
    count(scene, attnd_run(scene->session, scene->plan, &run, NULL));
    count(scene, attnd_plan_advance(scene->session, scene->plan, &advance, NULL));
    count(scene, attnd_run(scene->session, scene->plan, &run, NULL));
    collect(scene);
}

static void share_prefixes(struct scene *scene)
{
    const struct attnd_prefix_key keys[] = {{{1, 2}}, {{3, 4}}, {{5, 6}}};
    struct attnd_prefix_desc desc = ATTND_ARGS(prefix_desc, .block_pages = 1);
    struct attnd_prefix_args args = ATTND_ARGS(prefix_args, 0, 2, 0, keys, NULL);

    if (attnd_prefix_open(scene->session, scene->pool, &desc, &scene->prefix) < 0)
        return;
    args.prefix = scene->prefix;
    count(scene, attnd_prefix_claim(scene->session, &args, NULL));
    count(scene, attnd_prefix_publish(scene->session, &args, scene->pages + 2, NULL));
    args.blocks = 3;
    args.flags = ATTND_PREFIX_MATCH_WAITS;
    count(scene, attnd_prefix_match(scene->session, &args, NULL));
    collect(scene);
    (void)attnd_prefix_release(scene->session, scene->prefix);
}

static void launch(struct scene *scene)
{
    const struct attnd_prepare_args args =
        ATTND_ARGS(prepare_args, .q = {scene->memory, 0}, .o = {scene->memory, 4096});

    if (attnd_prepare(scene->session, scene->plan, &args, &scene->prepared) < 0)
        return;
    if (attnd_launch(scene->session, 0, scene->prepared) == 0)
        (void)attnd_launch_wait(scene->session, 0, WAIT_NS);
    (void)attnd_unprepare(scene->session, scene->prepared);
}

static void live_small(const struct harness *harness)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = harness->socket, .name = "poor"};
    struct scene scene = {0};

    if (attnd_open(&args, &scene.session) < 0)
        return;
    make_objects(&scene);
    compute(&scene);
    share_prefixes(&scene);
    launch(&scene);
    (void)attnd_pages_free(scene.session, scene.pool, 1, scene.pages);
    (void)attnd_plan_destroy(scene.session, scene.plan);
    attnd_close(scene.session);
}

/* ---- plans that a thread makes ---- */

#define MANY 4200u /* requests, of one row and one page */

/* The pages that all have in common come first, then one each. */
static void set_and_advance(struct scene *scene)
{
    static int32_t rows[MANY + 1], starts[MANY + 1], pages[2 * MANY], last[MANY], lengths[MANY];
    struct attnd_level level = {MANY, rows, starts, pages, last};
    struct attnd_batch batch = ATTND_ARGS(batch, .flags = ATTND_SHARED_PAGES, .level = &level);
    struct attnd_advance advance = ATTND_ARGS(advance, MANY, lengths, NULL, NULL);

    for (int32_t i = 0; i <= (int32_t)MANY; i++) {
        rows[i] = i;
        starts[i] = 2 * i;
    }
    for (int32_t i = 0; i < (int32_t)MANY; i++) {
        pages[2 * i] = 0;
        pages[2 * i + 1] = 1 + i;
        last[i] = 1;
        lengths[i] = 1; /* within what is shared: it is planned again */
    }
    count(scene, attnd_plan_set(scene->session, scene->plan, &batch, NULL));
    count(scene, attnd_plan_advance(scene->session, scene->plan, &advance, NULL));
    count(scene, attnd_plan_set(scene->session, scene->plan, &batch, NULL));
    collect(scene);
}

static void live_large(const struct harness *harness)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = harness->socket, .name = "large"};
    struct attnd_plan_args room = ATTND_ARGS(plan_args, 0, MANY, MANY, 2 * MANY, 1, .heads_q = 1);
    static int32_t pages[MANY + 1];
    struct scene scene = {0};

    if (attnd_open(&args, &scene.session) < 0)
        return;
    (void)attnd_pool_create_leased(scene.session, 1, MANY + 1, 4, 1, 16, ATTND_DTYPE_FP16,
                                   &room.pool);
    (void)attnd_pages_alloc(scene.session, room.pool, MANY + 1, pages);
    (void)attnd_plan_create(scene.session, &room, &scene.plan);
    set_and_advance(&scene);
    attnd_close(scene.session);
}

/* ---- those who ask ---- */

static char metrics[64]; /* the path of the endpoint */

/* The connection may be closed at any time, and its end comes. */
static void scrape(void)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\n\r\n";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[4096];
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s", metrics);
    CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0);
    (void)send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL);
    while (recv(fd, text, sizeof(text), 0) > 0)
        ;
    close(fd);
}

static void live_asking(const struct harness *harness)
{
    static const char *const asked[][3] = {{"status"}, {"latency"}, {"metrics"},
                                           {"prefix"}, {"peers"},   {"ping"}};
    static char text[262144];

    scrape();
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++)
        (void)harness_attnctl(harness, asked[i], text, sizeof(text));
}

/* ---- a worker's death ---- */

/* By its log: who asks the daemon takes memory of it. @pid: of the last one. */
static uint32_t workers_so_far(const struct harness *harness, int *pid)
{
    FILE *log = fopen(harness->log, "re");
    char line[512];
    uint32_t count = 0;

    CHECK(log != NULL);
    while (fgets(line, sizeof(line), log)) {
        const char *worker = strstr(line, "] worker ");
        if (worker && strstr(line, ": running, backend "))
            count += sscanf(worker, "] worker %d", pid) == 1;
    }
    (void)fclose(log);
    return count;
}

static int has_another_worker(void *context)
{
    const struct books *books = context;
    int pid;

    return workers_so_far(books->harness, &pid) > books->workers;
}

static void live_without_worker(const struct harness *harness)
{
    int pid = 0;
    struct books books = {.harness = harness, .workers = workers_so_far(harness, &pid)};

    CHECK(pid > 1);
    CHECK_EQUAL(kill(pid, SIGKILL), 0);
    (void)harness_eventually(has_another_worker, &books, 20000, "another worker runs");
}

/* ---- the judge ---- */

static int read_books(struct books *books)
{
    Attnd__Status *status = harness_status(books->harness);
    const int alone = status->n_sessions <= 1 && status->n_pools == 0 && /* who asks */
                      strcmp(status->worker_state, "running") == 0;

    books->descriptors = harness_descriptors(books->harness->daemon);
    books->plans = status->plans;
    books->heap_bytes = status->heap_used_bytes;
    books->host_bytes = status->host_memory_bytes;
    attnd__status__free_unpacked(status, NULL);
    return alone;
}

/* Descriptors of those who are gone, who asked included, are closed by threads of their own: the
 * least of many looks. */
static int quiet(void *context)
{
    struct books *books = context;
    struct books now = {.harness = books->harness};

    if (!read_books(&now))
        return 0;
    if (books->looks && books->descriptors < now.descriptors)
        now.descriptors = books->descriptors;
    now.looks = books->looks + 1;
    *books = now;
    return now.looks > QUIET_LOOKS;
}

static int balanced(void *context)
{
    const struct books *before = context;
    struct books now = {.harness = before->harness};
    return read_books(&now) && now.descriptors <= before->descriptors &&
           now.plans == before->plans && now.heap_bytes == before->heap_bytes &&
           now.host_bytes == before->host_bytes;
}

static void judge(struct books *books, uint64_t round)
{
    struct random_batch batch = e2e_batch();
    struct engine engine;

    CHECK_EQUAL(kill(books->harness->daemon, 0), 0);
    (void)harness_eventually(balanced, books, 10000, "nothing of the session is left");
    if (round % COMPUTE_EACH)
        return;
    engine_open(&engine, books->harness->socket, "rich");
    trial_expect(&engine, &batch);
    engine_close(&engine);
    (void)harness_eventually(balanced, books, 10000, "nothing of another session is left");
}

static void preload(const char *program, char *path, size_t path_bytes)
{
    char folder[4096], library[4200];

    snprintf(folder, sizeof(folder), "%s", program);
    snprintf(library, sizeof(library), "%s/../fail_allocation.so", dirname(folder));
    char *real = realpath(library, NULL);
    CHECK(real != NULL);
    snprintf(path, path_bytes, "/tmp/attnd-fail-XXXXXX");
    const int fd = mkstemp(path);
    CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
    control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(control != MAP_FAILED);
    close(fd);
    setenv("LD_PRELOAD", real, 1);
    setenv("ATTND_FAIL_CONTROL", path, 1);
    free(real);
}

static void arm(uint64_t round)
{
    attnd_publish32(&control->calls, 0);
    attnd_publish32(&control->failed, 0);
    attnd_publish32(&control->fail_at, (uint32_t)round);
    attnd_publish32(&control->armed, 1);
}

/* Return: 1 an allocation has failed since then. */
static uint32_t disarm(void)
{
    attnd_publish32(&control->armed, 0);
    return attnd_observe32(&control->failed);
}

/* Return: how many allocations failed. */
static uint64_t fail_each(struct books *books, void (*live)(const struct harness *harness),
                          uint64_t rounds)
{
    uint64_t failed = 0;

    books->looks = 0;
    for (uint32_t i = 0; i < 3; i++)
        live(books->harness); /* what is made once is there */
    (void)harness_eventually(quiet, books, 10000, "the sessions are gone");
    for (uint64_t round = 1; round <= rounds; round++) {
        arm(round);
        live(books->harness);
        const uint32_t fails = disarm();
        judge(books, round);
        failed += fails;
        if (!fails)
            break;
    }
    return failed;
}

static uint64_t fail_each_of_a_start(const char *const *options, uint64_t rounds)
{
    struct books books;
    struct harness harness;
    uint64_t failed = 0;
    uint32_t fails = 1;

    for (uint64_t round = 1; fails && round <= rounds; round++) {
        int status = 0;
        arm(round);
        const int starts = harness_try_start(&harness, options, &status);
        fails = disarm();
        failed += fails;
        if (!starts) {
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) != 0);
            continue;
        }
        books = (struct books){.harness = &harness};
        (void)harness_eventually(quiet, &books, 10000, "it is as ever");
        judge(&books, round);
        harness_stop(&harness);
    }
    return failed;
}

static const struct {
    const char *name;
    void (*live)(const struct harness *harness);
} lives[] = {{"of a session", live_small},
             {"of large plans", live_large},
             {"of those who ask", live_asking},
             {"of a worker's death", live_without_worker}};

int main(int argc, char **argv)
{
    struct long_options options = long_options_default(100000);
    struct harness harness;
    struct books books = {.harness = &harness};
    char path[64];
    uint64_t failed, sum = 0, least = UINT64_MAX;

    argp_parse(&long_options_argp, argc, argv, 0, NULL, &options);
    harness_init();
    preload(argv[0], path, sizeof(path));
    snprintf(metrics, sizeof(metrics), "/tmp/attnd-fail-%d.sock", (int)getpid());
    const char *const daemon[] = {
        "--threads", "2", "--metrics", metrics, options.loop ? "--loop" : NULL, options.loop, NULL};
    harness_start(&harness, daemon);
    for (size_t i = 0; i < sizeof(lives) / sizeof(lives[0]); i++) {
        failed = fail_each(&books, lives[i].live, options.rounds);
        least = failed < least ? failed : least;
        sum += failed;
        printf("%" PRIu64 " allocations %s failed, the daemon is alive, nothing is lost\n", failed,
               lives[i].name);
    }
    harness_stop(&harness);
    failed = fail_each_of_a_start(daemon, options.rounds);
    printf("%" PRIu64 " allocations of a start failed, and nothing was left\n", failed);
    printf("allocations: %" PRIu64 " failed, 0 lost\n", sum + failed); /* else it had ended */
    unlink(path);
    return least == 0 || failed == 0;
}
