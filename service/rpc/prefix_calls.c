/*
 * prefix_calls.c - PrefixOpen, PrefixShare, PrefixAttach, PrefixRelease, PrefixQuery.
 *
 * A query is for people, and everybody who may connect may ask it. So it counts and tells no key:
 * a session with a key and a handle could ask for its pages.
 */
#include "service/objects/pool.h"
#include "service/prefix/prefix.h"
#include "service/prefix/tier.h"
#include "service/rpc/calls.h"
#include "service/sched/sched.h"

#include <string.h>

/* Between two looks at the clock. */
#define CLAIMS_STEP 64u
#define BLOCKS_STEP 64u
#define QUERY_SPACES_MAX 32u /* in one reply, which has to fit a datagram */

static struct attnd_prefix_handle *find(struct attnd_call *call, uint32_t handle)
{
    struct attnd_prefix_handle *prefix = attnd_client_prefix(call->client, handle);
    if (!prefix)
        attnd_fault_set(call->fault, -ATTND_E_UNKNOWN, ATTND_F_PREFIX, 0, handle, 0);
    return prefix;
}

/* @reply: allocated before the handle was made, so that nothing fails behind it. */
static int reply_handle(struct attnd_call *call, Attnd__PrefixReply *reply, uint32_t handle)
{
    const struct attnd_prefix_handle *made = attnd_client_prefix(call->client, handle);
    const struct attnd_tree_space_info *info =
        attnd_tree_space_info(attnd_prefix_tree(made), made->space);
    uint8_t *salt = made->attachment->pool->prefix->space[made->space].salt;

    reply->prefix = handle;
    reply->pool = made->pool;
    reply->block_pages = info->args.block_pages;
    reply->pages_max = info->args.pages_max;
    reply->writable = made->writable;
    reply->salt.data = salt;
    reply->salt.len = ATTND_SECRET_BYTES;
    return 0;
}

int attnd_call_prefix_open(struct attnd_call *call)
{
    const Attnd__PrefixOpen *request = call->request->prefix_open;
    const struct attnd_attachment *attachment =
        attnd_client_attachment(call->client, request->pool);
    Attnd__PrefixReply *reply = attnd_call_result(call, ATTND__REPLY__RESULT_PREFIX);
    uint32_t handle;

    if (!reply)
        return -ATTND_E_NO_MEMORY;
    while (attachment && attachment->writable && attachment->pool->prefix &&
           attnd_tree_space_make_room(attachment->pool->prefix->tree, BLOCKS_STEP))
        if (attnd_work_spent(&call->service->works))
            return ATTND_CALL_AGAIN;
    const struct attnd_tree_space_args args = {.block_pages = request->block_pages,
                                               .pages_max =
                                                   request->has_pages_max ? request->pages_max
                                                   : attachment ? attachment->pool->shape.pages
                                                                : 0,
                                               .pages_low = request->pages_low,
                                               .compute_us = request->compute_us};
    int rc = attnd_prefix_space_open(call->client, request->pool, &args, &handle, call->fault);
    return rc < 0 ? rc : reply_handle(call, reply, handle);
}

int attnd_call_prefix_share(struct attnd_call *call)
{
    const Attnd__PrefixShare *request = call->request->prefix_share;
    const struct attnd_prefix_handle *prefix = find(call, request->prefix);

    if (!prefix)
        return -ATTND_E_UNKNOWN;
    const uint8_t *token = attnd_prefix_space_share(prefix, request->writable, call->fault);
    return token ? attnd_call_token(call, token) : call->fault->code;
}

