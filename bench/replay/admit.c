/* admit.c - requests and their pages.
 *
 * A replay knows how long every answer will be, so a request gets the pages of its whole life when
 * it is admitted, or waits: nothing that runs can get stuck, nothing is preempted, and engines that
 * share a pool cannot block each other for ever. Pages of the prompt that the cache knows are
 * shared by one more lease each; the rest is allocated, evicting idle cache pages when the pool is
 * empty. The service counts the leases: a page is free when neither a request nor a cache holds it.
 */
#include "bench/replay/engine.h"

#include <stdlib.h>

uint32_t replay_pages_of(const struct replay_trace_request *request, uint32_t page_size)
{
    /* The last token of the answer is never attended to: it is not stored. */
    uint32_t tokens =
        request->input_tokens + (request->output_tokens ? request->output_tokens - 1 : 0);

    return tokens / page_size + (tokens % page_size != 0);
}

uint32_t replay_cache_pages_max(const struct replay_job *job)
{
    return job->cache == REPLAY_CACHE_ENGINE ? job->pool_pages / (2 * job->options->engines) : 0;
}

struct replay_request *replay_request_new(const struct replay_engine *engine,
                                          const struct replay_trace_request *trace)
{
    uint32_t page_size = engine->options->page_size;
    struct replay_request *request = calloc(1, sizeof(*request));

    if (!request)
        return NULL;
    request->trace = trace;
    request->pages_count = replay_pages_of(trace, page_size);
    request->keys_count = engine->job->cache != REPLAY_CACHE_NONE && engine->role != REPLAY_DECODE
                              ? trace->input_tokens / page_size
                              : 0;
    request->pages = calloc(request->pages_count, sizeof(request->pages[0]));
    request->keys = calloc((size_t)request->keys_count + 1, sizeof(request->keys[0]));
    request->tree_keys = calloc((size_t)request->keys_count + 1, sizeof(request->tree_keys[0]));
    if (!request->pages || !request->keys || !request->tree_keys) {
        replay_request_free(request);
        return NULL;
    }
    replay_prefix_keys(engine->job->trace->block_ids + trace->blocks_offset, REPLAY_BLOCK_TOKENS,
                       page_size, request->keys_count, request->keys);
    if (engine->job->cache == REPLAY_CACHE_SERVICE)
        replay_tree_keys(engine, request->keys, request->keys_count, request->tree_keys);
    return request;
}

void replay_request_free(struct replay_request *request)
{
    if (!request)
        return;
    free(request->pages);
    free(request->keys);
    free(request->tree_keys);
    free(request);
}

void replay_wait_append(struct replay_engine *engine, struct replay_request *request)
{
    request->next = NULL;
    engine->waiting_count++;
    *engine->waiting_tail = request;
    engine->waiting_tail = &request->next;
}

void replay_run_add(struct replay_engine *engine, struct replay_request *request)
{
    request->admitted_clock_ns = request->token_clock_ns = engine->clock_ns;
    engine->running[engine->running_count++] = request;
    engine->running_version++;
}

/* ---- leases, in calls of a size the service takes ---- */

typedef int (*lease_call)(struct attnd_session *session, uint32_t pool, uint32_t count,
                          const int32_t *pages);

static int lease(struct replay_engine *engine, lease_call call, const char *name,
                 const int32_t *pages, uint32_t count)
{
    while (count) {
        uint32_t part = count < ATTND_LEASE_PAGES_MAX ? count : ATTND_LEASE_PAGES_MAX;
        int code = call(engine->session, engine->pool, part, pages);

        if (code)
            return replay_fail_call(engine, name, code);
        pages += part;
        count -= part;
    }
    return 0;
}

static int share(struct replay_engine *engine, const int32_t *pages, uint32_t count)
{
    return lease(engine, attnd_pages_share, "attnd_pages_share", pages, count);
}

static int release(struct replay_engine *engine, const int32_t *pages, uint32_t count)
{
    return lease(engine, attnd_pages_free, "attnd_pages_free", pages, count);
}

static int evict(struct replay_engine *engine, uint32_t count)
{
    uint32_t evicted = replay_prefix_evict(&engine->prefix, count, engine->page_scratch);

    engine->stats->pages_evicted += evicted;
    return release(engine, engine->page_scratch, evicted);
}

/* Return: 1 all of them; 0 the pool has not as many; -1. */
static int allocate(struct replay_engine *engine, int32_t *pages, uint32_t count)
{
    uint32_t done = 0;

    while (done < count) {
        uint32_t part = count - done < ATTND_LEASE_PAGES_MAX ? count - done : ATTND_LEASE_PAGES_MAX;
        int code = attnd_pages_alloc(engine->session, engine->pool, part, pages + done);

        if (code == -ATTND_E_NO_SPACE && engine->prefix.idle) {
            if (evict(engine, part))
                return -1;
            continue;
        }
        if (code == -ATTND_E_NO_SPACE)
            return release(engine, pages, done);
        if (code)
            return replay_fail_call(engine, "attnd_pages_alloc", code);
        done += part;
    }
    engine->stats->pages_allocated += count;
    return 1;
}

/* ---- admission ---- */

static int announce(struct replay_engine *engine, const struct replay_request *request)
{
    for (uint32_t i = request->ready_pages; i < request->keys_count; i++) {
        if (replay_prefix_known(&engine->prefix, request->keys[i]))
            continue; /* the last page of an equal prompt */
        if (replay_prefix_full(&engine->prefix) && evict(engine, 1))
            return -1;
        if (!replay_prefix_begin(&engine->prefix, request->keys[i], request->pages[i]))
            break; /* every page of the cache is in use */
    }
    return 0;
}

