/*
 * engine.c - a whole engine: one prompt of eight tokens through four layers.
 *
 * Queries and keys are left zero, so all visible keys weigh the same and the base-2 log-sum-exp of
 * token i is log2(i + 1): the last token sees 8 keys and prints 3.
 */
#include "attnd.h"

#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 4, TOKENS = 8, HEADS = 8, HEADS_KV = 2, DIM = 64 };
/* Offsets in one memory: q and o, lse, then the k and v rows to append. */
enum { Q = 0, O = Q + TOKENS * HEADS * DIM * 2, LSE = O + TOKENS * HEADS * DIM * 2 };
enum { K = LSE + TOKENS * HEADS * 4, V = K + TOKENS * HEADS_KV * DIM * 2 };
enum { BYTES = V + TOKENS * HEADS_KV * DIM * 2 };

static const struct attnd_pool_desc cache = {.size = sizeof(cache),
                                             .layers = LAYERS,
                                             .pages = 64,
                                             .page_size = 16,
                                             .heads_kv = HEADS_KV,
                                             .dim_qk = DIM,
                                             .dim_vo = DIM,
                                             .dtype = ATTND_DTYPE_FP16,
                                             .page_owner = ATTND_PAGES_OF_SERVICE};
static const struct attnd_plan_args capacity = {.size = sizeof(capacity),
                                                .requests = 1,
                                                .rows = TOKENS,
                                                .pages = 1,
                                                .levels = 1,
                                                .heads_q = HEADS};

static void succeed(const struct attnd_fault *fault)
{
    char text[256];
    if (fault->code == 0)
        return;
    fprintf(stderr, "%s\n", attnd_fault_string(fault, text, sizeof(text)));
    exit(1);
}

static void check(int rc)
{
    struct attnd_fault fault = {0};
    if (rc < 0)
        attnd_last_fault(&fault);
    succeed(&fault);
}

int main(void)
{
    struct attnd_session *session;
    check(attnd_open(NULL, &session));
    uint32_t pool, memory, plan;
    int32_t page;
    void *tensors;
    check(attnd_pool_create(session, &cache, &pool));
    check(attnd_pages_alloc(session, pool, 1, &page));
    check(attnd_memory_create(session, BYTES, &memory, &tensors));
    struct attnd_plan_args room = capacity;
    room.pool = pool;
    check(attnd_plan_create(session, &room, &plan));

    int32_t rows[] = {0, TOKENS}, pages[] = {0, 1}, last_page_len = TOKENS;
    struct attnd_level level = {1, rows, pages, &page, &last_page_len};
    struct attnd_batch batch = {.size = sizeof(batch), .flags = ATTND_CAUSAL, .level = &level};
    struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS}, loud = {.user_data = 1};
    check(attnd_plan_set(session, plan, &batch, &quiet));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        /* The model writes this layer's q, k and v here. */
        struct attnd_append_args append = {sizeof(append), layer, {memory, K}, {memory, V}};
        struct attnd_run_args run = {sizeof(run), layer, {memory, Q}, {memory, O}, {memory, LSE}};
        struct attnd_completion done;
        check(attnd_append(session, plan, &append, &quiet));
        check(attnd_run(session, plan, &run, &loud));
        check(attnd_wait(session, &done, 1, ATTND_FOREVER));
        succeed(&done.fault);
    }
    printf("lse of the last token: %g\n", (double)((float *)tensors + LSE / 4)[TOKENS * HEADS - 1]);
    attnd_close(session);
    return 0;
}
