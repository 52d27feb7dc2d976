/*
 * prefix_step.c - the step of a prefix operation in its lane.
 *
 * All of them are done at once, on the loop's thread, so nobody ever sees half of one: a session
 * that dies has either published a block or not. Only a match can wait, and it does so outside of
 * its lane (parked.c): for what somebody computes, if it asked for that, and for what comes back
 * from host memory.
 */
#include "service/objects/lease.h"
#include "service/sched/lanes.h"

void attnd_prefix_matched(const struct attnd_prefix_handle *handle, const int32_t *pages,
                          uint32_t blocks)
{
    const struct attnd_tree_space_info *info =
        attnd_tree_space_info(attnd_prefix_tree(handle), handle->space);
    attnd_lease_grant(handle->attachment, pages, blocks * info->args.block_pages);
}

void attnd_prefix_answer(struct attnd_sched_op *op, uint32_t blocks, enum attnd_prefix_stop stop,
                         uint64_t value)
{
    op->fault.index = (uint64_t)stop << 32 | blocks;
    op->fault.value = (int64_t)value;
}

struct attnd_tree_result attnd_prefix_find(const struct attnd_prefix_handle *handle,
                                           const struct attnd_tree_chain *chain, int recalls,
                                           int32_t *pages)
{
    struct attnd_tree *tree = attnd_prefix_tree(handle);
    struct attnd_tier *tier = handle->attachment->pool->prefix->tier;
    uint32_t block_pages = attnd_tree_space_info(tree, chain->space)->args.block_pages;
    struct attnd_tree_result found = attnd_tree_match(tree, &handle->owner, chain, pages);

    attnd_prefix_matched(handle, pages, found.blocks);
    recalls = recalls || found.blocks;
    while (tier && recalls && found.stop == ATTND_PREFIX_STOP_MISSING) {
        const struct attnd_block_key *keys = chain->keys + found.blocks;
        const struct attnd_tree_chain rest = {.space = chain->space,
                                              .count = chain->count - found.blocks,
                                              .keys = keys,
                                              .parent = found.blocks ? keys - 1 : chain->parent,
                                              .again = 1};
        if (!attnd_tier_recall(tier, &rest))
            break;
        int32_t *more_pages = pages + (size_t)found.blocks * block_pages;
        struct attnd_tree_result more = attnd_tree_match(tree, &handle->owner, &rest, more_pages);
        attnd_prefix_matched(handle, more_pages, more.blocks);
        recalls = more.blocks > 0; /* each time at least one more, or it waits */
        found.blocks += more.blocks;
        found.foreign += more.foreign;
        found.stop = more.stop;
        found.claimant = more.claimant;
    }
    return found;
}

int attnd_prefix_waits(const struct attnd_sched_op *op, const struct attnd_tree_result *result)
{
    return result->stop == ATTND_PREFIX_STOP_CLAIMED &&
           (op->sqe.u.prefix.flags & ATTND_PREFIX_WAIT || result->claimant == ATTND_TIER_SESSION);
}

static enum attnd_step match(struct attnd_sched_op *op, const struct attnd_tree_chain *chain,
                             const struct attnd_prefix_view *view)
{
    struct attnd_prefix_handle *handle = op->prefix;
    struct attnd_tree *tree = attnd_prefix_tree(handle);
    struct attnd_tree_result result = attnd_prefix_find(handle, chain, 1, view->pages);
    uint32_t block_pages = attnd_tree_space_info(tree, chain->space)->args.block_pages;

    if (attnd_prefix_waits(op, &result) && attnd_prefix_park(op, view, &result))
        return ATTND_STEP_PARKED;
    attnd_prefix_answer(op, result.blocks, result.stop, result.foreign);
    attnd_results_put(op, view->pages, result.blocks * block_pages);
    return ATTND_STEP_DONE;
}

/* An append of the lane has failed, and the client has not read of it yet: it may have submitted
 * the publish in the belief that the pages would be full. Return: the code of the append; 0. */
static int failed_append(const struct attnd_sched_op *op)
{
    struct attnd_lane *lane = op->lane;
    struct attnd_client *client = lane->session->client;

    if (!lane->append_code)
        return 0;
    if (attnd_producer_space(&client->cq) < 0)
        attnd_lanes_break(lane->session);
    else if (lane->append_slot - client->cq.head_seen >= client->cq.entries)
        lane->append_code = 0;
    return lane->append_code;
}

static void publish(struct attnd_sched_op *op, const struct attnd_tree_chain *chain,
                    const struct attnd_prefix_view *view)
{
    struct attnd_prefix_handle *handle = op->prefix;
    struct attnd_tree *tree = attnd_prefix_tree(handle);
    struct attnd_tree_result result;
    int rc = failed_append(op);

    if (rc < 0) {
        attnd_fault_set(&op->fault, rc, ATTND_F_PAGES, 0, 0, 0);
        return;
    }
    if (attnd_lease_check(handle->attachment, view->pages, op->sqe.u.prefix.pages, &op->fault) <
        0) {
        op->fault.field = ATTND_F_PAGES;
        return;
    }
    rc = attnd_tree_publish(tree, &handle->owner, chain, view->pages, &result);
    if (rc < 0)
        attnd_fault_set(&op->fault, rc, rc == -ATTND_E_UNKNOWN ? ATTND_F_PARENT : ATTND_F_KEYS,
                        result.blocks, result.blocks, chain->count);
    else
        attnd_prefix_answer(op, result.blocks, result.stop, result.taken);
    attnd_sched_wake(tree);
}

static void others(struct attnd_sched_op *op, const struct attnd_tree_chain *chain)
{
    struct attnd_prefix_handle *handle = op->prefix;
    struct attnd_tree *tree = attnd_prefix_tree(handle);
    struct attnd_tree_result result = {.stop = ATTND_PREFIX_STOP_END};

    switch (op->sqe.opcode) {
    case ATTND_OP_PREFIX_CLAIM:
        result = attnd_tree_claim(tree, &handle->owner, chain);
        break;
    case ATTND_OP_PREFIX_ABANDON:
        result.blocks = attnd_tree_abandon(tree, &handle->owner, chain);
        attnd_sched_wake(tree);
        break;
    case ATTND_OP_PREFIX_PIN:
        result = attnd_tree_pin(tree, chain);
        break;
    default:
        result = attnd_tree_unpin(tree, chain);
        break;
    }
    attnd_prefix_answer(op, result.blocks, result.stop, 0);
}

enum attnd_step attnd_prefix_step(struct attnd_sched_op *op)
{
    if (op->fault.code != 0)
        return ATTND_STEP_DONE;
    const struct attnd_prefix_view *view = &op->admitted->u.prefix;
    const struct attnd_tree_chain chain = {.space = op->prefix->space,
                                           .count = view->blocks,
                                           .keys = view->keys,
                                           .parent = view->parent};
    if (op->sqe.opcode == ATTND_OP_PREFIX_MATCH)
        return match(op, &chain, view);
    if (op->sqe.opcode == ATTND_OP_PREFIX_PUBLISH)
        publish(op, &chain, view);
    else
        others(op, &chain);
    return ATTND_STEP_DONE;
}
