/*
 * spaces.c - the tree of a pool, its namespaces, and sessions' handles on them.
 *
 * A tree is made with the first namespace of its pool. How many blocks it can have is promised out
 * of what all trees may have, and of that a session and its user get a share at most (quota.h).
 * Their memory is the daemon's. It is paid for when they are promised, and does not come back
 * before the pool goes.
 */
#include "service/prefix/prefix.h"

#include "service/objects/lease.h"
#include "service/objects/ticket.h"
#include "service/prefix/tier.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void take_leases(void *context, const int32_t *pages, uint32_t count)
{
    const struct attnd_pool *pool = context;
    for (uint32_t i = 0; i < count; i++)
        pool->leases[pages[i]]++;
}

static void drop_leases(void *context, const int32_t *pages, uint32_t count)
{
    attnd_lease_drop(context, pages, count);
}

/* ---- the pool's keeper ---- */

/* Where all that could go would not do, nothing goes. Blocks that were to go to the host go first.
 */
static uint32_t evict(struct attnd_pool *pool, uint32_t pages, uint32_t most)
{
    struct attnd_tier *tier = pool->prefix->tier;
    uint64_t leaving = tier ? (uint64_t)attnd_tier_queued(tier) + attnd_tier_leaving(tier) : 0;

    if (pages > attnd_tree_evictable(pool->prefix->tree) + leaving)
        return 0;
    pages = pages < most ? pages : most;
    uint32_t freed = tier ? attnd_tier_cancel(tier, pages) : 0;
    return freed < pages ? freed + attnd_tree_evict(pool->prefix->tree, pages - freed) : freed;
}

static void changed(struct attnd_pool *pool)
{
    if (pool->prefix->tier)
        attnd_tier_refill(pool->prefix->tier);
}

static void idle(struct attnd_pool *pool, int32_t page)
{
    attnd_tree_page_idle(pool->prefix->tree, page);
}

static void end(struct attnd_pool *pool)
{
    struct attnd_pool_prefix *prefix = pool->prefix;
    attnd_tier_free(prefix->tier);
    attnd_tree_free(prefix->tree);
    attnd_quota_give(prefix->service, prefix->payer, ATTND_QUOTA_BLOCKS, prefix->blocks_max);
    attnd_quota_refund(prefix->service, prefix->payer, prefix->charged_bytes);
    free(prefix);
}

static const struct attnd_page_keeper keeper = {
    .evict = evict, .idle = idle, .changed = changed, .end = end};

/* Of the daemon's memory, beside the blocks: two words a page. */
static uint64_t tables_bytes(const struct attnd_pool *pool)
{
    return sizeof(struct attnd_pool_prefix) + 2 * sizeof(uint32_t) * (uint64_t)pool->shape.pages;
}

/* How many blocks a tree of @pool may have. There are fewer where its maker may have no more of
 * them, or where they would take more than half of the daemon's memory that is left to it. */
static uint32_t blocks_for(const struct attnd_client *client, const struct attnd_pool *pool)
{
    uint64_t wanted = pool->shape.pages + (uint64_t)pool->shape.pages / 4 + 64;
    uint64_t left = attnd_quota_left(client, ATTND_QUOTA_BLOCKS);
    uint64_t left_bytes = attnd_quota_left(client, ATTND_QUOTA_DAEMON);
    uint64_t tables = tables_bytes(pool);
    uint64_t paid = left_bytes > tables ? (left_bytes - tables) / 2 / ATTND_TREE_BLOCK_BYTES : 0;

    wanted = wanted < left ? wanted : left;
    wanted = wanted < paid ? wanted : paid;
    return wanted ? (uint32_t)wanted : 1;
}

static int charge(struct attnd_client *client, struct attnd_pool *pool,
                  struct attnd_pool_prefix *prefix, struct attnd_fault *fault)
{
    prefix->service = client->service;
    prefix->payer = attnd_quota_payer(client);
    prefix->blocks_max = blocks_for(client, pool);
    prefix->charged_bytes =
        tables_bytes(pool) + (uint64_t)prefix->blocks_max * ATTND_TREE_BLOCK_BYTES;
    int rc = attnd_quota_charge(client, prefix->charged_bytes, fault);
    if (rc < 0)
        return rc;
    rc = attnd_quota_take(client, ATTND_QUOTA_BLOCKS, prefix->blocks_max, fault);
    if (rc < 0)
        attnd_quota_refund(client->service, prefix->payer, prefix->charged_bytes);
    return rc;
}

static int make_tree(struct attnd_client *client, struct attnd_pool *pool,
                     struct attnd_fault *fault)
{
    struct attnd_service *service = client->service;
    struct attnd_pool_prefix *prefix = calloc(1, sizeof(*prefix));

