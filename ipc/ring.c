/*
 * ring.c - the one ring discipline.
 *
 * Each end trusts three things only: its own index, the ring's length, and the last index of the
 * peer that it has checked. An index of the peer is read once, checked against what a correct peer
 * could have reached, and kept; the shared word is not looked at again until the kept one is used
 * up. That is the safety of the ring, and its speed too: in the middle of a burst neither end
 * touches the other's cache line.
 *
 * Indices run freely through 2^32; every comparison is a difference, so the wrap is not special.
 */
#include "ipc/ring.h"

#include "schemas/atomics.h"

#include <assert.h>
#include <string.h>

int attnd_ring_entries_valid(uint32_t entries)
{
    return entries >= ATTND_RING_ENTRIES_MIN && entries <= ATTND_RING_ENTRIES_MAX &&
           (entries & (entries - 1)) == 0;
}

void attnd_producer_init(struct attnd_producer *ring, void *slots, uint32_t *tail,
                         const uint32_t *head, uint32_t entries)
{
    assert(attnd_ring_entries_valid(entries));
    *ring = (struct attnd_producer){.slots = slots,
                                    .tail = tail,
                                    .head = head,
                                    .entries = entries,
                                    .slot_bytes = ATTND_SLOT_BYTES};
}

void attnd_consumer_init(struct attnd_consumer *ring, const void *slots, const uint32_t *tail,
                         uint32_t *head, uint32_t entries)
{
    assert(attnd_ring_entries_valid(entries));
    *ring = (struct attnd_consumer){.slots = slots,
                                    .tail = tail,
                                    .head = head,
                                    .entries = entries,
                                    .slot_bytes = ATTND_SLOT_BYTES};
}

/* A1: the consumer is done with every slot before @head. A head may move up to our index, never
 * back. */
static int refresh_head(struct attnd_producer *ring)
{
    uint32_t head = attnd_observe32(ring->head);
    if (head - ring->head_seen > ring->index - ring->head_seen)
        return -ATTND_E_PROTOCOL;
    ring->head_seen = head;
    return 0;
}

int attnd_producer_space(struct attnd_producer *ring)
{
    int rc = refresh_head(ring);
    return rc < 0 ? rc : (int)(ring->entries - (ring->index - ring->head_seen));
}

int attnd_producer_push(struct attnd_producer *ring, const void *slot)
{
    if (ring->index - ring->head_seen == ring->entries) {
        int space = attnd_producer_space(ring);
        if (space <= 0)
            return space < 0 ? space : -ATTND_E_FULL;
    }
    size_t place = ring->index & (ring->entries - 1);
    memcpy((char *)ring->slots + place * ring->slot_bytes, slot, ring->slot_bytes);
    attnd_publish32(ring->tail, ++ring->index); /* R1: the slot is complete */
    return 0;
}

/* A1: every slot before @tail is complete. A tail never moves back, nor further than the ring is
 * long; all before it are taken, so either reads as more than there can be. Returns how many slots
 * are ready. */
static int refresh_tail(struct attnd_consumer *ring)
{
    uint32_t tail = attnd_observe32(ring->tail);
    uint32_t ready = tail - ring->index;
    if (ready > ring->entries)
        return -ATTND_E_PROTOCOL;
    ring->tail_seen = tail;
    return (int)ready;
}

int attnd_consumer_peek(struct attnd_consumer *ring, void *slot)
{
    if (ring->index == ring->tail_seen) {
        int ready = refresh_tail(ring);
        if (ready <= 0)
            return ready;
    }
    /* Word by word through single loads: a hostile peer may write the slot meanwhile, and the
     * compiler must not read it a second time after the caller has checked the copy. */
    size_t place = ring->index & (ring->entries - 1);
    const size_t words = ring->slot_bytes / sizeof(uint64_t);
    const uint64_t *source = (const uint64_t *)ring->slots + place * words;
    for (size_t i = 0; i < words; i++) {
        const uint64_t word = attnd_peek64(&source[i]);
        memcpy((char *)slot + i * sizeof(word), &word, sizeof(word));
    }
    return 1;
}

void attnd_consumer_skip(struct attnd_consumer *ring)
{
    assert(ring->index != ring->tail_seen);
    attnd_publish32(ring->head, ++ring->index); /* R1: the copy is done, the slot may be reused */
}

int attnd_consumer_pop(struct attnd_consumer *ring, void *slot)
{
    int rc = attnd_consumer_peek(ring, slot);
    if (rc > 0)
        attnd_consumer_skip(ring);
    return rc;
}

int attnd_consumer_empty(struct attnd_consumer *ring)
{
    return attnd_observe32(ring->tail) == ring->index;
}
