/*
 * results.c - the ring of words beside the completions.
 */
#include "service/sched/results.h"

#include "service/sched/complete.h"
#include "service/sched/lanes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int attnd_results_init(struct attnd_results *results, const struct attnd_client *client)
{
    void *words = (char *)client->completion.address + client->results_offset_bytes;

    *results = (struct attnd_results){.words = words,
                                      .mark = calloc(client->ring_entries, sizeof(*results->mark))};
    return results->mark ? 0 : -ATTND_E_NO_MEMORY;
}

/* The client's head of the completion ring, as it was last checked, says what it has read. */
static void reclaim(struct attnd_client_lanes *session)
{
    struct attnd_results *results = &session->results;
    const struct attnd_producer *cq = &session->client->cq;

    while (results->mark_begin != results->mark_end) {
        const struct attnd_result_mark *mark = &results->mark[results->mark_begin % cq->entries];
        if (mark->slot - cq->head_seen < cq->entries)
            return;
        results->begin = mark->end;
        results->mark_begin++;
    }
}

int attnd_results_room(struct attnd_client_lanes *session, uint32_t words)
{
    const struct attnd_results *results = &session->results;

    if (words <= ATTND_RESULT_WORDS - (results->end - results->begin) - results->reserved)
        return 1;
    if (attnd_producer_space(&session->client->cq) < 0) {
        attnd_lanes_break(session);
        return 0;
    }
    reclaim(session);
    return words <= ATTND_RESULT_WORDS - (results->end - results->begin) - results->reserved;
}

void attnd_results_reserve(struct attnd_sched_op *op, uint32_t words)
{
    op->result_words = words;
    op->lane->session->results.reserved += words;
}

void attnd_results_unreserve(struct attnd_sched_op *op)
{
    op->lane->session->results.reserved -= op->result_words;
    op->result_words = 0;
}

void attnd_results_put(struct attnd_sched_op *op, const int32_t *words, uint32_t count)
{
    struct attnd_client_lanes *session = op->lane->session;
    struct attnd_results *results = &session->results;
    uint32_t entries = session->client->cq.entries;
    uint32_t place = results->end % ATTND_RESULT_WORDS;
    uint32_t first = ATTND_RESULT_WORDS - place < count ? ATTND_RESULT_WORDS - place : count;

    if (count == 0 || session->closing || session->broken)
        return; /* nothing is posted */
    assert(count <= ATTND_RESULT_WORDS - (results->end - results->begin));
    if (results->mark_end - results->mark_begin == entries)
        reclaim(session);
    assert(results->mark_end - results->mark_begin < entries);
    memcpy(results->words + place, words, first * sizeof(*words));
    memcpy(results->words, words + first, (count - first) * sizeof(*words));
    results->end += count;
    results->mark[results->mark_end++ % entries] =
        (struct attnd_result_mark){.slot = session->client->cq.index, .end = results->end};
    op->answer_words = count;
    op->fault.limit = place;
}
