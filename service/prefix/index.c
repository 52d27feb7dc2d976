/*
 * index.c - key -> block: a hash table that grows a bucket at a time.
 *
 * The daemon must not stop to rehash a million blocks, so the table is one of linear hashing: each
 * block that is added splits as many buckets as keep two for each block, and no more. Buckets lie
 * in one array that is touched from its beginning on, so it costs memory as it grows.
 *
 * Keys are a client's. Which bucket one falls into is decided by multiplying with random numbers
 * that nobody outside knows (a strongly universal family), so keys cannot be chosen to collide.
 */
#include "service/prefix/tree_internal.h"

#include "ipc/array.h"

#include <errno.h>
#include <sys/random.h>

#define BUCKETS_MIN 16u

uint32_t attnd_tree_index_hash(const struct attnd_tree *tree, uint32_t space,
                               const struct attnd_block_key *key)
{
    attnd_u128 sum = tree->factor[0] * key->word[0] + tree->factor[1] * key->word[1] +
                     tree->factor[2] * space + tree->factor[3];
    return (uint32_t)(sum >> 96);
}

/* Buckets beyond those that exist are still part of the one they will be split from. */
static uint32_t bucket_of(const struct attnd_tree *tree, uint32_t hashed)
{
    uint32_t bucket = hashed & tree->bucket_mask;
    return bucket < tree->buckets ? bucket : bucket & (tree->bucket_mask >> 1);
}

int attnd_tree_index_init(struct attnd_tree *tree)
{
    tree->buckets_max = BUCKETS_MIN;
    while (tree->buckets_max < 2 * (uint64_t)tree->args.blocks_max)
        tree->buckets_max *= 2;
    tree->bucket = attnd_array_new(tree->buckets_max * sizeof(*tree->bucket));
    if (!tree->bucket)
        return -ATTND_E_NO_MEMORY;
    tree->buckets = BUCKETS_MIN;
    tree->bucket_mask = BUCKETS_MIN - 1;
    if (getrandom(tree->factor, sizeof(tree->factor), 0) != (ssize_t)sizeof(tree->factor))
        return -ATTND_E_SYSTEM;
    return 0;
}

static int is_of(const struct attnd_tree_block *block, uint32_t space,
                 const struct attnd_block_key *key)
{
    return block->key.word[0] == key->word[0] && block->key.word[1] == key->word[1] &&
           block->space == space;
}

static uint32_t look(const struct attnd_tree *tree, uint32_t bucket, uint32_t space,
                     const struct attnd_block_key *key)
{
    for (uint32_t at = tree->bucket[bucket]; at; at = tree->block[at - 1].bucket_next)
        if (is_of(&tree->block[at - 1], space, key))
            return at - 1;
    return ATTND_NONE;
}

uint32_t attnd_tree_index_find(const struct attnd_tree *tree, uint32_t space,
                               const struct attnd_block_key *key)
{
    return look(tree, bucket_of(tree, attnd_tree_index_hash(tree, space, key)), space, key);
}

/* A lookup waits for memory: the misses of all keys are under way at once. */
void attnd_tree_index_find_all(const struct attnd_tree *tree, uint32_t space,
                               const struct attnd_block_key *keys, uint32_t count, uint32_t *blocks)
{
    uint32_t bucket[ATTND_TREE_GROUP];

    for (uint32_t i = 0; i < count; i++) {
        bucket[i] = bucket_of(tree, attnd_tree_index_hash(tree, space, &keys[i]));
        __builtin_prefetch(&tree->bucket[bucket[i]]);
    }
    for (uint32_t i = 0; i < count; i++)
        if (tree->bucket[bucket[i]])
            __builtin_prefetch(&tree->block[tree->bucket[bucket[i]] - 1]);
    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = look(tree, bucket[i], space, &keys[i]);
        if (blocks[i] != ATTND_NONE && tree->block[blocks[i]].flags & ATTND_TREE_PUBLISHED)
            __builtin_prefetch(&tree->args.leases.count[tree->block[blocks[i]].page]);
    }
}

static void link_block(struct attnd_tree *tree, uint32_t bucket, uint32_t block)
{
    tree->block[block].bucket_next = tree->bucket[bucket];
    tree->bucket[bucket] = block + 1;
}

static uint32_t home(const struct attnd_tree *tree, uint32_t block)
{
    const struct attnd_tree_block *at = &tree->block[block];
    return bucket_of(tree, attnd_tree_index_hash(tree, at->space, &at->key));
}

/* One bucket more: what belongs there now lies in the one of half its number. */
static void split(struct attnd_tree *tree)
{
    uint32_t fresh = tree->buckets++;
    if (fresh > tree->bucket_mask)
        tree->bucket_mask = tree->bucket_mask * 2 + 1;
    uint32_t old = fresh & (tree->bucket_mask >> 1), at = tree->bucket[old];

    tree->bucket[old] = 0;
    while (at) {
        uint32_t next = tree->block[at - 1].bucket_next;
        link_block(tree, home(tree, at - 1), at - 1);
        at = next;
    }
}

void attnd_tree_index_add(struct attnd_tree *tree, uint32_t block)
{
    link_block(tree, home(tree, block), block);
    tree->entries++;
    while (tree->buckets < 2 * (uint64_t)tree->entries)
        split(tree);
}

void attnd_tree_index_remove(struct attnd_tree *tree, uint32_t block)
{
    uint32_t *link = &tree->bucket[home(tree, block)];
    while (*link != block + 1)
        link = &tree->block[*link - 1].bucket_next;
    *link = tree->block[block].bucket_next;
    tree->entries--;
}
