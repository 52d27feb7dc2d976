/*
 * queue.c - runs in flight, and tickets for their items.
 *
 * The queue holds the slots of runs that have items left, oldest first; threads take from the
 * oldest. A slot's ticket word carries the run's place in the queue beside the items left, so that
 * a thread which looked away while a slot was retired and opened again finds its compare-and-swap
 * refused instead of taking from a run it did not see. Whoever takes the last items moves the head
 * before it executes them; a run can therefore not be retired, and its slot not be reused, while
 * the queue still names it, and the queue never holds more than there are slots.
 *
 * Items of one tile are neighbours and read the same pages for neighbouring heads, so a thread
 * takes several at once while there is plenty for everybody.
 */
#include <stdlib.h>

#include "persistent/cpu/cpu.h"
#include "schemas/atomics.h"

int attnd_cpu_queue_init(struct attnd_cpu_queue *queue, uint32_t runs, uint32_t threads,
                         const struct attnd_run *shared)
{
    uint32_t capacity = 1;
    while (capacity < runs)
        capacity *= 2;
    queue->mask = capacity - 1;
    queue->threads = threads;
    queue->shared = shared;
    queue->fifo = calloc(capacity, sizeof *queue->fifo);
    queue->runs = aligned_alloc(ATTND_CACHE_LINE, capacity * sizeof *queue->runs);
    if (queue->fifo == NULL || queue->runs == NULL)
        return -ATTND_E_NO_MEMORY;
    for (uint32_t i = 0; i < capacity; i++)
        queue->runs[i] = (struct attnd_cpu_run){.index = i};
    return 0;
}

void attnd_cpu_queue_free(struct attnd_cpu_queue *queue)
{
    free(queue->fifo);
    free(queue->runs);
}

void attnd_cpu_queue_publish(struct attnd_cpu_queue *queue, struct attnd_cpu_run *run,
                             uint32_t items)
{
    uint32_t tail = attnd_peek32(&queue->tail);
    attnd_poke32(&run->items, items);
    attnd_publish64(&run->tickets, (uint64_t)tail << 32 | items); /* R1: covers the slot */
    attnd_poke32(&queue->fifo[tail & queue->mask], run->index);
    attnd_publish32(&queue->tail, tail + 1); /* R1: covers the fifo entry and the tickets */
}

/* How many of @left items to take: to the end of the tile, but leaving two turns for everybody. */
static uint32_t portion(const struct attnd_cpu_queue *queue, const struct attnd_cpu_run *run,
                        uint32_t left)
{
    uint32_t heads = attnd_peek32(&run->heads);
    uint32_t item = attnd_peek32(&run->items) - left;
    uint32_t fair = left / (2 * queue->threads);
    uint32_t rest = heads - item % heads;
    return fair < 1 ? 1 : fair < rest ? fair : rest;
}

int attnd_cpu_queue_take(struct attnd_cpu_queue *queue, struct attnd_cpu_share *share)
{
    for (;;) {
        uint32_t head = attnd_observe32(&queue->head);
        if (head == attnd_observe32(&queue->tail)) /* A1 */
            return 0;
        uint32_t index = attnd_peek32(&queue->fifo[head & queue->mask]);
        struct attnd_cpu_run *run = &queue->runs[index];
        uint64_t word = attnd_observe64(&run->tickets); /* A1 */
        uint32_t left = (uint32_t)word;
        if ((uint32_t)(word >> 32) != head)
            continue; /* the head has moved on meanwhile */
        if (left == 0) {
            (void)attnd_claim32(&queue->head, head, head + 1);
            continue;
        }
        /* Held together by the claim: where it succeeds, what was peeked at was this run's. */
        int skip = attnd_peek32(&queue->shared[index].cancel) != 0;
        uint32_t count = skip ? left : portion(queue, run, left);
        if (!attnd_claim64(&run->tickets, word, word - count))
            continue;
        if (count == left)
            (void)attnd_claim32(&queue->head, head, head + 1);
        share->run = run;
        share->item_begin = run->items - left;
        share->item_end = share->item_begin + count;
        share->skip = skip;
        return 1;
    }
}

int attnd_cpu_queue_empty(const struct attnd_cpu_queue *queue)
{
    return attnd_observe32(&queue->head) == attnd_observe32(&queue->tail);
}