int attnd_call_prefix_attach(struct attnd_call *call)
{
    const ProtobufCBinaryData *token = &call->request->prefix_attach->token;
    Attnd__PrefixReply *reply = attnd_call_result(call, ATTND__REPLY__RESULT_PREFIX);
    uint32_t handle;

    if (!reply)
        return -ATTND_E_NO_MEMORY;
    if (token->len != ATTND_SECRET_BYTES)
        return attnd_fault_set(call->fault, -ATTND_E_UNKNOWN, ATTND_F_TOKEN, 0, 0, 0);
    int rc = attnd_prefix_space_attach(call->client, token->data, &handle, call->fault);
    return rc < 0 ? rc : reply_handle(call, reply, handle);
}

int attnd_call_prefix_release(struct attnd_call *call)
{
    uint32_t handle = call->request->prefix_release->prefix;
    struct attnd_prefix_handle *prefix = find(call, handle);

    if (!prefix)
        return -ATTND_E_UNKNOWN;
    if (prefix->in_flight)
        return attnd_fault_set(call->fault, -ATTND_E_BUSY, ATTND_F_PREFIX, 0, handle,
                               prefix->in_flight);
    struct attnd_tree *tree = attnd_prefix_tree(prefix);
    while (attnd_tree_owner_end(tree, &prefix->owner, CLAIMS_STEP)) {
        attnd_sched_wake(tree); /* its claims have ended */
        if (attnd_work_spent(&call->service->works))
            return ATTND_CALL_AGAIN;
    }
    attnd_sched_wake(tree);
    attnd_prefix_space_release(call->client, handle);
    return 0;
}

/* ---- the query ---- */

static uint64_t page_bytes(const struct attnd_heap_pool *shape)
{
    return (uint64_t)attnd_dtype_bytes(shape->dtype) * shape->page_size * shape->heads_kv *
           (shape->dim_qk + (uint64_t)shape->dim_vo) * shape->layers;
}

static int add_top(struct attnd_call *call, Attnd__PrefixSpace *to, const struct attnd_tree *tree,
                   uint32_t space)
{
    struct attnd_tree_top top[ATTND_TREE_TOP];
    uint32_t count = attnd_tree_space_top(tree, space, top);
    Attnd__PrefixTop *entries = attnd_call_alloc(call, ATTND_TREE_TOP * sizeof(*entries));

    to->top = attnd_call_alloc(call, ATTND_TREE_TOP * sizeof(Attnd__PrefixTop *));
    if (!entries || !to->top)
        return -ATTND_E_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        attnd__prefix_top__init(&entries[i]);
        entries[i].mark = (uint32_t)top[i].key.word[0];
        entries[i].blocks = top[i].blocks;
        entries[i].hits = top[i].hits;
        to->top[to->n_top++] = &entries[i];
    }
    return 0;
}

static void fill_space(Attnd__PrefixSpace *to, const struct attnd_pool *pool, uint32_t space,
                       const struct attnd_tree_space_info *info)
{
    attnd__prefix_space__init(to);
    to->pool = pool->id;
    to->space = space;
    to->handles = info->handles;
    to->block_pages = info->args.block_pages;
    to->blocks = info->blocks;
    to->pages_max = info->args.pages_max;
    to->pages_low = info->args.pages_low;
    to->pinned = info->pinned;
    to->claims = info->claims;
    to->asked = info->stats.asked;
    to->found = info->stats.found;
    to->found_foreign = info->stats.found_foreign;
    to->published = info->stats.published;
    to->duplicate = info->stats.duplicate;
    to->evicted = info->stats.evicted;
    to->waits = info->stats.waits;
    to->abandoned = info->stats.abandoned;
    to->page_bytes = page_bytes(&pool->shape);
    to->hosted = info->hosted;
    to->has_hosted = 1;
    to->has_handles = to->has_block_pages = to->has_blocks = to->has_pages_max = 1;
    to->has_pages_low = to->has_pinned = to->has_claims = to->has_asked = to->has_found = 1;
    to->has_found_foreign = to->has_published = to->has_duplicate = to->has_evicted = 1;
    to->has_waits = to->has_abandoned = to->has_page_bytes = 1;
}

