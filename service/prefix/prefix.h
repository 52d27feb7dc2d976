/*
 * prefix.h - the prefix tree as sessions have it: namespaces by token, handles, operations.
 *
 *   tree.h     the tree itself, which knows neither sessions nor rings
 *   tier.h     the second tier, in host memory, if the pool has one
 *   spaces.c   a pool's tree and its namespaces; handles of sessions; what leases need of it
 *
 * Operations take their steps in sched/ (prefix_step.c, parked.c).
 *
 * The tree goes with its pool, and the pool stays for as long as somebody has it attached. Pages
 * outlive the session that published them, because the tree's lease is nobody's.
 */
#ifndef ATTND_SERVICE_PREFIX_PREFIX_H
#define ATTND_SERVICE_PREFIX_PREFIX_H

#include "service/objects/pool.h"
#include "service/prefix/tree.h"

struct attnd_prefix_space {
    uint8_t token[2][ATTND_SECRET_BYTES]; /* [writable]; all zero: never shared */
    uint8_t salt[ATTND_SECRET_BYTES];
    struct attnd_payer opener; /* whose share it is of */
};

struct attnd_pool_prefix {
    struct attnd_tree *tree;
    struct attnd_tier *tier; /* NULL: there is none */
    struct attnd_service *service;
    struct attnd_payer payer; /* that made it: its blocks, and its tables' bytes */
    uint32_t blocks_max;
    uint64_t charged_bytes;
    struct attnd_prefix_space space[ATTND_PREFIX_SPACES_MAX]; /* by the tree's numbers */
};

/* A session's hold on a namespace. */
struct attnd_prefix_handle {
    struct attnd_attachment *attachment;
    uint32_t pool; /* the attachment's handle */
    uint32_t space;
    int writable;
    uint32_t in_flight; /* operations queued or parked */
    struct attnd_tree_owner owner;
};

static inline struct attnd_tree *attnd_prefix_tree(const struct attnd_prefix_handle *handle)
{
    return handle->attachment->pool->prefix->tree;
}

/* ---- spaces.c ---- */

/**
 * attnd_prefix_space_open() - a namespace in the tree of @pool, a handle of @client's attachments
 * Return: 0 and *handle; -ATTND_E_INVALID (the pool's pages are the engine's), -ATTND_E_PERMISSION,
 * -ATTND_E_RANGE, -ATTND_E_NO_SPACE, -ATTND_E_NO_MEMORY.
 */
int attnd_prefix_space_open(struct attnd_client *client, uint32_t pool,
                            const struct attnd_tree_space_args *args, uint32_t *handle,
                            struct attnd_fault *fault);
/** attnd_prefix_space_share() - the token of a right to a namespace; borrowed. NULL: fault. */
const uint8_t *attnd_prefix_space_share(const struct attnd_prefix_handle *handle, int writable,
                                        struct attnd_fault *fault);
/** attnd_prefix_space_attach() - by token. Return: 0 and *handle; -ATTND_E_UNKNOWN,
 * -ATTND_E_PERMISSION (field pool: it is not attached), -ATTND_E_NO_MEMORY. */
int attnd_prefix_space_attach(struct attnd_client *client, const uint8_t *token, uint32_t *handle,
                              struct attnd_fault *fault);
/** attnd_prefix_space_release() - the handle goes, its claims end; nothing of it is in flight.
 * Those who waited for the claims are woken by the caller. */
void attnd_prefix_space_release(struct attnd_client *client, uint32_t handle);

/** attnd_client_prefix() - the handle's object, or NULL. Borrowed. */
struct attnd_prefix_handle *attnd_client_prefix(const struct attnd_client *client, uint32_t handle);

/** attnd_pool_leaving() - pages that are being copied to the host and will be free. */
uint32_t attnd_pool_leaving(const struct attnd_pool *pool);
/** attnd_pool_cached() - pages that the pool's tree holds, or what is below it. */
uint32_t attnd_pool_cached(const struct attnd_pool *pool);

#endif
