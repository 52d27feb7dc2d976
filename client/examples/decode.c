/*
 * decode.c - token after token of one request, without planning again.
 *
 * The batch is planned once with room for pages to come. For each token its K and V are appended,
 * attention runs, and the plan advances by one token. A page is leased when the last one is full.
 *
 *     cc decode.c $(pkg-config --cflags --libs attnd) -lm
 */
#include "attnd.h"

#include <math.h>
#include <stdio.h>

enum { PAGE_SIZE = 16, PAGES = 4, TOKENS = 50, HEADS = 8, HEADS_KV = 2, DIM = 64 };
enum { Q = 0, O = 1024, K = 2048, V = 2304, LSE = 2560, BYTES = 2592 };

struct decoder {
    struct attnd_session *session;
    uint32_t pool, plan, memory;
    float *lse; /* of the last token, [HEADS] */
};

static const struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS};

/* One token of one request, which will have PAGES pages in the end. */
static int open_decoder(struct decoder *d)
{
    struct attnd_session **s = &d->session;
    void *at;

    if (attnd_open(NULL, s) < 0 ||
        attnd_pool_create_leased(*s, 1, 64, PAGE_SIZE, HEADS_KV, DIM, ATTND_DTYPE_FP16, &d->pool) <
            0 ||
        attnd_memory_create(*s, BYTES, &d->memory, &at) < 0)
        return -1;
    d->lse = (float *)at + LSE / 4;
    return attnd_plan_create(*s,
                             &ATTND_ARGS(plan_args, .pool = d->pool, .requests = 1, .rows = 1,
                                         .pages = PAGES, .levels = 1, .heads_q = HEADS),
                             &d->plan);
}

static int plan_first(const struct decoder *d)
{
    int32_t page, rows[] = {0, 1}, pages[] = {0, 1}, last_page_len = 1;
    struct attnd_level level = {1, rows, pages, &page, &last_page_len};
    struct attnd_batch batch =
        ATTND_ARGS(batch, .flags = ATTND_CAUSAL, .reserve_pages = PAGES - 1, .level = &level);

    if (attnd_pages_alloc(d->session, d->pool, 1, &page) < 0)
        return -1;
    return attnd_plan_set(d->session, d->plan, &batch, &quiet);
}

/* From @tokens to one more. */
static int advance(const struct decoder *d, int32_t tokens)
{
    int32_t page, kv_len = tokens + 1, grown[] = {0, 1};
    struct attnd_advance next = ATTND_ARGS(advance, .entries = 1, .kv_len = &kv_len);

    if (tokens % PAGE_SIZE == 0) {
        if (attnd_pages_alloc(d->session, d->pool, 1, &page) < 0)
            return -1;
        next.page_indptr = grown;
        next.page_indices = &page;
    }
    return attnd_plan_advance(d->session, d->plan, &next, &quiet);
}

static int decode(const struct decoder *d)
{
    struct attnd_append_args append = ATTND_ARGS(append_args, 0, {d->memory, K}, {d->memory, V});
    struct attnd_run_args run =
        ATTND_ARGS(run_args, 0, {d->memory, Q}, {d->memory, O}, {d->memory, LSE});

    for (int32_t tokens = 1; tokens <= TOKENS; tokens++) { /* the model computes q, k and v here */
        if ((tokens > 1 && advance(d, tokens - 1) < 0) ||
            attnd_append(d->session, d->plan, &append, &quiet) < 0 ||
            attnd_run_sync(d->session, d->plan, &run) < 0)
            return -1;
    }
    return 0;
}

int main(void)
{
    struct decoder d = {0};
    char text[160];

    if (open_decoder(&d) < 0 || plan_first(&d) < 0 || decode(&d) < 0) {
        fprintf(stderr, "%s\n", attnd_last_fault_string(text, sizeof(text)));
        return 1;
    }
    /* Zero q and k: the last token sees all tokens, and all of them weigh the same. */
    printf("the last of %d tokens sees %g\n", TOKENS, round(exp2((double)d.lse[0])));
    attnd_close(d.session);
    return 0;
}
