/* trace.c - records into the ring of the queue segment: a slot by a ticket, its number last. */
#include "persistent/trace.h"

#include <string.h>

#define WORDS (sizeof(struct attnd_trace_record) / sizeof(uint64_t))

void attnd_trace_add(struct attnd_queue_head *head, const struct attnd_trace_record *record)
{
    struct attnd_trace_head *trace = (void *)((char *)head + head->trace_offset_bytes);
    struct attnd_trace_record *records = (void *)(trace + 1);
    const uint64_t number = attnd_take64(&trace->next, 1);
    struct attnd_trace_record own = *record;
    uint64_t words[WORDS];
    uint64_t *to = (void *)&records[number % ATTND_TRACE_RECORDS];

    own.number = (uint32_t)number + 1;
    memcpy(words, &own, sizeof(words));
    attnd_poke64(&to[WORDS - 1], 0);
    attnd_fence_full(); /* a reader of words of this record sees that it is none, or is whole */
    for (uint32_t i = 0; i + 1 < WORDS; i++)
        attnd_poke64(&to[i], words[i]);
    attnd_publish64(&to[WORDS - 1], words[WORDS - 1]); /* R1: the other words */
}
