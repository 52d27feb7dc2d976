/*
 * trace.c - reads the ring of records that the worker writes.
 *
 * The worker does not know its readers and does not wait for them. So a record is read between two
 * looks at its number: it is whole if both say the number that is wanted.
 */
#include "service/supervise/trace.h"

#include "schemas/atomics.h"

#include <string.h>

#define WORDS (sizeof(struct attnd_trace_record) / sizeof(uint64_t))

uint64_t attnd_trace_watch(struct attnd_queue *queue, uint64_t now_ns)
{
    attnd_poke64(&queue->head->trace_until_ns, now_ns + ATTND_TRACE_PATIENCE_NS);
    return attnd_peek64(&queue->trace->next);
}

/* Return: 1 and *record, if it is number @number. */
static int read_one(const struct attnd_trace_record *at, uint64_t number,
                    struct attnd_trace_record *record)
{
    const uint64_t *from = (const void *)at;
    uint64_t words[WORDS];

    words[WORDS - 1] = attnd_observe64(&from[WORDS - 1]); /* A1: the other words */
    for (uint32_t i = 0; i + 1 < WORDS; i++)
        words[i] = attnd_peek64(&from[i]);
    attnd_fence_full(); /* and only then is it looked at again */
    if (attnd_peek64(&from[WORDS - 1]) != words[WORDS - 1])
        return 0;
    memcpy(record, words, sizeof(*record));
    return record->number == (uint32_t)number + 1;
}

/* Records are complete in another order than they are begun in. Within this many of the end they
 * are asked for again. */
#define SETTLING 256u

uint32_t attnd_trace_read(const struct attnd_queue *queue, uint64_t *next,
                          struct attnd_trace_record *records, uint32_t count, uint64_t *lost)
{
    const struct attnd_trace_head *head = queue->trace;
    const struct attnd_trace_record *ring = (const void *)(head + 1);
    const uint64_t end = attnd_observe64(&head->next);
    uint64_t at = *next > end ? 0 : *next;
    uint32_t found = 0;

    *lost = 0;
    if (end - at > ATTND_TRACE_RECORDS) {
        *lost = end - at - ATTND_TRACE_RECORDS;
        at = end - ATTND_TRACE_RECORDS;
    }
    for (; at < end && found < count; at++) {
        if (read_one(&ring[at % ATTND_TRACE_RECORDS], at, &records[found])) {
            found++;
            continue;
        }
        if (end - at <= SETTLING)
            break;
        (*lost)++;
    }
    *next = at;
    return found;
}

uint32_t attnd_trace_groups(const struct attnd_queue *queue)
{
    const uint32_t groups = attnd_peek32(&queue->trace->groups);

    return groups ? groups : 1;
}
