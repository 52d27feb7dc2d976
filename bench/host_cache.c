/* host_cache.c - what was evicted to the host comes back: how fast, over the link's own copy rate.
 *
 * Prompts of CHAIN blocks are published, half as many again as the pool has room for, and then
 * matched in turns: what a match finds has been evicted by those before it. Timed is a match from
 * its call to its completion, of which every page has to come back; all of them are on the host, so
 * nothing has to be copied out for it. The link's rate is that of one large copy of pinned memory
 * to the device, before and after, in this process. With a worker on the CPU it is memcpy's.
 *
 * The driver is asked for by name, so this is built and tried where there is no CUDA. */
#include "bench/support/private_service.h"
#include "bench/support/suite.h"
#include "ipc/wake.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPTS 6u
#define LINK_COPIES 16u

/* Pages of a block's size: as an engine has them, and small ones for a worker of threads. */
struct scale {
    uint32_t layers, pages; /* a page has 64 KiB a layer */
    uint32_t memory_kind;
    const char *cache;
};
static const struct scale on_gpu = {32, 1024, ATTND_MEMORY_DEVICE, "4G"};
static const struct scale on_cpu = {8, 128, ATTND_MEMORY_HOST, "256M"};

struct cached {
    const struct scale *scale;
    struct attnd_session *session;
    uint32_t pool, prefix;
    uint32_t chain;                /* blocks of a prompt: a quarter of the pool */
    struct attnd_prefix_key *keys; /* [PROMPTS * chain] */
    int32_t *pages;                /* [chain] */
};

/* ---- the link ---- */

/* What is used of the driver. */
struct link {
    int (*init)(unsigned int flags);
    int (*device)(int *device, int ordinal);
    int (*device_name)(char *name, int bytes, int device);
    int (*retain)(void **context, int device);
    int (*set)(void *context);
    int (*alloc)(unsigned long long *address, size_t bytes);
    int (*alloc_host)(void **address, size_t bytes, unsigned int flags);
    int (*copy)(unsigned long long to, const void *from, size_t bytes, void *stream);
    int (*wait)(void *stream);
    int (*stream)(void **stream, unsigned int flags);
    unsigned long long to;
    void *from, *on;
    size_t bytes;
};

static bool find(struct bench_suite *suite, void *library, const char *name, void *function)
{
    void *symbol = library ? dlsym(library, name) : NULL;

    memcpy(function, &symbol, sizeof(symbol));
    if (!symbol)
        bench_suite_fail(suite, "the driver has no %s", name);
    return symbol != NULL;
}

static bool good(struct bench_suite *suite, const char *call, int result)
{
    if (result)
        bench_suite_fail(suite, "%s: CUDA error %d", call, result);
    return result == 0;
}

static bool link_open(struct bench_suite *suite, struct link *link, char *name, int name_bytes)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context = NULL;
    int device = 0;

    link->bytes = 256u << 20;
    return find(suite, library, "cuInit", &link->init) &&
           find(suite, library, "cuDeviceGet", &link->device) &&
           find(suite, library, "cuDeviceGetName", &link->device_name) &&
           find(suite, library, "cuDevicePrimaryCtxRetain", &link->retain) &&
           find(suite, library, "cuCtxSetCurrent", &link->set) &&
           find(suite, library, "cuMemAlloc_v2", &link->alloc) &&
           find(suite, library, "cuMemHostAlloc", &link->alloc_host) &&
           find(suite, library, "cuMemcpyHtoDAsync_v2", &link->copy) &&
           find(suite, library, "cuStreamSynchronize", &link->wait) &&
           find(suite, library, "cuStreamCreate", &link->stream) &&
           good(suite, "cuInit", link->init(0)) &&
           good(suite, "cuDeviceGet", link->device(&device, 0)) &&
           good(suite, "cuDeviceGetName", link->device_name(name, name_bytes, device)) &&
           good(suite, "cuDevicePrimaryCtxRetain", link->retain(&context, device)) &&
           good(suite, "cuCtxSetCurrent", link->set(context)) &&
           good(suite, "cuMemAlloc", link->alloc(&link->to, link->bytes)) &&
           good(suite, "cuMemHostAlloc", link->alloc_host(&link->from, link->bytes, 0)) &&
           good(suite, "cuStreamCreate", link->stream(&link->on, 1));
}

static bool copy_once(struct bench_suite *suite, const struct link *link, char *to)
{
    if (!link->init) {
        memcpy(to, link->from, link->bytes);
        return true;
    }
    return good(suite, "cuMemcpyHtoDAsync",
                link->copy(link->to, link->from, link->bytes, link->on)) &&
           good(suite, "cuStreamSynchronize", link->wait(link->on));
}

