/*
 * attnd_pages.h - leases of pages, of pools with ATTND_PAGES_OF_SERVICE. Part of attnd.h.
 *
 * A page is free when no lease of it is left. A page with more than one lease is shared and may not
 * be appended to. Calls take effect for all of the pages or for none; at most ATTND_LEASE_PAGES_MAX
 * pages a call.
 */
#ifndef ATTND_PAGES_H
#define ATTND_PAGES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct attnd_session; /* attnd.h */
struct attnd_token;

#define ATTND_LEASE_PAGES_MAX 16384u

/** attnd_pages_alloc() - lease free pages, which hold what was last stored there
 * @pages: [@count] receives their ids
 * -ATTND_E_NO_SPACE: limit says how many are free. */
int attnd_pages_alloc(struct attnd_session *session, uint32_t pool, uint32_t count, int32_t *pages);
/** attnd_pages_share() - one more lease of each, for this session, which must hold one
 * @pages: [@count]
 * -ATTND_E_RANGE, field count: a page has limit leases already, of all sessions and tickets. */
int attnd_pages_share(struct attnd_session *session, uint32_t pool, uint32_t count,
                      const int32_t *pages);
/** attnd_pages_free() - give one lease of each back, after the runs that read them and the appends
 * that write them: the next owner of the page writes it
 * @pages: [@count]
 * -ATTND_E_NOT_LEASED names the page. */
int attnd_pages_free(struct attnd_session *session, uint32_t pool, uint32_t count,
                     const int32_t *pages);
/**
 * attnd_pages_offer() - move one lease of each page to a ticket that another session can claim
 * @pages:     [@count]
 * @expire_ms: 1..600000; what is not claimed by then is freed
 * The giver may exit; the bytes stay.
 */
int attnd_pages_offer(struct attnd_session *session, uint32_t pool, uint32_t count,
                      const int32_t *pages, uint32_t expire_ms, struct attnd_token *ticket);
/**
 * attnd_pages_claim() - take the leases of a ticket, once, in the order they were offered
 * @pool:      receives this session's handle of the pool, which it must have attached
 * @pages:     [@pages_max] receives the page ids
 * Return: the number of pages; -ATTND_E_EXPIRED expired, claimed, or never was; -ATTND_E_NO_SPACE
 * there are more than @pages_max, limit of them (the ticket stays valid); -ATTND_E_PERMISSION the
 * pool is not attached (the same).
 */
int attnd_pages_claim(struct attnd_session *session, const struct attnd_token *ticket,
                      uint32_t *pool, int32_t *pages, uint32_t pages_max);

#ifdef __cplusplus
}
#endif
#endif
