/*
 * complete.c - the end of an operation: a completion slot, then back to the session's free list.
 *
 * The slot is always there: an operation was accepted only when the completion ring had room for
 * every operation in flight and one more. If the push fails all the same, the client moved its own
 * index backwards, and is killed when the sweep is over, not in the middle of it.
 */
#include "service/sched/complete.h"

#include "schemas/crash.h"
#include "service/objects/places.h"
#include "service/prefix/prefix.h"
#include "service/sched/admit.h"
#include "service/sched/deadlines.h"
#include "service/sched/results.h"
#include "service/sched/scheduler.h"

#include <assert.h>

void attnd_lanes_mark_dirty(struct attnd_client_lanes *session)
{
    if (session->dirty)
        return;
    session->dirty = 1;
    session->scheduler->dirty_count++;
}

void attnd_lanes_break(struct attnd_client_lanes *session)
{
    session->broken = 1;
    attnd_lanes_mark_dirty(session);
}

static void post(struct attnd_client_lanes *session, const struct attnd_cqe *cqe)
{
    if (session->closing || session->broken)
        return;
    if (attnd_producer_push(&session->client->cq, cqe) < 0)
        session->broken = 1;
    else
        session->cq_room--;
    attnd_crash(ATTND_CRASH_DAEMON_COMPLETION_POSTED);
    attnd_lanes_mark_dirty(session);
}

static void count_latency(struct attnd_work_stats *stats, const struct attnd_sched_op *op,
                          uint64_t begin_ns, uint64_t end_ns)
{
    /* The worker's clock is read by other processors, and a GPU's is translated. */
    attnd_histogram_add(&stats->latency, end_ns > op->taken_ns ? end_ns - op->taken_ns : 0);
    attnd_histogram_add(&stats->duration, end_ns > begin_ns ? end_ns - begin_ns : 0);
}

static void count_fault(struct attnd_work_stats *stats, int code)
{
    if (code > -ATTND_ERRORS_END && code < 0)
        stats->faults[-code]++;
}

static void count_success(struct attnd_work_stats *stats, const struct attnd_sched_op *op)
{
    if (op->sqe.opcode == ATTND_OP_RUN) {
        stats->runs++;
        stats->shared_bytes += op->plan ? op->plan->shared_bytes : 0;
        stats->fused_runs += op->plan && op->plan->fused;
    } else if (op->sqe.opcode == ATTND_OP_APPEND) {
        stats->appends++;
    }
}

/* For what is published behind it. */
static void note_append(const struct attnd_sched_op *op)
{
    if (op->sqe.opcode != ATTND_OP_APPEND || op->fault.code == 0)
        return;
    op->lane->append_code = op->fault.code;
    op->lane->append_slot = op->lane->session->client->cq.index;
}

/* Runs and advances that wait behind a set were meant for its batch. */
static void note_refusal(const struct attnd_sched_op *op)
{
    if (op->sqe.opcode != ATTND_OP_PLAN_SET || op->fault.code == 0)
        return;
    op->lane->session->refusals++;
    if (op->plan)
        op->plan->refusal =
            (struct attnd_refusal){.number = op->lane->session->refusals, .lane = op->sqe.lane};
}

static void tell_monitor(const struct attnd_sched_op *op, uint64_t begin_ns, uint64_t end_ns)
{
    const struct attnd_client_lanes *session = op->lane->session;
    const struct attnd_client *client = session->client;
    struct attnd_monitor *monitor = &session->scheduler->service->monitor;

    if (!attnd_monitor_wants(monitor))
        return;
    const uint64_t now_ns = attnd_sched_now(session->scheduler);
    const struct attnd_monitor_event event = {
        .time_ns = now_ns,
        .session = client->id,
        .uid = client->uid,
        .kind = ATTND_MONITOR_OPERATION,
        .opcode = op->sqe.opcode,
        .lane = op->sqe.lane,
        .plan = op->sqe.plan,
        .user_data = op->sqe.user_data,
        .latency_ns = now_ns > op->taken_ns ? now_ns - op->taken_ns : 0,
        .duration_ns = op->sqe.opcode == ATTND_OP_RUN && end_ns > begin_ns ? end_ns - begin_ns : 0,
        .fault = op->fault};
    attnd_monitor_add(monitor, &event);
}

void attnd_complete(struct attnd_sched_op *op, uint64_t begin_ns, uint64_t end_ns)
{
    struct attnd_client_lanes *session = op->lane->session;
    const struct attnd_fault *fault = &op->fault;

    if (fault->code == 0) {
        count_success(&session->client->stats, op);
        count_success(&session->scheduler->service->totals, op);
        if (op->sqe.opcode == ATTND_OP_RUN) {
            count_latency(&session->client->stats, op, begin_ns, end_ns);
            count_latency(&session->scheduler->service->totals, op, begin_ns, end_ns);
        }
    } else {
        count_fault(&session->client->stats, fault->code);
        count_fault(&session->scheduler->service->totals, fault->code);
    }
    note_append(op);
    note_refusal(op);
    tell_monitor(op, begin_ns, end_ns);
    if (fault->code != 0 || !(op->sqe.flags & ATTND_OP_SKIP_SUCCESS)) {
        const struct attnd_cqe cqe = {.user_data = op->sqe.user_data,
                                      .code = fault->code,
                                      .opcode = op->sqe.opcode,
                                      .lane = op->sqe.lane,
                                      .field = fault->field,
                                      .words = op->answer_words,
                                      .index = fault->index,
                                      .value = fault->value,
                                      .limit = fault->limit,
                                      .begin_ns = begin_ns,
                                      .end_ns = end_ns};
        post(session, &cqe);
    }
    attnd_op_free(op);
}

struct attnd_sched_op *attnd_op_new(struct attnd_client_lanes *session, const struct attnd_sqe *sqe)
{
    struct attnd_sched_op *op = session->free_ops;
    assert(session->client->in_flight < session->client->ring_entries);
    if (op)
        session->free_ops = op->next;
    else
        op = &session->ops[session->fresh_op++]; /* as many as completion slots */
    *op = (struct attnd_sched_op){.sqe = *sqe,
                                  .lane = &session->lane[0],
                                  .lengths = {.generation = ATTND_NONE},
                                  .taken_ns = attnd_sched_now(session->scheduler)};
    session->client->in_flight++;
    return op;
}

void attnd_op_free(struct attnd_sched_op *op)
{
    struct attnd_client_lanes *session = op->lane->session;
    attnd_deadlines_remove(&session->deadlines, op);
    attnd_op_let_go(op);
    attnd_results_unreserve(op);
    if (op->prefix)
        op->prefix->in_flight--;
    if (op->into)
        op->into->claims--;
    attnd_places_release(session->scheduler->service, op->memories);
    if (op->plan) {
        attnd_planobj_unpin(op->plan, &op->lengths);
        op->plan->in_flight--;
    }
    session->client->in_flight--;
    op->next = session->free_ops;
    session->free_ops = op;
}

/* The client may have submitted what follows in the belief that the pages would be full. */
int attnd_lane_failed_append(const struct attnd_sched_op *op)
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
