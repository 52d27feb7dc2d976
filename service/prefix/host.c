/*
 * host.c - the dictionary of the second tier.
 *
 * A block has a place for each page, in any order, so no place is ever too small for what is to lie
 * there. Leaves leave a pool before their parents, and so they came here first and go first. What
 * is used again is used from the beginning of a prompt on, so its end stays the older.
 *
 * Keys are a client's, and as in the tree (index.c) buckets are chosen by multiplying with secret
 * random numbers. Tables grow as places do, and never in between; buckets by doubling, which takes
 * some 20 ns for each block that is there.
 */
#include "service/prefix/host.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/random.h>

#define PLACES_MAX (1u << 31)

_Static_assert(sizeof(struct attnd_host_block) + sizeof(uint32_t) + 2 * sizeof(uint32_t) ==
                   ATTND_HOST_PLACE_BYTES,
               "what a place costs");

__extension__ typedef unsigned __int128 host_u128;

struct attnd_host {
    struct attnd_host_block *block; /* [places]: each has at least one place */
    uint32_t *bucket;               /* [buckets] 1 + block */
    uint32_t *place_next;           /* [places] of a block, or free: 1 + place */
    uint32_t places, places_used, buckets;
    uint32_t free_place, free_block; /* 1 + the first */
    uint32_t fresh;                  /* blocks from here on were never used */
    uint32_t newest, oldest;         /* 1 + block, of what can go */
    uint32_t idle_places;            /* of that */
    uint32_t blocks, in_space[ATTND_PREFIX_SPACES_MAX];
    uint64_t evicted;
    host_u128 factor[4];
};

int attnd_host_new(struct attnd_host **out)
{
    struct attnd_host *host = calloc(1, sizeof(*host));

    if (!host)
        return -ATTND_E_NO_MEMORY;
    if (getrandom(host->factor, sizeof(host->factor), 0) != (ssize_t)sizeof(host->factor)) {
        free(host);
        return -ATTND_E_SYSTEM;
    }
    *out = host;
    return 0;
}

void attnd_host_free(struct attnd_host *host)
{
    if (!host)
        return;
    free(host->block);
    free(host->bucket);
    free(host->place_next);
    free(host);
}

/* ---- the index ---- */

static uint32_t *bucket_of(const struct attnd_host *host, uint32_t space,
                           const struct attnd_block_key *key)
{
    host_u128 sum = host->factor[0] * key->word[0] + host->factor[1] * key->word[1] +
                    host->factor[2] * space + host->factor[3];
    return &host->bucket[(uint32_t)(sum >> 96) & (host->buckets - 1)];
}

uint32_t attnd_host_find(const struct attnd_host *host, uint32_t space,
                         const struct attnd_block_key *key)
{
    uint32_t at = host->buckets ? *bucket_of(host, space, key) : 0;

    for (; at; at = host->block[at - 1].next) {
        const struct attnd_host_block *block = &host->block[at - 1];
        if (block->space == space && block->key.word[0] == key->word[0] &&
            block->key.word[1] == key->word[1])
            return at - 1;
    }
    return ATTND_NONE;
}

static void index_add(struct attnd_host *host, uint32_t block)
{
    struct attnd_host_block *at = &host->block[block];
    uint32_t *bucket = bucket_of(host, at->space, &at->key);

    at->next = *bucket;
    *bucket = block + 1;
}

static void index_remove(struct attnd_host *host, uint32_t block)
{
    const struct attnd_host_block *at = &host->block[block];
    uint32_t *link = bucket_of(host, at->space, &at->key);

    while (*link != block + 1)
        link = &host->block[*link - 1].next;
    *link = at->next;
}

/* ---- growing ---- */

static int rehash(struct attnd_host *host, uint32_t places)
{
    uint32_t buckets = 16;

    while (buckets < places)
        buckets *= 2;
    if (buckets == host->buckets)
        return 0;
    uint32_t *fresh = calloc(buckets, sizeof(*fresh));
    if (!fresh)
        return -ATTND_E_NO_MEMORY;
    free(host->bucket);
    host->bucket = fresh;
    host->buckets = buckets;
    for (uint32_t i = 0; i < host->fresh; i++)
        if (host->block[i].used && !host->block[i].forgotten)
            index_add(host, i);
    return 0;
}

int attnd_host_grow(struct attnd_host *host, uint32_t places)
{
    if (places > PLACES_MAX - host->places)
        return -ATTND_E_RANGE;
    uint32_t all = host->places + places;
    struct attnd_host_block *blocks = realloc(host->block, (size_t)all * sizeof(*blocks));
    if (!blocks)
        return -ATTND_E_NO_MEMORY;
    host->block = blocks;
    uint32_t *place_next = realloc(host->place_next, (size_t)all * sizeof(*place_next));
    if (!place_next)
        return -ATTND_E_NO_MEMORY;
    host->place_next = place_next;
    if (rehash(host, all) < 0)
        return -ATTND_E_NO_MEMORY;
    for (uint32_t place = all; place > host->places; place--) { /* the lowest is given first */
        host->place_next[place - 1] = host->free_place;
        host->free_place = place;
    }
    host->places = all;
    return 0;
}

/* ---- use ---- */

