/*
 * tier.c - what goes to host memory, what comes back, and whether it is worth it.
 *
 * Out. When pages are taken and fewer than a part of the pool are free, the tree evicts the blocks
 * that are due first into this tier. They are found no more there, but here, and are copied while
 * runs go on; then their pages are free. So an engine that asks for pages does not wait for copies.
 * One that asks for more than is free gets those of blocks that wait to be copied, and then of the
 * tree as without a second tier: what was on them is gone.
 *
 * In. A match that finds the next block here has its pages taken and its key claimed, as an engine
 * would that computes it. A session that matches it waits for that claim, and when the copy has
 * ended the block is published. The copy here stays for as long as there is room: the block is not
 * copied again when it is evicted again. A block whose pages are still there is published at once.
 *
 * Bringing back takes the time that the link has needed lately, for what is under way too. Where
 * the namespace says what computing takes, and that is less, the match finds nothing.
 */
#include "persistent/copy.h"
#include "service/objects/lease.h"
#include "service/prefix/prefix.h"
#include "service/prefix/tier_internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Host memory is made as it is needed, in parts of this size: to pin one takes a worker a tenth of
 * a second, and nobody waits for it. */
#define CHUNK_BYTES (256u << 20)
/* Smaller pages than this cost more to keep account of and to copy than they are worth. */
#define PAGE_BYTES_MIN 4096u
/* This part of the pool is kept free, and no more than that part is on its way in. */
#define FREE_PART 8u
#define COMING_PART 4u
/* Pages that are evicted between two looks at the clock. */
#define SINK_STEP 64u

/* ---- life ---- */

static int is_dense(const struct attnd_pool *pool)
{
    const struct attnd_heap_plane *planes = attnd_pool_planes(pool);

    for (uint32_t i = 0; i < 2 * pool->shape.layers; i++)
        if (!attnd_copy_dense(&pool->shape, &planes[i]))
            return 0;
    return 1;
}

static int take(void *context, const struct attnd_tree_gone *gone);

static void clear(void *context, uint32_t space)
{
    const struct attnd_tier *tier = context;
    attnd_host_forget_space(tier->host, space);
}

int attnd_tier_new(struct attnd_service *service, struct attnd_pool *pool, struct attnd_tree *tree,
                   struct attnd_payer payer, struct attnd_tier **out)
{
    uint64_t cache_bytes = service->options.host_cache_bytes;
    uint64_t page_bytes = attnd_copy_page_bytes(&pool->shape);

    *out = NULL;
    if (cache_bytes < page_bytes || page_bytes < PAGE_BYTES_MIN || !is_dense(pool))
        return 0;
    struct attnd_tier *tier = calloc(1, sizeof(*tier));
    if (!tier)
        return -ATTND_E_NO_MEMORY;
    int rc = attnd_host_new(&tier->host);
    if (rc < 0) {
        free(tier);
        return rc;
    }
    tier->service = service;
    tier->pool = pool;
    tier->tree = tree;
    tier->payer = payer;
    tier->page_bytes = page_bytes;
    tier->chunk_places = CHUNK_BYTES > page_bytes ? (uint32_t)(CHUNK_BYTES / page_bytes) : 1;
    tier->owner.session = ATTND_TIER_SESSION;
    const struct attnd_tree_below below = {.take = take, .clear = clear, .context = tier};
    attnd_tree_set_below(tree, &below);
    *out = tier;
    return 0;
}

void attnd_tier_free(struct attnd_tier *tier)
{
    if (!tier)
        return;
    attnd_work_stop(&tier->refill_work);
    attnd_tier_moves_free(tier);
    for (uint32_t i = 0; i < tier->chunks_count; i++) {
        attnd_quota_give(tier->service, tier->payer, ATTND_QUOTA_HOST_CACHE,
                         tier->chunks[i]->size_bytes);
        attnd_memory_unref(tier->service, tier->chunks[i]);
    }
    attnd_quota_refund(tier->service, tier->payer,
                       (uint64_t)attnd_host_info(tier->host).places * ATTND_HOST_PLACE_BYTES);
    free(tier->chunks);
    attnd_host_free(tier->host);
    free(tier);
}

void attnd_tier_report(struct attnd_tier *tier)
{
    if (!tier->dirty)
        return;
    tier->dirty = 0;
    for (uint32_t i = 0; i < ATTND_PREFIX_SPACES_MAX; i++)
        if (attnd_tree_space_info(tier->tree, i))
            attnd_tree_space_hosted(tier->tree, i, attnd_host_in_space(tier->host, i));
}

