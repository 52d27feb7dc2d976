/*
 * prefix.h - which pages already hold which beginning of a prompt.
 *
 * The unit is a page, its key says everything the page's contents depend on: all hash ids up to its
 * last token, and where it stands. An entry is FILLING while the request that brought the page
 * still computes it, then READY; a second prompt that needs a FILLING page is worth holding back.
 * A READY entry nobody uses is kept until its page is wanted, least recently used first.
 *
 * Pure bookkeeping: leases are taken and returned by the caller (admit.c). One thread.
 */
#ifndef ATTND_BENCH_REPLAY_PREFIX_H
#define ATTND_BENCH_REPLAY_PREFIX_H

#include <stdbool.h>
#include <stdint.h>

enum replay_prefix_state { REPLAY_PREFIX_FREE, REPLAY_PREFIX_FILLING, REPLAY_PREFIX_READY };

#define REPLAY_PREFIX_NONE UINT32_MAX

struct replay_prefix_entry {
    uint64_t key;
    int32_t page;
    uint32_t users; /* requests that run on it; while there are any it stays */
    enum replay_prefix_state state;
    uint32_t bucket_next;
    uint32_t older, newer; /* among the READY without users */
};

struct replay_prefix {
    struct replay_prefix_entry *entry;
    uint32_t *bucket;
    uint32_t entries_max, buckets;
    uint32_t free_first; /* by bucket_next */
    uint32_t oldest, newest;
    uint32_t idle; /* READY without users: can be evicted */
};

/** replay_prefix_init() - room for @entries_max pages; 0 is legal and remembers nothing.
 * Return: 0; -1 without memory. */
int replay_prefix_init(struct replay_prefix *cache, uint32_t entries_max);
void replay_prefix_free(struct replay_prefix *cache);

/**
 * replay_prefix_match() - how many leading keys are READY
 * @pages:   receives their pages
 * @filling: set if the next one is being computed right now
 */
uint32_t replay_prefix_match(const struct replay_prefix *cache, const uint64_t *keys,
                             uint32_t count, int32_t *pages, bool *filling);

/** replay_prefix_use() - one more user of each; all must be READY. */
void replay_prefix_use(struct replay_prefix *cache, const uint64_t *keys, uint32_t count);

/** replay_prefix_unuse() - one user less of each that is @pages' own; the first of them becomes the
 * most recently used. Keys that are not there, or name another page, are passed over. */
void replay_prefix_unuse(struct replay_prefix *cache, const uint64_t *keys, const int32_t *pages,
                         uint32_t count);

bool replay_prefix_known(const struct replay_prefix *cache, uint64_t key);
bool replay_prefix_full(const struct replay_prefix *cache);

/** replay_prefix_begin() - announce a page about to be computed, with one user. Return: false if
 * the key is known already or there is no room. */
bool replay_prefix_begin(struct replay_prefix *cache, uint64_t key, int32_t page);

/** replay_prefix_ready() - @page of @key is computed. Return: false if it was not announced. */
bool replay_prefix_ready(struct replay_prefix *cache, uint64_t key, int32_t page);

/** replay_prefix_evict() - forget up to @count pages nobody uses. Return: how many, in @pages. */
uint32_t replay_prefix_evict(struct replay_prefix *cache, uint32_t count, int32_t *pages);

/** replay_prefix_keys() - the keys of the first @count pages of a prompt; all of its pages must be
 * full. @ids: of its blocks of @block_tokens. */
void replay_prefix_keys(const uint64_t *ids, uint32_t block_tokens, uint32_t page_size,
                        uint32_t count, uint64_t *keys);

#endif