enum verdict { FAILED = -1, ADMITTED, NOT_YET, NO_PAGES };

/* It has all its pages, of which the first @hit are computed. */
static void begin(struct replay_engine *engine, struct replay_request *request, uint32_t hit)
{
    request->ready_pages = hit;
    request->stored = hit * engine->options->page_size;
    engine->stats->pages_hit += hit;
    engine->stats->prompt_tokens += request->trace->input_tokens;
    replay_progress_add(engine, request->stored);
    replay_run_add(engine, request);
}

static enum verdict admit_from_cache(struct replay_engine *engine, struct replay_request *request,
                                     uint32_t usable)
{
    bool filling;
    uint32_t hit =
        replay_prefix_match(&engine->prefix, request->keys, usable, request->pages, &filling);

    if (filling)
        return NOT_YET;
    /* Used before anything is evicted, or what was found could be lost again. */
    replay_prefix_use(&engine->prefix, request->keys, hit);
    if (share(engine, request->pages, hit))
        return FAILED;
    int got = allocate(engine, request->pages + hit, request->pages_count - hit);
    if (got <= 0) {
        replay_prefix_unuse(&engine->prefix, request->keys, request->pages, hit);
        return got < 0 || release(engine, request->pages, hit) ? FAILED : NO_PAGES;
    }
    begin(engine, request, hit);
    return announce(engine, request) ? FAILED : ADMITTED;
}

static enum verdict admit_from_tree(struct replay_engine *engine, struct replay_request *request,
                                    uint32_t usable)
{
    int rc = replay_tree_match(engine, request, usable);

    if (rc <= 0)
        return rc < 0 ? FAILED : NOT_YET;
    uint32_t hit = request->answer_blocks, foreign = request->answer_foreign;
    int got = allocate(engine, request->pages + hit, request->pages_count - hit);

    request->answer = REPLAY_UNASKED;
    if (got <= 0)
        return got < 0 || release(engine, request->pages, hit) ? FAILED : NO_PAGES;
    rc = replay_tree_claim(engine, request, hit);
    request->answer = REPLAY_UNASKED;
    if (rc < 0)
        return FAILED;
    /* Somebody was faster: it may be found now. Blocks that this request cannot use are left to
     * others. */
    if (rc == 0 && hit < usable)
        return release(engine, request->pages, request->pages_count) ? FAILED : NOT_YET;
    engine->stats->pages_foreign += foreign;
    begin(engine, request, hit);
    return ADMITTED;
}

static enum verdict admit(struct replay_engine *engine, struct replay_request *request)
{
    /* The last token of the prompt is always computed: its row gives the first token. */
    uint32_t usable = (request->trace->input_tokens - 1) / engine->options->page_size;

    if (request->stored) { /* handed over by a prefill engine, pages and all */
        replay_run_add(engine, request);
        return ADMITTED;
    }
    if (engine->role == REPLAY_DECODE)
        return replay_bring(engine, request) ? FAILED : NOT_YET;
    if (usable > request->keys_count)
        usable = request->keys_count;
    return engine->job->cache == REPLAY_CACHE_SERVICE ? admit_from_tree(engine, request, usable)
                                                      : admit_from_cache(engine, request, usable);
}

int replay_admit(struct replay_engine *engine)
{
    struct replay_request **link = &engine->waiting;

    while (*link && engine->running_count < engine->options->batch) {
        struct replay_request *request = *link, *next = request->next;
        enum verdict verdict = admit(engine, request);

        if (verdict == FAILED)
            return -1;
        if (verdict == NO_PAGES) /* a later request must not take what it waits for */
            return 0;
        if (verdict == NOT_YET) {
            link = &request->next;
            continue;
        }
        engine->waiting_count--;
        *link = next;
        if (!next)
            engine->waiting_tail = link;
    }
    return 0;
}

int replay_admit_computed(struct replay_engine *engine, struct replay_request *request)
{
    uint32_t full = request->stored / engine->options->page_size, count = 0;

    if (full > request->keys_count)
        full = request->keys_count;
    if (full > request->ready_pages && engine->job->cache == REPLAY_CACHE_SERVICE) {
        int failed = replay_tree_publish(engine, request, full);
        request->ready_pages = full;
        return failed;
    }
    for (uint32_t i = request->ready_pages; i < full; i++)
        if (replay_prefix_ready(&engine->prefix, request->keys[i], request->pages[i]))
            engine->page_scratch[count++] = request->pages[i];
    if (full > request->ready_pages)
        request->ready_pages = full;
    return share(engine, engine->page_scratch, count);
}

int replay_admit_leave(struct replay_engine *engine, struct replay_request *request,
                       bool free_pages)
{
    uint32_t index = 0;

    while (engine->running[index] != request)
        index++;
    engine->running[index] = engine->running[--engine->running_count];
    engine->running_version++;
    engine->unfinished--;
    if (engine->job->cache == REPLAY_CACHE_SERVICE && replay_tree_leave(engine, request))
        return -1;
    replay_prefix_unuse(&engine->prefix, request->keys, request->pages, request->keys_count);
    return free_pages ? release(engine, request->pages, request->pages_count) : 0;
}
