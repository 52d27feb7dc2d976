/* reach.c - what it costs to have pages that another service of this host has.
 *
 * reach.page_us: from the claim of a ticket of one small page to its completion. It has the way
 * between two daemons and back, the mapping of the other pool, the copy, and the answer.
 *
 * reach.over_memcpy: a ticket of many large pages from claim to completion, over one memcpy() of
 * as many bytes here. Both are done in turns, from and to memory that has been touched, so that the
 * machine's moods meet both. It has the faults of a mapping that is made for the ticket. */
#include "bench/support/private_service.h"
#include "bench/support/suite.h"
#include "ipc/wake.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS 16u
#define LARGE_PAGES 256u
#define HEADS 8u
#define DIM 128u
#define PAGE_SIZE 16u
#define PAGE_BYTES ((uint64_t)2 * LAYERS * PAGE_SIZE * HEADS * DIM * 2)
#define EXPIRE_MS 60000u

/* An engine of one of the two services. */
struct end {
    struct attnd_session *session;
    uint32_t pool;
    uint8_t *address; /* of the pool */
    uint64_t bytes;
    int32_t pages[LARGE_PAGES];
};

static bool open_end(struct bench_suite *suite, struct end *end, const char *socket_path,
                     uint32_t layers)
{
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = layers,
                                         .pages = LARGE_PAGES,
                                         .page_size = PAGE_SIZE,
                                         .heads_kv = HEADS,
                                         .dim_qk = DIM,
                                         .dim_vo = DIM,
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

struct pair {
    struct end giver, claimer;
};

static bool open_pair(struct bench_suite *suite, struct pair *pair, const char *claimer,
                      uint32_t layers)
{
    memset(pair, 0, sizeof(*pair));
    return open_end(suite, &pair->giver, suite->socket_path, layers) &&
           open_end(suite, &pair->claimer, claimer, layers);
}

static void close_pair(struct pair *pair)
{
    attnd_close(pair->giver.session);
    attnd_close(pair->claimer.session);
}

/* Return: false after bench_suite_fail(). @ns: from the claim to its completion. */
static bool claim(struct bench_suite *suite, struct pair *pair, uint32_t count, uint64_t *ns)
{
    struct end *from = &pair->giver, *to = &pair->claimer;
    struct attnd_token ticket;
    const struct attnd_claim_args args = {
        .size = sizeof(args), .pool = to->pool, .pages_max = count, .ticket = &ticket};
    struct attnd_claim_result result = {.size = sizeof(result)};
    struct attnd_completion completion;
    struct attnd_op op = {0};

    if (!bench_suite_call(suite, "attnd_pages_alloc",
                          attnd_pages_alloc(from->session, from->pool, count, from->pages)) ||
        !bench_suite_call(
            suite, "attnd_pages_offer",
            attnd_pages_offer(from->session, from->pool, count, from->pages, EXPIRE_MS, &ticket)))
        return false;
    const uint64_t begin_ns = attnd_clock_ns();
    if (!bench_suite_call(suite, "attnd_pages_claim_async",
                          attnd_pages_claim_async(to->session, &args, &op)) ||
        !(count == 1 ? bench_wait_hot(suite, to->session, &completion)
                     : bench_wait_all(suite, to->session, 1, &completion)))
        return false;
    *ns = attnd_clock_ns() - begin_ns;
    return bench_suite_call(suite, "attnd_claim_result",
                            attnd_claim_result(to->session, &completion, &result)) &&
           bench_suite_call(suite, "attnd_pages_free",
                            attnd_pages_free(to->session, to->pool, count, result.pages));
}

/* The giver has its pages back before it says so: there is room for the next ticket. */
static void measure_page(struct bench_suite *suite, const char *claimer)
{
    const size_t samples = (size_t)suite->rounds;
    uint64_t *ns = calloc(samples, sizeof(*ns));
    struct pair pair;
    char notes[96];

    if (!ns)
        bench_suite_fail(suite, "out of memory");
    else if (open_pair(suite, &pair, claimer, 1)) {
        for (size_t i = 0; i < samples && !suite->failed; i++)
            claim(suite, &pair, 1, &ns[i]);
        snprintf(notes, sizeof(notes), "p50 of %zu tickets of one page of %u KiB", samples,
                 (uint32_t)(PAGE_BYTES / LAYERS / 1024));
        if (!suite->failed)
            bench_suite_figure(suite, "page_us", (double)bench_p50(ns, samples) * 1e-3, "us",
                               "lower", NAN, notes);
        close_pair(&pair);
    }
    free(ns);
}

static bool copy_here(struct bench_suite *suite, const uint8_t *from, uint8_t *to, uint64_t bytes,
                      uint64_t *ns)
{
    const uint64_t begin_ns = attnd_clock_ns();

    memcpy(to, from, bytes);
    *ns = attnd_clock_ns() - begin_ns;
    if (to[bytes - 1] == from[bytes - 1])
        return true;
    bench_suite_fail(suite, "memory does not keep what it is given");
    return false;
}

static void measure_rate(struct bench_suite *suite, const char *claimer)
{
    const size_t samples = 8;
    const uint64_t bytes = LARGE_PAGES * PAGE_BYTES;
    uint64_t brought_ns[8], copied_ns[8];
    uint8_t *from = malloc(bytes), *to = malloc(bytes);
    struct pair pair;
    char notes[96];

    if (!from || !to)
        bench_suite_fail(suite, "out of memory");
    else if (open_pair(suite, &pair, claimer, LAYERS)) {
        memset(from, 2, bytes);
        memset(to, 3, bytes);
        for (size_t i = 0; i < samples && !suite->failed; i++)
            if (claim(suite, &pair, LARGE_PAGES, &brought_ns[i]))
                copy_here(suite, from, to, bytes, &copied_ns[i]);
        if (!suite->failed) {
            const double brought = (double)bench_p50(brought_ns, samples);
            const double copied = (double)bench_p50(copied_ns, samples);

            snprintf(notes, sizeof(notes), "%.2f GB/s and %.2f GB/s, %u MiB, p50 of %zu",
                     (double)bytes / brought, (double)bytes / copied, (uint32_t)(bytes >> 20),
                     samples);
            bench_suite_figure(suite, "over_memcpy", brought / copied, "ratio", "lower", NAN,
                               notes);
        }
        close_pair(&pair);
    }
    free(from);
    free(to);
}

int main(int argc, char **argv)
{
    static struct bench_suite suite = {
        .name = "reach",
        .doc = "reach - pages of another service of this host: a small ticket, and a large one",
        .rounds = 2000};
    char why[512];

    bench_suite_begin(&suite, argc, argv);
    if (!suite.spawn) {
        bench_suite_fail(&suite, "wants two services of its own: --spawn");
        return bench_suite_end(&suite);
    }
    const char *claimer = bench_private_peer(suite.attnd_path, suite.socket_path, why, sizeof(why));
    if (!claimer)
        bench_suite_fail(&suite, "%s", why);
    if (!suite.failed)
        measure_page(&suite, claimer);
    if (!suite.failed)
        measure_rate(&suite, claimer);
    return bench_suite_end(&suite);
}
