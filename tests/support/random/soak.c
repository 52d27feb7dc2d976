/*
 * soak.c - a batch that fails is repeated alone, made smaller, and printed.
 *
 * If it does not fail when it is repeated, its predecessors matter: pool and plan are kept between
 * batches of one shape. A second command then begins with the first of the shape.
 */
#include "tests/support/random/soak.h"

#include "tests/support/random/random_shrink.h"
#include "tests/support/trial/trial.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define SHRINK_TRIES 2000
#define SHAPE_BATCHES 8u
#define ENGINE_MS 600000

struct replay {
    struct engine *engine;
    char why[256];
};

static int fails(void *context, const struct random_batch *batch)
{
    struct replay *replay = context;
    return trial_run(replay->engine, batch, replay->why, sizeof(replay->why)) == 1;
}

/* Return: 1: it fails alone. */
static int explain(struct engine *engine, struct random_batch *batch)
{
    struct replay replay = {engine, ""};

    random_batch_print(stderr, batch);
    if (!fails(&replay, batch)) {
        fprintf(stderr, "repeated alone, it is right\n");
        return 0;
    }
    uint32_t kept = random_shrink(batch, fails, &replay, SHRINK_TRIES);
    (void)fails(&replay, batch);
    fprintf(stderr, "made smaller %u times: %s\n", kept, replay.why);
    random_batch_print(stderr, batch);
    return 1;
}

int soak_step(struct soak *soak, struct engine *engine)
{
    const uint64_t number = soak->next;
    struct random_batch batch;
    char why[256] = "";

    soak->next += soak->stride;
    (soak->draw ? soak->draw : random_batch_draw)(soak->seed, number, &batch);
    const int wrong = trial_run(engine, &batch, why, sizeof(why));
    if (wrong == TRIAL_REFUSED) {
        soak->refused++;
        return 0;
    }
    if (wrong) {
        fprintf(stderr, "ATTND_SEED=%" PRIu64 ", batch number %" PRIu64 ": %s\n", soak->seed,
                number, why);
        soak->wrong = number;
        soak->wrong_alone = explain(engine, &batch);
        return 1;
    }
    soak->verified++;
    soak->runs += (uint64_t)batch.steps * batch.shape.layers;
    soak->with_long_kv += random_batch_kv_max(&batch) > RANDOM_KV_LONG;
    return 0;
}

/* As a shell takes it, from the folder in which the program was begun. */
static void print_command(const struct soak *soak, const char *what, uint64_t first)
{
    const char *backend = getenv("ATTND_TEST_BACKEND");

    fprintf(stderr, "%s: ", what);
    if (backend)
        fprintf(stderr, "ATTND_TEST_BACKEND=%s ", backend);
    fprintf(stderr, "ATTND_SEED=%" PRIu64 " ATTND_FIRST=%" PRIu64 " ATTND_ROUNDS=%" PRIu64 " %s\n",
            soak->seed, first, soak->wrong - first + 1, program_invocation_name);
}

int soak_shapes(struct soak *soak, struct engine *engine, uint32_t number, uint64_t first,
                uint64_t rounds)
{
    for (uint64_t begin = number * SHAPE_BATCHES; begin < rounds;
         begin += SOAK_ENGINES * SHAPE_BATCHES) {
        soak->next = first + begin;
        for (uint64_t i = begin; i < begin + SHAPE_BATCHES && i < rounds; i++)
            if (soak_step(soak, engine)) {
                print_command(soak, "repeat it", soak->wrong);
                if (!soak->wrong_alone)
                    print_command(soak, "and with those of its shape before it",
                                  soak->wrong / SHAPE_BATCHES * SHAPE_BATCHES);
                return 1;
            }
    }
    return 0;
}

int soak_in_engines(const struct harness *harness, int (*client)(void *context))
{
    struct soak_engine engines[SOAK_ENGINES];
    pid_t pids[SOAK_ENGINES];
    int wrong = 0;

    for (uint32_t i = 0; i < SOAK_ENGINES; i++) {
        engines[i] = (struct soak_engine){harness, i};
        pids[i] = harness_fork(client, &engines[i]);
    }
    for (uint32_t i = 0; i < SOAK_ENGINES; i++)
        wrong += harness_join(pids[i], ENGINE_MS);
    return wrong;
}
