/*
 * parked.c - matches that wait for what somebody computes, or what comes back from host memory.
 *
 * A parked match has left its lane: what is submitted behind it goes on, also the publish that
 * somebody else waits for. It keeps the leases of what it has found, a copy of its keys, and no
 * room for its result: where there is none when it is woken, it says so and holds nothing.
 *
 * A session that has too many of them does not wait: the match completes at once and says that the
 * next block is claimed. So waiting never fills the rings, and two sessions that wait for each
 * other can always go on.
 */
#include "service/objects/lease.h"
#include "service/sched/lanes.h"

#include <stdlib.h>
#include <string.h>

/* Of a session: a publish that wakes all that there are must not keep others waiting. */
#define PARKED_MAX 64u

struct attnd_prefix_parked {
    struct attnd_tree_waiter waiter; /* first: it is what the tree gives back */
    struct attnd_sched_op *op;
    struct attnd_prefix_parked *next, **link; /* of its session */
    uint64_t bytes;
    uint32_t block_pages, blocks, found, foreign;
    int has_parent;
    int32_t *pages;                /* [blocks * block_pages], behind the keys */
    struct attnd_block_key keys[]; /* the parent, if there is one, and [blocks] */
};

static const struct attnd_block_key *first_key(const struct attnd_prefix_parked *parked)
{
    return parked->keys + parked->has_parent;
}

/* The claim on the first block that is missing. Return: 1 it waits. */
static int wait_for_next(struct attnd_prefix_parked *parked)
{
    const struct attnd_prefix_handle *handle = parked->op->prefix;
    return attnd_tree_wait(attnd_prefix_tree(handle), handle->space,
                           first_key(parked) + parked->found, &parked->waiter);
}

/* Return: NULL if there is no memory for it, or the session has its share. */
static struct attnd_prefix_parked *parked_new(struct attnd_client *client, uint64_t bytes)
{
    if (attnd_quota_charge(client, bytes, NULL) < 0)
        return NULL;
    struct attnd_prefix_parked *parked = calloc(1, bytes);
    if (parked)
        parked->bytes = bytes;
    else
        attnd_quota_refund(client->service, attnd_quota_payer(client), bytes);
    return parked;
}

static void parked_free(struct attnd_client *client, struct attnd_prefix_parked *parked)
{
    attnd_quota_refund(client->service, attnd_quota_payer(client), parked->bytes);
    free(parked);
}

int attnd_prefix_park(struct attnd_sched_op *op, const struct attnd_prefix_view *view,
                      const struct attnd_tree_result *result)
{
    struct attnd_client_lanes *session = op->lane->session;
    const struct attnd_client *client = session->client;
    uint64_t keys = view->blocks + (view->parent ? UINT64_C(1) : 0);
    uint64_t bytes = sizeof(struct attnd_prefix_parked) + keys * sizeof(*view->keys) +
                     (uint64_t)op->sqe.u.prefix.pages * sizeof(*view->pages);

    if (session->parked_count >= PARKED_MAX || session->parked_count >= client->ring_entries / 4 ||
        session->parked_bytes + bytes > client->arena_bytes)
        return 0;
    struct attnd_prefix_parked *parked = parked_new(op->lane->session->client, bytes);
    if (!parked)
        return 0;
    parked->op = op;
    parked->blocks = view->blocks;
    parked->block_pages = view->blocks ? op->sqe.u.prefix.pages / view->blocks : 0;
    parked->found = result->blocks;
    parked->foreign = result->foreign;
    parked->has_parent = view->parent != NULL;
    parked->pages = (int32_t *)(void *)(parked->keys + keys);
    memcpy(parked->keys, view->parent ? view->parent : view->keys, keys * sizeof(*view->keys));
    memcpy(parked->pages, view->pages,
           (size_t)result->blocks * parked->block_pages * sizeof(*view->pages));
    if (!wait_for_next(parked)) {
        parked_free(session->client, parked);
        return 0;
    }
    parked->next = session->parked;
    parked->link = &session->parked;
    if (parked->next)
        parked->next->link = &parked->next;
    session->parked = parked;
    session->parked_count++;
    session->parked_bytes += bytes;
    attnd_results_unreserve(op);
    attnd_op_let_go(op);
    return 1;
}

/* Out of every list. Return: its operation, which is in no lane. */
static struct attnd_sched_op *unpark(struct attnd_prefix_parked *parked)
{
    struct attnd_sched_op *op = parked->op;
    struct attnd_client_lanes *session = op->lane->session;

    attnd_tree_unwait(&parked->waiter);
    *parked->link = parked->next;
    if (parked->next)
        parked->next->link = parked->link;
    session->parked_count--;
    session->parked_bytes -= parked->bytes;
    parked_free(session->client, parked);
    return op;
}

