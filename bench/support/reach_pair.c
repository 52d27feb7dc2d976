/* reach_pair.c - see reach_pair.h. */
#include "bench/support/reach_pair.h"

#include "ipc/wake.h"
#include "schemas/clock.h"

#include <string.h>

#define EXPIRE_MS 60000u

static bool open_end(struct bench_suite *suite, struct reach_end *end, const char *socket_path,
                     const struct reach_shape *shape)
{
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = shape->layers,
                                         .pages = shape->pages,
                                         .page_size = REACH_PAGE_SIZE,
                                         .heads_kv = shape->heads,
                                         .dim_qk = REACH_DIM,
                                         .dim_vo = REACH_DIM,
                                         .dtype = ATTND_DTYPE_BF16,
                                         .page_owner = ATTND_PAGES_OF_SERVICE};
    struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = socket_path, .name = "bench-reach"};
    struct attnd_pool_info pool = {.size = sizeof(pool)};
    struct attnd_memory_info memory = {.size = sizeof(memory)};

    if (!bench_suite_call(suite, "attnd_open", attnd_open(&args, &end->session)) ||
        !bench_suite_call(suite, "attnd_pool_create",
                          attnd_pool_create(end->session, &desc, &end->pool)) ||
        !bench_suite_call(suite, "attnd_pool_info",
                          attnd_pool_info(end->session, end->pool, &pool)) ||
        !bench_suite_call(suite, "attnd_memory_info",
                          attnd_memory_info(end->session, pool.memory, &memory)))
        return false;
    end->address = memory.address;
    end->bytes = memory.size_bytes;
    memset(end->address, 1, end->bytes);
    return true;
}

bool reach_open(struct bench_suite *suite, struct reach_pair *pair, const char *giver,
                const char *claimer, const struct reach_shape *shape)
{
    memset(pair, 0, sizeof(*pair));
    return open_end(suite, &pair->giver, giver, shape) &&
           open_end(suite, &pair->claimer, claimer, shape);
}

void reach_close(struct reach_pair *pair)
{
    attnd_close(pair->giver.session);
    attnd_close(pair->claimer.session);
}

/* A turn of a pool whose free pages lie in no order, as those of one in use do. */
static void shuffle(int32_t *pages, uint32_t count)
{
    static uint64_t state = 1;

    for (uint32_t i = count; i > 1; i--) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const uint32_t other = (uint32_t)((state >> 33) % i);
        const int32_t page = pages[i - 1];
        pages[i - 1] = pages[other];
        pages[other] = page;
    }
}

bool reach_scatter(struct bench_suite *suite, struct reach_end *end, uint32_t pages)
{
    if (!bench_suite_call(suite, "attnd_pages_alloc",
                          attnd_pages_alloc(end->session, end->pool, pages, end->pages)))
        return false;
    shuffle(end->pages, pages);
    for (uint32_t i = 0; i < pages; i++)
        if (!bench_suite_call(suite, "attnd_pages_free",
                              attnd_pages_free(end->session, end->pool, 1, &end->pages[i])))
            return false;
    return true;
}

bool reach_alloc(struct bench_suite *suite, struct reach_pair *pair, uint32_t count)
{
    struct reach_end *from = &pair->giver;

    return bench_suite_call(suite, "attnd_pages_alloc",
                            attnd_pages_alloc(from->session, from->pool, count, from->pages));
}

bool reach_begin(struct bench_suite *suite, struct reach_pair *pair, uint32_t count)
{
    const struct attnd_claim_args args = {.size = sizeof(args),
                                          .pool = pair->claimer.pool,
                                          .pages_max = count,
                                          .ticket = &pair->ticket};
    struct attnd_op op = {0};

    return bench_suite_call(suite, "attnd_pages_claim_async",
                            attnd_pages_claim_async(pair->claimer.session, &args, &op));
}

bool reach_end(struct bench_suite *suite, struct reach_pair *pair, uint32_t count, uint64_t *at_ns)
{
    struct reach_end *to = &pair->claimer;
    struct attnd_claim_result result = {.size = sizeof(result)};
    struct attnd_completion completion;

    if (!(count == 1 ? bench_wait_hot(suite, to->session, &completion)
                     : bench_wait_all(suite, to->session, 1, &completion)))
        return false;
    *at_ns = attnd_clock_ns();
    return bench_suite_call(suite, "attnd_claim_result",
                            attnd_claim_result(to->session, &completion, &result)) &&
           bench_suite_call(suite, "attnd_pages_free",
                            attnd_pages_free(to->session, to->pool, count, result.pages));
}

bool reach_claim(struct bench_suite *suite, struct reach_pair *pair, uint32_t count, uint64_t *ns)
{
    struct reach_end *from = &pair->giver;

    if (!reach_alloc(suite, pair, count) ||
        !bench_suite_call(suite, "attnd_pages_offer",
                          attnd_pages_offer(from->session, from->pool, count, from->pages,
                                            EXPIRE_MS, &pair->ticket)))
        return false;
    const uint64_t begin_ns = attnd_clock_ns();
    if (!reach_begin(suite, pair, count) || !reach_end(suite, pair, count, ns))
        return false;
    *ns -= begin_ns;
    return true;
}
