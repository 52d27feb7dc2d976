/*
 * tree_rig.h - a prefix tree over a pool that is only counts: pages, leases, sessions that hold
 * some. It stands for the tree's owner in the daemon, in its plainest form.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_TREE_RIG_H
#define ATTND_TESTS_SUPPORT_RIGS_TREE_RIG_H

#include "service/prefix/tree.h"

#define TREE_RIG_SESSIONS 4u
#define TREE_RIG_PAGES_MAX 4096u
#define TREE_RIG_LEASES_MAX 100u

/* One at a time. */
extern struct tree_rig {
    struct attnd_tree *tree;
    uint32_t used;
    uint32_t pages;
    uint16_t leases[TREE_RIG_PAGES_MAX];
    uint16_t held[TREE_RIG_SESSIONS][TREE_RIG_PAGES_MAX];
    void (*dropped)(const int32_t *pages, uint32_t count); /* looks before leases go; or NULL */
} tree_rig;

/** tree_rig_begin() - a tree over @pages of 16 tokens. tree_rig_end() - nothing of it is left. */
void tree_rig_begin(uint32_t pages, uint32_t blocks_max, uint32_t budget);
void tree_rig_end(void);

/** tree_rig_space() - a namespace. */
uint32_t tree_rig_space(uint32_t block_pages, uint32_t pages_max, uint32_t pages_low);

/** tree_rig_alloc() - Return: pages leased by @session; fewer than @count where the pool has no
 * more. */
uint32_t tree_rig_alloc(uint32_t session, uint32_t count, int32_t *pages);
/** tree_rig_lease(), tree_rig_free() - a lease more or less of each page for @session. */
void tree_rig_lease(uint32_t session, const int32_t *pages, uint32_t count);
void tree_rig_free(uint32_t session, const int32_t *pages, uint32_t count);
void tree_rig_free_all(uint32_t session);

/** tree_rig_publishes() - 1: the tree holds a lease of @page, so a block of it has the page. */
int tree_rig_publishes(int32_t page);

/** tree_rig_key() - a key for each number. */
struct attnd_block_key tree_rig_key(uint64_t number);

#endif
