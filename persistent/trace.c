/* trace.c - a record into its worker's ring: its words in any order, because the last has a sum. */
#include "persistent/trace.h"

#include <string.h>

#define WORDS (sizeof(struct attnd_trace_record) / sizeof(uint32_t))

void attnd_trace_add(struct attnd_queue_head *head, uint32_t worker, uint32_t workers,
                     const struct attnd_trace_record *record)
{
    struct attnd_trace_head *trace = (void *)((char *)head + head->trace_offset_bytes);
    struct attnd_trace_record *records = (void *)(trace + 1);
    const uint32_t each = ATTND_TRACE_RECORDS / workers;
    const uint32_t number = attnd_peek32(&trace->next[worker]);
    uint32_t *to = (void *)&records[worker * each + number % each];
    uint32_t words[WORDS];

    memcpy(words, record, sizeof(words));
    words[ATTND_TRACE_WORDS] = attnd_trace_seal(words, number);
    for (uint32_t i = 0; i < WORDS; i++)
        attnd_poke32(&to[i], words[i]);
    attnd_publish32(&trace->next[worker], number + 1);
}