/* Bytes a second, of the median of some copies; 0 after a failure. */
static double link_rate(struct bench_suite *suite, struct link *link)
{
    static char *to;
    uint64_t took_ns[LINK_COPIES];

    if (!link->init && !to) {
        link->bytes = 64u << 20;
        link->from = malloc(link->bytes);
        to = malloc(link->bytes);
        if (!link->from || !to) {
            bench_suite_fail(suite, "out of memory");
            return 0;
        }
        memset(link->from, 1, link->bytes);
        memset(to, 2, link->bytes);
    }
    for (uint32_t i = 0; i < LINK_COPIES; i++) {
        uint64_t begin_ns = attnd_clock_ns();
        if (!copy_once(suite, link, to))
            return 0;
        took_ns[i] = attnd_clock_ns() - begin_ns;
    }
    return (double)link->bytes * 1e9 / (double)bench_p50(took_ns, LINK_COPIES);
}

/* ---- the tree ---- */

static uint64_t page_bytes(const struct scale *scale)
{
    return (uint64_t)scale->layers * 65536;
}

static bool open_tree(struct bench_suite *suite, struct cached *cached)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = suite->socket_path, .name = "bench-host-cache"};
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = cached->scale->layers,
                                         .pages = cached->scale->pages,
                                         .page_size = 16,
                                         .heads_kv = 8,
                                         .dim_qk = 128,
                                         .dim_vo = 128,
                                         .dtype = ATTND_DTYPE_BF16,
                                         .page_owner = ATTND_PAGES_OF_SERVICE,
                                         .memory_kind = cached->scale->memory_kind};
    const struct attnd_prefix_desc prefix = {.size = sizeof(prefix), .block_pages = 1};
    struct attnd_prefix_info info = {.size = sizeof(info)};

    cached->chain = cached->scale->pages / 4;
    cached->keys = calloc((size_t)PROMPTS * cached->chain, sizeof(*cached->keys));
    cached->pages = calloc(cached->chain, sizeof(*cached->pages));
    if (!cached->keys || !cached->pages) {
        bench_suite_fail(suite, "out of memory");
        return false;
    }
    if (!bench_suite_call(suite, "attnd_open", attnd_open(&args, &cached->session)) ||
        !bench_suite_call(suite, "attnd_pool_create",
                          attnd_pool_create(cached->session, &desc, &cached->pool)) ||
        !bench_suite_call(
            suite, "attnd_prefix_open",
            attnd_prefix_open(cached->session, cached->pool, &prefix, &cached->prefix)) ||
        !bench_suite_call(suite, "attnd_prefix_info",
                          attnd_prefix_info(cached->session, cached->prefix, &info)))
        return false;
    for (uint32_t i = 0; i < PROMPTS * cached->chain; i++)
        attnd_prefix_key(info.salt, i % cached->chain ? &cached->keys[i - 1] : NULL, &i, sizeof(i),
                         &cached->keys[i]);
    return true;
}

static struct attnd_prefix_args args_of(const struct cached *cached, uint32_t prompt)
{
    return (struct attnd_prefix_args){.size = sizeof(struct attnd_prefix_args),
                                      .prefix = cached->prefix,
                                      .blocks = cached->chain,
                                      .keys = cached->keys + (size_t)prompt * cached->chain};
}

static bool free_pages(struct bench_suite *suite, const struct cached *cached, const int32_t *pages)
{
    return bench_suite_call(suite, "attnd_pages_free",
                            attnd_pages_free(cached->session, cached->pool, cached->chain, pages));
}

/* A match of all of a prompt. Return: how long it took; 0 after a failure, or if not all is there.
 */
static uint64_t match(struct bench_suite *suite, const struct cached *cached, uint32_t prompt,
                      uint32_t *found)
{
    struct attnd_prefix_args args = args_of(cached, prompt);
    struct attnd_prefix_result result = {.size = sizeof(result)};
    struct attnd_completion completion;
    uint64_t begin_ns = attnd_clock_ns();

    *found = 0;
    if (!bench_suite_call(suite, "attnd_prefix_match",
                          attnd_prefix_match(cached->session, &args, NULL)) ||
        !bench_wait_hot(suite, cached->session, &completion))
        return 0;
    uint64_t took_ns = attnd_clock_ns() - begin_ns;
    if (attnd_prefix_result(cached->session, &completion, &result))
        return 0;
    *found = result.blocks;
    if (result.blocks && !bench_suite_call(suite, "attnd_pages_free",
                                           attnd_pages_free(cached->session, cached->pool,
                                                            result.pages_count, result.pages)))
        return 0;
    return took_ns;
}

/* The service's account of its host cache: blocks that came back, pages that are leased. */
static bool account(struct bench_suite *suite, uint64_t *in_blocks, uint32_t *leased)
{
    Attnd__Reply *reply = bench_suite_status(suite);

    if (!reply)
        return false;
    bool there = reply->status->host_cache && reply->status->n_pools == 1;
    if (there) {
        *in_blocks = reply->status->host_cache->in_blocks;
        *leased = reply->status->pools[0]->pages_leased;
    } else {
        bench_suite_fail(suite, "the service has no host cache");
    }
    attnd__reply__free_unpacked(reply, NULL);
    return there;
}