    if (!prefix)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    int rc = charge(client, pool, prefix, fault);
    if (rc < 0) {
        free(prefix);
        return rc;
    }
    const struct attnd_tree_args args = {
        .pages = pool->shape.pages,
        .page_size = pool->shape.page_size,
        .blocks_max = prefix->blocks_max,
        .leases = {pool->leases, ATTND_PAGE_LEASES_MAX, take_leases, drop_leases, pool},
        .used = &service->prefix_blocks_used,
        .used_max = service->options.prefix_blocks};
    rc = attnd_tree_new(&args, &prefix->tree);
    if (rc == 0)
        rc = attnd_tier_new(service, pool, prefix->tree, prefix->payer, &prefix->tier);
    if (rc < 0) {
        attnd_tree_free(prefix->tree);
        attnd_quota_give(service, prefix->payer, ATTND_QUOTA_BLOCKS, prefix->blocks_max);
        attnd_quota_refund(service, prefix->payer, prefix->charged_bytes);
        free(prefix);
        return attnd_fault_set(fault, rc, ATTND_F_PREFIX, 0, 0, 0);
    }
    pool->prefix = prefix;
    pool->keeper = &keeper;
    return 0;
}

uint32_t attnd_pool_leaving(const struct attnd_pool *pool)
{
    return pool->prefix && pool->prefix->tier ? attnd_tier_leaving(pool->prefix->tier) : 0;
}

uint32_t attnd_pool_cached(const struct attnd_pool *pool)
{
    const struct attnd_pool_prefix *prefix = pool->prefix;

    if (!prefix)
        return 0;
    return attnd_tree_pages(prefix->tree) +
           (prefix->tier ? attnd_tier_info(prefix->tier).pages : 0);
}

/* ---- handles ---- */

struct attnd_prefix_handle *attnd_client_prefix(const struct attnd_client *client, uint32_t handle)
{
    return handle >= 1 && handle <= ATTND_HANDLES_MAX ? client->prefixes[handle - 1] : NULL;
}

/* Takes over one hold on the namespace, on success. */
static int bind(struct attnd_client *client, uint32_t pool, uint32_t space, int writable,
                uint32_t *handle, struct attnd_fault *fault)
{
    *handle = attnd_client_vacant((void *const *)client->prefixes);
    struct attnd_prefix_handle *made = *handle ? calloc(1, sizeof(*made)) : NULL;
    if (!made)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_PREFIX, 0, ATTND_HANDLES_MAX,
                               ATTND_HANDLES_MAX);
    made->attachment = attnd_client_attachment(client, pool);
    made->attachment->prefixes++;
    made->pool = pool;
    made->space = space;
    made->writable = writable && made->attachment->writable;
    made->owner.session = client->id;
    client->prefixes[*handle - 1] = made;
    return 0;
}

/* Of the namespaces that a pool's tree can have, a session may have half, and where several users
 * are admitted a user half and a session half of that. */
static int check_share(const struct attnd_client *client, const struct attnd_pool *pool,
                       struct attnd_fault *fault)
{
    const struct attnd_payer self = attnd_quota_payer(client);
    const uint32_t user_limit = client->service->options.allow_uids_count > 1
                                    ? ATTND_PREFIX_SPACES_MAX / 2
                                    : ATTND_PREFIX_SPACES_MAX;
    uint32_t session = 0, user = 0;

    for (uint32_t i = 0; pool->prefix && i < ATTND_PREFIX_SPACES_MAX; i++) {
        const struct attnd_tree_space_info *info = attnd_tree_space_info(pool->prefix->tree, i);
        const struct attnd_payer *opener = &pool->prefix->space[i].opener;
        if (!info || !info->handles)
            continue;
        session += opener->session == self.session;
        user += opener->user == self.user;
    }
    if (session >= user_limit / 2)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_PREFIX, 0, session + 1,
                               user_limit / 2);
    if (user >= user_limit)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_PREFIX, 0, user + 1, user_limit);
    return 0;
}

static int check_args(const struct attnd_pool *pool, const struct attnd_tree_space_args *args,
                      struct attnd_fault *fault)
{
    uint32_t pages = pool->shape.pages;
    uint32_t most = pages < ATTND_PREFIX_BLOCK_PAGES_MAX ? pages : ATTND_PREFIX_BLOCK_PAGES_MAX;

    if (args->block_pages < 1 || args->block_pages > most)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_BLOCK_PAGES, 0, args->block_pages,
                               args->block_pages ? most : 1);
    if (args->pages_max < args->block_pages || args->pages_max > pages)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_PAGES_MAX, 0, args->pages_max,
                               args->pages_max > pages ? pages : args->block_pages);
    if (args->pages_low > args->pages_max)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_PAGES, 0, args->pages_low,
                               args->pages_max);
    return 0;
}

