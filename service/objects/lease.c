/*
 * lease.c - who may use which pages of a pool that the service owns.
 *
 * Two counts a page: leases[] of the pool, all of them, and held[] of each attachment, that
 * session's. The difference is held by tickets. A page is free when leases[] is 0; it is shared,
 * and may not be written, when it is more than 1. Calls name a list of pages, the same one possibly
 * twice, and take effect for all or for none: what can fail is done first and undone on failure,
 * which nobody sees, because one thread does everything.
 *
 * held[] is kept as minus the count: a sign bit says "held", and those of all the pages of a batch
 * are collected by AND (attnd_admit_leased()). Admission looks them up while it copies the ids;
 * what it found holds at the set's step too if the session gave up no lease meanwhile (releases).
 *
 * A session that attached for reading has one lease of a page in the pool's count, however often it
 * found the page, and of no more than half of the pages, all readers together. Otherwise readers
 * could use up the count of a page, or keep its owner from every page.
 *
 * A page that was never leased is not in any list: `fresh` says where those begin.
 */
#include "service/objects/lease.h"

#include "ipc/array.h"
#include "schemas/attnd.pb-c.h"
#include "service/admission/admit.h"
#include "service/objects/arrival.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int check_leased_pool(const struct attnd_pool *pool, struct attnd_fault *fault)
{
    if (pool->leases)
        return 0;
    return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_PAGE_OWNER, 0, pool->page_owner,
                           ATTND__PAGE_OWNER__OWNER_SERVICE);
}

static int check_page(const struct attnd_attachment *attachment, const int32_t *pages, uint32_t i,
                      struct attnd_fault *fault)
{
    uint32_t limit = attachment->pool->shape.pages;

    if (pages[i] < 0 || (uint32_t)pages[i] >= limit)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_PAGES, i, pages[i],
                               pages[i] < 0 ? 0 : (int64_t)limit - 1);
    if (attachment->held[pages[i]] == 0)
        return attnd_fault_set(fault, -ATTND_E_NOT_LEASED, ATTND_F_PAGES, i, pages[i], 0);
    return 0;
}

uint32_t attnd_lease_free_count(const struct attnd_pool *pool)
{
    return pool->free_count + pool->shape.pages - pool->fresh;
}

static int32_t take_free(struct attnd_pool *pool)
{
    return pool->free_count ? pool->free_pages[--pool->free_count] : (int32_t)pool->fresh++;
}

int attnd_lease_make_room(struct attnd_pool *pool, uint32_t count, uint32_t most)
{
    const uint32_t there = attnd_lease_free_count(pool);

    return count > there && pool->keeper && pool->keeper->evict(pool, count - there, most) &&
           count > attnd_lease_free_count(pool);
}

int attnd_lease_take_free(struct attnd_pool *pool, uint32_t count, int32_t *pages)
{
    (void)attnd_lease_make_room(pool, count, UINT32_MAX);
    if (count > attnd_lease_free_count(pool))
        return -ATTND_E_NO_SPACE;
    for (uint32_t i = 0; i < count; i++) {
        pages[i] = take_free(pool);
        assert(pool->leases[pages[i]] == 0);
        pool->leases[pages[i]] = 1;
    }
    return 0;
}

int attnd_lease_alloc(struct attnd_attachment *attachment, uint32_t count, int32_t *pages,
                      struct attnd_fault *fault)
{
    struct attnd_pool *pool = attachment->pool;
    int rc = check_leased_pool(pool, fault);

    if (rc < 0)
        return rc;
    if (attnd_lease_take_free(pool, count, pages) < 0)
        return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_PAGES, 0, count,
                               attnd_lease_free_count(pool));
    for (uint32_t i = 0; i < count; i++) {
        assert(attachment->held[pages[i]] == 0);
        attachment->held[pages[i]] = -1;
    }
    attachment->held_count += count;
    if (pool->keeper)
        pool->keeper->changed(pool);
    return 0;
}

static int check_shareable(const struct attnd_attachment *attachment, const int32_t *pages,
                           uint32_t i, struct attnd_fault *fault)
{
    int rc = check_page(attachment, pages, i, fault);
    if (rc == 0 && attachment->pool->leases[pages[i]] == ATTND_PAGE_LEASES_MAX)
        rc = attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_COUNT, i, ATTND_PAGE_LEASES_MAX + 1,
                             ATTND_PAGE_LEASES_MAX);
    return rc;
}

int attnd_lease_share(struct attnd_attachment *attachment, const int32_t *pages, uint32_t count,
                      struct attnd_fault *fault)
{
    struct attnd_pool *pool = attachment->pool;
    int rc = check_leased_pool(pool, fault);
    uint32_t done = 0;

