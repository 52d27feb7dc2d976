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
#include "service/sched/parked.h"

#include "service/objects/lease.h"
#include "service/objects/quota.h"
#include "service/prefix/prefix.h"
#include "service/sched/admit.h"
#include "service/sched/complete.h"
#include "service/sched/deadlines.h"
#include "service/sched/prefix_step.h"
#include "service/sched/results.h"
#include "service/sched/sched.h"
#include "service/sched/scheduler.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define PARKED_MAX 64u

struct attnd_prefix_parked {
    struct attnd_tree_waiter waiter; /* first: it is what the tree gives back */
    struct attnd_sched_op *op;
    struct attnd_prefix_parked *next, **link;             /* of its session */
    struct attnd_prefix_parked *woken_next, **woken_link; /* link NULL: it waits for a claim */
    struct attnd_attachment *attachment;                  /* of pages that are given back */
    uint64_t bytes;
    uint32_t block_pages, blocks, found, foreign;
    uint32_t given; /* pages that are given back already */
    int has_parent;
    int goes_on;                   /* woken, and has found more since then */
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
    op->parked = parked;
    if (op->deadline_ns && !op->deadline_place) { /* it passed while the match was under way */
        attnd_deadlines_add(&session->deadlines, op);
        attnd_deadline_arm(session->scheduler, op->deadline_ns);
    }
    attnd_results_unreserve(op);
    attnd_op_let_go(op);
    return 1;
}

static void unwake(struct attnd_prefix_parked *parked)
{
    struct attnd_client_lanes *session = parked->op->lane->session;

    if (!parked->woken_link)
        return;
    *parked->woken_link = parked->woken_next;
    if (parked->woken_next)
        parked->woken_next->woken_link = parked->woken_link;
    else
        session->woken_end = parked->woken_link;
    parked->woken_link = NULL;
}

/* Out of every list. Return: its operation, which is in no lane. */
static struct attnd_sched_op *take_out(struct attnd_prefix_parked *parked)
{
    struct attnd_sched_op *op = parked->op;
    struct attnd_client_lanes *session = op->lane->session;

    attnd_tree_unwait(&parked->waiter);
    unwake(parked);
    op->parked = NULL;
    *parked->link = parked->next;
    if (parked->next)
        parked->next->link = parked->link;
    session->parked_count--;
    session->parked_bytes -= parked->bytes;
    return op;
}

static struct attnd_sched_op *unpark(struct attnd_prefix_parked *parked)
{
    struct attnd_sched_op *op = take_out(parked);

    parked_free(op->lane->session->client, parked);
    return op;
}

#define GIVE_STEP 128u /* pages between two looks at the clock */

/* Page by page: a client that has freed some of them already, which it was never told of, keeps no
 * others. Return: 1 there are more. */
static int give_some(struct attnd_prefix_parked *parked)
{
    const uint32_t pages = parked->found * parked->block_pages;

    for (uint32_t i = 0; i < GIVE_STEP && parked->given < pages; i++)
        (void)attnd_lease_free(parked->attachment, &parked->pages[parked->given++], 1, NULL);
    return parked->given < pages;
}

int attnd_prefix_leave_go(struct attnd_work *work)
{
    struct attnd_client_lanes *session =
        (struct attnd_client_lanes *)(void *)((char *)work -
                                              offsetof(struct attnd_client_lanes, leave_work));
    struct attnd_works *works = attnd_sched_works(session);

    while (session->leaving) {
        struct attnd_prefix_parked *parked = session->leaving;
        if (!give_some(parked)) {
            session->leaving = parked->next;
            parked_free(session->client, parked);
        }
        if (attnd_work_spent(works))
            break;
    }
    return session->leaving != NULL;
}

/* It is over, and what it found is given back. Return: as unpark(). */
static struct attnd_sched_op *leave(struct attnd_prefix_parked *parked)
{
    struct attnd_sched_op *op = take_out(parked);
    struct attnd_client_lanes *session = op->lane->session;

    parked->attachment = op->prefix->attachment;
    parked->next = session->leaving;
    session->leaving = parked;
    attnd_work_queue(attnd_sched_works(session), &session->client->account, &session->leave_work);
    return op;
}

static void complete(struct attnd_prefix_parked *parked, enum attnd_prefix_stop stop)
{
    struct attnd_client_lanes *session = parked->op->lane->session;
    uint32_t pages = parked->found * parked->block_pages;
    int fits = attnd_results_room(session, pages);
    uint64_t now_ns = attnd_sched_now(session->scheduler);

    attnd_prefix_answer(parked->op, fits ? parked->found : 0, fits ? stop : ATTND_PREFIX_STOP_FULL,
                        fits ? parked->foreign : 0);
    attnd_results_put(parked->op, parked->pages, fits ? pages : 0);
    attnd_complete(fits ? unpark(parked) : leave(parked), now_ns, now_ns);
}

