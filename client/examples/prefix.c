/*
 * prefix.c - a prefix that one engine computes and another finds, and each goes on with a page of
 * its own.
 *
 * The first session opens a namespace in the pool's prefix tree. It computes the prefix's page and
 * publishes it under a key, which stands for the prefix's tokens. The second session has a token of
 * the pool and one of the namespace. It matches the same key and has the page leased: nothing is
 * computed again, and no byte is copied. A published page is read by all and written by none, so
 * each appends to its own page behind it. Both lists begin with the same page id.
 *
 *     cc prefix.c $(pkg-config --cflags --libs attnd) -lm
 */
#include "attnd.h"

#include <math.h>
#include <stdio.h>

enum { PAGE_SIZE = 16, HEADS = 8, HEADS_KV = 2, DIM = 64 };
enum { Q = 0, O = 16384, K = 32768, V = 36864, LSE = 40960, BYTES = 41472 };

struct engine {
    struct attnd_session *session;
    uint32_t pool, prefix, plan, memory;
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

/* Operations on the tree are submitted, as runs are. Return: blocks for which it was done. */
static int32_t await(struct engine *e, struct attnd_prefix_result *result)
{
    struct attnd_completion done;

    if (attnd_wait(e->session, &done, 1, ATTND_FOREVER) != 1)
        return -1;
    if (done.fault.code < 0)
        fprintf(stderr, "%s\n", attnd_fault_string(&done.fault, (char[160]){0}, 160));
    if (done.fault.code < 0 || attnd_prefix_result(e->session, &done, result) < 0)
        return -1;
    return (int32_t)result->blocks;
}

static struct attnd_prefix_key key_of(struct engine *e)
{
    static const int32_t tokens[PAGE_SIZE] = {7, 11, 13}; /* the prompt's */
    struct attnd_prefix_info info = ATTND_ARGS(prefix_info, 0);
    struct attnd_prefix_key key = {{0}};

    if (attnd_prefix_info(e->session, e->prefix, &info) == 0)
        attnd_prefix_key(info.salt, NULL, tokens, sizeof(tokens), &key);
    return key;
}

static int publish(struct engine *e)
{
    struct attnd_prefix_key key = key_of(e);
    struct attnd_prefix_args args = ATTND_ARGS(prefix_args, e->prefix, 1, .keys = &key);
    struct attnd_prefix_result result = ATTND_ARGS(prefix_result, 0);

    if (attnd_prefix_publish(e->session, &args, e->page, NULL) < 0)
        return -1;
    return await(e, &result) == 1 ? 0 : -1;
}

static int match(struct engine *e)
{
    struct attnd_prefix_key key = key_of(e);
    struct attnd_prefix_args args = ATTND_ARGS(prefix_args, e->prefix, 1, .keys = &key);
    struct attnd_prefix_result result = ATTND_ARGS(prefix_result, 0);

    if (attnd_prefix_match(e->session, &args, NULL) < 0 || await(e, &result) != 1)
        return -1;
    e->page[0] = result.pages[0];
    return 0;
}

/* Two tokens of 16 bytes are all that a second process would need to be sent. */
static int join(struct engine *first, struct engine *second)
{
    struct attnd_prefix_desc desc = ATTND_ARGS(prefix_desc, .block_pages = 1);
    struct attnd_token pool, prefix;

    return attnd_prefix_open(first->session, first->pool, &desc, &first->prefix) < 0 ||
                   attnd_pool_share(first->session, first->pool, 1, &pool) < 0 ||
                   attnd_prefix_share(first->session, first->prefix, 1, &prefix) < 0 ||
                   attnd_pool_attach(second->session, &pool, &second->pool) < 0 ||
                   attnd_prefix_attach(second->session, &prefix, &second->prefix) < 0
               ? -1
               : 0;
}

static int share_and_continue(struct engine *first, struct engine *second)
{
    if (open_engine(first) < 0 || open_engine(second) < 0 ||
        attnd_pool_create_leased(first->session, 1, 64, PAGE_SIZE, HEADS_KV, DIM, ATTND_DTYPE_FP16,
                                 &first->pool) < 0 ||
        attnd_pages_alloc(first->session, first->pool, 1, first->page) < 0 ||
        join(first, second) < 0 || compute(first, PAGE_SIZE, PAGE_SIZE) < 0 || publish(first) < 0 ||
        match(second) < 0 ||
        attnd_pages_alloc(first->session, first->pool, 1, &first->page[1]) < 0 ||
        attnd_pages_alloc(second->session, second->pool, 1, &second->page[1]) < 0)
        return -1;
    return compute(first, PAGE_SIZE + 4, 4) < 0 || compute(second, PAGE_SIZE + 7, 7) < 0 ? -1 : 0;
}

int main(void)
{
    struct engine first = {0}, second = {0};
    struct attnd_fault fault;
    char text[160];

    if (share_and_continue(&first, &second) < 0) {
        attnd_last_fault(&fault);
        if (fault.code < 0) /* of a call; await() prints a completion's */
            fprintf(stderr, "%s\n", attnd_fault_string(&fault, text, sizeof(text)));
        return 1;
    }
    /* Zero q and k: a token sees exp2(lse) tokens. Rows are [token, head]. */
    printf("behind the same prefix: %g tokens, and %g\n", round(exp2((double)first.lse[3 * HEADS])),
           round(exp2((double)second.lse[6 * HEADS])));
    attnd_close(first.session);
    attnd_close(second.session);
    return 0;
}
