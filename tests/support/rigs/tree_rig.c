/* tree_rig.c - see tree_rig.h. */
#include "tests/support/rigs/tree_rig.h"

#include "tests/support/harness/check.h"

#include <string.h>

struct tree_rig tree_rig;

static void take(void *context, const int32_t *pages, uint32_t count)
{
    (void)context;
    for (uint32_t i = 0; i < count; i++)
        tree_rig.leases[pages[i]]++;
}

static void drop(void *context, const int32_t *pages, uint32_t count)
{
    (void)context;
    if (tree_rig.dropped)
        tree_rig.dropped(pages, count);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(tree_rig.leases[pages[i]] > 0);
        tree_rig.leases[pages[i]]--;
    }
}

void tree_rig_begin(uint32_t pages, uint32_t blocks_max, uint32_t budget)
{
    CHECK(pages <= TREE_RIG_PAGES_MAX);
    memset(&tree_rig, 0, sizeof(tree_rig));
    tree_rig.pages = pages;
    struct attnd_tree_args args = {
        .pages = pages,
        .page_size = 16,
        .blocks_max = blocks_max,
        .leases = {tree_rig.leases, TREE_RIG_LEASES_MAX, take, drop, NULL},
        .used = &tree_rig.used,
        .used_max = budget};
    CHECK_EQUAL(attnd_tree_new(&args, &tree_rig.tree), 0);
}

void tree_rig_end(void)
{
    attnd_tree_free(tree_rig.tree);
    CHECK_EQUAL(tree_rig.used, 0);
}

uint32_t tree_rig_space(uint32_t block_pages, uint32_t pages_max, uint32_t pages_low)
{
    struct attnd_tree_space_args args = {block_pages, pages_max, pages_low, 0};
    uint32_t space = ATTND_NONE;
    CHECK_EQUAL(attnd_tree_space_open(tree_rig.tree, &args, &space), 0);
    return space;
}

uint32_t tree_rig_alloc(uint32_t session, uint32_t count, int32_t *pages)
{
    uint32_t got = 0;
    for (uint32_t page = 0; page < tree_rig.pages && got < count; page++)
        if (tree_rig.leases[page] == 0) {
            tree_rig.leases[page] = 1;
            tree_rig.held[session][page] = 1;
            pages[got++] = (int32_t)page;
        }
    return got;
}

void tree_rig_lease(uint32_t session, const int32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        tree_rig.leases[pages[i]]++;
        tree_rig.held[session][pages[i]]++;
    }
}

void tree_rig_free(uint32_t session, const int32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        CHECK(tree_rig.held[session][pages[i]] > 0);
        tree_rig.held[session][pages[i]]--;
        if (--tree_rig.leases[pages[i]] == 1)
            attnd_tree_page_idle(tree_rig.tree, pages[i]);
    }
}

void tree_rig_free_all(uint32_t session)
{
    for (int32_t page = 0; page < (int32_t)tree_rig.pages; page++)
        while (tree_rig.held[session][page])
            tree_rig_free(session, &page, 1);
}

int tree_rig_publishes(int32_t page)
{
    uint32_t sessions = 0;
    for (uint32_t session = 0; session < TREE_RIG_SESSIONS; session++)
        sessions += tree_rig.held[session][page];
    CHECK(tree_rig.leases[page] == sessions || tree_rig.leases[page] == sessions + 1);
    return tree_rig.leases[page] > sessions;
}

struct attnd_block_key tree_rig_key(uint64_t number)
{
    return (struct attnd_block_key){{number * 0x9e3779b97f4a7c15u, ~number}};
}
