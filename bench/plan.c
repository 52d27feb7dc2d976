/* plan.c - what planning costs the client: from its call until the tiles lie where the worker reads
 * them, which is when the completion says the operation ended. Both processes read the same clock.
 * Hot: the client polls for the answer, as an engine does that has a step to begin, and calls
 * again.
 *
 * 64 decodes of 4,096 tokens each, pages of 16 leased from the service, so that every page id is
 * also looked up in the books; an advance moves every request by a token within its last page. The
 * same requests with all pages but the last in common: the planner finds that, and makes a level.
 *
 * A worker on a GPU has a copy of the plan behind the bus. There the same advances are measured
 * once more, of a plan with a prepared run: they are published, so they are over when the copy has
 * them.
 */
#include "bench/support/suite.h"
#include "client/attnd.h"
#include "client/attnd_tables.h"
#include "ipc/wake.h"
#include "schemas/abi.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define REQUESTS 64
#define PAGES_EACH 256
#define PAGE_SIZE 16
#define HEADS_Q 32
#define DIM 128
#define COPIES 1000 /* advances that are published */
#define PAGES (REQUESTS * PAGES_EACH)

#define MIXED_DECODES 255
#define MIXED_CHUNK 1024
#define MIXED_REQUESTS (MIXED_DECODES + 1)
#define MIXED_PAGES (MIXED_CHUNK / PAGE_SIZE + MIXED_DECODES * PAGES_EACH)

struct mixed {
    int32_t qo_indptr[MIXED_REQUESTS + 1], kv_indptr[MIXED_REQUESTS + 1];
    int32_t last_page_len[MIXED_REQUESTS], pages[MIXED_PAGES];
};
#define MIXED_TABLES_BYTES sizeof(struct mixed)

struct batch {
    int32_t qo_indptr[REQUESTS + 1], kv_indptr[REQUESTS + 1], last_page_len[REQUESTS];
    int32_t kv_len[REQUESTS];
    int32_t pages[PAGES];
};

static bool open_plan(struct bench_suite *suite, struct attnd_session **session,
                      struct batch *batch, uint32_t *plan)
{
    struct attnd_open_args args = {.size = sizeof(args),
                                   .tables_bytes = MIXED_TABLES_BYTES,
                                   .socket_path = suite->socket_path,
                                   .name = "bench-plan"};
    struct attnd_plan_args plan_args = {.size = sizeof(plan_args),
                                        .requests = REQUESTS,
                                        .rows = REQUESTS,
                                        .pages = PAGES + REQUESTS,
                                        .levels = 1,
                                        .heads_q = HEADS_Q};

    return bench_suite_call(suite, "attnd_open", attnd_open(&args, session)) &&
           bench_suite_call(suite, "attnd_pool_create_leased",
                            attnd_pool_create_leased(*session, 1, PAGES, PAGE_SIZE, 8, DIM,
                                                     ATTND_DTYPE_BF16, &plan_args.pool)) &&
           bench_suite_call(suite, "attnd_pages_alloc",
                            attnd_pages_alloc(*session, plan_args.pool, PAGES, batch->pages)) &&
           bench_suite_call(suite, "attnd_plan_create",
                            attnd_plan_create(*session, &plan_args, plan));
}

static void fill(struct batch *batch)
{
    for (int i = 0; i <= REQUESTS; i++) {
        batch->qo_indptr[i] = i;
        batch->kv_indptr[i] = i * PAGES_EACH;
    }
    for (int i = 0; i < REQUESTS; i++)
        batch->last_page_len[i] = PAGE_SIZE;
}

static bool set(struct bench_suite *suite, struct attnd_session *session, uint32_t plan,
                const struct batch *batch, uint64_t *took_ns)
{
    struct attnd_level level = {REQUESTS, batch->qo_indptr, batch->kv_indptr, batch->pages,
                                batch->last_page_len};
    struct attnd_batch args = {.size = sizeof(args),
                               .levels = 1,
                               .flags = ATTND_CAUSAL,
                               .reserve_pages = 1,
                               .level = &level};
    struct attnd_op op = {0};
    struct attnd_completion completion;
    uint64_t begin_ns = attnd_clock_ns();

    if (!bench_suite_call(suite, "attnd_plan_set", attnd_plan_set(session, plan, &args, &op)) ||
        !bench_wait_hot(suite, session, &completion))
        return false;
    *took_ns = completion.end_ns - begin_ns;
    return true;
}

static bool advance(struct bench_suite *suite, struct attnd_session *session, uint32_t plan,
                    struct batch *batch, uint64_t round, uint64_t *took_ns)
{
    struct attnd_advance args = {
        .size = sizeof(args), .entries = REQUESTS, .kv_len = batch->kv_len};
    struct attnd_op op = {0};
    struct attnd_completion completion;
    int32_t length = (PAGES_EACH - 1) * PAGE_SIZE + 1 + (int32_t)(round % PAGE_SIZE);
    uint64_t begin_ns;

