/*
 * tree_internal.h - what the files of the tree share. Nobody else includes it.
 *
 *   tree_space.c  made and freed; namespaces
 *   index.c       key -> block: a hash table that grows a bucket at a time
 *   order.c       what can be evicted, by when it is due
 *   block.c       a block's states, and what follows when one changes
 *   match.c       match, pin
 *   publish.c     publish, claim, wait
 */
#ifndef ATTND_SERVICE_PREFIX_TREE_INTERNAL_H
#define ATTND_SERVICE_PREFIX_TREE_INTERNAL_H

#include "ipc/closer.h"
#include "service/prefix/tree.h"

__extension__ typedef unsigned __int128 attnd_u128;

enum attnd_tree_flag {
    ATTND_TREE_PUBLISHED = 1,
    ATTND_TREE_CLAIMED = 2,
    ATTND_TREE_PINNED = 4,
    ATTND_TREE_IDLE = 8,     /* published, not pinned, and no lease but the tree's */
    ATTND_TREE_ORDERED = 16, /* idle and a leaf: in the order of eviction */
    ATTND_TREE_LISTED = 32   /* in its namespace's top list */
};

/* One cache line, so that a match misses once a block. A claim has no place in the tree yet. */
struct attnd_tree_block {
    struct attnd_block_key key;
    union {
        uint64_t due;                      /* published and idle */
        struct attnd_tree_waiter *waiters; /* claimed */
    };
    union {
        struct {
            uint32_t children, depth; /* published; depth: blocks before it */
        };
        struct attnd_tree_owner *owner; /* claimed */
    };
    uint32_t parent;        /* ATTND_NONE: none */
    uint32_t bucket_next;   /* 1 + block, as buckets have it; in the free list too */
    uint32_t before, after; /* in the owner's claims, in the pinned; before: place in the order */
    int32_t page;           /* its first; others by tree->page_next */
    uint32_t hits;
    uint32_t publisher; /* session */
    uint16_t busy;      /* pages that others have leases of */
    uint8_t space;
    uint8_t flags;
};
_Static_assert(sizeof(struct attnd_tree_block) == 64, "a block is a cache line");

/* A heap by due. Times are beside the blocks, because looking at blocks is what would take time. */
struct attnd_tree_order_entry {
    uint64_t due;
    uint32_t block;
    uint32_t zero;
};
_Static_assert(sizeof(struct attnd_tree_block) + 2 * sizeof(uint32_t) +
                       2 * sizeof(struct attnd_tree_order_entry) ==
                   ATTND_TREE_BLOCK_BYTES,
               "what a block costs");
struct attnd_tree_order {
    struct attnd_tree_order_entry *entry;
    uint32_t count, max;
};

struct attnd_tree_space {
    struct attnd_tree_space_info info;
    int used;
    uint32_t pinned_first; /* valid while info.pinned > 0 */
    struct attnd_tree_order order;
    uint32_t top[ATTND_TREE_TOP], top_count; /* blocks, in no order */
};

struct attnd_tree {
    struct attnd_closing closing; /* first: at the very end */
    struct attnd_tree_args args;
    struct attnd_tree_below below;  /* take NULL: there is none */
    struct attnd_tree_block *block; /* [blocks_max], touched up to fresh */
    uint32_t free_first;            /* 1 + block; 0: none */
    uint32_t fresh;
    uint32_t *bucket; /* 1 + block; 0: empty */
    uint32_t buckets, bucket_mask, entries;
    uint64_t buckets_max;
    attnd_u128 factor[4]; /* random: of key, namespace, and one to add */
    uint32_t *block_of;   /* [pages] 1 + block; 0: not published */
    int32_t *page_next;   /* [pages]; NULL until a namespace has blocks of several pages */
    uint64_t level;       /* cost that the last block evicted was due at */
    uint32_t tick;
    uint32_t claims, pages, pinned_pages, idle_pages;
    struct attnd_tree_waiter *woken, **woken_tail;
    struct attnd_tree_space space[ATTND_PREFIX_SPACES_MAX];
};

/* ---- index.c ---- */

int attnd_tree_index_init(struct attnd_tree *tree);
/** attnd_tree_index_hash() - of a key; nobody outside can tell which keys have the same. */
uint32_t attnd_tree_index_hash(const struct attnd_tree *tree, uint32_t space,
                               const struct attnd_block_key *key);
/** attnd_tree_index_find() - the block of a key, whatever its state; ATTND_NONE. */
uint32_t attnd_tree_index_find(const struct attnd_tree *tree, uint32_t space,
                               const struct attnd_block_key *key);
/** attnd_tree_index_find_all() - those of @count <= ATTND_TREE_GROUP keys, side by side. */
#define ATTND_TREE_GROUP 32u
void attnd_tree_index_find_all(const struct attnd_tree *tree, uint32_t space,
                               const struct attnd_block_key *keys, uint32_t count,
                               uint32_t *blocks);
void attnd_tree_index_add(struct attnd_tree *tree, uint32_t block);
void attnd_tree_index_remove(struct attnd_tree *tree, uint32_t block);

/* ---- order.c ---- */

/** attnd_tree_order_reserve() - room for @count, so that adding never fails. */
int attnd_tree_order_reserve(struct attnd_tree_order *order, uint32_t count);
void attnd_tree_order_add(struct attnd_tree *tree, struct attnd_tree_order *order, uint32_t block);
void attnd_tree_order_remove(struct attnd_tree *tree, struct attnd_tree_order *order,
                             uint32_t block);

/* ---- block.c ---- */

static inline struct attnd_tree_space *attnd_tree_space_of(struct attnd_tree *tree,
                                                           const struct attnd_tree_block *at)
{
    return &tree->space[at->space];
}

/** attnd_tree_reorder() - idle, in the order, or neither: after anything that decides it. */
void attnd_tree_reorder(struct attnd_tree *tree, uint32_t block);
/** attnd_tree_block_new() - an entry in the index, of no state yet; evicts of the same namespace
 * if there is no other. Return: ATTND_NONE without room. */
uint32_t attnd_tree_block_new(struct attnd_tree *tree, uint32_t space,
                              const struct attnd_block_key *key);
/** attnd_tree_block_free() - out of the index; nothing else names it. */
void attnd_tree_block_free(struct attnd_tree *tree, uint32_t block);
/** attnd_tree_evict_one() - the block of @space that is due first. @sink: to the second tier, if it
 * takes it. Return: its pages; 0: none. */
uint32_t attnd_tree_evict_one(struct attnd_tree *tree, struct attnd_tree_space *space, int sink);
/** attnd_tree_space_collect() - the namespace goes if nobody can find anything in it. */
void attnd_tree_space_collect(struct attnd_tree_space *space);
/** attnd_tree_pinned_remove() - no longer pinned. */
void attnd_tree_pinned_remove(struct attnd_tree *tree, uint32_t block);
/** attnd_tree_pages_of() - the pages of a block, in order. */
void attnd_tree_pages_of(const struct attnd_tree *tree, const struct attnd_tree_block *block,
                         uint32_t block_pages, int32_t *pages);

#endif
