/*
 * queue.c - runs in flight, and who is next: start-time fair queueing over sessions.
 *
 * Each session that has sent a run is a flow with a clock: the time of tile workers that it has
 * had, over its weight. A thread that looks for work gets items of the flow whose clock is behind
 * all others', from its oldest run. A flow whose runs have no items left is idle; when it comes
 * back its clock is set forward to where the others are, of items in hand as far as they have come.
 * So nobody saves up time, and one that has just had much does not lose the memory of it by being
 * idle for a moment. With a single session this is first come, first served.
 *
 * A clock moves when items are taken, by what they are thought to cost, so that two threads do not
 * take for the same flow at once only because neither is done. It is corrected by what they took
 * when they are done: nobody gains by lengths that the planner did not see, and nobody pays for
 * programs that had the thread's processor meanwhile. Clocks are doubles, in nanoseconds. They
 * start again from 0 whenever nothing is queued, and one that did not for a year of 64 threads
 * would still count microseconds.
 *
 * All of this is under one lock, held for some tens of nanoseconds an item. Where nothing is queued
 * nobody takes it. A run can be retired, and its slot used again, only when its last item is done,
 * and that item's thread took the run out of its flow before.
 */
#include <math.h>
#include <stdlib.h>

#include "persistent/cpu/lookup.h"
#include "persistent/cpu/queue.h"
#include "persistent/plan/plan.h"
#include "schemas/atomics.h"

/* The time that a unit of the planner's cost is thought to take. Too high or too low is corrected
 * soon. */
#define COST_NS 5.0
/* Items of a portion are no more than this together: others may come meanwhile. */
#define PORTION_NS 2e6
/* Rows of one head are some units to append. */
#define COST_APPEND_HEAD 8u

int attnd_cpu_queue_init(struct attnd_cpu_queue *queue, uint32_t runs, uint32_t threads)
{
    pthread_mutexattr_t attributes;
    queue->threads = threads;
    for (uint32_t i = 0; i < ATTND_CPU_FLOWS; i++)
        queue->flow[i] = (struct attnd_cpu_flow){.weight = 1, .head = ATTND_NONE};
    (void)pthread_mutexattr_init(&attributes);
    (void)pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
    (void)pthread_mutex_init(&queue->lock, &attributes);
    (void)pthread_mutexattr_destroy(&attributes);
    queue->runs = aligned_alloc(ATTND_CACHE_LINE, runs * sizeof *queue->runs);
    if (queue->runs == NULL)
        return -ATTND_E_NO_MEMORY;
    for (uint32_t i = 0; i < runs; i++)
        queue->runs[i] = (struct attnd_cpu_run){.index = i};
    return 0;
}

void attnd_cpu_queue_free(struct attnd_cpu_queue *queue)
{
    (void)pthread_mutex_destroy(&queue->lock);
    free(queue->runs);
}

/* ---- flows; the lock is held ---- */

static int is_busy(const struct attnd_cpu_flow *flow)
{
    return flow->head != ATTND_NONE;
}

/* The flow of a session. There are more than a service has sessions, so one that is idle can be
 * given to another: the one that is the furthest behind has the least to remember. */
static uint32_t flow_of(struct attnd_cpu_queue *queue, uint32_t session)
{
    uint32_t oldest = 0;
    for (uint32_t i = 0; i < ATTND_CPU_FLOWS; i++) {
        const struct attnd_cpu_flow *flow = &queue->flow[i], *best = &queue->flow[oldest];
        if (flow->session == session && flow->known)
            return i;
        if (!is_busy(flow) && flow->taken == 0 &&
            (is_busy(best) || best->taken > 0 || flow->clock < best->clock))
            oldest = i;
    }
    struct attnd_cpu_flow *flow = &queue->flow[oldest];
    if (!is_busy(flow) && flow->taken == 0)
        *flow = (struct attnd_cpu_flow){.session = session, .known = 1, .head = ATTND_NONE};
    return oldest;
}

/* The busy flow that is the furthest behind; of equal ones the one that came last. */
static uint32_t earliest(const struct attnd_cpu_queue *queue)
{
    uint32_t first = queue->busy[0];
    for (uint32_t i = 1; i < queue->busy_count; i++)
        if (queue->flow[queue->busy[i]].clock <= queue->flow[first].clock)
            first = queue->busy[i];
    return first;
}

/* The flow's clock if the share takes as long as it said. One that seems to have had more may have
 * had no processor. */
static double said_end(const struct attnd_cpu_share *share)
{
    return share->start + share->charged_ns / share->weight;
}

/* What a flow that comes begins with. Nothing that waits for its turn is ahead of it, and nothing
 * that a thread has in hand: every thread may make way for it, not only the one that took items
 * last, which may be without a processor. */
static double clock_now(const struct attnd_cpu_queue *queue)
{
    double now = queue->in_hand ? INFINITY : queue->clock;
    for (const struct attnd_cpu_share *share = queue->in_hand; share; share = share->next)
        now = fmin(now, fmin(attnd_cpu_share_reached(share), said_end(share)));
    if (queue->busy_count > 0)
        now = fmin(now, queue->flow[earliest(queue)].clock);
    return now;
}

static void become_busy(struct attnd_cpu_queue *queue, uint32_t index)
{
    struct attnd_cpu_flow *flow = &queue->flow[index];
    const double now = clock_now(queue);
    flow->clock = flow->clock > now ? flow->clock : now;
    queue->busy[queue->busy_count++] = index;
}

static void become_idle(struct attnd_cpu_queue *queue, uint32_t index)
{
    uint32_t at = 0;
    while (queue->busy[at] != index)
        at++;
    queue->busy[at] = queue->busy[--queue->busy_count];
}

