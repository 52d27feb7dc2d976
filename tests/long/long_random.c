/*
 * long_random.c - a million random batches through libattnd, each element against fp64.
 *
 *   long_random [--rounds N] [--seed S] [--first K] [--seconds T] [--sessions P] [--loop KIND]
 *               [--contract]
 *
 * Processes, each with a session, take shapes of eight batches by turns, so a run is the batches
 * K..K+N of seed S whatever P is, and a run that was interrupted is continued with --first.
 * Progress is on standard error; the last line on standard output is
 *
 *   verified N batches, M mismatches
 *
 * A mismatch is printed with the smallest batch that shows it, and the exit status is 1.
 */
#include "tests/support/harness/harness.h"
#include "tests/support/harness/long_options.h"
#include "tests/support/random/soak.h"

#include "schemas/atomics.h"
#include "service/args/args.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SESSIONS_MAX 16
#define SHAPE_BATCHES 8u
#define MISMATCHES_MAX 5u /* of one session; then it stops */

struct settings {
    struct long_options common;
    uint64_t first;
    uint32_t seconds, sessions;
    uint32_t contract; /* batches have variants */
};

/* What the sessions tell the parent. */
struct tally {
    uint64_t verified, mismatches, with_long_kv, runs;
};

struct shared {
    uint64_t next_shape;
    uint32_t stop;
    struct tally tally[SESSIONS_MAX];
};

struct session {
    const struct settings *settings;
    const struct harness *harness;
    struct shared *shared;
    uint32_t number;
};

static void publish(struct tally *tally, const struct soak *soak, uint64_t mismatches)
{
    attnd_poke64(&tally->verified, soak->verified);
    attnd_poke64(&tally->with_long_kv, soak->with_long_kv);
    attnd_poke64(&tally->runs, soak->runs);
    attnd_poke64(&tally->mismatches, mismatches);
}

/* --first is that of a whole shape. */
static void print_command(const struct settings *settings, const struct soak *soak)
{
    const uint64_t begin = soak->wrong / SHAPE_BATCHES * SHAPE_BATCHES;

    fprintf(stderr, "repeat it: %s%s --seed %" PRIu64 " --first %" PRIu64 " --rounds %" PRIu64 "\n",
            program_invocation_name, settings->contract ? " --contract" : "", soak->seed, begin,
            soak->wrong - begin + 1);
}

/* A client process: shapes until there are none, or until it is told to stop. */
static int verify(void *context)
{
    const struct session *self = context;
    const uint64_t rounds = self->settings->common.rounds;
    struct soak soak = {.draw = self->settings->contract ? random_contract_draw : NULL,
                        .seed = self->settings->common.seed,
                        .stride = 1};
    struct engine engine;
    uint64_t mismatches = 0, begin;

    engine_open(&engine, self->harness->socket, "long_random");
    while (!attnd_peek32(&self->shared->stop) && mismatches < MISMATCHES_MAX &&
           (begin = SHAPE_BATCHES * attnd_take64(&self->shared->next_shape, 1)) < rounds) {
        soak.next = self->settings->first + begin;
        for (uint64_t i = begin; i < begin + SHAPE_BATCHES && i < rounds; i++) {
            const int wrong = soak_step(&soak, &engine);
            if (wrong)
                print_command(self->settings, &soak);
            mismatches += (uint64_t)wrong;
            publish(&self->shared->tally[self->number], &soak, mismatches);
        }
    }
    engine_close(&engine);
    return mismatches > 0;
}

static struct tally sum(const struct shared *shared)
{
    struct tally all = {0};

    for (int i = 0; i < SESSIONS_MAX; i++) {
        all.verified += attnd_peek64(&shared->tally[i].verified);
        all.mismatches += attnd_peek64(&shared->tally[i].mismatches);
        all.with_long_kv += attnd_peek64(&shared->tally[i].with_long_kv);
        all.runs += attnd_peek64(&shared->tally[i].runs);
    }
    return all;
}

