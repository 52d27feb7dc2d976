/*
 * attnd_prefix.h - one prefix cache for all engines of a pool. Part of attnd.h.
 *
 * A prompt is cut into blocks of whole pages. The engine gives each block a key of 128 bits that
 * stands for everything its K and V depend on: the tokens of the block, all blocks before it, and
 * whatever else matters, such as an adapter or an image (attnd_prefix_key()). The service keeps a
 * tree of published blocks for each pool whose pages it owns. The cycle of an engine is:
 *
 *   attnd_prefix_match()     which leading blocks are there? Their pages are leased to the session.
 *   attnd_prefix_claim()     "I compute the next ones": others wait for them instead.
 *   attnd_plan_set(), ...    the engine computes what is missing, in pages of attnd_pages_alloc()
 *   attnd_prefix_publish()   the pages are everybody's from now on, and nobody may write them.
 *   attnd_pages_free()       the session's leases end. The tree keeps its own.
 *
 * Published pages outlive the session. They stay until the service needs room: then leaves go
 * before their parents, the least recently used first, and blocks that are costly to compute again
 * later. With `attnd --host-cache` they go to host memory, and a match brings them back: it
 * completes when they are there. A page that a session or a ticket holds never goes.
 * attnd_pages_alloc() does not fail while the tree can give up pages. The tree goes with its pool,
 * and with the service.
 *
 * A namespace is the wall between tenants: a session finds the blocks of its own namespaces only. A
 * token opens one to another session, for reading or for writing too. A session that may write can
 * publish wrong pages under a right key, so a namespace is to be shared among engines that trust
 * each other.
 *
 * Operations are submitted as all others are, many blocks in one, and complete through
 * attnd_wait(). They take effect in the order of their lane, but a match that waits leaves its lane
 * and completes by itself.
 */
#ifndef ATTND_PREFIX_H
#define ATTND_PREFIX_H

#include "attnd_operation.h"
#include "attnd_pool.h"
#include "attnd_session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- namespaces ---- */

struct attnd_prefix_desc {
    uint32_t size;
    uint32_t block_pages; /* pages of a block, 1..256; the same in the namespace's whole life */
    uint32_t pages_max;   /* budget: beyond it the namespace evicts its own; 0: the pool's pages */
    uint32_t pages_low;   /* need of others takes it below this only when nothing else is left */
    uint32_t block_compute_us; /* what the engine needs for the first block of a prompt: blocks of
                                  the host's cache that are sooner computed than brought back are
                                  not found; 0: not known */
};

/**
 * attnd_prefix_open() - a new namespace in the prefix tree of a pool
 * @pool: ATTND_PAGES_OF_SERVICE, attached for writing
 * Blocking: for one answer of the service. Return: 0 and *prefix, a handle of this session;
 * -ATTND_E_UNKNOWN; -ATTND_E_INVALID (field page_owner); -ATTND_E_PERMISSION; -ATTND_E_RANGE
 * (field block_pages, pages_max or pages); -ATTND_E_NO_SPACE the pool has 64 namespaces in use;
 * -ATTND_E_NO_MEMORY: the process has half of what there is of them, or of --prefix-blocks.
 */
int attnd_prefix_open(struct attnd_session *session, uint32_t pool,
                      const struct attnd_prefix_desc *desc, uint32_t *prefix);

/**
 * attnd_prefix_share() - a token with which another session can attach the namespace
 * @writable: 0 lets the other session match only
 * The token is good for as long as the namespace lives: while a session has a handle on it, and
 * after that until its last block is evicted. Return: 0; -ATTND_E_UNKNOWN; -ATTND_E_PERMISSION
 * @writable, and this session may only match.
 */
int attnd_prefix_share(struct attnd_session *session, uint32_t prefix, int writable,
                       struct attnd_token *token);

/** attnd_prefix_attach() - the namespace of a token, whose pool this session has attached. In a
 * pool attached for reading it can only match. Return: 0 and *prefix; -ATTND_E_UNKNOWN no namespace
 * has this token; -ATTND_E_PERMISSION (field pool); -ATTND_E_NO_MEMORY. */
