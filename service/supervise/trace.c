/*
 * trace.c - reads the rings of records that the worker writes.
 *
 * The worker does not know its readers and does not wait for them. A record is whole if its sum is
 * right for the number that is wanted: it is copied first and summed then.
 */
#include "service/supervise/trace.h"

#include "schemas/atomics.h"

#include <string.h>

#define WORDS (sizeof(struct attnd_trace_record) / sizeof(uint32_t))
/* A record that is begun may be on its way still: within this many of the end it is waited for. */
#define SETTLING 16u

uint32_t attnd_trace_workers(const struct attnd_queue *queue)
{
    const uint32_t workers = queue->info.tile_workers;

    return workers <= ATTND_TRACE_WORKERS_MAX ? workers : 0;
}

void attnd_trace_watch(struct attnd_queue *queue, uint64_t now_ns, uint32_t patience_ms,
                       uint32_t *next)
{
    const uint32_t now_ms = (uint32_t)(now_ns / 1000000), until_ms = now_ms + patience_ms;
    const uint32_t before_ms = queue->trace_until_ms;

    if (!attnd_trace_on(before_ms, now_ms) || before_ms - now_ms < patience_ms)
        queue->trace_until_ms = until_ms ? until_ms : 1;
    attnd_poke32(&queue->head->trace_until_ms, queue->trace_until_ms);
    for (uint32_t w = 0; next && w < attnd_trace_workers(queue); w++)
        next[w] = attnd_peek32(&queue->trace->next[w]);
}

/* Return: 1 and *record, if it is number @number. */
static int read_one(const struct attnd_trace_record *at, uint32_t number, uint64_t offset_ns,
                    struct attnd_trace_record *record)
{
    const uint32_t *from = (const void *)at;
    uint32_t words[WORDS] = {0};

    for (uint32_t i = 0; i < WORDS; i++)
        words[i] = attnd_peek32(&from[i]);
    memcpy(record, words, sizeof(*record));
    record->begin_ns += offset_ns;
    record->end_low += (uint32_t)offset_ns;
    return record->seal == attnd_trace_seal(words, number);
}

/* Of the ring of @worker. Return: how many; *lost counts on. */
static uint32_t read_ring(const struct attnd_queue *queue, uint32_t worker, uint32_t *next,
                          struct attnd_trace_record *records, uint32_t count, uint64_t *lost)
{
    const uint32_t each = ATTND_TRACE_RECORDS / attnd_trace_workers(queue);
    const struct attnd_trace_record *ring =
        (const struct attnd_trace_record *)(const void *)(queue->trace + 1) + (size_t)worker * each;
    const uint32_t end = attnd_observe32(&queue->trace->next[worker]);
    const uint64_t offset_ns = attnd_peek64(&queue->trace->offset_ns);
    uint32_t found = 0;

    if (end - *next > each) {
        *lost += end - *next - each;
        *next = end - each;
    }
    for (; *next != end && found < count; (*next)++) {
        if (read_one(&ring[*next % each], *next, offset_ns, &records[found]))
            found++;
        else if (end - *next <= SETTLING)
            break;
        else
            (*lost)++;
    }
    return found;
}

uint32_t attnd_trace_read(const struct attnd_queue *queue, uint32_t *next,
                          struct attnd_trace_record *records, uint32_t count, uint64_t *lost)
{
    const uint32_t workers = attnd_trace_workers(queue);
    uint32_t found = 0;

    *lost = 0;
    for (uint32_t w = 0; w < workers; w++)
        found += read_ring(queue, w, &next[w], records + found, count / workers, lost);
    return found;
}
