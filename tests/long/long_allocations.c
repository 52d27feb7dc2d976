/*
 * long_allocations.c - each allocation of the daemon fails once, and nothing is lost.
 *
 *   long_allocations [--rounds N] [--seed S] [--loop KIND]
 *
 * A session does one of everything that sessions do: memory, pools, leases, tickets, plans, runs,
 * the prefix tree, prepared runs, status. In round n the daemon's nth allocation since its
 * connection fails (tests/support/preload/fail_allocation.c). The session may be refused or ended,
 * and no call waits longer than libattnd does. Then the daemon must be alive, and have as many
 * descriptors, and count as many sessions, plans and bytes, as before; and another session must
 * compute what is right. It is over when a round has fewer allocations than its number.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/harness.h"
#include "tests/support/harness/long_options.h"
#include "tests/support/preload/fail_allocation.h"
#include "tests/support/trial/trial.h"

#include "client/attnd_launch.h"
#include "client/attnd_prefix.h"
#include "schemas/atomics.h"

#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGES 8u
#define WAIT_NS 2000000000u
#define COMPUTE_EACH 20u /* rounds between two batches of another session */

struct scene {
    struct attnd_session *session;
    uint32_t memory, pool, plan, prefix, prepared;
    int32_t pages[PAGES];
    uint32_t in_flight;
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

static void live(const struct harness *harness)
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

/* ---- the judge ---- */

struct books {
    const struct harness *harness;
    uint32_t descriptors, plans;
    uint64_t heap_bytes, host_bytes;
};

static int read_books(struct books *books)
{
    Attnd__Status *status = harness_status(books->harness);
    const int alone = status->n_sessions <= 1 && status->n_pools == 0; /* who asks */

    books->descriptors = harness_descriptors(books->harness->daemon);
    books->plans = status->plans;
    books->heap_bytes = status->heap_used_bytes;
    books->host_bytes = status->host_memory_bytes;
    attnd__status__free_unpacked(status, NULL);
    return alone;
}

static int quiet(void *context)
{
    return read_books(context);
}

static int balanced(void *context)
{
    const struct books *before = context;
    struct books now = {.harness = before->harness};

    return read_books(&now) && now.descriptors == before->descriptors &&
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

int main(int argc, char **argv)
{
    struct long_options options = long_options_default(100000);
    struct harness harness;
    struct books books = {.harness = &harness};
    char path[64];
    uint64_t round = 0, failed = 0;

    argp_parse(&long_options_argp, argc, argv, 0, NULL, &options);
    harness_init();
    preload(argv[0], path, sizeof(path));
    const char *const daemon[] = {"--loop", options.loop, "--threads", "2", NULL};
    harness_start(&harness, options.loop ? daemon : daemon + 2);
    for (uint32_t i = 0; i < 3; i++)
        live(&harness); /* what is made once is there */
    (void)harness_eventually(quiet, &books, 10000, "the sessions are gone");
    for (int more = 1; more && round < options.rounds;) {
        attnd_publish32(&control->calls, 0);
        attnd_publish32(&control->failed, 0);
        attnd_publish32(&control->fail_at, (uint32_t)++round);
        attnd_publish32(&control->armed, 1);
        live(&harness);
        attnd_publish32(&control->armed, 0);
        more = (int)attnd_observe32(&control->failed);
        failed += attnd_observe32(&control->failed);
        judge(&books, round);
    }
    printf("%" PRIu64 " allocations failed, the daemon is alive, nothing is lost\n", failed);
    harness_stop(&harness);
    unlink(path);
    return failed == 0;
}