/* Blocks that can go: neither held nor forgotten. */
static void list_add(struct attnd_host *host, uint32_t block)
{
    struct attnd_host_block *at = &host->block[block];

    at->newer = 0;
    at->older = host->newest;
    if (host->newest)
        host->block[host->newest - 1].newer = block + 1;
    else
        host->oldest = block + 1;
    host->newest = block + 1;
    host->idle_places += at->pages;
}

static void list_remove(struct attnd_host *host, uint32_t block)
{
    const struct attnd_host_block *at = &host->block[block];

    *(at->newer ? &host->block[at->newer - 1].older : &host->newest) = at->older;
    *(at->older ? &host->block[at->older - 1].newer : &host->oldest) = at->newer;
    host->idle_places -= at->pages;
}

static void give_places(struct attnd_host *host, const struct attnd_host_block *at)
{
    uint32_t last = at->first;

    for (uint32_t i = 1; i < at->pages; i++)
        last = host->place_next[last] - 1;
    host->place_next[last] = host->free_place;
    host->free_place = at->first + 1;
    host->places_used -= at->pages;
}

/* It is in no list and no bucket. */
static void end(struct attnd_host *host, uint32_t block)
{
    struct attnd_host_block *at = &host->block[block];

    give_places(host, at);
    at->used = 0;
    at->next = host->free_block;
    host->free_block = block + 1;
}

static void hide(struct attnd_host *host, uint32_t block)
{
    index_remove(host, block);
    host->block[block].forgotten = 1;
    host->blocks--;
    host->in_space[host->block[block].space]--;
}

void attnd_host_forget(struct attnd_host *host, uint32_t block)
{
    if (host->block[block].forgotten)
        return;
    hide(host, block);
    if (host->block[block].holds)
        return;
    list_remove(host, block);
    end(host, block);
}

void attnd_host_forget_space(struct attnd_host *host, uint32_t space)
{
    for (uint32_t i = 0; i < host->fresh && host->in_space[space]; i++)
        if (host->block[i].used && !host->block[i].forgotten && host->block[i].space == space)
            attnd_host_forget(host, i);
}

void attnd_host_hold(struct attnd_host *host, uint32_t block)
{
    struct attnd_host_block *at = &host->block[block];

    if (at->holds++ == 0)
        list_remove(host, block);
}

void attnd_host_drop(struct attnd_host *host, uint32_t block)
{
    struct attnd_host_block *at = &host->block[block];

    assert(at->used && at->holds > 0);
    if (--at->holds > 0)
        return;
    if (!at->filled && !at->forgotten)
        hide(host, block);
    if (at->forgotten)
        end(host, block);
    else
        list_add(host, block);
}

void attnd_host_use(struct attnd_host *host, uint32_t block)
{
    if (host->block[block].holds)
        return; /* it will be, with its last hold */
    list_remove(host, block);
    list_add(host, block);
}

/* ---- adding ---- */

/* Where all that could go would not do, nothing goes. */
static int make_room(struct attnd_host *host, uint32_t places)
{
    if ((uint64_t)host->places - host->places_used + host->idle_places < places)
        return 0;
    while (host->places - host->places_used < places) {
        attnd_host_forget(host, host->oldest - 1);
        host->evicted++;
    }
    return 1;
}

static uint32_t take_block(struct attnd_host *host)
{
    uint32_t block = host->free_block - 1;

    if (!host->free_block)
        return host->fresh++;
    host->free_block = host->block[block].next;
    return block;
}

uint32_t attnd_host_add(struct attnd_host *host, const struct attnd_host_block *block)
{
    assert(block->pages > 0 && block->space < ATTND_PREFIX_SPACES_MAX);
    if (!make_room(host, block->pages))
        return ATTND_NONE;
    uint32_t made = take_block(host), last = host->free_place - 1;
    struct attnd_host_block *at = &host->block[made];

    *at = *block;
    at->holds = 1;
    at->filled = at->forgotten = 0;
    at->used = 1;
    at->first = last;
    for (uint32_t i = 1; i < at->pages; i++)
        last = host->place_next[last] - 1;
    host->free_place = host->place_next[last];
    host->places_used += at->pages;
    index_add(host, made);
    host->blocks++;
    host->in_space[at->space]++;
    return made;
}

/* ---- what can be asked ---- */

struct attnd_host_block *attnd_host_at(const struct attnd_host *host, uint32_t block)
{
    return &host->block[block];
}

void attnd_host_places(const struct attnd_host *host, uint32_t block, uint32_t *places)
{
    const struct attnd_host_block *at = &host->block[block];

    places[0] = at->first;
    for (uint32_t i = 1; i < at->pages; i++)
        places[i] = host->place_next[places[i - 1]] - 1;
}

struct attnd_host_info attnd_host_info(const struct attnd_host *host)
{
    return (struct attnd_host_info){.places = host->places,
                                    .places_used = host->places_used,
                                    .blocks = host->blocks,
                                    .evicted = host->evicted};
}

uint32_t attnd_host_in_space(const struct attnd_host *host, uint32_t space)
{
    return host->in_space[space];
}

uint64_t attnd_host_bytes(const struct attnd_host *host)
{
    return sizeof(*host) + (uint64_t)host->places * (sizeof(*host->block) + sizeof(uint32_t)) +
           (uint64_t)host->buckets * sizeof(*host->bucket);
}
