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

struct attnd_session; /* attnd_session.h */
struct attnd_token;
struct attnd_op;
struct attnd_completion;

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
 * attnd_pages_offer_layers() - the same of pages that are still to be written, layer by layer
 * The session keeps its leases and appends to the pages; attnd_pages_ready() says which layers are
 * whole. Another service that claims the ticket brings each layer as soon as it is. Until all are,
 * nobody of this service can claim it. If the session closes before that, the ticket is gone. Its
 * own leases the session gives back as always; the ticket keeps the pages.
 */
int attnd_pages_offer_layers(struct attnd_session *session, uint32_t pool, uint32_t count,
                             const int32_t *pages, uint32_t expire_ms, struct attnd_token *ticket);
/**
 * attnd_pages_ready() - layers 0 .. @layers - 1 of a ticket of attnd_pages_offer_layers() are whole
 * Takes effect when what was submitted before it in its lane is over: submit it behind the appends
 * of layer @layers - 1. From then on these layers must not change. If an append of the lane has
 * failed and its completion is not read yet, this fails with the same code. Completes with
 * -ATTND_E_EXPIRED; -ATTND_E_PERMISSION (field ticket) it is another session's, or of another pool;
 * -ATTND_E_RANGE (field layers). Return: as attnd_plan_set().
 */
int attnd_pages_ready(struct attnd_session *session, uint32_t pool,
                      const struct attnd_token *ticket, uint32_t layers, const struct attnd_op *op);
/**
 * attnd_pages_claim() - take the leases of a ticket, once, in the order they were offered
 * @pool:      receives this session's handle of the pool, which it must have attached
 * @pages:     [@pages_max] receives the page ids
 * Return: the number of pages; -ATTND_E_EXPIRED expired, claimed, or never was; -ATTND_E_NO_SPACE
 * there are more than @pages_max, limit of them (the ticket stays valid); -ATTND_E_PERMISSION the
 * pool is not attached (the same); -ATTND_E_BUSY another service is bringing the pages (the same);
 * -ATTND_E_UNSUPPORTED the ticket is of another service: attnd_pages_claim_async().
 */
int attnd_pages_claim(struct attnd_session *session, const struct attnd_token *ticket,
                      uint32_t *pool, int32_t *pages, uint32_t pages_max);

#define ATTND_CLAIM_EARLY 0x1u /* it completes when the pages are leased here */

/* A claim by submission. */
struct attnd_claim_args {
    uint32_t size;
    uint32_t pool;                    /* where the pages go: this session's handle, for writing */
    uint32_t pages_max;               /* at most ATTND_LEASE_PAGES_MAX */
    uint32_t flags;                   /* ATTND_CLAIM_EARLY */
    const struct attnd_token *ticket; /* of this service, or of one that it is linked with */
};

/**
 * attnd_pages_claim_async() - the same as an operation, also for a ticket of another service
 *
 * A ticket is of the service in which it was offered. If that is another one (`attnd --peer`), this
 * operation leases pages of args->pool, which has to have the same shape, brings the bytes, and
 * completes. Until then the other service keeps its pages; then it gives them back. The operation
 * leaves its lane while it waits: what is submitted behind it goes on. Where it fails or is
 * cancelled, or @op's timeout_us passes, no page is leased here, and the ticket is as it was: it
 * may be claimed again. If the other service dies between the last byte and its answer, the claim
 * fails, and the ticket is gone.
 *
 * With ATTND_CLAIM_EARLY it completes as soon as the pages are leased, and their bytes arrive layer
 * by layer: a run or an append of layer L whose plan names such pages waits for layer L of them,
 * and for no other. If they do not come after all, such operations fail with -ATTND_E_PEER_LOST or
 * -ATTND_E_EXPIRED until the pages are freed. Until all has come the pages can be neither offered
 * nor published (-ATTND_E_BUSY, field pages), and a plan whose runs are launched takes none of them
 * (-ATTND_E_BUSY, field kv_indices); nor does any plan take pages of more than 32 such claims.
 * ATTND_SKIP_SUCCESS is -ATTND_E_INVALID, because pages would be leased in silence.
 * Completes with attnd_claim_result(), or with -ATTND_E_EXPIRED, -ATTND_E_NO_SPACE (field count:
 * more than pages_max; field pages: the pool has too few free ones); -ATTND_E_BUSY somebody else is
 * bringing the pages; -ATTND_E_INVALID (field pool) the other pool has another shape; -ATTND_E_FULL
 * (field count) half of the ring waits already; -ATTND_E_PROTOCOL (field peer) the other service is
 * wrong about its pages; -ATTND_E_PEER_LOST the other service is gone, silent, or not linked yet.
 * Return: as attnd_plan_set().
 */
int attnd_pages_claim_async(struct attnd_session *session, const struct attnd_claim_args *args,
                            const struct attnd_op *op);

struct attnd_claim_result {
    uint32_t size;
    uint32_t pages_count;
    const int32_t
        *pages; /* [pages_count], in the order of the offer; until the next attnd_wait() */
};

/**
 * attnd_claim_result() - what a completion of attnd_pages_claim_async() says
 * @completion: just returned by attnd_wait(), with fault code 0
 * Threads: the waiting one. Return: 0; -ATTND_E_INVALID it is of another operation, or failed.
 */
int attnd_claim_result(struct attnd_session *session, const struct attnd_completion *completion,
                       struct attnd_claim_result *result);

#ifdef __cplusplus
}
#endif
#endif