    for (int i = 0; i < REQUESTS; i++)
        batch->kv_len[i] = length;
    begin_ns = attnd_clock_ns();
    if (!bench_suite_call(suite, "attnd_plan_advance",
                          attnd_plan_advance(session, plan, &args, &op)) ||
        !bench_wait_hot(suite, session, &completion))
        return false;
    *took_ns = completion.end_ns - begin_ns;
    return true;
}

static void measure(struct bench_suite *suite, struct attnd_session *session, uint32_t plan,
                    struct batch *batch)
{
    uint64_t *set_ns = calloc(suite->rounds, sizeof(uint64_t));
    uint64_t *advance_ns = calloc(suite->rounds, sizeof(uint64_t));
    char notes[160];

    if (!set_ns || !advance_ns) {
        bench_suite_fail(suite, "out of memory");
        goto out;
    }
    /* Each kind in a row: decoding engines advance many times for each time they plan. */
    for (uint64_t i = 0; i < suite->rounds && !suite->failed; i++)
        set(suite, session, plan, batch, &set_ns[i]);
    for (uint64_t i = 0; i < suite->rounds && !suite->failed; i++)
        advance(suite, session, plan, batch, i, &advance_ns[i]);
    if (!suite->failed) {
        snprintf(notes, sizeof(notes),
                 "p50 of %llu, hot; 64 decodes x 256 leased pages of 16, 32/8 heads",
                 (unsigned long long)suite->rounds);
        bench_suite_figure(suite, "decode64_us", (double)bench_p50(set_ns, suite->rounds) * 1e-3,
                           "us", "lower", 30, notes);
        bench_suite_figure(suite, "advance_us", (double)bench_p50(advance_ns, suite->rounds) * 1e-3,
                           "us", "lower", 2, notes);
    }
out:
    free(set_ns);
    free(advance_ns);
}

static void measure_shared(struct bench_suite *suite, struct attnd_session *session, uint32_t plan,
                           const struct batch *batch)
{
    static struct batch shared;
    const uint64_t rounds = suite->rounds < COPIES ? suite->rounds : COPIES;
    uint64_t took_ns[COPIES];
    char notes[128];

    shared = *batch;
    for (int i = 1; i < REQUESTS; i++)
        for (int page = 0; page < PAGES_EACH - 1; page++)
            shared.pages[i * PAGES_EACH + page] = batch->pages[page];
    for (uint64_t i = 0; i < rounds; i++)
        if (!set(suite, session, plan, &shared, &took_ns[i]))
            return;
    snprintf(notes, sizeof(notes),
             "p50 of %llu, hot; decode64 with %d of its 256 pages in common, found by their ids",
             (unsigned long long)rounds, PAGES_EACH - 1);
    bench_suite_figure(suite, "shared64_us", (double)bench_p50(took_ns, rounds) * 1e-3, "us",
                       "lower", NAN, notes);
}

/* Return: false if the worker has no copy, or after a failure. */
static bool copied_bytes(struct bench_suite *suite, uint64_t *bytes)
{
    Attnd__Reply *reply = bench_suite_status(suite);
    const bool has = reply && reply->status->has_plan_bytes;

    if (has)
        *bytes = reply->status->plan_bytes;
    attnd__reply__free_unpacked(reply, NULL);
    return has;
}

static bool prepare(struct bench_suite *suite, struct attnd_session *session, uint32_t plan)
{
    const uint64_t rows_bytes = sizeof(uint16_t) * REQUESTS * HEADS_Q * DIM;
    struct attnd_prepare_args args = {.size = sizeof(args)};
    uint32_t prepared;

    if (!bench_suite_call(suite, "attnd_memory_create",
                          attnd_memory_create(session, 2 * rows_bytes, &args.q.memory, NULL)))
        return false;
    args.o = (struct attnd_tensor){args.q.memory, rows_bytes};
    return bench_suite_call(suite, "attnd_prepare", attnd_prepare(session, plan, &args, &prepared));
}

static void measure_copies(struct bench_suite *suite, struct attnd_session *session, uint32_t plan,
                           struct batch *batch)
{
    const uint64_t rounds = suite->rounds < COPIES ? suite->rounds : COPIES;
    uint64_t took_ns[COPIES], before, after;
    char notes[160];

    if (!copied_bytes(suite, &before) || !prepare(suite, session, plan) ||
        !copied_bytes(suite, &before))
        return;
    for (uint64_t i = 0; i < rounds; i++)
        if (!advance(suite, session, plan, batch, i, &took_ns[i]))
            return;
    if (!copied_bytes(suite, &after))
        return;
    const uint64_t ring_bytes = sizeof(struct attnd_command) + sizeof(struct attnd_retire);
    const double bytes = (double)(after - before) / (double)rounds;
    snprintf(notes, sizeof(notes),
             "%.0f of the plan, %llu of command and answer; %llu advances, no page boundary", bytes,
             (unsigned long long)ring_bytes, (unsigned long long)rounds);
    bench_suite_figure(suite, "advance_bytes_64x256", bytes + (double)ring_bytes, "bytes", "lower",
                       1024, notes);
    bench_suite_figure(suite, "advance_published_us", (double)bench_p50(took_ns, rounds) * 1e-3,
                       "us", "lower", 30, "p50, hot; until the GPU's copy has the new lengths");
}

