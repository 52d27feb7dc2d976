/*
 * prefix.c - a prefix that two sessions read, and each goes on with a page of its own.
 *
 * The first session fills the prefix's page once. It leases the page once more and offers that
 * lease to the second session, which attached the pool. A page with two leases is read by both and
 * written by none: each appends to its own page behind it. Both lists begin with the same page id.
 */
#include "attnd.h"

#include <math.h>
#include <stdio.h>

enum { PAGE_SIZE = 16, HEADS = 8, HEADS_KV = 2, DIM = 64 };
enum { Q = 0, O = 16384, K = 32768, V = 36864, LSE = 40960, BYTES = 41472 };

struct engine {
    struct attnd_session *session;
    uint32_t pool, plan, memory;
    int32_t page[2]; /* the prefix's, and its own */
    float *lse;
};

static const struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS};

static int open_engine(struct engine *e)
{
    void *at;

    if (attnd_open(NULL, &e->session) < 0 ||
        attnd_memory_create(e->session, BYTES, &e->memory, &at) < 0)
        return -1;
    e->lse = (float *)at + LSE / 4;
    return 0;
}

/* The last @rows of @tokens: plan, append, attend. */
static int compute(struct engine *e, int32_t tokens, int32_t rows)
{
    int32_t pages = (tokens + PAGE_SIZE - 1) / PAGE_SIZE;
    int32_t row_ends[] = {0, rows}, page_ends[] = {0, pages};
    int32_t last_page_len = tokens - (pages - 1) * PAGE_SIZE;
    struct attnd_level level = {1, row_ends, page_ends, e->page, &last_page_len};
    struct attnd_batch batch = ATTND_ARGS(batch, .flags = ATTND_CAUSAL, .level = &level);
    struct attnd_append_args append = ATTND_ARGS(append_args, 0, {e->memory, K}, {e->memory, V});
    struct attnd_run_args run =
        ATTND_ARGS(run_args, 0, {e->memory, Q}, {e->memory, O}, {e->memory, LSE});
    struct attnd_plan_args room = ATTND_ARGS(plan_args, e->pool, 1, PAGE_SIZE, 2, 1, HEADS);

    if (e->plan == 0 && attnd_plan_create(e->session, &room, &e->plan) < 0)
        return -1;
    if (attnd_plan_set(e->session, e->plan, &batch, &quiet) < 0 ||
        attnd_append(e->session, e->plan, &append, &quiet) < 0)
        return -1;
    return attnd_run_sync(e->session, e->plan, &run);
}

/* One more lease of the prefix's page, from the first session to the second. */
static int give_prefix(struct engine *first, struct engine *second)
{
    struct attnd_token pool, ticket;
    uint32_t claimed;

    if (attnd_pool_share(first->session, first->pool, 1, &pool) < 0 ||
        attnd_pool_attach(second->session, &pool, &second->pool) < 0 ||
        attnd_pages_share(first->session, first->pool, 1, first->page) < 0 ||
        attnd_pages_offer(first->session, first->pool, 1, first->page, 10000, &ticket) < 0)
        return -1;
    return attnd_pages_claim(second->session, &ticket, &claimed, second->page, 1);
}

static int share_and_continue(struct engine *first, struct engine *second)
{
    if (open_engine(first) < 0 || open_engine(second) < 0 ||
        attnd_pool_create_leased(first->session, 1, 64, PAGE_SIZE, HEADS_KV, DIM, ATTND_DTYPE_FP16,
                                 &first->pool) < 0 ||
        attnd_pages_alloc(first->session, first->pool, 1, first->page) < 0 ||
        compute(first, PAGE_SIZE, PAGE_SIZE) < 0 || give_prefix(first, second) < 0 ||
        attnd_pages_alloc(first->session, first->pool, 1, &first->page[1]) < 0 ||
        attnd_pages_alloc(second->session, second->pool, 1, &second->page[1]) < 0)
        return -1;
    return compute(first, PAGE_SIZE + 4, 4) < 0 || compute(second, PAGE_SIZE + 7, 7) < 0 ? -1 : 0;
}

int main(void)
{
    struct engine first = {0}, second = {0};
    char text[160];

    if (share_and_continue(&first, &second) < 0) {
        fprintf(stderr, "%s\n", attnd_last_fault_string(text, sizeof(text)));
        return 1;
    }
    /* Zero q and k: a token sees exp2(lse) tokens. Rows are [token, head]. */
    printf("behind the same prefix: %g tokens, and %g\n", round(exp2((double)first.lse[3 * HEADS])),
           round(exp2((double)second.lse[6 * HEADS])));
    attnd_close(first.session);
    attnd_close(second.session);
    return 0;
}
