/*
 * prefix_step.c - the step of a prefix operation in its lane.
 *
 * Long ones are done in parts of some hundred blocks, between which others have their turns. A
 * block is whole all the same: a session that dies has either published it or not. What a part
 * found stays as it is until the next: pages that a match found are leased, and calls of the
 * session, which could give up leases, come behind the operation. Only a match can wait, and it
 * does so outside of its lane (parked.c): for what somebody computes, if it asked for that, and for
 * what comes back from host memory.
 */
#include "service/sched/prefix_step.h"

#include "service/objects/arrival.h"
#include "service/objects/lease.h"
#include "service/prefix/prefix.h"
#include "service/prefix/tier.h"
#include "service/sched/complete.h"
#include "service/sched/parked.h"
#include "service/sched/results.h"
#include "service/sched/sched.h"
#include "service/sched/scheduler.h"

/* Leases of what a match found. Return: 1 all of it is kept; 0 the session may have no more. */
static int keep(const struct attnd_prefix_handle *handle, const int32_t *pages,
                struct attnd_tree_result *found)
{
    const struct attnd_tree_space_info *info =
        attnd_tree_space_info(attnd_prefix_tree(handle), handle->space);
    const uint32_t kept =
        attnd_lease_grant(handle->attachment, pages, found->blocks, info->args.block_pages);

    if (kept == found->blocks)
        return 1;
    found->blocks = kept;
    found->stop = ATTND_PREFIX_STOP_FULL;
    return 0;
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

    if (!keep(handle, pages, &found))
        return found;
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
        (void)keep(handle, more_pages, &more);
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

/* Blocks of a part, and pages. */
#define PART_BLOCKS 256u
#define PART_PAGES 1024u

uint32_t attnd_prefix_part(uint32_t blocks, uint32_t block_pages)
{
    uint32_t part = PART_PAGES / (block_pages ? block_pages : 1);

    part = part < 1 ? 1 : part > PART_BLOCKS ? PART_BLOCKS : part;
    return blocks < part ? blocks : part;
}

static uint32_t block_pages_of(const struct attnd_sched_op *op)
{
    const struct attnd_prefix_handle *handle = op->prefix;

    return attnd_tree_space_info(attnd_prefix_tree(handle), handle->space)->args.block_pages;
}

/* The part behind what is done. */
static struct attnd_tree_chain next_part(const struct attnd_sched_op *op)
{
    const struct attnd_prefix_view *view = &op->admitted->u.prefix;
    const uint32_t left = view->blocks - op->cursor;
    const uint32_t count = attnd_prefix_part(left, block_pages_of(op));
    const struct attnd_block_key *keys = op->cursor ? view->keys + op->cursor : view->keys;

    return (struct attnd_tree_chain){.space = op->prefix->space,
                                     .count = count,
                                     .keys = keys,
                                     .parent = op->cursor ? keys - 1 : view->parent,
                                     .again = op->cursor > 0,
                                     .more = left - count};
}

/* A part is done. Return: 1 another one follows. */
static int advance(struct attnd_sched_op *op, uint32_t blocks, uint32_t counted,
                   enum attnd_prefix_stop stop)
{
    op->cursor += blocks;
    op->counted += counted;
    if (stop != ATTND_PREFIX_STOP_END || op->cursor >= op->admitted->u.prefix.blocks)
        return 0;
    op->begin_ns = op->begin_ns ? op->begin_ns : attnd_sched_now(op->lane->session->scheduler);
    return 1;
}

static enum attnd_step match(struct attnd_sched_op *op, const struct attnd_tree_chain *chain)
{
    const struct attnd_prefix_view *view = &op->admitted->u.prefix;
    const uint32_t block_pages = block_pages_of(op);
    int32_t *pages = op->cursor ? view->pages + (size_t)op->cursor * block_pages : view->pages;
    struct attnd_tree_result result = attnd_prefix_find(op->prefix, chain, 1, pages);