/* ---- a chunk beside decodes ---- */

static bool open_mixed(struct bench_suite *suite, struct attnd_session *session,
                       struct mixed *mixed, uint32_t *plan)
{
    struct attnd_plan_args args = {.size = sizeof(args),
                                   .requests = MIXED_REQUESTS,
                                   .rows = MIXED_CHUNK + MIXED_DECODES,
                                   .pages = MIXED_PAGES + MIXED_REQUESTS,
                                   .levels = 1,
                                   .heads_q = HEADS_Q};

    for (int i = 0; i < MIXED_REQUESTS; i++) {
        mixed->qo_indptr[i + 1] = mixed->qo_indptr[i] + (i ? 1 : MIXED_CHUNK);
        mixed->kv_indptr[i + 1] = mixed->kv_indptr[i] + (i ? PAGES_EACH : MIXED_CHUNK / PAGE_SIZE);
        mixed->last_page_len[i] = PAGE_SIZE;
    }
    bool good = bench_suite_call(suite, "attnd_pool_create_leased",
                                 attnd_pool_create_leased(session, 1, MIXED_PAGES, PAGE_SIZE, 8,
                                                          DIM, ATTND_DTYPE_BF16, &args.pool));
    for (uint32_t done = 0; good && done < MIXED_PAGES; done += PAGES) { /* a call takes no more */
        const uint32_t count = MIXED_PAGES - done < PAGES ? MIXED_PAGES - done : PAGES;
        good = bench_suite_call(suite, "attnd_pages_alloc",
                                attnd_pages_alloc(session, args.pool, count, mixed->pages + done));
    }
    return good &&
           bench_suite_call(suite, "attnd_plan_create", attnd_plan_create(session, &args, plan));
}

/* p50 of setting the plan with the arrays of @mixed, into *us. */
static bool time_mixed(struct bench_suite *suite, struct attnd_session *session, uint32_t plan,
                       const struct mixed *mixed, uint64_t rounds, double *us)
{
    const struct attnd_level level = {MIXED_REQUESTS, mixed->qo_indptr, mixed->kv_indptr,
                                      mixed->pages, mixed->last_page_len};
    const struct attnd_batch args = {.size = sizeof(args),
                                     .levels = 1,
                                     .flags = ATTND_CAUSAL,
                                     .reserve_pages = 1,
                                     .level = &level};
    uint64_t took_ns[COPIES];

    for (uint64_t i = 0; i < rounds; i++) {
        const struct attnd_op op = {0};
        struct attnd_completion completion;
        const uint64_t begin_ns = attnd_clock_ns();

        if (!bench_suite_call(suite, "attnd_plan_set", attnd_plan_set(session, plan, &args, &op)) ||
            !bench_wait_hot(suite, session, &completion))
            return false;
        took_ns[i] = completion.end_ns - begin_ns;
    }
    *us = (double)bench_p50(took_ns, rounds) * 1e-3;
    return true;
}

/* Once with arrays in memory that the service reads in place, as an engine has them that keeps its
 * page tables there, and once with arrays of the engine's own, which are copied. */
static void measure_mixed(struct bench_suite *suite, struct attnd_session *session)
{
    static struct mixed own;
    const uint64_t rounds = suite->rounds < COPIES ? suite->rounds : COPIES;
    struct mixed *const shared = attnd_tables_memory(session, NULL);
    uint32_t plan;
    double us, copied_us;
    char notes[128];

    if (!open_mixed(suite, session, &own, &plan))
        return;
    *shared = own;
    if (!time_mixed(suite, session, plan, &own, rounds, &copied_us) ||
        !time_mixed(suite, session, plan, shared, rounds, &us))
        return;
    snprintf(notes, sizeof(notes),
             "p50 of %llu, hot; 1 x 1024 and 255 decodes of 4096, 32/8 heads; page tables in place",
             (unsigned long long)rounds);
    bench_suite_figure(suite, "mixed256_us", us, "us", "lower", 40, notes);
    snprintf(notes, sizeof(notes), "the same with arrays of the engine's own, which are copied");
    bench_suite_figure(suite, "mixed256_copied_us", copied_us, "us", "lower", NAN, notes);
}

int main(int argc, char **argv)
{
    static struct bench_suite suite = {
        .name = "plan",
        .doc = "plan - from the client's call until the worker can read the tiles",
        .rounds = 10000};
    static struct batch batch;
    struct attnd_session *session = NULL;
    uint32_t plan;

    bench_suite_begin(&suite, argc, argv);
    fill(&batch);
    if (open_plan(&suite, &session, &batch, &plan)) {
        measure_shared(&suite, session, plan, &batch);
        if (!suite.failed)
            measure(&suite, session, plan, &batch);
        if (!suite.failed)
            measure_mixed(&suite, session);
        if (!suite.failed)
            measure_copies(&suite, session, plan, &batch);
    }
    attnd_close(session);
    return bench_suite_end(&suite);
}