/* Its claim has ended: on, as far as it goes now. Return: 1 a part of it is done; 0 it waits again,
 * or is over. */
static int resume(struct attnd_prefix_parked *parked)
{
    const struct attnd_prefix_handle *handle = parked->op->prefix;
    const struct attnd_block_key *keys = first_key(parked) + parked->found;
    const uint32_t left = parked->blocks - parked->found;
    const uint32_t part = attnd_prefix_part(left, parked->block_pages);
    struct attnd_tree_chain chain = {.space = handle->space,
                                     .count = part,
                                     .keys = keys,
                                     .parent =
                                         parked->found || parked->has_parent ? keys - 1 : NULL,
                                     .again = 1};
    int32_t *pages = parked->pages + (size_t)parked->found * parked->block_pages;
    uint32_t abandoned = parked->waiter.abandoned;
    /* A block that did not come back although it was waited for is not asked for again. */
    struct attnd_tree_result result = attnd_prefix_find(handle, &chain, parked->goes_on, pages);

    parked->found += result.blocks;
    parked->foreign += result.foreign;
    parked->goes_on = result.blocks > 0;
    if (result.stop == ATTND_PREFIX_STOP_END && part < left)
        return 1;
    unwake(parked);
    if (attnd_prefix_waits(parked->op, &result) && wait_for_next(parked))
        return 0;
    complete(parked, abandoned && result.stop == ATTND_PREFIX_STOP_MISSING
                         ? ATTND_PREFIX_STOP_ABANDONED
                         : result.stop);
    return 0;
}

int attnd_prefix_wake_go(struct attnd_work *work)
{
    struct attnd_client_lanes *session =
        (struct attnd_client_lanes *)(void *)((char *)work -
                                              offsetof(struct attnd_client_lanes, wake_work));
    struct attnd_works *works = attnd_sched_works(session);

    session->scheduler->now_ns = 0;
    while (session->woken) {
        const struct attnd_prefix_parked *first = session->woken;
        const int goes_on = resume(session->woken);
        assert(goes_on || session->woken != first);
        if (attnd_work_spent(works))
            break;
    }
    return session->woken != NULL;
}

/* A wake-up is paid for by the one that waited. */
static void wake(struct attnd_prefix_parked *parked)
{
    struct attnd_client_lanes *session = parked->op->lane->session;

    parked->goes_on = 0;
    parked->woken_next = NULL;
    parked->woken_link = session->woken_end;
    *session->woken_end = parked;
    session->woken_end = &parked->woken_next;
    if (!session->closing)
        attnd_work_queue(attnd_sched_works(session), &session->client->account,
                         &session->wake_work);
}

void attnd_sched_wake(struct attnd_tree *tree)
{
    struct attnd_tree_waiter *waiter;
    while ((waiter = attnd_tree_woken(tree)))
        wake((struct attnd_prefix_parked *)(void *)waiter);
}

static void end_early(struct attnd_prefix_parked *parked, int code)
{
    struct attnd_scheduler *scheduler = parked->op->lane->session->scheduler;
    uint64_t now_ns = attnd_sched_now(scheduler);

    struct attnd_sched_op *op = leave(parked);
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

void attnd_prefix_expire(struct attnd_sched_op *op)
{
    end_early(op->parked, -ATTND_E_TIMEOUT);
}

/* Claims that one operation more of a closing session gives up. */
#define CLAIMS_STEP 64u

int attnd_prefix_close(struct attnd_client_lanes *session)
{
    const struct attnd_client *client = session->client;

    if (session->parked) {
        attnd_op_free(unpark(session->parked));
        return 1;
    }
    if (session->leaving) { /* its pages go with the attachments */
        struct attnd_prefix_parked *parked = session->leaving;
        session->leaving = parked->next;
        parked_free(session->client, parked);
        return 1;
    }
    if (session->close_prefix == ATTND_HANDLES_MAX)
        return 0;
    struct attnd_prefix_handle *handle = client->prefixes[session->close_prefix];
    if (!handle || !attnd_tree_owner_end(attnd_prefix_tree(handle), &handle->owner, CLAIMS_STEP))
        session->close_prefix++;
    if (handle)
        attnd_sched_wake(attnd_prefix_tree(handle));
    return 1;
}
