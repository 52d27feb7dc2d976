/*
 * admit.c - what a batch, an advance, a merge or a prefix operation says, copied and checked once,
 * on the way in.
 *
 * A slot is free as soon as it has become an operation, and the client may reuse its arena then. So
 * the copy is made before, whether the operation's step comes at once or later: nothing here asks
 * when. Memory of copies is kept and used again, so an engine whose sets are done at once costs no
 * allocation.
 */
#include "service/sched/admit.h"

#include "service/objects/places.h"
#include "service/objects/quota.h"
#include "service/objects/variant.h"
#include "service/prefix/prefix.h"
#include "service/sched/scheduler.h"

#include <assert.h>
#include <stdlib.h>

static struct attnd_admitted *take_memory(struct attnd_client_lanes *session,
                                          struct attnd_fault *fault)
{
    struct attnd_client *client = session->client;
    struct attnd_admitted *admitted = session->spare;

    session->spare = NULL;
    if (admitted || attnd_quota_charge(client, sizeof(*admitted), fault) < 0)
        return admitted;
    admitted = calloc(1, sizeof(*admitted));
    if (!admitted) {
        attnd_quota_refund(client->service, attnd_quota_payer(client), sizeof(*admitted));
        attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    }
    return admitted;
}

static void give_memory(struct attnd_client_lanes *session, struct attnd_admitted *admitted)
{
    if (session->spare)
        attnd_admitted_free(session->client, admitted);
    else
        session->spare = admitted;
}

/* How large a copy is shows while it is made, so its bound comes first and its charge, which is
 * within that, last. */
static void bound(struct attnd_client *client, struct attnd_staging *staging)
{
    uint64_t left_words = attnd_quota_left(client, ATTND_QUOTA_DAEMON) / sizeof(*staging->words);
    uint64_t limit = staging->words_max + left_words;
    staging->words_limit = limit ? limit : 1;
}

static void charge(struct attnd_client *client, const struct attnd_staging *staging,
                   uint64_t words_before)
{
    uint64_t bytes = (staging->words_max - words_before) * sizeof(*staging->words);
    if (attnd_quota_charge(client, bytes, NULL) < 0)
        assert(0); /* it was bounded */
}

static int admit_prefix(struct attnd_sched_op *op, struct attnd_admitted *to)
{
    const struct attnd_client *client = op->lane->session->client;
    const struct attnd_pool *pool = op->prefix->attachment->pool;
    uint32_t block_pages =
        attnd_tree_space_info(pool->prefix->tree, op->prefix->space)->args.block_pages;

    return attnd_admit_prefix(attnd_client_arena(client), client->arena_bytes, op->sqe.opcode,
                              &op->sqe.u.prefix, block_pages, pool->shape.pages, &to->staging,
                              &to->u.prefix, &op->fault);
}

_Static_assert(ATTND_TABLES <= ATTND_RUN_PLACES, "an operation holds them like places");

static int begin_batch(struct attnd_sched_op *op, struct attnd_admitted *to)
{
    struct attnd_client_lanes *session = op->lane->session;
    const struct attnd_client *client = session->client;
    const struct attnd_attachment *attachment = op->plan->attachment;
    struct attnd_batch_limits limits = op->plan->limits;
    limits.leased = attachment->held;
    int rc = attnd_admit_batch_begin(&session->admission, attnd_client_arena(client),
                                     client->arena_bytes, op->sqe.u.set.header_offset_bytes,
                                     op->sqe.u.set.header_bytes, &limits, &to->staging,
                                     &to->u.batch, &op->fault);
    to->u.batch.releases = attachment->releases; /* from before the first look at a lease */
    return rc;
}

static int begin_advance(struct attnd_sched_op *op, struct attnd_admitted *to)
{
    struct attnd_client_lanes *session = op->lane->session;
    const struct attnd_client *client = session->client;

    return attnd_admit_advance_begin(&session->admission, attnd_client_arena(client),
                                     client->arena_bytes, &op->sqe.u.advance, &op->plan->limits,
                                     &to->staging, &to->u.advance, &op->fault);
}

static int admit_merge(struct attnd_sched_op *op, struct attnd_admitted *to)
{
    const struct attnd_client *client = op->lane->session->client;
    int rc = attnd_admit_merge(attnd_client_arena(client), client->arena_bytes, &op->sqe.u.merge,
                               &to->u.merge, &op->fault);
    if (rc == 0)
        attnd_places_take_merge(client, &to->u.merge, op->memories);
    return rc;
}

/* What is copied in parts: a batch or an advance. */
static int is_long(const struct attnd_sched_op *op)
{
    return op->sqe.opcode == ATTND_OP_PLAN_SET || op->sqe.opcode == ATTND_OP_PLAN_ADVANCE;
}

/* All of it, or the beginning of what is copied in parts. */
static int begin(struct attnd_sched_op *op, struct attnd_admitted *to)
{
    if (op->prefix)
        return admit_prefix(op, to);
    if (op->sqe.opcode == ATTND_OP_MERGE)
        return admit_merge(op, to);
    return op->sqe.opcode == ATTND_OP_PLAN_SET ? begin_batch(op, to) : begin_advance(op, to);
}

/* Return: 1 there is more; 0 it is over; < 0. */
static int go_on(struct attnd_sched_op *op)
{
    struct attnd_client_lanes *session = op->lane->session;
    int rc = attnd_admit_go(&session->admission, &op->fault);

    if (rc == 0 && op->sqe.opcode == ATTND_OP_PLAN_SET)
        rc = attnd_variant_resolve(session->client, op->plan, &op->admitted->u.batch, op->memories,
                                   &op->fault);
    return rc;
}

void attnd_op_admit(struct attnd_sched_op *op)
{
    struct attnd_client_lanes *session = op->lane->session;
    struct attnd_admitted *admitted = take_memory(session, &op->fault);
    (void)attnd_sched_now(session->scheduler); /* the beginning, for the completion */
    if (!admitted)
        return;
    uint64_t words_before = admitted->staging.words_max;
    bound(session->client, &admitted->staging);
    int rc = begin(op, admitted);
    charge(session->client, &admitted->staging, words_before);
    if (rc < 0) {
        give_memory(session, admitted);
        return;
    }
    op->admitted = admitted;
    session->admitted_bytes += attnd_admitted_bytes(admitted);
    op->admits = is_long(op);
}

int attnd_op_admit_some(struct attnd_sched_op *op)
{
    const struct attnd_works *works = attnd_sched_works(op->lane->session);
    int rc = 1;

    while (op->admits && (rc = go_on(op)) > 0)
        if (attnd_work_spent(works))
            return 1;
    op->admits = 0;
    if (rc < 0)
        attnd_op_let_go(op);
    return 0;
}

void attnd_op_let_go(struct attnd_sched_op *op)
{
    struct attnd_client_lanes *session = op->lane->session;
    if (!op->admitted)
        return;
    session->admitted_bytes -= attnd_admitted_bytes(op->admitted);
    give_memory(session, op->admitted);
    op->admitted = NULL;
}

void attnd_admitted_free(struct attnd_client *client, struct attnd_admitted *admitted)
{
    if (!admitted)
        return;
    attnd_quota_refund(client->service, attnd_quota_payer(client),
                       sizeof(*admitted) + attnd_admitted_bytes(admitted));
    attnd_staging_free(&admitted->staging);
    free(admitted);
}
