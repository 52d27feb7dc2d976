/*
 * tier.h - the second tier of a pool's prefix tree: what is evicted goes to host memory, and comes
 * back when a match asks for it.
 *
 *   host.c    which blocks are there, and where
 *   tier.c    what goes, what comes, and whether it is worth it
 *   moves.c   blocks on their way: queues, copies in pieces, and what follows when one has ended
 */
#ifndef ATTND_SERVICE_PREFIX_TIER_H
#define ATTND_SERVICE_PREFIX_TIER_H

#include "service/objects/pool.h"
#include "service/prefix/tree.h"

struct attnd_tier;

/* Events that the rooms above have asked to hear. */
struct attnd_tier_events {
    /* Claims of the tree have ended: blocks are there again, or will not come. */
    void (*arrived)(struct attnd_tree *tree);
    /* Pages of @pool that were on their way out are free. */
    void (*freed)(struct attnd_service *service, struct attnd_pool *pool);
};

/**
 * attnd_tier_new() - below @tree, the tree of @pool
 * @payer: whose host memory it is
 * Return: 0; *out is NULL where there is none: no --host-cache, pages that are no one piece of
 * memory, or a page that the cache has no room for. -ATTND_E_NO_MEMORY; -ATTND_E_SYSTEM.
 */
int attnd_tier_new(struct attnd_service *service, struct attnd_pool *pool, struct attnd_tree *tree,
                   struct attnd_payer payer, struct attnd_tier **out);
/** attnd_tier_free() - with the pool; no copy is in flight. NULL is fine. */
void attnd_tier_free(struct attnd_tier *tier);

/**
 * attnd_tier_recall() - bring back the leading blocks of @chain, of which a match found none
 * Those whose pages are still there are published again at once. Of the others as many as are worth
 * it are claimed by session ATTND_TIER_SESSION until they are back.
 * Return: 1 another match finds more, or such a claim; 0.
 */
int attnd_tier_recall(struct attnd_tier *tier, const struct attnd_tree_chain *chain);
#define ATTND_TIER_SESSION 0u

/** attnd_tier_refill() - pages of the pool were taken, or are idle: let as many go to the host as
 * keep a part of the pool free. */
void attnd_tier_refill(struct attnd_tier *tier);
/** attnd_tier_queued() - pages on their way out of which no byte is being copied yet. */
uint32_t attnd_tier_queued(const struct attnd_tier *tier);
/** attnd_tier_leaving() - pages that are being copied out, and come back as free ones. */
uint32_t attnd_tier_leaving(const struct attnd_tier *tier);
/** attnd_tier_cancel() - free up to @pages of those that are queued; what was on them is lost.
 * Return: how many. */
uint32_t attnd_tier_cancel(struct attnd_tier *tier, uint32_t pages);

/** attnd_tier_pump_all() - send what can be sent: the worker is up, has said something, or has
 * mapped memory. */
void attnd_tier_pump_all(struct attnd_service *service);
/** attnd_tier_copied() - the supervisor's event of a copy. The pool may be gone afterwards. */
void attnd_tier_copied(struct attnd_service *service, void *context, int code);

/* Numbers that can be read of it. */
struct attnd_tier_info {
    uint64_t made_bytes, used_bytes;
    uint64_t out_blocks, in_blocks; /* copied, and brought back */
    uint64_t lost_blocks;           /* left the pool uncopied for want of room or time, or failed */
    uint64_t declined_blocks;       /* found, but sooner computed than brought back */
    uint64_t recalled_blocks;       /* found before they had left */
    uint64_t evicted_blocks;        /* that others took the place of */
    uint32_t pages;                 /* of the pool, that are on their way */
    uint64_t in_bytes_per_s;        /* lately; 0: not known */
    uint64_t table_bytes;           /* of the daemon's memory */
};
struct attnd_tier_info attnd_tier_info(const struct attnd_tier *tier);

#endif
