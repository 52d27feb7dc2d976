/* prefix.c - the prefix tree at a million blocks: what a match costs the client, from its call
 * until it has the pages, and what a block costs the daemon.
 *
 * The tree is filled with prompts of 256 blocks that share nothing, and each match is of one drawn
 * at random, so that its blocks are in no cache. Hot: the daemon is awake, and the client polls for
 * the answer. The daemon's memory is its anonymous resident memory before the first block and after
 * the last: pages are leased before, because leases are not the tree's. */
#include "bench/support/private_service.h"
#include "bench/support/replay_json.h"
#include "bench/support/suite.h"
#include "ipc/wake.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define CHAIN 256u
#define CHAINS 3907u /* 1,000,192 blocks */
#define BLOCKS (CHAIN * CHAINS)
#define CALL_PAGES 16384u /* leased in one call */

struct tree {
    struct attnd_session *session;
    uint32_t pool, prefix;
    int32_t *pages;                /* [BLOCKS] */
    struct attnd_prefix_key *keys; /* [BLOCKS] */
};

static bool open_tree(struct bench_suite *suite, struct tree *tree)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = suite->socket_path, .name = "bench-prefix"};
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = BLOCKS,
                                         .page_size = 1,
                                         .heads_kv = 1,
                                         .dim_qk = 64,
                                         .dim_vo = 64,
                                         .dtype = ATTND_DTYPE_BF16,
                                         .page_owner = ATTND_PAGES_OF_SERVICE};
    const struct attnd_prefix_desc prefix = {.size = sizeof(prefix), .block_pages = 1};

    tree->pages = calloc(BLOCKS, sizeof(*tree->pages));
    tree->keys = calloc(BLOCKS, sizeof(*tree->keys));
    if (!tree->pages || !tree->keys) {
        bench_suite_fail(suite, "out of memory");
        return false;
    }
    return bench_suite_call(suite, "attnd_open", attnd_open(&args, &tree->session)) &&
           bench_suite_call(suite, "attnd_pool_create",
                            attnd_pool_create(tree->session, &desc, &tree->pool)) &&
           bench_suite_call(suite, "attnd_prefix_open",
                            attnd_prefix_open(tree->session, tree->pool, &prefix, &tree->prefix));
}

static void make_keys(struct bench_suite *suite, struct tree *tree)
{
    struct attnd_prefix_info info = {.size = sizeof(info)};

    if (!bench_suite_call(suite, "attnd_prefix_info",
                          attnd_prefix_info(tree->session, tree->prefix, &info)))
        return;
    for (uint32_t i = 0; i < BLOCKS; i++)
        attnd_prefix_key(info.salt, i % CHAIN ? &tree->keys[i - 1] : NULL, &i, sizeof(i),
                         &tree->keys[i]);
}

/* Calls of leases, in parts of a size that the service takes. */
static void lease_all(struct bench_suite *suite, struct tree *tree, bool alloc)
{
    for (uint32_t at = 0; at < BLOCKS && !suite->failed; at += CALL_PAGES) {
        uint32_t count = BLOCKS - at < CALL_PAGES ? BLOCKS - at : CALL_PAGES;
        int code = alloc ? attnd_pages_alloc(tree->session, tree->pool, count, tree->pages + at)
                         : attnd_pages_free(tree->session, tree->pool, count, tree->pages + at);
        bench_suite_call(suite, alloc ? "attnd_pages_alloc" : "attnd_pages_free", code);
    }
}

static struct attnd_prefix_args chain_of(const struct tree *tree, uint32_t chain)
{
    return (struct attnd_prefix_args){.size = sizeof(struct attnd_prefix_args),
                                      .prefix = tree->prefix,
                                      .blocks = CHAIN,
                                      .keys = tree->keys + (size_t)chain * CHAIN};
}