    while (rc == 0 && done < count) {
        rc = check_shareable(attachment, pages, done, fault);
        if (rc < 0)
            break;
        pool->leases[pages[done]]++;
        attachment->held[pages[done]]--;
        done++;
    }
    if (rc == 0) {
        attachment->held_count += count;
        return 0;
    }
    while (done-- > 0) {
        pool->leases[pages[done]]--;
        attachment->held[pages[done]]++;
    }
    return rc;
}

int attnd_lease_give(struct attnd_attachment *attachment, const int32_t *pages, uint32_t count,
                     struct attnd_fault *fault)
{
    int rc = check_leased_pool(attachment->pool, fault);
    uint32_t done = 0;

    while (rc == 0 && done < count) {
        rc = check_page(attachment, pages, done, fault);
        if (rc == 0)
            attachment->held[pages[done++]]++;
    }
    if (rc == 0) {
        attachment->held_count -= count;
        attachment->releases++;
        return 0;
    }
    while (done-- > 0)
        attachment->held[pages[done]]--;
    return rc;
}

/* Undoes attnd_lease_give(). */
static void restore(struct attnd_attachment *attachment, const int32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        attachment->held[pages[i]]--;
    attachment->held_count += count;
}

/* Leases of the page have gone, @left are there. */
static void page_left(struct attnd_pool *pool, int32_t page, uint32_t left)
{
    if (left == 0)
        pool->free_pages[pool->free_count++] = page;
    else if (left == 1 && pool->keeper)
        pool->keeper->idle(pool, page);
}

void attnd_lease_drop(struct attnd_pool *pool, const int32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert(pool->leases[pages[i]] > 0);
        page_left(pool, pages[i], --pool->leases[pages[i]]);
    }
}

/* The pool counts the session's lease of the page, the first one if it is a reader. */
static void count_page(struct attnd_attachment *attachment, int more)
{
    if (!attachment->writable)
        attachment->pool->reader_pages += (uint32_t)more;
}

/* Return: 1; 0 a reader cannot find the page more often. */
static int grant_one(struct attnd_attachment *attachment, int32_t page)
{
    int16_t *held = &attachment->held[page];

    if (*held == -(int)ATTND_PAGE_LEASES_MAX)
        return 0;
    if (*held == 0)
        count_page(attachment, 1);
    if (*held == 0 || attachment->writable) {
        assert(attachment->pool->leases[page] < ATTND_PAGE_LEASES_MAX);
        attachment->pool->leases[page]++;
    }
    --*held;
    attachment->held_count++;
    return 1;
}

/* Gives up one that is held. */
static void free_one(struct attnd_attachment *attachment, int32_t page)
{
    struct attnd_pool *pool = attachment->pool;
    int16_t *held = &attachment->held[page];

    ++*held;
    attachment->held_count--;
    if (*held == 0) {
        count_page(attachment, -1);
        attnd_arrival_forget(attachment, page);
    }
    if (*held == 0 || attachment->writable)
        page_left(pool, page, --pool->leases[page]);
}

static int has_share(const struct attnd_attachment *attachment)
{
    const struct attnd_pool *pool = attachment->pool;

    return attachment->writable || pool->reader_pages <= pool->shape.pages / 2;
}

/* A lease of each page of a block, as the tree counts on. Return: 1; 0 they are given up again: the
 * session has found one of them too often, or @enough says so. */
static int grant_block(struct attnd_attachment *attachment, const int32_t *pages, uint32_t count,
                       int enough)
{
    uint8_t granted[ATTND_PREFIX_BLOCK_PAGES_MAX];

    assert(count <= ATTND_PREFIX_BLOCK_PAGES_MAX);
    for (uint32_t i = 0; i < count; i++) {
        granted[i] = (uint8_t)grant_one(attachment, pages[i]);
        enough |= !granted[i];
    }
    if (!enough && has_share(attachment))
        return 1;
    for (uint32_t i = 0; i < count; i++)
        if (granted[i])
            free_one(attachment, pages[i]);
    return 0;
}

uint32_t attnd_lease_grant(struct attnd_attachment *attachment, const int32_t *pages,
                           uint32_t blocks, uint32_t block_pages)
{
    uint32_t kept = 0;

    for (uint32_t b = 0; b < blocks; b++)
        kept += (uint32_t)grant_block(attachment, pages + (size_t)b * block_pages, block_pages,
                                      kept < b);
    return kept;
}

void attnd_lease_take(struct attnd_attachment *attachment, const int32_t *pages, uint32_t count)
{
    struct attnd_pool *pool = attachment->pool;

    for (uint32_t i = 0; i < count; i++) {
        const int has = attachment->held[pages[i]] != 0;
        pool->leases[pages[i]]--; /* the ticket's, of which a reader that has the page needs none */
        (void)grant_one(attachment, pages[i]);
        if (has && !attachment->writable)
            page_left(pool, pages[i], pool->leases[pages[i]]);
    }
}

