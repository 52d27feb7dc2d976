/* prefix.c - a hash table of pages with a list of the idle ones. The list is doubly linked by index
 * so that a page in use leaves it at once: eviction never has to look for a victim. */
#include "bench/replay/prefix.h"
#include "bench/replay/model.h"

#include <assert.h>
#include <stdlib.h>

#define NONE REPLAY_PREFIX_NONE

int replay_prefix_init(struct replay_prefix *cache, uint32_t entries_max)
{
    uint32_t buckets = 16;

    while (buckets < entries_max)
        buckets *= 2;
    *cache = (struct replay_prefix){.entries_max = entries_max,
                                    .buckets = buckets,
                                    .free_first = NONE,
                                    .oldest = NONE,
                                    .newest = NONE};
    cache->entry = calloc((size_t)entries_max + 1, sizeof(cache->entry[0]));
    cache->bucket = calloc(buckets, sizeof(cache->bucket[0]));
    if (!cache->entry || !cache->bucket) {
        replay_prefix_free(cache);
        return -1;
    }
    for (uint32_t i = 0; i < buckets; i++)
        cache->bucket[i] = NONE;
    for (uint32_t i = entries_max; i-- > 0;) {
        cache->entry[i].bucket_next = cache->free_first;
        cache->free_first = i;
    }
    return 0;
}

void replay_prefix_free(struct replay_prefix *cache)
{
    free(cache->entry);
    free(cache->bucket);
    *cache = (struct replay_prefix){0};
}

static uint32_t *bucket_of(const struct replay_prefix *cache, uint64_t key)
{
    return &cache->bucket[key & (cache->buckets - 1)];
}

static struct replay_prefix_entry *find(const struct replay_prefix *cache, uint64_t key)
{
    for (uint32_t i = *bucket_of(cache, key); i != NONE; i = cache->entry[i].bucket_next)
        if (cache->entry[i].key == key)
            return &cache->entry[i];
    return NULL;
}

/* ---- the list of the idle ---- */

static void idle_add(struct replay_prefix *cache, struct replay_prefix_entry *entry)
{
    uint32_t index = (uint32_t)(entry - cache->entry);

    entry->older = cache->newest;
    entry->newer = NONE;
    if (cache->newest != NONE)
        cache->entry[cache->newest].newer = index;
    else
        cache->oldest = index;
    cache->newest = index;
    cache->idle++;
}

static void idle_remove(struct replay_prefix *cache, struct replay_prefix_entry *entry)
{
    if (entry->older != NONE)
        cache->entry[entry->older].newer = entry->newer;
    else
        cache->oldest = entry->newer;
    if (entry->newer != NONE)
        cache->entry[entry->newer].older = entry->older;
    else
        cache->newest = entry->older;
    cache->idle--;
}

/* ---- use ---- */

uint32_t replay_prefix_match(const struct replay_prefix *cache, const uint64_t *keys,
                             uint32_t count, int32_t *pages, bool *filling)
{
    *filling = false;
    for (uint32_t i = 0; i < count; i++) {
        const struct replay_prefix_entry *entry = find(cache, keys[i]);

        if (!entry)
            return i;
        if (entry->state == REPLAY_PREFIX_FILLING) {
            *filling = true;
            return i;
        }
        pages[i] = entry->page;
    }
    return count;
}

void replay_prefix_use(struct replay_prefix *cache, const uint64_t *keys, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct replay_prefix_entry *entry = find(cache, keys[i]);

        assert(entry && entry->state == REPLAY_PREFIX_READY);
        if (!entry->users++)
            idle_remove(cache, entry);
    }
}

void replay_prefix_unuse(struct replay_prefix *cache, const uint64_t *keys, const int32_t *pages,
                         uint32_t count)
{
    /* Backwards: a prefix is no use without its beginning, so that must be evicted last. */
    for (uint32_t i = count; i-- > 0;) {
        struct replay_prefix_entry *entry = find(cache, keys[i]);

        if (!entry || entry->page != pages[i] || entry->state != REPLAY_PREFIX_READY)
            continue;
        assert(entry->users);
        if (!--entry->users)
            idle_add(cache, entry);
    }
}

bool replay_prefix_known(const struct replay_prefix *cache, uint64_t key)
{
    return find(cache, key) != NULL;
}

bool replay_prefix_full(const struct replay_prefix *cache)
{
    return cache->free_first == NONE;
}

bool replay_prefix_begin(struct replay_prefix *cache, uint64_t key, int32_t page)
{
    uint32_t index = cache->free_first;
    struct replay_prefix_entry *entry;

    if (index == NONE || find(cache, key))
        return false;
    entry = &cache->entry[index];
    cache->free_first = entry->bucket_next;
    *entry = (struct replay_prefix_entry){.key = key,
                                          .page = page,
                                          .users = 1,
                                          .state = REPLAY_PREFIX_FILLING,
                                          .bucket_next = *bucket_of(cache, key)};
    *bucket_of(cache, key) = index;
    return true;
}

bool replay_prefix_ready(struct replay_prefix *cache, uint64_t key, int32_t page)
{
    struct replay_prefix_entry *entry = find(cache, key);

    if (!entry || entry->page != page || entry->state != REPLAY_PREFIX_FILLING)
        return false;
    entry->state = REPLAY_PREFIX_READY;
    return true;
}

static void forget(struct replay_prefix *cache, struct replay_prefix_entry *entry)
{
    uint32_t index = (uint32_t)(entry - cache->entry);
    uint32_t *link = bucket_of(cache, entry->key);

    while (*link != index)
        link = &cache->entry[*link].bucket_next;
    *link = entry->bucket_next;
    entry->state = REPLAY_PREFIX_FREE;
    entry->bucket_next = cache->free_first;
    cache->free_first = index;
}

uint32_t replay_prefix_evict(struct replay_prefix *cache, uint32_t count, int32_t *pages)
{
    uint32_t evicted = 0;

    while (evicted < count && cache->oldest != NONE) {
        struct replay_prefix_entry *entry = &cache->entry[cache->oldest];

        pages[evicted++] = entry->page;
        idle_remove(cache, entry);
        forget(cache, entry);
    }
    return evicted;
}

void replay_prefix_keys(const uint64_t *ids, uint32_t block_tokens, uint32_t page_size,
                        uint32_t count, uint64_t *keys)
{
    uint64_t chain = 0;
    uint32_t block = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint64_t tokens_end = ((uint64_t)i + 1) * page_size;

        for (; (uint64_t)block * block_tokens < tokens_end; block++)
            chain = replay_mix(chain ^ replay_mix(ids[block]));
        keys[i] = replay_mix(chain + i);
    }
}