/* Until what was to leave has left: an eighth of the pool is kept free. */
static bool await_room(struct bench_suite *suite, const struct cached *cached)
{
    uint64_t begin_ns = attnd_clock_ns(), in_blocks;
    uint32_t leased = 0;

    do {
        if (!account(suite, &in_blocks, &leased))
            return false;
        if (cached->scale->pages - leased >= cached->scale->pages / 8)
            return true;
    } while (attnd_clock_ns() - begin_ns < 30000000000u);
    bench_suite_fail(suite, "%" PRIu32 " pages are still leased after 30 s", leased);
    return false;
}

static bool publish(struct bench_suite *suite, const struct cached *cached, uint32_t prompt)
{
    const uint32_t part = cached->scale->pages / 8; /* what is free */
    struct attnd_prefix_args args = args_of(cached, prompt);
    struct attnd_completion completion;
    const struct attnd_prefix_key *keys = args.keys;

    args.blocks = part;
    for (uint32_t at = 0; at < cached->chain; at += part) {
        args.keys = keys + at;
        args.parent = at ? keys + at - 1 : NULL;
        if (!await_room(suite, cached) ||
            !bench_suite_call(
                suite, "attnd_pages_alloc",
                attnd_pages_alloc(cached->session, cached->pool, part, cached->pages + at)) ||
            !bench_suite_call(
                suite, "attnd_prefix_publish",
                attnd_prefix_publish(cached->session, &args, cached->pages + at, NULL)) ||
            !bench_wait_hot(suite, cached->session, &completion))
            return false;
    }
    return free_pages(suite, cached, cached->pages);
}

/* ---- the figure ---- */

static void measure(struct bench_suite *suite, struct cached *cached, struct link *link)
{
    uint64_t *took_ns = calloc(suite->rounds, sizeof(*took_ns));
    uint64_t before_blocks = 0, after_blocks = 0, count = 0;
    uint32_t found, leased;
    char notes[200];

    for (uint32_t prompt = 0; took_ns && prompt < PROMPTS && !suite->failed; prompt++)
        publish(suite, cached, prompt);
    for (uint32_t i = 0; took_ns && i < PROMPTS && !suite->failed; i++) { /* all are copied once */
        match(suite, cached, i, &found);
        await_room(suite, cached);
    }
    double before = suite->failed ? 0 : link_rate(suite, link);
    if (!took_ns || suite->failed || !account(suite, &before_blocks, &leased)) {
        free(took_ns);
        return;
    }
    for (; count < suite->rounds && !suite->failed; count++) {
        took_ns[count] = match(suite, cached, (uint32_t)(count % PROMPTS), &found);
        if (found != cached->chain)
            bench_suite_fail(suite, "%" PRIu32 " of %" PRIu32 " blocks were found", found,
                             cached->chain);
        await_room(suite, cached);
    }
    double after = suite->failed ? 0 : link_rate(suite, link);
    if (!suite->failed && account(suite, &after_blocks, &leased)) {
        double bytes = (double)page_bytes(cached->scale) * cached->chain;
        double back = (double)(after_blocks - before_blocks) / ((double)count * cached->chain);
        double rate = bytes * 1e9 / (double)bench_p50(took_ns, count);
        double link_bytes = (before + after) / 2;
        if (back < 0.99)
            bench_suite_fail(suite, "only %.1f%% of what was matched had to come back", 100 * back);
        snprintf(notes, sizeof(notes),
                 "p50 of %" PRIu64 " matches of %.0f MiB, %.2f GB/s from call to completion over "
                 "%.2f and %.2f before and after",
                 count, bytes / (1u << 20), rate * 1e-9, before * 1e-9, after * 1e-9);
        bench_suite_figure(suite, "host_tier_gbps_over_link", rate / link_bytes, "ratio", "higher",
                           0.7, notes);
    }
    free(took_ns);
}

/* Return: 1 the service's worker is a GPU's; 0 it is not; -1 after bench_suite_fail(). */
static int has_gpu(struct bench_suite *suite)
{
    Attnd__Reply *reply = bench_suite_status(suite);
    int gpu = reply ? strcmp(reply->status->backend, "cuda") == 0 : -1;

    attnd__reply__free_unpacked(reply, NULL);
    return gpu;
}

int main(int argc, char **argv)
{
    static struct bench_suite suite = {
        .name = "prefix",
        .doc = "host_cache - what was evicted to the host comes back, over the link's copy rate",
        .rounds = 24};
    static struct cached cached;
    static struct link link;
    char name[64] = "";

    bench_suite_begin(&suite, argc, argv);
    int gpu = has_gpu(&suite);
    cached.scale = gpu > 0 ? &on_gpu : &on_cpu;
    const char *const service[] = {"--quiet", "--host-cache", cached.scale->cache, NULL};
    bool ready = gpu >= 0 && bench_suite_restart(&suite, service);
    if (ready && gpu)
        ready = link_open(&suite, &link, name, sizeof(name));
    if (ready && gpu)
        bench_suite_gpu(&suite, name);
    if (ready && open_tree(&suite, &cached))
        measure(&suite, &cached, &link);
    attnd_close(cached.session);
    free(cached.keys);
    free(cached.pages);
    return bench_suite_end(&suite);
}
