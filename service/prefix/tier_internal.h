/*
 * tier_internal.h - what the files of the second tier share. Nobody else includes it.
 */
#ifndef ATTND_SERVICE_PREFIX_TIER_INTERNAL_H
#define ATTND_SERVICE_PREFIX_TIER_INTERNAL_H

#include "service/prefix/host.h"
#include "service/prefix/tier.h"

/* Of a batch; a block has no more. */
#define ATTND_TIER_BATCH_PAGES ATTND_PREFIX_BLOCK_PAGES_MAX

enum attnd_tier_way { ATTND_TIER_IN, ATTND_TIER_OUT, ATTND_TIER_WAYS };

/* A block on its way. The tier holds its places, and has a lease of each of its pages: of a block
 * that comes, from when its batch is formed. */
struct attnd_tier_move {
    struct attnd_tier_move *next;   /* in its queue or its batch */
    struct attnd_tier_batch *batch; /* NULL: it waits */
    uint32_t block;                 /* of the dictionary */
    enum attnd_tier_way way;
    int has_pages;
    uint32_t count;
    int32_t pages[]; /* [count] */
};

struct attnd_tier_queue {
    struct attnd_tier_move *first, **end;
    uint32_t pages;
};

/* Blocks that are copied together, some layers at a time. */
struct attnd_tier_batch {
    struct attnd_tier_batch *next;
    struct attnd_tier *tier;
    enum attnd_tier_way way;
    struct attnd_tier_move *moves;
    uint32_t pages;
    uint32_t layer;  /* sent up to here */
    uint32_t pieces; /* in flight */
    uint32_t piece_layers;
    int code; /* < 0: it has failed */
    uint64_t sent_ns;
    struct attnd_copy_page page[ATTND_TIER_BATCH_PAGES];
};

struct attnd_tier {
    struct attnd_service *service;
    struct attnd_pool *pool;
    struct attnd_tree *tree;
    struct attnd_host *host;
    struct attnd_payer payer;
    uint64_t page_bytes; /* in all layers */
    uint32_t chunk_places;
    struct attnd_memory **chunks; /* host memory of chunk_places each, the last perhaps fewer */
    uint32_t chunks_count;
    int broken; /* host memory cannot be had: nothing goes there any more */
    int dirty;  /* the tree's counts of hosted blocks are old */
    struct attnd_tree_owner owner;
    struct attnd_tier_queue queue[ATTND_TIER_WAYS];
    struct attnd_tier_batch *batches[ATTND_TIER_WAYS]; /* oldest first */
    uint32_t batched_pages[ATTND_TIER_WAYS];
    uint32_t in_flight; /* pieces, each with a reference of the pool */
    uint64_t landed_ns; /* the last piece into the pool */
    double in_rate;     /* bytes a second; 0: not known */
    struct attnd_tier_info stats;
    struct attnd_work refill_work; /* more is to leave than one step */
};

/* ---- moves.c ---- */

/** attnd_tier_move() - put a block in its queue; it is held for this.
 * @pages: the tier's from now on; NULL: of a block that comes
 * Return: 0; -ATTND_E_NO_MEMORY. */
int attnd_tier_move(struct attnd_tier *tier, enum attnd_tier_way way, uint32_t block,
                    const int32_t *pages, uint32_t count);
/** attnd_tier_find() - the move of a block, in a batch or not; NULL: none. */
struct attnd_tier_move *attnd_tier_find(const struct attnd_tier *tier, uint32_t block);
/** attnd_tier_cancel_move() - one that waits to leave: its pages are given up, and its block. */
void attnd_tier_cancel_move(struct attnd_tier *tier, struct attnd_tier_move *move);
/** attnd_tier_pump() - send what can be sent. */
void attnd_tier_pump(struct attnd_tier *tier);
/** attnd_tier_moves_free() - nothing is in flight. */
void attnd_tier_moves_free(struct attnd_tier *tier);

/* ---- tier.c ---- */

/** attnd_tier_report() - tell the tree how many blocks lie here, if that has changed. */
void attnd_tier_report(struct attnd_tier *tier);

#endif