int attnd_prefix_attach(struct attnd_session *session, const struct attnd_token *token,
                        uint32_t *prefix);

/** attnd_prefix_release() - the handle ends, and its claims. With a namespace's last handle its
 * pins end; its blocks stay until they are evicted. -ATTND_E_BUSY: operations are in flight. */
int attnd_prefix_release(struct attnd_session *session, uint32_t prefix);

#define ATTND_PREFIX_SALT_BYTES 16

struct attnd_prefix_info {
    uint32_t size;
    uint32_t pool; /* as this session names it */
    uint32_t block_pages, pages_max;
    uint32_t writable;
    uint8_t salt[ATTND_PREFIX_SALT_BYTES]; /* random, the namespace's own: for its keys */
};

/** attnd_prefix_info() - of a handle. Return: 0; -ATTND_E_UNKNOWN. */
int attnd_prefix_info(struct attnd_session *session, uint32_t prefix,
                      struct attnd_prefix_info *info);

/* ---- keys ---- */

struct attnd_prefix_key {
    uint64_t word[2];
};

/**
 * attnd_prefix_key() - the key of a block, chained
 * @salt:    of the namespace: without it nobody can compute its keys
 * @parent:  of the block before; NULL: the block begins a prompt
 * @content: [@bytes] what the block depends on beside its parent: its tokens, an adapter's name
 * SipHash-2-4 of 128 bits under @salt. Engines of one namespace must feed it the same way. Engines
 * may use keys of their own making instead. Threads: any. Never blocks.
 */
void attnd_prefix_key(const uint8_t salt[ATTND_PREFIX_SALT_BYTES],
                      const struct attnd_prefix_key *parent, const void *content, size_t bytes,
                      struct attnd_prefix_key *key);

/* ---- operations ---- */

/* Blocks of one prompt, in order. Borrowed for the call that submits them. */
struct attnd_prefix_args {
    uint32_t size;
    uint32_t prefix;                       /* handle */
    uint32_t blocks;                       /* at most 4096, and 16384 pages */
    uint32_t flags;                        /* ATTND_PREFIX_MATCH_WAITS, of a match */
    const struct attnd_prefix_key *keys;   /* [blocks] */
    const struct attnd_prefix_key *parent; /* of keys[0]; NULL: keys[0] begins a prompt */
};

#define ATTND_PREFIX_MATCH_WAITS 0x2u

/**
 * attnd_prefix_match() - lease the leading blocks that are published
 * Completes with attnd_prefix_result(): how many, their pages, and why no more. Each page has one
 * lease more for this session, which attnd_pages_free() ends. With ATTND_PREFIX_MATCH_WAITS it
 * completes only when the next block is not claimed: published as far as it goes, or given up. That
 * may be a claim of this session too, for another request of the engine. Blocks that come back
 * from host memory are waited for without the flag, too. It keeps its leases while it waits, may be
 * cancelled, and @op's timeout_us ends it with -ATTND_E_TIMEOUT; both leave no lease. A session of
 * which 64 matches or a quarter of its ring wait does not wait: the match completes and says
 * CLAIMED. ATTND_SKIP_SUCCESS is -ATTND_E_INVALID, because the pages would be leased in silence.
 * Return: as attnd_plan_set().
 */
int attnd_prefix_match(struct attnd_session *session, const struct attnd_prefix_args *args,
                       const struct attnd_op *op);