static void publish_all(struct bench_suite *suite, struct tree *tree)
{
    struct attnd_completion completion;

    for (uint32_t chain = 0; chain < CHAINS && !suite->failed; chain++) {
        struct attnd_prefix_args args = chain_of(tree, chain);
        struct attnd_prefix_result result = {.size = sizeof(result)};
        const int32_t *pages = tree->pages + (size_t)chain * CHAIN;

        if (!bench_suite_call(suite, "attnd_prefix_publish",
                              attnd_prefix_publish(tree->session, &args, pages, NULL)) ||
            !bench_wait_hot(suite, tree->session, &completion))
            return;
        if (attnd_prefix_result(tree->session, &completion, &result) || result.taken != CHAIN)
            bench_suite_fail(suite, "%u of %u blocks were published", result.taken, CHAIN);
    }
}

/* Return: anonymous resident memory of the private daemon; 0 after bench_suite_fail(). */
static uint64_t daemon_bytes(struct bench_suite *suite)
{
    char path[64], line[256];
    uint64_t kib = 0;

    if (bench_private_pid() <= 0) {
        bench_suite_fail(suite, "a private service is needed: --spawn");
        return 0;
    }
    snprintf(path, sizeof(path), "/proc/%d/status", (int)bench_private_pid());
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file) && sscanf(line, "RssAnon: %" SCNu64, &kib) != 1)
        ;
    if (file)
        fclose(file);
    if (!kib)
        bench_suite_fail(suite, "the daemon's memory cannot be read");
    return kib * 1024;
}

static uint32_t draw(uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 33);
}

static bool match(struct bench_suite *suite, const struct tree *tree, uint32_t chain,
                  uint64_t *took_ns)
{
    struct attnd_prefix_args args = chain_of(tree, chain);
    struct attnd_prefix_result result = {.size = sizeof(result)};
    const struct attnd_prefix_args nothing = {.size = sizeof(nothing), .prefix = tree->prefix};
    struct attnd_completion completion;

    /* The call that freed the last one's pages let the daemon fall asleep. */
    if (!bench_suite_call(suite, "attnd_prefix_match",
                          attnd_prefix_match(tree->session, &nothing, NULL)) ||
        !bench_wait_hot(suite, tree->session, &completion))
        return false;
    uint64_t begin_ns = attnd_clock_ns();
    if (!bench_suite_call(suite, "attnd_prefix_match",
                          attnd_prefix_match(tree->session, &args, NULL)) ||
        !bench_wait_hot(suite, tree->session, &completion))
        return false;
    *took_ns = attnd_clock_ns() - begin_ns;
    if (attnd_prefix_result(tree->session, &completion, &result) || result.blocks != CHAIN) {
        bench_suite_fail(suite, "%u of %u blocks were found", result.blocks, CHAIN);
        return false;
    }
    return bench_suite_call(
        suite, "attnd_pages_free",
        attnd_pages_free(tree->session, tree->pool, result.pages_count, result.pages));
}

/* Of several engines: what they computed. */
static void figure_computed(struct bench_suite *suite, const struct bench_replay_file *file)
{
    const struct bench_replay_side *tree = &file->service, *own = &file->engine;
    char notes[160];

    snprintf(notes, sizeof(notes),
             "%" PRIu64 " engines in turns, %" PRIu64 " requests, contexts to %" PRIu64 ": %" PRIu64
             " of %" PRIu64 " prompt tokens over %" PRIu64,
             file->engines, tree->requests, file->context_max, tree->prompt_computed,
             tree->prompt_tokens, own->prompt_computed);
    bench_suite_figure(suite, "cross_engine_computed_ratio",
                       (double)tree->prompt_computed / (double)own->prompt_computed, "ratio",
                       "lower", 0.83, notes);
}

/* Mean step of one engine, with all that it asks of pages and prefixes in between. */
static double step_us(const struct bench_replay_side *side)
{
    return (side->attention_s + side->pages_s) / (double)side->steps * 1e6;
}

/* Of comparisons with one engine the median, because attention takes nearly all of a step, and its
 * time moves by more from replay to replay than what is looked for. */