/* Namespaces are numbered as they are found, from 0. Return: 0; -ATTND_E_NO_MEMORY. */
static int add_spaces(struct attnd_call *call, Attnd__PrefixStatus *status, uint32_t first)
{
    uint32_t number = 0;

    for (const struct attnd_pool *pool = call->service->pools; pool; pool = pool->next)
        for (uint32_t i = 0; pool->prefix && i < ATTND_PREFIX_SPACES_MAX; i++) {
            const struct attnd_tree_space_info *info = attnd_tree_space_info(pool->prefix->tree, i);
            if (!info || number++ < first)
                continue;
            if (status->n_space == QUERY_SPACES_MAX) {
                status->next = number - 1;
                status->has_next = 1;
                return 0;
            }
            Attnd__PrefixSpace *space = attnd_call_alloc(call, sizeof(*space));
            if (!space)
                return -ATTND_E_NO_MEMORY;
            fill_space(space, pool, i, info);
            if (add_top(call, space, pool->prefix->tree, i) < 0)
                return -ATTND_E_NO_MEMORY;
            status->space[status->n_space++] = space;
        }
    return 0;
}

int attnd_host_cache_fill(struct attnd_call *call, Attnd__HostCache **out)
{
    const struct attnd_service *service = call->service;

    *out = NULL;
    if (!service->options.host_cache_bytes)
        return 0;
    Attnd__HostCache *all = attnd_call_alloc(call, sizeof(*all));
    if (!all)
        return -ATTND_E_NO_MEMORY;
    attnd__host_cache__init(all);
    for (const struct attnd_pool *pool = service->pools; pool; pool = pool->next) {
        if (!pool->prefix || !pool->prefix->tier)
            continue;
        const struct attnd_tier_info info = attnd_tier_info(pool->prefix->tier);
        all->made_bytes += info.made_bytes;
        all->used_bytes += info.used_bytes;
        all->out_blocks += info.out_blocks;
        all->in_blocks += info.in_blocks;
        all->recalled_blocks += info.recalled_blocks;
        all->lost_blocks += info.lost_blocks;
        all->declined_blocks += info.declined_blocks;
        all->evicted_blocks += info.evicted_blocks;
        if (info.in_bytes_per_s > all->in_bytes_per_s)
            all->in_bytes_per_s = info.in_bytes_per_s;
    }
    all->max_bytes = service->options.host_cache_bytes;
    all->has_max_bytes = all->has_made_bytes = all->has_used_bytes = all->has_out_blocks = 1;
    all->has_in_blocks = all->has_recalled_blocks = all->has_lost_blocks = 1;
    all->has_declined_blocks = all->has_evicted_blocks = all->has_in_bytes_per_s = 1;
    *out = all;
    return 0;
}

int attnd_call_prefix_query(struct attnd_call *call)
{
    const struct attnd_service *service = call->service;
    Attnd__PrefixStatus *status = attnd_call_result(call, ATTND__REPLY__RESULT_PREFIX_STATUS);

    if (!status)
        return -ATTND_E_NO_MEMORY;
    status->space = attnd_call_alloc(call, QUERY_SPACES_MAX * sizeof(Attnd__PrefixSpace *));
    if (!status->space || add_spaces(call, status, call->request->prefix_query->first) < 0 ||
        attnd_host_cache_fill(call, &status->host_cache) < 0)
        return attnd_call_no_memory(call);
    for (const struct attnd_pool *pool = service->pools; pool; pool = pool->next) {
        if (!pool->prefix)
            continue;
        status->memory_bytes += attnd_tree_bytes(pool->prefix->tree);
        if (pool->prefix->tier)
            status->memory_bytes += attnd_tier_info(pool->prefix->tier).table_bytes;
    }
    status->blocks_used = service->prefix_blocks_used;
    status->blocks_max = service->options.prefix_blocks;
    status->has_memory_bytes = status->has_blocks_used = status->has_blocks_max = 1;
    return 0;
}
