/*
 * places.h - pages of a pool as the mover sees them: blocks of bytes, and fragments of blocks.
 *
 * A block is one page in one plane: K or V of one layer. On the wire it is dense, of tokens with
 * all their heads or of heads with all their tokens, whichever the giver's pool is. A fragment is
 * what one active message carries: some blocks of one plane.
 */
#ifndef ATTND_SERVICE_MOVER_PLACES_H
#define ATTND_SERVICE_MOVER_PLACES_H

#include "schemas/abi.h"
#include "service/peers/message.h"

#define ATTND_BLOCK_BYTES_MAX (16u << 20)
#define ATTND_FRAGMENT_BLOCKS 64u
#define ATTND_FRAGMENT_BYTES (256u << 10) /* unless one block is longer */

enum attnd_block_order {
    ATTND_BLOCK_BY_TOKEN, /* dense, tokens with all their heads */
    ATTND_BLOCK_BY_HEAD,  /* dense, heads with all their tokens */
    ATTND_BLOCK_STRIDED   /* with gaps */
};

struct attnd_map; /* maps.h */

struct attnd_places {
    struct attnd_heap_pool shape;
    uint32_t element_bytes;
    uint32_t maps_count;
    struct attnd_map *maps[ATTND_PEER_MEMORIES_MAX];
    struct attnd_heap_plane *planes; /* [2 * layers], K's first; memory: among maps */
    uint32_t count;
    uint32_t *page; /* [count] */
};

/* Which blocks a fragment of some layers has. */
struct attnd_fragment {
    uint32_t layer, half; /* half 1: V */
    uint32_t first, count;
};

/**
 * attnd_places_new() - map what a grant describes
 * @fds:    [grant->n_memory]; stay the caller's
 * @writes: 0: it is only read
 * Every element of every page of the pool lies in its memory, or it is refused.
 * Return: 0; -ATTND_E_RANGE, -ATTND_E_UNSUPPORTED, -ATTND_E_SYSTEM, -ATTND_E_NO_MEMORY.
 */
int attnd_places_new(const Attnd__PeerGrant *grant, const int *fds, int writes,
                     struct attnd_places **out);
void attnd_places_free(struct attnd_places *places);

/** attnd_places_v_in_k() - 1: the values are the first elements of the keys, as MLA has it. */
int attnd_places_v_in_k(const struct attnd_places *places);

uint64_t attnd_block_bytes(const struct attnd_places *places, uint32_t half);
enum attnd_block_order attnd_block_order(const struct attnd_places *places, uint32_t layer,
                                         uint32_t half);
/** attnd_block_at() - the first byte of page number @index of the places. */
uint8_t *attnd_block_at(const struct attnd_places *places, uint32_t layer, uint32_t half,
                        uint32_t index);
/** attnd_block_gather() - a block, made dense in @order, to @to. */
void attnd_block_gather(const struct attnd_places *places, uint32_t layer, uint32_t half,
                        uint32_t index, enum attnd_block_order order, uint8_t *to);
/** attnd_block_scatter() - a dense block in @order to its place. */
void attnd_block_scatter(const struct attnd_places *places, uint32_t layer, uint32_t half,
                         uint32_t index, enum attnd_block_order order, const uint8_t *from);

/** attnd_fragments() - of @layers layers with @halves planes each. Both movers count alike. */
uint64_t attnd_fragments(const struct attnd_places *places, uint32_t layers, uint32_t halves);
/** attnd_fragment_at() - number @number of those that begin with @layer_begin. */
struct attnd_fragment attnd_fragment_at(const struct attnd_places *places, uint32_t layer_begin,
                                        uint32_t halves, uint64_t number);

#endif