/* Nobody is ahead or behind any more. */
static void restart_clocks(struct attnd_cpu_queue *queue)
{
    queue->clock = 0;
    for (uint32_t i = 0; i < ATTND_CPU_FLOWS; i++)
        queue->flow[i].clock = 0;
}

/* ---- runs ---- */

void attnd_cpu_queue_publish(struct attnd_cpu_queue *queue, struct attnd_cpu_run *run,
                             const struct attnd_run *shared, uint32_t items)
{
    (void)pthread_mutex_lock(&queue->lock);
    run->items = run->left = items;
    run->next = ATTND_NONE;
    run->flow = flow_of(queue, shared->session);
    struct attnd_cpu_flow *flow = &queue->flow[run->flow];
    flow->weight = shared->weight ? shared->weight : 1;
    if (is_busy(flow)) {
        queue->runs[flow->tail].next = run->index;
    } else {
        become_busy(queue, run->flow);
        flow->head = run->index;
    }
    flow->tail = run->index;
    attnd_publish32(&queue->waiting, queue->waiting + 1);
    (void)pthread_mutex_unlock(&queue->lock);
}

static double item_ns(const struct attnd_cpu_run *run, uint32_t item)
{
    if (run->kind == ATTND_RUN_APPEND)
        return COST_NS * COST_APPEND_HEAD * ATTND_APPEND_ROWS * run->plan->heads_kv;
    if (run->kind == ATTND_RUN_MERGE)
        return COST_NS * COST_APPEND_HEAD * ATTND_MERGE_ROWS;
    const struct attnd_tile *tile = &run->tiles[item / run->plan->heads_kv];
    const uint32_t kv_len = attnd_cpu_kv_len(run, tile->entry);
    const uint32_t end = tile->kv_end < kv_len ? tile->kv_end : kv_len;
    const uint32_t keys = end > tile->kv_begin ? end - tile->kv_begin : 0;
    return COST_NS * (double)attnd_item_cost(keys, tile->row_count * run->plan->group);
}

/* How many items to take, each of @ns: to the end of the tile, but leaving two turns for
 * everybody, and no more than others can wait for. */
static uint32_t portion(const struct attnd_cpu_queue *queue, const struct attnd_cpu_run *run,
                        double ns)
{
    const uint32_t heads = run->kind == ATTND_RUN_ATTEND ? run->plan->heads_kv : 1;
    const uint32_t fair = run->left / (2 * queue->threads);
    const uint32_t rest = heads - (run->items - run->left) % heads;
    const double most = PORTION_NS / ns;
    uint32_t count = fair < rest ? fair : rest;
    count = count > most ? (uint32_t)most : count;
    return count < 1 ? 1 : count;
}

/* The lock is held. */
static void take_from(struct attnd_cpu_queue *queue, uint32_t index, struct attnd_cpu_share *share)
{
    struct attnd_cpu_flow *flow = &queue->flow[index];
    struct attnd_cpu_run *run = &queue->runs[flow->head];
    const uint32_t item = run->items - run->left;
    const int skip = attnd_cpu_run_cancelled(run);
    const double ns = skip ? 0 : item_ns(run, item);
    const uint32_t count = skip ? run->left : portion(queue, run, ns);
    *share = (struct attnd_cpu_share){.run = run,
                                      .item_begin = item,
                                      .item_end = item + count,
                                      .skip = skip,
                                      .flow = index,
                                      .weight = flow->weight,
                                      .start = flow->clock,
                                      .charged_ns = ns * count};
    queue->clock = flow->clock > queue->clock ? flow->clock : queue->clock;
    flow->clock += share->charged_ns / share->weight;
    flow->taken++;
    share->next = queue->in_hand;
    share->link = &queue->in_hand;
    if (share->next)
        share->next->link = &share->next;
    queue->in_hand = share;
    run->left -= count;
    if (run->left > 0)
        return;
    flow->head = run->next;
    if (!is_busy(flow))
        become_idle(queue, index);
    attnd_publish32(&queue->waiting, queue->waiting - 1);
}

int attnd_cpu_queue_take(struct attnd_cpu_queue *queue, double before,
                         struct attnd_cpu_share *share)
{
    int taken = 0;
    if (attnd_cpu_queue_empty(queue))
        return 0;
    (void)pthread_mutex_lock(&queue->lock);
    if (queue->busy_count > 0) {
        const uint32_t index = earliest(queue);
        taken = queue->flow[index].clock < before;
        if (taken)
            take_from(queue, index, share);
    }
    (void)pthread_mutex_unlock(&queue->lock);
    return taken;
}

/* It was without a processor before its begin, too, where it says so for the first time in a while:
 * no less is paid than what it said. */
static double paid_ns(const struct attnd_cpu_share *share, uint64_t ns, uint64_t without_ns)
{
    const double left_ns = (double)ns - (double)without_ns;
    return without_ns && left_ns < share->charged_ns ? share->charged_ns : left_ns;
}

void attnd_cpu_queue_charge(struct attnd_cpu_queue *queue, struct attnd_cpu_share *share,
                            uint64_t ns, uint64_t without_ns)
{
    (void)pthread_mutex_lock(&queue->lock);
    struct attnd_cpu_flow *flow = &queue->flow[share->flow];
    flow->clock += (paid_ns(share, ns, without_ns) - share->charged_ns) / share->weight;
    flow->taken--;
    *share->link = share->next;
    if (share->next)
        share->next->link = share->link;
    if (queue->busy_count == 0 && !queue->in_hand)
        restart_clocks(queue);
    (void)pthread_mutex_unlock(&queue->lock);
}

int attnd_cpu_queue_empty(const struct attnd_cpu_queue *queue)
{
    return attnd_observe32(&queue->waiting) == 0;
}
