/* draws.c - see draws.h. */
#include "tests/gpu/support/draws.h"

#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/check.h"
#include "tests/support/random/seed.h"

#include <stdio.h>

static uint64_t seed, first, rounds;

/* Of the draw under way, for the processes that it forks. */
static struct {
    void (*open_engine)(struct engine *engine, const char *socket_path, const char *name);
    random_draw_fn *draw;
} now;

void draws_init(void)
{
    seed = test_seed();
    first = test_number("ATTND_FIRST", 0);
    rounds = test_number("ATTND_ROUNDS", 160);
}

static int draw_in_engine(void *context)
{
    const struct soak_engine *self = context;
    struct soak soak = {.draw = now.draw, .seed = seed, .stride = 1};
    struct engine engine;

    gpu_open();
    now.open_engine(&engine, self->harness->socket, "random");
    int wrong = soak_shapes(&soak, &engine, self->number, first, rounds);
    printf("engine %u: %llu batches, %llu runs right\n", self->number,
           (unsigned long long)soak.verified, (unsigned long long)soak.runs);
    engine_close(&engine);
    CHECK_EQUAL(soak.refused, 0);
    return wrong;
}

int draws_in_engines(const struct harness *harness,
                     void (*open_engine)(struct engine *engine, const char *socket_path,
                                         const char *name),
                     random_draw_fn *draw)
{
    now.open_engine = open_engine;
    now.draw = draw;
    return soak_in_engines(harness, draw_in_engine);
}