/* Page by page: a client that has freed some of them already, which it was never told of, keeps no
 * others. */
static void give_back(const struct attnd_prefix_parked *parked)
{
    struct attnd_attachment *attachment = parked->op->prefix->attachment;
    for (uint32_t i = 0; i < parked->found * parked->block_pages; i++)
        (void)attnd_lease_free(attachment, &parked->pages[i], 1, NULL);
}

static void complete(struct attnd_prefix_parked *parked, enum attnd_prefix_stop stop)
{
    struct attnd_client_lanes *session = parked->op->lane->session;
    uint32_t pages = parked->found * parked->block_pages;
    int fits = attnd_results_room(session, pages);
    uint64_t now_ns = attnd_sched_now(session->scheduler);

    if (!fits)
        give_back(parked);
    attnd_prefix_answer(parked->op, fits ? parked->found : 0, fits ? stop : ATTND_PREFIX_STOP_FULL,
                        fits ? parked->foreign : 0);
    attnd_results_put(parked->op, parked->pages, fits ? pages : 0);
    attnd_complete(unpark(parked), now_ns, now_ns);
}

/* Its claim has ended: on, as far as it goes now. */
static void resume(struct attnd_prefix_parked *parked)
{
    const struct attnd_prefix_handle *handle = parked->op->prefix;
    const struct attnd_block_key *keys = first_key(parked) + parked->found;
    struct attnd_tree_chain chain = {.space = handle->space,
                                     .count = parked->blocks - parked->found,
                                     .keys = keys,
                                     .parent =
                                         parked->found || parked->has_parent ? keys - 1 : NULL,
                                     .again = 1};
    int32_t *pages = parked->pages + (size_t)parked->found * parked->block_pages;
    uint32_t abandoned = parked->waiter.abandoned;
    /* A block that did not come back although it was waited for is not asked for again. */
    struct attnd_tree_result result = attnd_prefix_find(handle, &chain, 0, pages);

    parked->found += result.blocks;
    parked->foreign += result.foreign;
    if (attnd_prefix_waits(parked->op, &result) && wait_for_next(parked))
        return;
    complete(parked, abandoned && result.stop == ATTND_PREFIX_STOP_MISSING
                         ? ATTND_PREFIX_STOP_ABANDONED
                         : result.stop);
}

void attnd_sched_wake(struct attnd_tree *tree)
{
    struct attnd_tree_waiter *waiter;
    while ((waiter = attnd_tree_woken(tree)))
        resume((struct attnd_prefix_parked *)(void *)waiter);
}

static void end_early(struct attnd_prefix_parked *parked, int code)
{
    struct attnd_scheduler *scheduler = parked->op->lane->session->scheduler;
    uint64_t now_ns = attnd_sched_now(scheduler);

    give_back(parked);
    struct attnd_sched_op *op = unpark(parked);
    if (code == -ATTND_E_TIMEOUT)
        attnd_deadline_fault(op);
    else
        attnd_fault_set(&op->fault, code, ATTND_F_NONE, 0, 0, 0);
    attnd_complete(op, now_ns, now_ns);
}

int attnd_prefix_cancel(struct attnd_client_lanes *session, uint64_t user_data)
{
    int ended = 0;
    for (struct attnd_prefix_parked *at = session->parked, *next; at; at = next) {
        next = at->next;
        if (at->op->sqe.user_data != user_data)
            continue;
        end_early(at, -ATTND_E_CANCELLED);
        ended++;
    }
    return ended;
}

uint64_t attnd_prefix_expire(struct attnd_client_lanes *session, uint64_t now_ns)
{
    uint64_t earliest_ns = UINT64_MAX;
    for (struct attnd_prefix_parked *at = session->parked, *next; at; at = next) {
        next = at->next;
        if (!at->op->deadline_ns)
            continue;
        if (at->op->deadline_ns <= now_ns)
            end_early(at, -ATTND_E_TIMEOUT);
        else if (at->op->deadline_ns < earliest_ns)
            earliest_ns = at->op->deadline_ns;
    }
    return earliest_ns;
}

void attnd_prefix_close(struct attnd_client_lanes *session)
{
    const struct attnd_client *client = session->client;

    for (struct attnd_prefix_parked *at = session->parked, *next; at; at = next) {
        next = at->next;
        attnd_op_free(unpark(at));
    }
    for (uint32_t i = 0; i < ATTND_HANDLES_MAX; i++) {
        struct attnd_prefix_handle *handle = client->prefixes[i];
        if (!handle)
            continue;
        attnd_tree_owner_end(attnd_prefix_tree(handle), &handle->owner);
        attnd_sched_wake(attnd_prefix_tree(handle));
    }
}
