/*
 * long_client_death.c - a thousand clients are killed at any instruction; nothing of them stays.
 *
 *   long_client_death [--rounds N] [--seed S] [--loop KIND]
 *
 * Each round's client does one of the things clients do, over and over, and is killed a random time
 * later: between two bytes of a handshake, in a call, with batches in flight, with pages on offer.
 * Another engine computes all the while and must stay right. After the first rounds, which touch
 * every code path once, descriptors of daemon and worker must be the same after every round, and
 * their memory at the end what it was.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/harness.h"
#include "tests/support/harness/long_options.h"
#include "tests/support/trial/trial.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WARM_UP 50
#define GROWTH_MAX_KB 4096 /* over all rounds: four bytes of a thousand clients would be more */

enum habit { CONNECTS, CALLS, SUBMITS, OFFERS, HABITS };

struct client {
    const struct harness *harness;
    enum habit habit;
    uint32_t alive;
};

static void connect_again(const struct client *self)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = self->harness->socket, .name = "connects"};
    struct attnd_session *session;

    CHECK_OK(attnd_open(&args, &session));
    attnd_close(session);
}

static void call_again(struct engine *engine)
{
    struct random_shape shape = engine->shape;

    shape.page_size = shape.page_size == 16 ? 32 : 16; /* another pool, another plan */
    engine_pool(engine, &shape);
}

static void offer_again(struct engine *engine)
{
    struct attnd_token ticket;
    int32_t pages[4];
    uint32_t pool;

    CHECK_OK(attnd_pages_offer(engine->session, engine->pool, 4, engine->page_ids, 1000, &ticket));
    CHECK_EQUAL(attnd_pages_claim(engine->session, &ticket, &pool, pages, 4), 4);
}

static int client(void *context)
{
    struct client *self = context;
    struct random_batch batch = e2e_batch();
    struct engine engine;
    struct trial trial;

    harness_say(&self->alive, 1);
    while (self->habit == CONNECTS)
        connect_again(self);
    engine_open(&engine, self->harness->socket, "victim");
    batch.shape.service_pool = self->habit == OFFERS;
    trial_begin(&trial, &engine, &batch, 0);
    while (self->alive) { /* until it is killed */
        if (self->habit == CALLS)
            call_again(&engine);
        else if (self->habit == OFFERS)
            offer_again(&engine);
        else if (trial_submit_set(&trial, 0, ATTND_SKIP_SUCCESS) ||
                 trial_submit_run(&trial, 0, 0, 0, ATTND_SKIP_SUCCESS))
            harness_sleep_ms(1);
    }
    return 1;
}

/* ---- what a process holds ---- */

struct footprint {
    uint32_t descriptors;
    long resident_kb;
};

static struct footprint footprint_of(pid_t pid)
{
    struct footprint footprint = {0};
    char path[64], line[256];

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *descriptors = opendir(path);
    CHECK(descriptors != NULL);
    for (const struct dirent *entry; (entry = readdir(descriptors));)
        footprint.descriptors += entry->d_name[0] != '.';
    closedir(descriptors);
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *status = fopen(path, "r");
    CHECK(status != NULL);
    while (fgets(line, sizeof(line), status))
        if (strncmp(line, "VmRSS:", 6) == 0)
            footprint.resident_kb = strtol(line + 6, NULL, 10);
    (void)fclose(status);
    return footprint;
}

struct pair {
    struct footprint daemon, worker;
};

/* Waits until the daemon has closed what it had of the last connection, the test's own included. */
struct resting {
    pid_t pid;
    uint32_t descriptors;
};

static int is_at_rest(void *context)
{
    const struct resting *resting = context;
    return footprint_of(resting->pid).descriptors == resting->descriptors;
}

static void expect_descriptors(pid_t pid, uint32_t descriptors, const char *what)
{
    struct resting resting = {pid, descriptors};
    harness_eventually(is_at_rest, &resting, 5000, what);
}

/* Only the neighbour is left: its session, its pool, its plan; no offer, nothing in flight. */
static int is_tidy(void *context)
{
    Attnd__Status *status = harness_status(context);
    int tidy = status->n_sessions == 1 && status->n_pools == 1 && status->plans == 1 &&
               status->queue_runs == 0;

    attnd__status__free_unpacked(status, NULL);
    return tidy;
}

static void kill_one(struct harness *harness, struct client *victim, struct prng *prng)
{
    *victim = (struct client){.harness = harness, .habit = (enum habit)prng_below(prng, HABITS)};
    pid_t pid = harness_fork(client, victim);

    harness_await(&victim->alive, 1);
    struct timespec pause = {0, (long)prng_below(prng, 60000) * 1000}; /* up to 60 ms */
    nanosleep(&pause, NULL);
    harness_kill(pid);
}

static void check_growth(const char *what, const struct footprint *before,
                         const struct footprint *after)
{
    printf("%s: %u descriptors, %ld kB resident before; %u and %ld kB after\n", what,
           before->descriptors, before->resident_kb, after->descriptors, after->resident_kb);
    CHECK_EQUAL(after->descriptors, before->descriptors);
    CHECK(after->resident_kb - before->resident_kb <= GROWTH_MAX_KB);
}

int main(int argc, char **argv)
{
    struct long_options settings = long_options_default(1000);
    struct random_batch batch = e2e_batch();
    struct harness harness;
    struct engine neighbour;
    struct pair before = {0}, now;

    argp_parse(&long_options_argp, argc, argv, 0, NULL, &settings);
    const uint64_t rounds = settings.rounds;
    const char *const daemon_options[] = {"--loop", settings.loop, "--quiet", NULL};
    printf("seed %" PRIu64 ", %" PRIu64 " rounds\n", settings.seed, rounds);
    struct prng prng = prng_fork(settings.seed, 0);
    struct client *victim = harness_shared(sizeof(*victim));
    harness_start(&harness, daemon_options);
    const pid_t worker = harness_worker(&harness);
    engine_open(&neighbour, harness.socket, "neighbour");

    for (uint64_t round = 0; round < WARM_UP + rounds; round++) {
        kill_one(&harness, victim, &prng);
        batch.seed = round;
        trial_expect(&neighbour, &batch);
        harness_eventually(is_tidy, &harness, 10000, "nothing is left of the client");
        if (round >= WARM_UP) {
            expect_descriptors(harness.daemon, before.daemon.descriptors, "the daemon's fds");
            expect_descriptors(worker, before.worker.descriptors, "the worker's fds");
        } else if (round + 1 == WARM_UP) {
            harness_sleep_ms(500);
        }
        now = (struct pair){footprint_of(harness.daemon), footprint_of(worker)};
        if (round + 1 == WARM_UP)
            before = now;
        if (round % 100 == 99)
            fprintf(stderr, "%" PRIu64 " of %" PRIu64 " deaths, daemon %ld kB, worker %ld kB\n",
                    round + 1, WARM_UP + rounds, now.daemon.resident_kb, now.worker.resident_kb);
    }
    CHECK_EQUAL(harness_worker(&harness), worker);
    check_growth("daemon", &before.daemon, &now.daemon);
    check_growth("worker", &before.worker, &now.worker);
    engine_close(&neighbour);
    harness_stop(&harness);
    printf("survived %" PRIu64 " deaths of clients\n", rounds);
    return 0;
}
