/*
 * ring.h - the one ring: single producer, single consumer, slots of one size, free-running 32-bit
 * indices in separate cache lines.
 *
 * The same code moves submissions, completions, commands and retires; commands are longer than the
 * rest, so both ends of that ring say slot_bytes after init. Each end keeps its own index
 * in private memory and only publishes it, so a hostile peer can corrupt the words it owns and
 * nothing else: an index that runs further than the ring is long is -ATTND_E_PROTOCOL.
 *
 * Sleeping is not the ring's business: wake.h has it.
 */
#ifndef ATTND_IPC_RING_H
#define ATTND_IPC_RING_H

#include "schemas/abi.h"
#include "schemas/errors.h"

struct attnd_producer {
    void *slots;
    uint32_t *tail;       /* ours, shared */
    const uint32_t *head; /* the peer's, shared */
    uint32_t entries;     /* power of two */
    uint32_t slot_bytes;  /* ATTND_SLOT_BYTES unless set to another multiple of 8 before use */
    uint32_t index;       /* next to write: private truth */
    uint32_t head_seen;   /* last observed */
};

struct attnd_consumer {
    const void *slots;
    const uint32_t *tail; /* the peer's, shared */
    uint32_t *head;       /* ours, shared */
    uint32_t entries;
    uint32_t slot_bytes; /* as the producer's */
    uint32_t index;      /* next to read: private truth */
    uint32_t tail_seen;  /* last observed */
};

/** attnd_ring_entries_valid() - a power of two within ATTND_RING_ENTRIES_MIN..MAX. */
int attnd_ring_entries_valid(uint32_t entries);

void attnd_producer_init(struct attnd_producer *ring, void *slots, uint32_t *tail,
                         const uint32_t *head, uint32_t entries);
void attnd_consumer_init(struct attnd_consumer *ring, const void *slots, const uint32_t *tail,
                         uint32_t *head, uint32_t entries);

/**
 * attnd_producer_push() - publish one slot
 * @slot: slot_bytes, copied
 *
 * Threads: one producer, concurrent with the consumer. Never blocks. Memory: R1 on tail.
 * Return: 0; -ATTND_E_FULL; -ATTND_E_PROTOCOL if the peer's head is impossible.
 */
int attnd_producer_push(struct attnd_producer *ring, const void *slot);

/** attnd_producer_space() - free slots, or -ATTND_E_PROTOCOL. */
int attnd_producer_space(struct attnd_producer *ring);

/**
 * attnd_consumer_pop() - copy one slot out and free it
 * Memory: A1 on tail, R1 on head. Return: 1 popped; 0 empty; -ATTND_E_PROTOCOL.
 */
int attnd_consumer_pop(struct attnd_consumer *ring, void *slot);

/** attnd_consumer_peek() - copy the next slot without freeing it; as pop. */
int attnd_consumer_peek(struct attnd_consumer *ring, void *slot);

/** attnd_consumer_skip() - free the slot last peeked. */
void attnd_consumer_skip(struct attnd_consumer *ring);

/** attnd_consumer_empty() - 1 if nothing is published (looks at the shared tail, A1). */
int attnd_consumer_empty(struct attnd_consumer *ring);

#endif