int attnd_prefix_space_open(struct attnd_client *client, uint32_t pool_handle,
                            const struct attnd_tree_space_args *args, uint32_t *handle,
                            struct attnd_fault *fault)
{
    const struct attnd_attachment *attachment = attnd_client_attachment(client, pool_handle);
    uint8_t salt[ATTND_SECRET_BYTES];
    uint32_t space;

    if (!attachment)
        return attnd_fault_set(fault, -ATTND_E_UNKNOWN, ATTND_F_POOL, 0, pool_handle, 0);
    struct attnd_pool *pool = attachment->pool;
    if (!pool->leases)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_PAGE_OWNER, 0, pool->page_owner, 1);
    if (!attachment->writable)
        return attnd_fault_set(fault, -ATTND_E_PERMISSION, ATTND_F_POOL, 0, pool_handle, 0);
    int rc = check_args(pool, args, fault);
    if (rc == 0)
        rc = check_share(client, pool, fault);
    if (rc == 0)
        rc = attnd_secret_make(salt, fault);
    if (rc == 0 && !pool->prefix)
        rc = make_tree(client, pool, fault);
    if (rc < 0)
        return rc;
    assert(pool->prefix);
    rc = attnd_tree_space_open(pool->prefix->tree, args, &space);
    if (rc < 0)
        return attnd_fault_set(fault, rc, ATTND_F_PREFIX, 0, ATTND_PREFIX_SPACES_MAX,
                               ATTND_PREFIX_SPACES_MAX);
    struct attnd_prefix_space *made = &pool->prefix->space[space];
    *made = (struct attnd_prefix_space){.opener = attnd_quota_payer(client)};
    memcpy(made->salt, salt, sizeof(salt));
    rc = bind(client, pool_handle, space, 1, handle, fault);
    if (rc < 0)
        attnd_tree_space_release(pool->prefix->tree, space);
    return rc;
}

const uint8_t *attnd_prefix_space_share(const struct attnd_prefix_handle *handle, int writable,
                                        struct attnd_fault *fault)
{
    static const uint8_t none[ATTND_SECRET_BYTES];
    struct attnd_pool_prefix *prefix = handle->attachment->pool->prefix;
    uint8_t *token = prefix->space[handle->space].token[writable ? 1 : 0];

    if (writable && !handle->writable) {
        attnd_fault_set(fault, -ATTND_E_PERMISSION, ATTND_F_PREFIX, 0, 0, 0);
        return NULL;
    }
    if (attnd_secret_equal(token, none) && attnd_secret_make(token, fault) < 0)
        return NULL;
    return token;
}

/* The namespace of a token. Return: its pool, NULL: nobody's. */
static struct attnd_pool *find_token(const struct attnd_service *service, const uint8_t *token,
                                     uint32_t *space, int *writable)
{
    for (struct attnd_pool *pool = service->pools; pool; pool = pool->next)
        for (uint32_t i = 0; pool->prefix && i < ATTND_PREFIX_SPACES_MAX; i++)
            for (int right = 0; right < 2; right++) {
                if (!attnd_tree_space_info(pool->prefix->tree, i) ||
                    !attnd_secret_equal(token, pool->prefix->space[i].token[right]))
                    continue;
                *space = i;
                *writable = right;
                return pool;
            }
    return NULL;
}

int attnd_prefix_space_attach(struct attnd_client *client, const uint8_t *token, uint32_t *handle,
                              struct attnd_fault *fault)
{
    static const uint8_t none[ATTND_SECRET_BYTES];
    uint32_t space = 0;
    int writable = 0;
    const struct attnd_pool *pool = attnd_secret_equal(token, none)
                                        ? NULL
                                        : find_token(client->service, token, &space, &writable);

    if (!pool)
        return attnd_fault_set(fault, -ATTND_E_UNKNOWN, ATTND_F_TOKEN, 0, 0, 0);
    uint32_t attached = attnd_client_attached(client, pool);
    if (!attached)
        return attnd_fault_set(fault, -ATTND_E_PERMISSION, ATTND_F_POOL, 0, 0, 0);
    int rc = bind(client, attached, space, writable, handle, fault);
    if (rc == 0)
        attnd_tree_space_hold(pool->prefix->tree, space);
    return rc;
}

void attnd_prefix_space_release(struct attnd_client *client, uint32_t handle)
{
    struct attnd_prefix_handle *held = client->prefixes[handle - 1];
    struct attnd_tree *tree = attnd_prefix_tree(held);

    assert(held->in_flight == 0);
    client->prefixes[handle - 1] = NULL;
    (void)attnd_tree_owner_end(tree, &held->owner, UINT32_MAX);
    attnd_tree_space_release(tree, held->space);
    held->attachment->prefixes--;
    free(held);
}
