/*
 * lease.h - who may use which pages of a pool. A call is about the pages of one attachment and
 * takes effect for all of them or for none.
 */
#ifndef ATTND_SERVICE_OBJECTS_LEASE_H
#define ATTND_SERVICE_OBJECTS_LEASE_H

#include "service/objects/pool.h"

int attnd_lease_alloc(struct attnd_attachment *attachment, uint32_t count, int32_t *pages,
                      struct attnd_fault *fault);
int attnd_lease_share(struct attnd_attachment *attachment, const int32_t *pages, uint32_t count,
                      struct attnd_fault *fault);
int attnd_lease_free(struct attnd_attachment *attachment, const int32_t *pages, uint32_t count,
                     struct attnd_fault *fault);
/** attnd_lease_give() - the session's leases become nobody's: the caller keeps the pages. */
int attnd_lease_give(struct attnd_attachment *attachment, const int32_t *pages, uint32_t count,
                     struct attnd_fault *fault);
/** attnd_lease_take() - and somebody's: of @attachment. */
void attnd_lease_take(struct attnd_attachment *attachment, const int32_t *pages, uint32_t count);
/** attnd_lease_grant() - one more lease of each page of @blocks, which their keeper found for it.
 * Return: how many blocks it keeps: one that attached for reading may have found enough. */
uint32_t attnd_lease_grant(struct attnd_attachment *attachment, const int32_t *pages,
                           uint32_t blocks, uint32_t block_pages);
/** attnd_lease_take_free() - a lease of each of @count free pages, for their keeper; it gives up
 * others for them, as for attnd_lease_alloc(). Return: 0; -ATTND_E_NO_SPACE: there are fewer. */
int attnd_lease_take_free(struct attnd_pool *pool, uint32_t count, int32_t *pages);
/** attnd_lease_make_room() - pages that only the keeper holds are as good as free: let it give up
 * some, @most at once, for @count that are to be free. Return: 1 there is more to do; 0 there are
 * as many, or there cannot be. */
int attnd_lease_make_room(struct attnd_pool *pool, uint32_t count, uint32_t most);
#define ATTND_LEASE_ROOM_STEP 64u /* pages between two looks at the clock */
/** attnd_lease_check_free() - could attnd_lease_free() be done? Return: as that. */
int attnd_lease_check_free(struct attnd_attachment *attachment, const int32_t *pages,
                           uint32_t count, struct attnd_fault *fault);
/** attnd_lease_drop() - leases that are nobody's are given up. */
void attnd_lease_drop(struct attnd_pool *pool, const int32_t *pages, uint32_t count);
/** attnd_lease_drop_some() - every lease of an attachment, of @pages_max pages in one call; nothing
 * else is done with it from the first on. Return: 1 there are more; 0. */
int attnd_lease_drop_some(struct attnd_attachment *attachment, uint32_t pages_max);
#define ATTND_LEASE_DROP_STEP 1024u /* pages between two looks at the clock */
/** attnd_lease_free_count() - pages without a lease. */
uint32_t attnd_lease_free_count(const struct attnd_pool *pool);
/** attnd_lease_quiet_room() - quiet leases can be had of the pool's pages: such as keep a page from
 * being free, and do not make it shared. They are for transfers that bring bytes to a page that a
 * session has, or from one that a session still writes. Return: 0; -ATTND_E_NO_MEMORY. */
int attnd_lease_quiet_room(struct attnd_service *service, struct attnd_pool *pool,
                           struct attnd_fault *fault);
/** attnd_lease_quiet_add() - one more of each, which is nobody's. Return: 0; -ATTND_E_RANGE a page
 * has all the leases it can have, and nothing has changed. */
int attnd_lease_quiet_add(struct attnd_pool *pool, const int32_t *pages, uint32_t count,
                          struct attnd_fault *fault);
/** attnd_lease_quiet_end() - they are leases like others from now on. */
void attnd_lease_quiet_end(struct attnd_pool *pool, const int32_t *pages, uint32_t count);
/** attnd_lease_count() - pages with at least one lease. */
uint32_t attnd_lease_count(const struct attnd_pool *pool);

/**
 * attnd_lease_check() - does the attachment hold a lease of each page?
 * Pages of an engine-owned pool always pass. Return: 0, or -ATTND_E_NOT_LEASED (field kv_indices).
 */
int attnd_lease_check(const struct attnd_attachment *attachment, const int32_t *pages,
                      uint32_t count, struct attnd_fault *fault);

/** attnd_lease_shared() - 1 if the page has more than one lease, quiet ones aside, and may not be
 * written. */
int attnd_lease_shared(const struct attnd_pool *pool, uint32_t page);

#endif