static void show_progress(const struct settings *settings, const struct tally *all, double seconds,
                          int last)
{
    double rate = seconds > 0 ? (double)all->verified / seconds : 0;
    double left_s = rate > 0 ? (double)(settings->common.rounds - all->verified) / rate : 0;

    if (settings->seconds && left_s > settings->seconds - seconds)
        left_s = settings->seconds - seconds;
    fprintf(stderr,
            "%s%" PRIu64 " of %" PRIu64 " batches, %.0f a second, %.1f %% with kv > %d, %" PRIu64
            " mismatches, %.0f s left   %s",
            isatty(STDERR_FILENO) ? "\r" : "", all->verified, settings->common.rounds, rate,
            all->verified ? 100.0 * (double)all->with_long_kv / (double)all->verified : 0.0,
            RANDOM_KV_LONG, all->mismatches, left_s > 0 ? left_s : 0.0,
            isatty(STDERR_FILENO) && !last ? "" : "\n");
}

static volatile sig_atomic_t interrupted;

static void interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

/* Return: sessions that ended otherwise than with status 0. */
static uint32_t supervise(const struct settings *settings, struct shared *shared, pid_t *pids)
{
    const uint64_t begin_ns = harness_now_ns();
    const uint32_t report_ms = isatty(STDERR_FILENO) ? 500 : 10000;
    uint32_t running = settings->sessions, failed = 0, shown_ms = 0;

    while (running > 0) {
        double seconds = (double)(harness_now_ns() - begin_ns) / 1e9;
        if (interrupted || (settings->seconds && seconds >= settings->seconds))
            attnd_poke32(&shared->stop, 1);
        for (uint32_t i = 0; i < settings->sessions; i++) {
            int status;
            if (pids[i] > 0 && harness_reap(pids[i], 0, &status) == 1) {
                failed += status != 0;
                pids[i] = 0;
                running--;
            }
        }
        if (seconds * 1000 >= shown_ms || running == 0) {
            struct tally all = sum(shared);
            show_progress(settings, &all, seconds, running == 0);
            shown_ms += report_ms;
        }
        harness_sleep_ms(20);
    }
    return failed;
}

static const struct argp_option option_list[] = {
    {"first", 'f', "K", 0, "Number of the first batch", 0},
    {"seconds", 't', "T", 0, "Stop after so long (0: never)", 0},
    {"sessions", 'p', "P", 0, "Processes that verify (default: 3)", 0},
    {"contract", 'c', NULL, 0, "Variants of attention: windows, caps, encodings, masks, ...", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct settings *settings = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &settings->common;
        return 0;
    case 'f': /* whole shapes, so that the same batches share one */
        settings->first =
            attnd_args_number(state, "first", text, 0, INT64_MAX) / SHAPE_BATCHES * SHAPE_BATCHES;
        return 0;
    case 't':
        settings->seconds = attnd_args_number32(state, "seconds", text, 0, UINT32_MAX);
        return 0;
    case 'c':
        settings->contract = 1;
        return 0;
    case 'p':
        settings->sessions = attnd_args_number32(state, "sessions", text, 1, SESSIONS_MAX);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp_child common[] = {{&long_options_argp, 0, NULL, 0}, {0}};
    static const struct argp parser = {
        .options = option_list, .parser = parse_option, .children = common};
    struct settings settings = {.common = long_options_default(1000000), .sessions = 3};
    struct session sessions[SESSIONS_MAX];
    pid_t pids[SESSIONS_MAX];
    struct harness harness;

    argp_parse(&parser, argc, argv, 0, NULL, &settings);
    const char *const options[] = {"--loop", settings.common.loop, "--quiet", NULL};
    struct shared *shared = harness_shared(sizeof(*shared));
    printf("seed %" PRIu64 ", batches %" PRIu64 " to %" PRIu64 "\n", settings.common.seed,
           settings.first, settings.first + settings.common.rounds);
    signal(SIGINT, interrupt);
    signal(SIGTERM, interrupt);
    harness_start(&harness, options);
    for (uint32_t i = 0; i < settings.sessions; i++) {
        sessions[i] = (struct session){&settings, &harness, shared, i};
        pids[i] = harness_fork(verify, &sessions[i]);
    }
    uint32_t failed = supervise(&settings, shared, pids);
    harness_stop(&harness);

    struct tally all = sum(shared);
    printf("seed %" PRIu64 ": %" PRIu64 " runs, %" PRIu64 " batches with kv > %d; continue with "
           "--first %" PRIu64 "\n",
           settings.common.seed, all.runs, all.with_long_kv, RANDOM_KV_LONG,
           settings.first + SHAPE_BATCHES * attnd_peek64(&shared->next_shape));
    printf("verified %" PRIu64 " batches, %" PRIu64 " mismatches\n", all.verified, all.mismatches);
    return failed || all.mismatches ? 1 : 0;
}