/**
 * attnd_prefix_publish() - blocks that are computed, for everybody
 * @pages: [blocks * block_pages] in the order of their tokens, all full, each leased by this
 *         session and never published before
 * Submit it behind the appends to these pages: in their lane, or when they have completed. From
 * then on the content of the pages must not change, in any layer. If an append of this lane has
 * failed and its completion is not read yet, the publish fails with the same code. Appends to the
 * pages are -ATTND_E_SHARED_PAGE until the tree has let go of them. The tree takes a lease of its
 * own; the session's stay, and are freed as always. A block that is published already is passed
 * over, and its pages stay the session's alone. Each block is published whole or not at all, also
 * if the session dies. The parent must be published. Sessions that wait for one of the blocks are
 * woken. Completes with attnd_prefix_result(), or, when nothing is published, with
 * -ATTND_E_NOT_LEASED (field pages), -ATTND_E_UNKNOWN (field parent), -ATTND_E_INVALID (field keys:
 * block `index` has another parent, a page that is published, or the key or a page of a block
 * before it). A long one that was begun ends as FULL where others publish one of its pages, or one
 * of its keys under another parent, meanwhile. Return: as attnd_plan_set().
 */
int attnd_prefix_publish(struct attnd_session *session, const struct attnd_prefix_args *args,
                         const int32_t *pages, const struct attnd_op *op);

/**
 * attnd_prefix_claim() - say that this session computes these blocks
 * Claims the leading ones that are neither published nor claimed, by this session or another. A
 * match that waits is woken when they are published, or when the claim ends without: by
 * attnd_prefix_abandon(), by the release of the handle, or because the session died. The parent is
 * not looked at. Claims are advice: a block may be published without one. Completes with
 * attnd_prefix_result(). Return: as attnd_plan_set().
 */
int attnd_prefix_claim(struct attnd_session *session, const struct attnd_prefix_args *args,
                       const struct attnd_op *op);

/** attnd_prefix_abandon() - give up this handle's claims among the keys. Completes with how many.
 * Return: as attnd_plan_set(). */
int attnd_prefix_abandon(struct attnd_session *session, const struct attnd_prefix_args *args,
                         const struct attnd_op *op);

/** attnd_prefix_pin() - keep the leading blocks that are published until they are unpinned or the
 * namespace has no handle any more. At most half of the namespace's pages_max, and half of the
 * pool, can be pinned. Completes with attnd_prefix_result(). Return: as attnd_plan_set(). */
int attnd_prefix_pin(struct attnd_session *session, const struct attnd_prefix_args *args,
                     const struct attnd_op *op);
/** attnd_prefix_unpin() - the reverse. */
int attnd_prefix_unpin(struct attnd_session *session, const struct attnd_prefix_args *args,
                       const struct attnd_op *op);

/* Why an operation went no further. */
enum attnd_prefix_end {
    ATTND_PREFIX_END = 0,       /* it was the end of the keys */
    ATTND_PREFIX_MISSING = 1,   /* the next block, or the parent, is not published */
    ATTND_PREFIX_CLAIMED = 2,   /* somebody computes the next block */
    ATTND_PREFIX_PUBLISHED = 3, /* claim: the next block is published */
    ATTND_PREFIX_FULL = 4,      /* no room: the namespace's budget, --prefix-blocks, a page that has
                                   all leases it can have, or unread results: match again */
    ATTND_PREFIX_ABANDONED = 5  /* a match has waited, and the claim was given up */
};

struct attnd_prefix_result {
    uint32_t size;
    uint32_t blocks;      /* leading blocks of the keys for which it was done; abandon: how many */
    uint32_t end;         /* enum attnd_prefix_end */
    uint32_t foreign;     /* match: of the blocks, published by another session */
    uint32_t taken;       /* publish: of the blocks, new; the others were published already */
    uint32_t pages_count; /* match: blocks * block_pages */
    const int32_t *pages; /* match: [pages_count], valid until the next attnd_wait() */
};

/**
 * attnd_prefix_result() - what a completion of a prefix operation says
 * @completion: just returned by attnd_wait(), with fault code 0
 * Threads: the waiting one. Return: 0; -ATTND_E_INVALID it is of another operation, or failed.
 */
int attnd_prefix_result(struct attnd_session *session, const struct attnd_completion *completion,
                        struct attnd_prefix_result *result);

#ifdef __cplusplus
}
#endif
#endif
