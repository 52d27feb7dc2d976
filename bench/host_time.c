/*
 * host_time.c - plan and run of a small decode batch in C, as bench/python.py does it from Python.
 *
 * For each line that it reads it does ROUNDS rounds, and prints the median of the host's time of
 * one in us. The figure is the difference of the two languages, so both must do the same calls, and
 * they take turns of some milliseconds: a machine that slows down slows both.
 *
 *   host_time ROUNDS        with $ATTND_SOCKET
 */
#include "client/attnd.h"
#include "schemas/clock.h"
#include "service/args/args.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { REQUESTS = 64, HEADS = 8, HEADS_KV = 1, DIM = 64, BYTES = REQUESTS * HEADS * DIM * 2 };

struct engine {
    struct attnd_session *session;
    uint32_t pool, memory, plan;
    int32_t starts[REQUESTS + 1], pages[REQUESTS], last_page_len[REQUESTS];
};

static int open_engine(struct engine *e)
{
    void *address;

    if (attnd_open(NULL, &e->session) < 0 ||
        attnd_pool_create_leased(e->session, 1, REQUESTS, 16, HEADS_KV, DIM, ATTND_DTYPE_FP16,
                                 &e->pool) < 0 ||
        attnd_pages_alloc(e->session, e->pool, REQUESTS, e->pages) < 0 ||
        attnd_memory_create(e->session, (uint64_t)2 * BYTES, &e->memory, &address) < 0)
        return -1;
    for (int32_t i = 0; i <= REQUESTS; i++)
        e->starts[i] = i;
    for (int32_t i = 0; i < REQUESTS; i++)
        e->last_page_len[i] = 1;
    return attnd_plan_create(
        e->session, &ATTND_ARGS(plan_args, e->pool, REQUESTS, REQUESTS, REQUESTS, 1, HEADS),
        &e->plan);
}

static int plan_and_run(const struct engine *e)
{
    const struct attnd_level level = {REQUESTS, e->starts, e->starts, e->pages, e->last_page_len};
    const struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS};

    if (attnd_plan_set(e->session, e->plan, &ATTND_ARGS(batch, .level = &level), &quiet) < 0)
        return -1;
    return attnd_run_sync(e->session, e->plan,
                          &ATTND_ARGS(run_args, 0, {e->memory, 0}, {e->memory, BYTES}));
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Return: the median of @rounds, nanoseconds; 0 if one was refused. */
static uint64_t time_rounds(const struct engine *engine, uint64_t *took_ns, uint64_t rounds)
{
    for (uint64_t i = 0; i < rounds; i++) {
        uint64_t begin_ns = attnd_clock_ns();
        if (plan_and_run(engine) < 0)
            return 0;
        took_ns[i] = attnd_clock_ns() - begin_ns;
    }
    qsort(took_ns, rounds, sizeof(*took_ns), compare);
    return took_ns[rounds / 2];
}

int main(int argc, char **argv)
{
    uint64_t rounds = 0;
    const int rounds_there = argc == 2 && attnd_number_parse(argv[1], 1, UINT32_MAX, &rounds) == 0;
    uint64_t *took_ns = rounds_there ? calloc(rounds, sizeof(*took_ns)) : NULL;
    struct engine engine;
    char text[160];

    if (took_ns == NULL) {
        fprintf(stderr, "usage: %s ROUNDS\n", argv[0]);
        return 2;
    }
    int rc = open_engine(&engine);
    while (rc == 0 && fgets(text, sizeof(text), stdin)) {
        uint64_t median_ns = time_rounds(&engine, took_ns, rounds);
        rc = median_ns ? 0 : -1;
        if (rc == 0)
            printf("%.3f\n", (double)median_ns * 1e-3);
        fflush(stdout);
    }
    if (rc < 0) {
        fprintf(stderr, "%s: %s\n", argv[0], attnd_last_fault_string(text, sizeof(text)));
        free(took_ns);
        return 1;
    }
    attnd_close(engine.session);
    free(took_ns);
    return 0;
}
