/*
 * tree.h - the prefix tree of one pool: which pages hold which beginning of a prompt.
 *
 * A block is `block_pages` whole pages under a 128-bit key in a namespace. Engines chain the keys:
 * a key depends on everything before it, so a block has one parent. A block is published, which
 * means that its pages are there for everybody of the namespace, or claimed, which means that
 * somebody computes it. The tree holds one lease of each published page. A block can be evicted
 * when nobody else holds a lease of its pages, no published block follows it, and it is not pinned.
 *
 * No I/O, no clock, no sessions: leases come as an interface, and what waits for a claim is a link
 * that the caller embeds. Everything is bounded when the tree is made. One thread.
 */
#ifndef ATTND_SERVICE_PREFIX_TREE_H
#define ATTND_SERVICE_PREFIX_TREE_H

#include "schemas/abi.h"
#include "schemas/errors.h"

struct attnd_tree;
struct attnd_tree_block;

/* The leases of the pool, as the tree needs them. */
struct attnd_tree_leases {
    const uint16_t *count; /* [pages] all leases of each page, the tree's included */
    uint32_t max;          /* of one page */
    void (*take)(void *context, const int32_t *pages, uint32_t count); /* one for the tree */
    void (*drop)(void *context, const int32_t *pages, uint32_t count); /* and back */
    void *context;
};

/* A block that is evicted. */
struct attnd_tree_gone {
    uint32_t space;
    const struct attnd_block_key *key, *parent; /* parent: NULL: it begins a prompt */
    uint32_t depth, publisher;
    const int32_t *pages;
    uint32_t count;
};

/* A second tier, where evicted blocks can go. Neither function may call the tree. */
struct attnd_tree_below {
    /* Return: 1 it keeps the block, and has the tree's leases of its pages; 0 it has no use for
     * them. */
    int (*take)(void *context, const struct attnd_tree_gone *gone);
    /* Nobody will ask for a block of the namespace again. */
    void (*clear)(void *context, uint32_t space);
    void *context;
};

struct attnd_tree_args {
    uint32_t pages;      /* of the pool */
    uint32_t page_size;  /* tokens */
    uint32_t blocks_max; /* published and claimed; at least 1 */
    struct attnd_tree_leases leases;
    /* Blocks that all trees have touched, which the tree counts up, and that they may: memory does
     * not come back before its tree goes. */
    uint32_t *used;
    uint32_t used_max;
};

/**
 * attnd_tree_new() - an empty tree
 * Memory is taken as blocks are published. Return: 0; -ATTND_E_NO_MEMORY; -ATTND_E_SYSTEM: no
 * random numbers for the index.
 */
int attnd_tree_new(const struct attnd_tree_args *args, struct attnd_tree **out);
/** attnd_tree_free() - with the pool: its leases are not given back. NULL is fine. */
void attnd_tree_free(struct attnd_tree *tree);
/** attnd_tree_set_below() - evicted blocks may go to @below, which is copied. */
void attnd_tree_set_below(struct attnd_tree *tree, const struct attnd_tree_below *below);

/* ---- namespaces ---- */

#define ATTND_TREE_TOP 8u /* blocks at which most matches ended, of each namespace */

struct attnd_tree_stats {
    uint64_t asked, found, found_foreign; /* blocks; foreign: another session published them */
    uint64_t published, duplicate, evicted;
    uint64_t waits, abandoned; /* matches that waited; claims that ended without a block */
};

/* The memory that a block costs at most: its entry, two buckets, and its place in an order that
 * grows by doubling. */
#define ATTND_TREE_BLOCK_BYTES (64u + 2u * 4u + 2u * 16u)

struct attnd_tree_space_args {
    uint32_t block_pages; /* 1..ATTND_PREFIX_BLOCK_PAGES_MAX */
    uint32_t pages_max;   /* budget: it evicts its own beyond this */
    uint32_t pages_low;   /* others' pressure takes it below this only when nothing else is left */
    uint32_t compute_us;  /* of a block at the beginning of a prompt; 0: nobody knows */
};

/* Numbers that can be read of a namespace; the tree writes it. */
struct attnd_tree_space_info {
    struct attnd_tree_space_args args;
    uint32_t handles;
    uint32_t blocks, claims, pinned; /* pinned: blocks, of `blocks` */
    uint32_t hosted;                 /* blocks in the second tier */
    struct attnd_tree_stats stats;
};

