/*
 * queue.h - runs in flight, and whose items are next.
 */
#ifndef ATTND_PERSISTENT_CPU_QUEUE_H
#define ATTND_PERSISTENT_CPU_QUEUE_H

#include "persistent/cpu/state.h"

/** attnd_cpu_share_reached() - the flow's clock by what the share has had. */
static inline double attnd_cpu_share_reached(const struct attnd_cpu_share *share)
{
    return share->start + (double)attnd_peek64(&share->had_ns) / share->weight;
}

/** attnd_cpu_queue_init() - @runs slots. Return: 0, -ATTND_E_NO_MEMORY. */
int attnd_cpu_queue_init(struct attnd_cpu_queue *queue, uint32_t runs, uint32_t threads);
void attnd_cpu_queue_free(struct attnd_cpu_queue *queue);

/**
 * attnd_cpu_queue_publish() - let threads take items of a resolved run
 * @shared: whose it is, and of what weight (a weight of 0 is 1)
 * @items:  at least 1
 *
 * Threads: the dispatcher.
 */
void attnd_cpu_queue_publish(struct attnd_cpu_queue *queue, struct attnd_cpu_run *run,
                             const struct attnd_run *shared, uint32_t items);

/**
 * attnd_cpu_queue_take() - items nobody else will get, of the session that is the furthest behind
 * @before: only if its clock is less; INFINITY: whatever it is
 *
 * Threads: any. Blocking: for others' calls of this and the two beside it. Every share that was
 * taken is charged for in the end, and stays where it is until then.
 * Return: 1 and *share; 0 if there is none.
 */
int attnd_cpu_queue_take(struct attnd_cpu_queue *queue, double before,
                         struct attnd_cpu_share *share);

/** attnd_cpu_share_is_late() - it took longer than it said: was its thread without a processor? */
static inline int attnd_cpu_share_is_late(const struct attnd_cpu_share *share, uint64_t ns)
{
    return (double)ns > share->charged_ns;
}

/**
 * attnd_cpu_queue_charge() - what a share took in the end; before its items count as done
 * @ns:         from its begin to its end, without what came in between
 * @without_ns: of a share that is late: how long its thread had no processor; else 0
 *
 * Time that others of the machine had is not paid for. It may be many times what a short share
 * took, and its session would then wait for as long.
 */
void attnd_cpu_queue_charge(struct attnd_cpu_queue *queue, struct attnd_cpu_share *share,
                            uint64_t ns, uint64_t without_ns);

/** attnd_cpu_queue_empty() - 1 if no item is waiting; a hint. */
int attnd_cpu_queue_empty(const struct attnd_cpu_queue *queue);

#endif
