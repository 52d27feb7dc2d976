/* e2e.c - the beginning that end-to-end tests share. */
#include "tests/support/harness/e2e.h"

#include "client/attnd.h"
#include "schemas/abi.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

int e2e_start(void **state)
{
    static struct harness harness;

    harness_start(&harness, NULL);
    *state = &harness;
    return 0;
}

int e2e_start_trusting(void **state)
{
    static const char *const options[] = {"--trust", NULL};
    static struct harness harness;

    *state = &harness;
    harness_start(&harness, options);
    return 0;
}

struct attnd_session *e2e_open(const struct harness *harness)
{
    const struct attnd_open_args args = {.size = sizeof(args), .socket_path = harness->socket};
    struct attnd_session *session = NULL;

    CHECK_OK(attnd_open(&args, &session));
    return session;
}

int e2e_stop(void **state)
{
    harness_stop(*state);
    return 0;
}

int e2e_on_gpu(void)
{
    const char *backend = getenv("ATTND_TEST_BACKEND");
    return backend && strcmp(backend, "cuda") == 0;
}

pid_t e2e_hold_worker(const struct harness *harness)
{
    return e2e_on_gpu() ? harness_worker(harness) : harness_stop_worker(harness);
}

void e2e_let_go(pid_t worker)
{
    if (!e2e_on_gpu())
        CHECK_EQUAL(kill(worker, SIGCONT), 0);
}

struct random_batch e2e_batch(void)
{
    return (struct random_batch){
        .seed = 1,
        .shape = {.dtype = ATTND_FP16,
                  .dim = 64,
                  .heads_kv = 2,
                  .group = 2,
                  .page_size = 16,
                  .layers = 2},
        .levels = 1,
        .level = {{.requests = 5,
                   .entry = {{.qo_len = 1, .kv_len = {200}},
                             {.qo_len = 37, .kv_len = {37}},
                             {.qo_len = 0, .kv_len = {0}},
                             {.qo_len = 16, .kv_len = {80}},
                             {.qo_len = 1, .kv_len = {33}}}}},
        .steps = 1,
        .garbage = GARBAGE_NAN,
        .causal = 1,
        .want_lse = 1,
    };
}

struct random_batch e2e_decoding_batch(void)
{
    struct random_batch batch = e2e_batch();

    batch.append = 1;
    batch.steps = 4;
    batch.reserve_pages = 1;
    for (uint32_t e = 0; e < batch.level[0].requests; e++) {
        struct random_entry *entry = &batch.level[0].entry[e];
        entry->qo_len = 1;
        if (!entry->kv_len[0]) /* a request that begins */
            entry->kv_len[0] = 1;
        for (uint32_t s = 1; s < batch.steps; s++)
            entry->kv_len[s] = entry->kv_len[s - 1] + 1;
    }
    return batch;
}

struct random_batch e2e_long_batch(void)
{
    return (struct random_batch){
        .seed = 2,
        .shape = {.dtype = ATTND_FP16,
                  .dim = 128,
                  .heads_kv = 2,
                  .group = 8,
                  .page_size = 16,
                  .layers = 1},
        .levels = 1,
        .level = {{.requests = 1, .entry = {{.qo_len = 128, .kv_len = {4096}}}}},
        .steps = 1,
    };
}
