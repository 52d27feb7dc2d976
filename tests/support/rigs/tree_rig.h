/*
 * tree_rig.h - a prefix tree over a pool that is only counts: pages, leases, sessions that hold
 * some. What the tree's owner does in the daemon is done here in its plainest form.
 *
 * Included by a test program, once.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_TREE_RIG_H
#define ATTND_TESTS_SUPPORT_RIGS_TREE_RIG_H

#include "service/prefix/tree.h"
#include "tests/support/harness/check.h"

#include <stdlib.h>
#include <string.h>

#define RIG_SESSIONS 4u
#define RIG_PAGES_MAX 4096u
#define RIG_LEASES_MAX 100u

static struct {
    struct attnd_tree *tree;
    uint32_t used;
    uint32_t pages;
    uint16_t leases[RIG_PAGES_MAX];
    uint16_t held[RIG_SESSIONS][RIG_PAGES_MAX];
    void (*dropped)(const int32_t *pages, uint32_t count); /* looks before leases go; or NULL */
} rig;

static inline void rig_take(void *context, const int32_t *pages, uint32_t count)
{
    (void)context;
    for (uint32_t i = 0; i < count; i++)
        rig.leases[pages[i]]++;
}

static inline void rig_drop(void *context, const int32_t *pages, uint32_t count)
{
    (void)context;
    if (rig.dropped)
        rig.dropped(pages, count);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(rig.leases[pages[i]] > 0);
        rig.leases[pages[i]]--;
    }
}

/* @page_size 16. */
static inline void rig_begin(uint32_t pages, uint32_t blocks_max, uint32_t budget)
{
    CHECK(pages <= RIG_PAGES_MAX);
    memset(&rig, 0, sizeof(rig));
    rig.pages = pages;
    struct attnd_tree_args args = {.pages = pages,
                                   .page_size = 16,
                                   .blocks_max = blocks_max,
                                   .leases = {rig.leases, RIG_LEASES_MAX, rig_take, rig_drop, NULL},
                                   .used = &rig.used,
                                   .used_max = budget};
    CHECK_EQUAL(attnd_tree_new(&args, &rig.tree), 0);
}

static inline void rig_end(void)
{
    attnd_tree_free(rig.tree);
    CHECK_EQUAL(rig.used, 0);
}

static inline uint32_t rig_space(uint32_t block_pages, uint32_t pages_max, uint32_t pages_low)
{
    struct attnd_tree_space_args args = {block_pages, pages_max, pages_low, 0};
    uint32_t space = ATTND_NONE;
    CHECK_EQUAL(attnd_tree_space_open(rig.tree, &args, &space), 0);
    return space;
}

/* Return: pages leased by @session; fewer than @count where the pool has no more. */
static inline uint32_t rig_alloc(uint32_t session, uint32_t count, int32_t *pages)
{
    uint32_t got = 0;
    for (uint32_t page = 0; page < rig.pages && got < count; page++)
        if (rig.leases[page] == 0) {
            rig.leases[page] = 1;
            rig.held[session][page] = 1;
            pages[got++] = (int32_t)page;
        }
    return got;
}

static inline void rig_lease(uint32_t session, const int32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        rig.leases[pages[i]]++;
        rig.held[session][pages[i]]++;
    }
}

static inline void rig_free(uint32_t session, const int32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        CHECK(rig.held[session][pages[i]] > 0);
        rig.held[session][pages[i]]--;
        if (--rig.leases[pages[i]] == 1)
            attnd_tree_page_idle(rig.tree, pages[i]);
    }
}

static inline void rig_free_all(uint32_t session)
{
    for (int32_t page = 0; page < (int32_t)rig.pages; page++)
        while (rig.held[session][page])
            rig_free(session, &page, 1);
}

static inline struct attnd_block_key rig_key(uint64_t number)
{
    return (struct attnd_block_key){{number * 0x9e3779b97f4a7c15u, ~number}};
}

#endif