int attnd_lease_check_free(struct attnd_attachment *attachment, const int32_t *pages,
                           uint32_t count, struct attnd_fault *fault)
{
    const int rc = attnd_lease_give(attachment, pages, count, fault); /* one may be named twice */

    if (rc == 0)
        restore(attachment, pages, count);
    return rc;
}

int attnd_lease_free(struct attnd_attachment *attachment, const int32_t *pages, uint32_t count,
                     struct attnd_fault *fault)
{
    struct attnd_pool *pool = attachment->pool;
    int rc = attnd_lease_check_free(attachment, pages, count, fault);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < count; i++)
        free_one(attachment, pages[i]);
    if (pool->keeper)
        pool->keeper->changed(pool);
    return 0;
}

/* All leases of a page at once: a session may hold billions of a few pages. */
static void drop_page(struct attnd_attachment *attachment, int32_t page)
{
    struct attnd_pool *pool = attachment->pool;
    const uint32_t held = (uint32_t)-attachment->held[page];
    const uint32_t counted = attachment->writable ? held : 1;

    if (!held)
        return;
    attachment->held[page] = 0;
    attachment->held_count -= held;
    count_page(attachment, -1);
    attnd_arrival_forget(attachment, page);
    assert(pool->leases[page] >= counted);
    pool->leases[page] = (uint16_t)(pool->leases[page] - counted);
    page_left(pool, page, pool->leases[page]);
}

int attnd_lease_drop_some(struct attnd_attachment *attachment, uint32_t pages_max)
{
    struct attnd_pool *pool = attachment->pool;
    const uint32_t left = pool->shape.pages - attachment->dropped;
    const uint32_t end = attachment->dropped + (left < pages_max ? left : pages_max);

    attachment->releases++;
    while (attachment->held_count > 0 && attachment->dropped < end)
        drop_page(attachment, (int32_t)attachment->dropped++);
    if (attachment->held_count > 0)
        return 1;
    if (pool->keeper)
        pool->keeper->changed(pool);
    return 0;
}

/* ---- quiet ones ---- */

int attnd_lease_quiet_room(struct attnd_service *service, struct attnd_pool *pool,
                           struct attnd_fault *fault)
{
    const uint64_t bytes = pool->shape.pages * sizeof(*pool->quiet);

    if (pool->quiet)
        return 0;
    if (attnd_quota_user_left(service, pool->payer, ATTND_QUOTA_DAEMON) >= bytes)
        pool->quiet = attnd_array_new(bytes);
    if (!pool->quiet)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_DAEMON_MEMORY, 0, (int64_t)bytes,
                               0);
    attnd_quota_count(service, pool->payer, ATTND_QUOTA_DAEMON, bytes);
    pool->charged_bytes += bytes;
    return 0;
}

int attnd_lease_quiet_add(struct attnd_pool *pool, const int32_t *pages, uint32_t count,
                          struct attnd_fault *fault)
{
    uint32_t done = 0;

    for (; done < count && pool->leases[pages[done]] < ATTND_PAGE_LEASES_MAX; done++) {
        pool->leases[pages[done]]++;
        pool->quiet[pages[done]]++;
    }
    if (done == count)
        return 0;
    attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_COUNT, done, ATTND_PAGE_LEASES_MAX + 1,
                    ATTND_PAGE_LEASES_MAX);
    while (done-- > 0) {
        pool->leases[pages[done]]--;
        pool->quiet[pages[done]]--;
    }
    return -ATTND_E_RANGE;
}

void attnd_lease_quiet_end(struct attnd_pool *pool, const int32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert(pool->quiet[pages[i]] > 0);
        pool->quiet[pages[i]]--;
    }
}

uint32_t attnd_lease_count(const struct attnd_pool *pool)
{
    return pool->leases ? pool->shape.pages - attnd_lease_free_count(pool) : 0;
}

int attnd_lease_check(const struct attnd_attachment *attachment, const int32_t *pages,
                      uint32_t count, struct attnd_fault *fault)
{
    const int16_t *held = attachment->held;
    if (!held)
        return 0;
    for (uint32_t i = attnd_admit_leased(held, pages, count) ? count : 0; i < count; i++)
        if (held[pages[i]] == 0)
            return attnd_fault_set(fault, -ATTND_E_NOT_LEASED, ATTND_F_KV_INDICES, i, pages[i], 0);
    return 0;
}

int attnd_lease_shared(const struct attnd_pool *pool, uint32_t page)
{
    return pool->leases && pool->leases[page] - (pool->quiet ? pool->quiet[page] : 0) > 1;
}