    if (advance(op, result.blocks, result.foreign, result.stop))
        return ATTND_STEP_MORE;
    result.blocks = op->cursor;
    result.foreign = op->counted;
    if (attnd_prefix_waits(op, &result) && attnd_prefix_park(op, view, &result))
        return ATTND_STEP_PARKED;
    attnd_prefix_answer(op, result.blocks, result.stop, result.foreign);
    attnd_results_put(op, view->pages, result.blocks * block_pages);
    return ATTND_STEP_DONE;
}

/* The next part of what is looked at before the first block is published. Return: 0, or the fault's
 * code. */
static int check_blocks(struct attnd_sched_op *op, uint32_t count)
{
    const struct attnd_prefix_view *view = &op->admitted->u.prefix;
    const struct attnd_tree_chain chain = {.space = op->prefix->space,
                                           .count = view->blocks,
                                           .keys = view->keys,
                                           .parent = view->parent};
    struct attnd_tree_check check = {.seen = view->seen, .blocks = op->checked};
    const int rc = count == 0 && !view->parent
                       ? 0
                       : attnd_tree_publish_check(attnd_prefix_tree(op->prefix), &chain,
                                                  view->pages, count, &check);

    op->checked = check.blocks;
    if (rc < 0)
        attnd_fault_set(&op->fault, rc, rc == -ATTND_E_UNKNOWN ? ATTND_F_PARENT : ATTND_F_KEYS,
                        check.blocks, check.blocks, view->blocks);
    return rc;
}

/* Are the session's bytes in these pages? Return: 0, or the fault's code. */
static int check_pages(struct attnd_sched_op *op, uint32_t first, uint32_t count)
{
    const struct attnd_attachment *attachment = op->prefix->attachment;
    const int32_t *pages = op->admitted->u.prefix.pages;

    pages = first ? pages + first : pages;
    if (attnd_lease_check(attachment, pages, count, &op->fault) < 0 ||
        attnd_arrival_check(attachment, pages, count, &op->fault) < 0) {
        op->fault.field = ATTND_F_PAGES;
        op->fault.index += first;
    }
    return op->fault.code;
}

/* May it be published at all? A part of that. Return: 0, or the fault's code. */
static int check_publish(struct attnd_sched_op *op)
{
    const uint32_t block_pages = block_pages_of(op);
    const uint32_t count =
        attnd_prefix_part(op->admitted->u.prefix.blocks - op->checked, block_pages);
    const int rc = op->checked ? 0 : attnd_lane_failed_append(op);

    if (rc < 0)
        return attnd_fault_set(&op->fault, rc, ATTND_F_PAGES, 0, 0, 0);
    if (check_pages(op, op->checked * block_pages, count * block_pages) < 0)
        return op->fault.code;
    return check_blocks(op, count);
}

/* A part is published. What was looked at may have changed since: a parent was evicted, or others
 * published a key or a page. */
static enum attnd_step publish_part(struct attnd_sched_op *op, const struct attnd_tree_chain *chain)
{
    const struct attnd_prefix_view *view = &op->admitted->u.prefix;
    struct attnd_tree *tree = attnd_prefix_tree(op->prefix);
    const int32_t *pages =
        op->cursor ? view->pages + (size_t)op->cursor * block_pages_of(op) : view->pages;
    struct attnd_tree_result result;
    const int rc = attnd_tree_publish(tree, &op->prefix->owner, chain, pages, &result);

    attnd_sched_wake(tree);
    if (rc < 0 && op->cursor + result.blocks == 0) {
        attnd_fault_set(&op->fault, rc, rc == -ATTND_E_UNKNOWN ? ATTND_F_PARENT : ATTND_F_KEYS, 0,
                        0, view->blocks);
        return ATTND_STEP_DONE;
    }
    if (rc < 0)
        result.stop = ATTND_PREFIX_STOP_FULL;
    if (advance(op, result.blocks, result.taken, result.stop))
        return ATTND_STEP_MORE;
    attnd_prefix_answer(op, op->cursor, result.stop, op->counted);
    return ATTND_STEP_DONE;
}

static enum attnd_step publish(struct attnd_sched_op *op, const struct attnd_tree_chain *chain)
{
    if (op->cursor > 0)
        return publish_part(op, chain);
    if (check_publish(op) < 0)
        return ATTND_STEP_DONE;
    if (op->checked == op->admitted->u.prefix.blocks)
        return publish_part(op, chain);
    op->begin_ns = op->begin_ns ? op->begin_ns : attnd_sched_now(op->lane->session->scheduler);
    return ATTND_STEP_MORE;
}

static enum attnd_step others(struct attnd_sched_op *op, const struct attnd_tree_chain *chain)
{
    struct attnd_prefix_handle *handle = op->prefix;
    struct attnd_tree *tree = attnd_prefix_tree(handle);
    struct attnd_tree_result result = {.blocks = chain->count, .stop = ATTND_PREFIX_STOP_END};
    uint32_t ended = 0;

    switch (op->sqe.opcode) {
    case ATTND_OP_PREFIX_CLAIM:
        result = attnd_tree_claim(tree, &handle->owner, chain);
        break;
    case ATTND_OP_PREFIX_ABANDON:
        ended = attnd_tree_abandon(tree, &handle->owner, chain);
        attnd_sched_wake(tree);
        break;
    case ATTND_OP_PREFIX_PIN:
        result = attnd_tree_pin(tree, chain);
        break;
    default:
        result = attnd_tree_unpin(tree, chain);
        break;
    }
    if (advance(op, result.blocks, ended, result.stop))
        return ATTND_STEP_MORE;
    attnd_prefix_answer(op, op->sqe.opcode == ATTND_OP_PREFIX_ABANDON ? op->counted : op->cursor,
                        result.stop, 0);
    return ATTND_STEP_DONE;
}

enum attnd_step attnd_prefix_step(struct attnd_sched_op *op)
{
    if (op->fault.code != 0)
        return ATTND_STEP_DONE;
    const struct attnd_tree_chain chain = next_part(op);

    if (op->sqe.opcode == ATTND_OP_PREFIX_MATCH)
        return match(op, &chain);
    if (op->sqe.opcode == ATTND_OP_PREFIX_PUBLISH)
        return publish(op, &chain);
    return others(op, &chain);
}