/* ---- host memory ---- */

/* Return: the places that one chunk more would have; 0: there may be none. */
static uint32_t next_places(const struct attnd_tier *tier)
{
    uint64_t left = attnd_quota_user_left(tier->service, tier->payer, ATTND_QUOTA_HOST_CACHE);
    uint64_t paid = attnd_quota_user_left(tier->service, tier->payer, ATTND_QUOTA_DAEMON);
    uint64_t places = left / tier->page_bytes;

    /* Only the last may have fewer than the others: places are found by dividing. */
    if (tier->chunks_count &&
        tier->chunks[tier->chunks_count - 1]->size_bytes < tier->chunk_places * tier->page_bytes)
        return 0;
    places = places < paid / ATTND_HOST_PLACE_BYTES ? places : paid / ATTND_HOST_PLACE_BYTES;
    return places < tier->chunk_places ? (uint32_t)places : tier->chunk_places;
}

/* Return: 1 there are more places; 0 there cannot be. */
static int grow(struct attnd_tier *tier)
{
    uint32_t places = tier->broken ? 0 : next_places(tier);
    struct attnd_memory *memory = NULL;

    if (!places)
        return 0;
    void *chunks = realloc(tier->chunks, (tier->chunks_count + 1) * sizeof(struct attnd_memory *));
    if (!chunks)
        return 0;
    tier->chunks = chunks;
    if (attnd_memory_make_own(tier->service, places * tier->page_bytes, &memory, NULL) < 0)
        return 0;
    if (attnd_host_grow(tier->host, places) < 0) {
        attnd_memory_unref(tier->service, memory);
        return 0;
    }
    attnd_quota_count(tier->service, tier->payer, ATTND_QUOTA_HOST_CACHE, memory->size_bytes);
    attnd_quota_count(tier->service, tier->payer, ATTND_QUOTA_DAEMON,
                      (uint64_t)places * ATTND_HOST_PLACE_BYTES);
    tier->chunks[tier->chunks_count++] = memory;
    return 1;
}

/* ---- out ---- */

static int same_parent(const struct attnd_host_block *at, const struct attnd_block_key *parent)
{
    return at->has_parent ? parent && memcmp(&at->parent, parent, sizeof(*parent)) == 0 : !parent;
}

/* Return: 1 it is here already, or was in the wrong place. */
static int is_here(struct attnd_tier *tier, const struct attnd_tree_gone *gone)
{
    uint32_t block = attnd_host_find(tier->host, gone->space, gone->key);

    if (block == ATTND_NONE)
        return 0;
    if (same_parent(attnd_host_at(tier->host, block), gone->parent)) {
        attnd_host_use(tier->host, block);
        return 1;
    }
    attnd_host_forget(tier->host, block);
    tier->dirty = 1;
    return 0;
}

static uint32_t add(struct attnd_tier *tier, const struct attnd_tree_gone *gone)
{
    const struct attnd_host_info info = attnd_host_info(tier->host);
    struct attnd_host_block block = {.key = *gone->key,
                                     .space = gone->space,
                                     .pages = gone->count,
                                     .publisher = gone->publisher,
                                     .depth = gone->depth,
                                     .has_parent = gone->parent != NULL};

    if (gone->parent)
        block.parent = *gone->parent;
    if (info.places - info.places_used < gone->count)
        (void)grow(tier);
    tier->dirty = 1; /* others may go for it */
    return attnd_host_add(tier->host, &block);
}

static int take(void *context, const struct attnd_tree_gone *gone)
{
    struct attnd_tier *tier = context;

    if (tier->broken || is_here(tier, gone))
        return 0;
    uint32_t block = add(tier, gone);
    if (block != ATTND_NONE &&
        attnd_tier_move(tier, ATTND_TIER_OUT, block, gone->pages, gone->count) == 0)
        return 1;
    if (block != ATTND_NONE)
        attnd_host_drop(tier->host, block);
    tier->stats.lost_blocks++;
    return 0;
}

uint32_t attnd_tier_queued(const struct attnd_tier *tier)
{
    return tier->queue[ATTND_TIER_OUT].pages;
}

uint32_t attnd_tier_leaving(const struct attnd_tier *tier)
{
    return tier->batched_pages[ATTND_TIER_OUT];
}