/**
 * attnd_tree_space_open() - a namespace with one handle on it
 * Where all places are taken, a namespace without handles makes room if its blocks can be evicted.
 * Return: 0 and *space; -ATTND_E_RANGE: block_pages, or a budget of less than a block;
 * -ATTND_E_NO_SPACE: ATTND_PREFIX_SPACES_MAX are in use; -ATTND_E_NO_MEMORY.
 */
int attnd_tree_space_open(struct attnd_tree *tree, const struct attnd_tree_space_args *args,
                          uint32_t *space);
/** attnd_tree_space_make_room() - a part of that, of @blocks_max blocks. Return: 1 there is more to
 * do; 0 attnd_tree_space_open() finds no more blocks than that to evict. */
int attnd_tree_space_make_room(struct attnd_tree *tree, uint32_t blocks_max);
/** attnd_tree_space_hold() - one handle more. */
void attnd_tree_space_hold(struct attnd_tree *tree, uint32_t space);
/** attnd_tree_space_release() - one handle less. With the last one pins end; the blocks stay
 * until they are evicted, and the namespace goes with the last of them. */
void attnd_tree_space_release(struct attnd_tree *tree, uint32_t space);
/** attnd_tree_space_info() - borrowed; NULL: there is no such namespace. */
const struct attnd_tree_space_info *attnd_tree_space_info(const struct attnd_tree *tree,
                                                          uint32_t space);

/** attnd_tree_space_hosted() - so many blocks of it are in the second tier; without any, and
 * without anything else, it goes. */
void attnd_tree_space_hosted(struct attnd_tree *tree, uint32_t space, uint32_t blocks);

struct attnd_tree_top {
    struct attnd_block_key key; /* of the last block */
    uint32_t blocks;            /* from the root to it */
    uint32_t hits;              /* matches that ended there */
};
/** attnd_tree_space_top() - the prefixes found most often, most first. Return: how many. */
uint32_t attnd_tree_space_top(const struct attnd_tree *tree, uint32_t space,
                              struct attnd_tree_top top[ATTND_TREE_TOP]);

/* ---- operations ---- */

/* The party that operates: a session's handle on a namespace. Zero-initialise; the caller sets
 * `session`. */
struct attnd_tree_owner {
    uint32_t session; /* whose blocks it publishes */
    uint32_t claims;
    uint32_t claims_first; /* tree's; valid while claims > 0 */
};

struct attnd_tree_chain {
    uint32_t space;
    uint32_t count;
    const struct attnd_block_key *keys;   /* [count] */
    const struct attnd_block_key *parent; /* of keys[0]; NULL: keys[0] begins a prompt */
    int again;                            /* a match of the rest: they are counted already */
    uint32_t more;                        /* a match of a part: so many are asked for behind it */
};

struct attnd_tree_result {
    uint32_t blocks;  /* leading blocks of the chain that it holds for */
    uint32_t foreign; /* match: of them, published by another session */
    uint32_t taken;   /* publish: of them, whose pages the tree took; the others were there */
    enum attnd_prefix_stop stop;
    uint32_t claimant; /* match that stopped at a claim: the session that has it */
};

/**
 * attnd_tree_match() - the leading blocks that are published
 * @pages: [count * block_pages] receives their pages
 * The caller then takes a lease of each page, before it does anything else with the tree.
 */
struct attnd_tree_result attnd_tree_match(struct attnd_tree *tree,
                                          const struct attnd_tree_owner *owner,
                                          const struct attnd_tree_chain *chain, int32_t *pages);

/**
 * attnd_tree_publish() - blocks that are computed
 * @pages: [count * block_pages], each in the pool and leased by the caller, who stays the one to
 *         free its leases
 * Block by block, each whole. A key that is published already is passed over. A session that waits
 * for a claim on one of the keys is woken. @result.stop FULL: the rest found no room. Return: 0;
 * -ATTND_E_INVALID: block result->blocks has another parent in the tree, or a page that the tree
 * holds already, or holds it twice; -ATTND_E_UNKNOWN: the parent is not published.
 */
int attnd_tree_publish(struct attnd_tree *tree, struct attnd_tree_owner *owner,
                       const struct attnd_tree_chain *chain, const int32_t *pages,
                       struct attnd_tree_result *result);

/* How far a chain has been looked at. */
struct attnd_tree_check {
    /* [attnd_prefix_seen_places(count) + attnd_prefix_seen_places(count * block_pages)], of the
     * caller's; 0 before the first part. */
    uint16_t *seen;
    uint32_t blocks; /* leading ones that are right */
};