static void figure_overhead(struct bench_suite *suite, const struct bench_replay_file *files,
                            uint32_t count)
{
    uint64_t ratios[BENCH_REPLAYS_MAX]; /* in millionths */
    double tree_pages_us = 0, own_pages_us = 0, tree_us = 0;
    char notes[200];

    for (uint32_t i = 0; i < count; i++) {
        const struct bench_replay_side *tree = &files[i].service, *own = &files[i].engine;
        ratios[i] = (uint64_t)(step_us(tree) / step_us(own) * 1e6);
        tree_us += step_us(tree) / count;
        tree_pages_us += tree->pages_s / (double)tree->steps * 1e6 / count;
        own_pages_us += own->pages_s / (double)own->steps * 1e6 / count;
    }
    const double ratio = (double)bench_p50(ratios, count) * 1e-6; /* sorts them */
    snprintf(notes, sizeof(notes),
             "median of %" PRIu32 " replays of one engine, %.3f to %.3f; mean step %.1f us, of "
             "which pages and prefixes %.1f, with its own cache %.1f",
             count, (double)ratios[0] * 1e-6, (double)ratios[count - 1] * 1e-6, tree_us,
             tree_pages_us, own_pages_us);
    bench_suite_figure(suite, "hit_overhead_over_engine", ratio, "ratio", "lower", 1.02, notes);
}

/* From comparisons of the service's tree with engines' own caches. */
static void figure_replays(struct bench_suite *suite)
{
    static struct bench_replay_file files[BENCH_REPLAYS_MAX]; /* of one engine */
    uint32_t alone = 0;
    char why[256];

    for (uint32_t i = 0; i < suite->replays && !suite->failed; i++) {
        struct bench_replay_file *file = &files[alone];
        if (bench_replay_read(suite->replay_path[i], file, why, sizeof(why))) {
            bench_suite_fail(suite, "%s", why);
            return;
        }
        const struct bench_replay_side *tree = &file->service, *own = &file->engine;
        if (tree->mismatches || own->mismatches || !own->prompt_computed || !own->steps ||
            !tree->steps)
            bench_suite_fail(suite, "%s: it is of no use for figures", suite->replay_path[i]);
        else if (file->engines > 1)
            figure_computed(suite, file);
        else
            alone++;
    }
    if (alone && !suite->failed)
        figure_overhead(suite, files, alone);
}

static void measure(struct bench_suite *suite, struct tree *tree)
{
    uint64_t *took_ns = calloc(suite->rounds, sizeof(*took_ns));
    uint64_t random = 1;
    char notes[160];

    if (!took_ns) {
        bench_suite_fail(suite, "out of memory");
        return;
    }
    make_keys(suite, tree);
    lease_all(suite, tree, true);
    uint64_t before = daemon_bytes(suite);
    publish_all(suite, tree);
    lease_all(suite, tree, false);
    uint64_t after = daemon_bytes(suite);
    for (uint64_t i = 0; i < suite->rounds && !suite->failed; i++)
        match(suite, tree, draw(&random) % CHAINS, &took_ns[i]);
    if (!suite->failed) {
        snprintf(notes, sizeof(notes), "p50 of %" PRIu64 " matches of %u blocks, of %u in the tree",
                 suite->rounds, CHAIN, BLOCKS);
        bench_suite_figure(suite, "match_256_us", (double)bench_p50(took_ns, suite->rounds) * 1e-3,
                           "us", "lower", 40, notes);
        snprintf(notes, sizeof(notes), "%u blocks, %.1f MiB of anonymous memory", BLOCKS,
                 (double)(after - before) / (1u << 20));
        bench_suite_figure(suite, "bytes_per_block", (double)(after - before) / BLOCKS, "bytes",
                           "lower", 128, notes);
    }
    free(took_ns);
}

int main(int argc, char **argv)
{
    static struct bench_suite suite = {
        .name = "prefix",
        .doc = "prefix - matches in a tree of a million blocks, and what it costs the daemon",
        .rounds = 10000,
        .replays_max = BENCH_REPLAYS_MAX};
    static struct tree tree;

    bench_suite_begin(&suite, argc, argv);
    if (open_tree(&suite, &tree))
        measure(&suite, &tree);
    if (!suite.failed)
        figure_replays(&suite);
    attnd_close(tree.session);
    free(tree.pages);
    free(tree.keys);
    return bench_suite_end(&suite);
}