/* The first in line are the least wanted. */
uint32_t attnd_tier_cancel(struct attnd_tier *tier, uint32_t pages)
{
    uint32_t freed = 0;

    while (freed < pages && tier->queue[ATTND_TIER_OUT].first) {
        struct attnd_tier_move *move = tier->queue[ATTND_TIER_OUT].first;
        freed += move->count;
        tier->stats.lost_blocks++;
        attnd_tier_cancel_move(tier, move);
    }
    return freed;
}

/* Return: 1 more is to go than one step. */
static int sink_some(struct attnd_tier *tier)
{
    const struct attnd_pool *pool = tier->pool;
    const uint32_t wanted = pool->shape.pages / FREE_PART;
    const uint32_t there =
        attnd_lease_free_count(pool) + attnd_tier_queued(tier) + attnd_tier_leaving(tier);

    if (there >= wanted || tier->broken)
        return 0;
    const uint32_t left = wanted - there, part = left < SINK_STEP ? left : SINK_STEP;
    return attnd_tree_sink(tier->tree, part) && part < left;
}

/* The item of what is to go to the host: it is on the account of whose memory that is. */
static int refill_go(struct attnd_work *work)
{
    struct attnd_tier *tier =
        (struct attnd_tier *)(void *)((char *)work - offsetof(struct attnd_tier, refill_work));
    int more;

    do
        more = sink_some(tier);
    while (more && !attnd_work_spent(&tier->service->works));
    attnd_tier_pump(tier);
    return more;
}

void attnd_tier_refill(struct attnd_tier *tier)
{
    struct attnd_service *service = tier->service;
    const uid_t uid = service->quota_uids[tier->payer.user];

    if (sink_some(tier)) {
        tier->refill_work.go = refill_go;
        attnd_work_queue(&service->works, attnd_work_estate(&service->works, uid),
                         &tier->refill_work);
    }
    attnd_tier_pump(tier);
}

/* ---- in ---- */

/* Blocks that were to leave, whose pages are still as they were. Return: how many are published. */
static uint32_t turn_back(struct attnd_tier *tier, const struct attnd_tree_chain *chain)
{
    uint32_t done = 0;

    for (; done < chain->count; done++) {
        const struct attnd_block_key *parent = done ? &chain->keys[done - 1] : chain->parent;
        uint32_t block = attnd_host_find(tier->host, chain->space, &chain->keys[done]);
        if (block == ATTND_NONE || !same_parent(attnd_host_at(tier->host, block), parent))
            break;
        struct attnd_tier_move *move = attnd_tier_find(tier, block);
        const struct attnd_tree_chain one = {
            .space = chain->space, .count = 1, .keys = &chain->keys[done], .parent = parent};
        struct attnd_tree_owner owner = {.session = attnd_host_at(tier->host, block)->publisher};
        struct attnd_tree_result result = {0};
        if (!move || move->way != ATTND_TIER_OUT ||
            attnd_tree_publish(tier->tree, &owner, &one, move->pages, &result) < 0 ||
            result.blocks == 0)
            break;
        if (!move->batch) /* else its pages stay for as long as they are read */
            attnd_tier_cancel_move(tier, move);
    }
    tier->stats.recalled_blocks += done;
    return done;
}

/* Leading blocks of the chain that lie here and nowhere else. */
static uint32_t count_here(const struct attnd_tier *tier, const struct attnd_tree_chain *chain)
{
    uint32_t count = 0;

    for (; count < chain->count; count++) {
        const struct attnd_block_key *parent = count ? &chain->keys[count - 1] : chain->parent;
        uint32_t block = attnd_host_find(tier->host, chain->space, &chain->keys[count]);
        if (block == ATTND_NONE)
            break;
        const struct attnd_host_block *at = attnd_host_at(tier->host, block);
        if (!at->filled || at->mover || !same_parent(at, parent))
            break;
    }
    return count;
}

static uint32_t coming(const struct attnd_tier *tier)
{
    return tier->queue[ATTND_TIER_IN].pages + tier->batched_pages[ATTND_TIER_IN];
}

