/* route.c - which engine gets which request: the one with the least to do, counting what it would
 * have to compute. A prompt whose beginning an engine has seen before is cheaper there, so the
 * turns of one conversation stay together as long as the load allows. Decided before anything runs,
 * from the trace alone: the same trace and options give the same routes. */
#include "bench/replay/prefix.h"
#include "bench/replay/replay.h"

#include <stdlib.h>
#include <string.h>

/* Which engines have been sent a block: open addressing over the chain of ids up to it. */
struct seen {
    uint64_t *chain, *engines;
    size_t mask;
};

static int seen_init(struct seen *seen, size_t blocks)
{
    size_t size = 64;

    while (size < 2 * blocks)
        size *= 2;
    *seen = (struct seen){.chain = calloc(size, sizeof(uint64_t)),
                          .engines = calloc(size, sizeof(uint64_t)),
                          .mask = size - 1};
    return seen->chain && seen->engines ? 0 : -1;
}

static uint64_t *seen_engines(struct seen *seen, uint64_t chain)
{
    size_t i = chain & seen->mask;

    while (seen->chain[i] && seen->chain[i] != chain)
        i = (i + 1) & seen->mask;
    seen->chain[i] = chain;
    return &seen->engines[i];
}

static uint64_t lowest(const uint64_t *load, uint32_t begin, uint32_t end)
{
    uint64_t least = load[begin];

    for (uint32_t i = begin + 1; i < end; i++)
        least = load[i] < least ? load[i] : least;
    return least;
}

/* Tokens engine @index would find computed. */
static uint32_t known_tokens(struct seen *seen, const uint64_t *chains, uint32_t blocks,
                             uint32_t index)
{
    uint32_t known = 0;

    while (known < blocks && (*seen_engines(seen, chains[known]) >> index & 1))
        known++;
    return known * REPLAY_BLOCK_TOKENS;
}

static uint32_t choose_prefill(const struct replay_options *options, struct seen *seen,
                               const struct replay_trace_request *request, const uint64_t *chains,
                               uint64_t *load, uint32_t engines)
{
    uint64_t best_load = UINT64_MAX;
    uint32_t best = 0, answer = options->mode == REPLAY_SHARED ? request->output_tokens : 0;

    for (uint32_t i = 0; i < engines; i++) {
        uint32_t known = known_tokens(seen, chains, request->blocks, i);
        uint32_t rest = known < request->input_tokens ? request->input_tokens - known : 1;

        if (load[i] + rest < best_load) {
            best_load = load[i] + rest;
            best = i;
        }
    }
    load[best] = best_load + answer;
    for (uint32_t b = 0; b < request->blocks; b++)
        *seen_engines(seen, chains[b]) |= (uint64_t)1 << best;
    return best;
}

static uint32_t choose_decode(const struct replay_options *options,
                              const struct replay_trace_request *request, uint64_t *load)
{
    uint64_t least = lowest(load, options->prefill_engines, options->engines);
    uint32_t i = options->prefill_engines;

    while (load[i] != least)
        i++;
    load[i] += request->output_tokens;
    return i;
}

int replay_route(const struct replay_options *options, const struct replay_trace *trace,
                 enum replay_cache cache, uint16_t *prefill_of, uint16_t *decode_of)
{
    uint32_t prefills =
        options->mode == REPLAY_SHARED ? options->engines : options->prefill_engines;
    uint64_t load[REPLAY_ENGINES_MAX] = {0}, *chains = NULL;
    struct seen seen = {0};
    uint32_t blocks_max = 1;
    int result = -1;

    for (uint32_t i = 0; i < trace->requests; i++)
        blocks_max = trace->request[i].blocks > blocks_max ? trace->request[i].blocks : blocks_max;
    chains = calloc(blocks_max, sizeof(chains[0]));
    if (!chains || seen_init(&seen, trace->block_ids_count))
        goto out;
    for (uint32_t i = 0; i < trace->requests; i++) {
        const struct replay_trace_request *request = &trace->request[i];

        replay_prefix_keys(trace->block_ids + request->blocks_offset, REPLAY_BLOCK_TOKENS,
                           REPLAY_BLOCK_TOKENS, request->blocks, chains);
        if (cache == REPLAY_CACHE_NONE) /* nothing is found twice */
            for (uint32_t b = 0; b < request->blocks; b++)
                chains[b] = (uint64_t)request->blocks_offset + b + 1;
        if (options->routing == REPLAY_ROUTE_TURNS)
            prefill_of[i] = (uint16_t)(i % prefills);
        else
            prefill_of[i] =
                (uint16_t)choose_prefill(options, &seen, request, chains, load, prefills);
        decode_of[i] = options->mode == REPLAY_SHARED
                           ? prefill_of[i]
                           : (uint16_t)choose_decode(options, request, load);
    }
    result = 0;
out:
    free(chains);
    free(seen.chain);
    free(seen.engines);
    return result;
}