/**
 * attnd_tree_publish_check() - what attnd_tree_publish() of the whole chain would refuse now: the
 * next @count blocks are looked at
 * @chain, @pages: all of it, each time
 * @check:         the tree may change between two parts. After a refusal the block behind its
 *                 `blocks` is wrong, also for the reason that one before has its key or one of its
 *                 pages.
 * Changes nothing of the tree. Return: as attnd_tree_publish().
 */
int attnd_tree_publish_check(const struct attnd_tree *tree, const struct attnd_tree_chain *chain,
                             const int32_t *pages, uint32_t count, struct attnd_tree_check *check);

/** attnd_tree_claim() - the leading keys that nobody has published or claimed, this owner included.
 * The parent is not looked at. */
struct attnd_tree_result attnd_tree_claim(struct attnd_tree *tree, struct attnd_tree_owner *owner,
                                          const struct attnd_tree_chain *chain);

/** attnd_tree_abandon() - give up those claims on the keys that are @owner's. Return: how many.*/
uint32_t attnd_tree_abandon(struct attnd_tree *tree, struct attnd_tree_owner *owner,
                            const struct attnd_tree_chain *chain);
/** attnd_tree_owner_end() - give up all of them, up to @claims_max. Return: 1 there are more; 0. */
int attnd_tree_owner_end(struct attnd_tree *tree, struct attnd_tree_owner *owner,
                         uint32_t claims_max);

/** attnd_tree_pin() - keep the leading blocks until they are unpinned, or the namespace has no
 * handle any more. At most half of the namespace's budget, and half of the pool, can be pinned. */
struct attnd_tree_result attnd_tree_pin(struct attnd_tree *tree,
                                        const struct attnd_tree_chain *chain);
/** attnd_tree_unpin() - the reverse, as far as blocks are there. */
struct attnd_tree_result attnd_tree_unpin(struct attnd_tree *tree,
                                          const struct attnd_tree_chain *chain);

/* ---- waiting for a claim ---- */

/* Embedded in whatever waits. Zero-initialise. */
struct attnd_tree_waiter {
    struct attnd_tree_waiter *next, **link; /* link NULL: in no list */
    uint32_t abandoned; /* it was woken because the claim ended without a block */
};

/** attnd_tree_wait() - wait for the claim on @key. Return: 1 it waits; 0 there is none. */
int attnd_tree_wait(struct attnd_tree *tree, uint32_t space, const struct attnd_block_key *key,
                    struct attnd_tree_waiter *waiter);
/** attnd_tree_unwait() - out of whatever list it is in. */
void attnd_tree_unwait(struct attnd_tree_waiter *waiter);
/** attnd_tree_woken() - the next one whose claim has ended, in no list any more; NULL: none. */
struct attnd_tree_waiter *attnd_tree_woken(struct attnd_tree *tree);

/* ---- the pool's side ---- */

/** attnd_tree_evictable() - pages that could be evicted, or would follow when others were: an
 * upper bound of what attnd_tree_evict() finds. */
uint32_t attnd_tree_evictable(const struct attnd_tree *tree);
/** attnd_tree_evict() - evict blocks of @pages pages, which are free then. Return: how many there
 * were; more than asked where a block has more, fewer where nothing is left. */
uint32_t attnd_tree_evict(struct attnd_tree *tree, uint32_t pages);
/** attnd_tree_sink() - the same to the second tier, where it takes them: then they are free when it
 * says so. No namespace falls below its low mark for it. */
uint32_t attnd_tree_sink(struct attnd_tree *tree, uint32_t pages);
/** attnd_tree_page_idle() - the tree's lease became the only one of @page, or the page is not the
 * tree's, which does not matter. */
void attnd_tree_page_idle(struct attnd_tree *tree, int32_t page);
/** attnd_tree_compute_us() - to compute block number @depth of a prompt, by what its namespace
 * says. */
uint64_t attnd_tree_compute_us(const struct attnd_tree *tree, uint32_t space, uint32_t depth);
/** attnd_tree_pages() - that the tree holds. */
uint32_t attnd_tree_pages(const struct attnd_tree *tree);
/** attnd_tree_bytes() - that the tree has touched. */
uint64_t attnd_tree_bytes(const struct attnd_tree *tree);

#endif