/* Are @count blocks there sooner than they are computed? */
static int is_worth_it(const struct attnd_tier *tier, const struct attnd_tree_chain *chain,
                       uint32_t count, uint32_t block_pages)
{
    uint64_t compute_us = 0;
    double bytes = (double)tier->page_bytes * ((double)coming(tier) + (double)count * block_pages);

    if (tier->in_rate <= 0 || !attnd_tree_space_info(tier->tree, chain->space)->args.compute_us)
        return 1;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t block = attnd_host_find(tier->host, chain->space, &chain->keys[i]);
        compute_us += attnd_tree_compute_us(tier->tree, chain->space,
                                            attnd_host_at(tier->host, block)->depth);
    }
    return bytes / tier->in_rate * 1e6 < (double)compute_us;
}

/* How many blocks more may be on their way in; one always. */
static uint32_t room(const struct attnd_tier *tier, uint32_t block_pages)
{
    uint32_t most = tier->pool->shape.pages / COMING_PART, under_way = coming(tier);
    uint32_t left = under_way < most ? (most - under_way) / block_pages : 0;

    if (left == 0 && under_way == 0)
        return 1;
    return left < ATTND_TIER_BATCH_PAGES ? left : ATTND_TIER_BATCH_PAGES;
}

/* Return: 1 the first block of @chain is claimed and on its way. */
static int begin_one(struct attnd_tier *tier, const struct attnd_tree_chain *chain, uint32_t block,
                     uint32_t block_pages)
{
    const struct attnd_tree_chain one = {
        .space = chain->space, .count = 1, .keys = chain->keys, .parent = chain->parent};

    if (attnd_tree_claim(tier->tree, &tier->owner, &one).blocks == 0)
        return 0;
    if (attnd_tier_move(tier, ATTND_TIER_IN, block, NULL, block_pages) == 0)
        return 1;
    (void)attnd_tree_abandon(tier->tree, &tier->owner, &one);
    return 0;
}

/* The leading @count blocks, which lie here. Return: how many are on their way. */
static uint32_t begin(struct attnd_tier *tier, const struct attnd_tree_chain *chain, uint32_t count,
                      uint32_t block_pages)
{
    uint32_t blocks[ATTND_TIER_BATCH_PAGES], begun = 0, most = room(tier, block_pages);

    count = count < most ? count : most;
    /* A claim may evict a block to here, and that another one: not of these. */
    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = attnd_host_find(tier->host, chain->space, &chain->keys[i]);
        attnd_host_hold(tier->host, blocks[i]);
    }
    for (; begun < count; begun++) {
        const struct attnd_tree_chain rest = {.space = chain->space,
                                              .keys = chain->keys + begun,
                                              .parent =
                                                  begun ? chain->keys + begun - 1 : chain->parent};
        if (!begin_one(tier, &rest, blocks[begun], block_pages))
            break;
    }
    for (uint32_t i = begun; i < count; i++)
        attnd_host_drop(tier->host, blocks[i]);
    return begun;
}

static uint32_t fetch(struct attnd_tier *tier, const struct attnd_tree_chain *chain)
{
    uint32_t block_pages = attnd_tree_space_info(tier->tree, chain->space)->args.block_pages;
    uint32_t count = count_here(tier, chain);

    if (count == 0)
        return 0;
    if (!is_worth_it(tier, chain, count, block_pages)) {
        tier->stats.declined_blocks += count;
        return 0;
    }
    return begin(tier, chain, count, block_pages);
}

int attnd_tier_recall(struct attnd_tier *tier, const struct attnd_tree_chain *chain)
{
    const struct attnd_tree_chain before = {
        .space = chain->space, .parent = chain->parent, .again = 1};

    /* A block without its parent could not be published. */
    if (chain->count == 0 ||
        attnd_tree_match(tier->tree, &tier->owner, &before, NULL).stop != ATTND_PREFIX_STOP_END)
        return 0;
    uint32_t found = turn_back(tier, chain);

    if (found == 0)
        found = fetch(tier, chain);
    attnd_tier_refill(tier);
    return found > 0;
}

/* ---- what can be asked ---- */

struct attnd_tier_info attnd_tier_info(const struct attnd_tier *tier)
{
    const struct attnd_host_info host = attnd_host_info(tier->host);
    struct attnd_tier_info info = tier->stats;

    info.made_bytes = host.places * tier->page_bytes;
    info.used_bytes = host.places_used * tier->page_bytes;
    info.evicted_blocks = host.evicted;
    info.pages = attnd_tier_queued(tier) + attnd_tier_leaving(tier) + coming(tier);
    info.in_bytes_per_s = (uint64_t)tier->in_rate;
    info.table_bytes = sizeof(*tier) + attnd_host_bytes(tier->host);
    return info;
}
