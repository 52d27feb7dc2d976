/*
 * host.h - what of a pool's prefixes lies in host memory: a dictionary from (namespace, key) to
 * places for pages, of which the least recently used goes first.
 *
 * It knows no memory and moves no byte. Places are numbers from 0 on, one for each page of a block.
 * A block that is held, because a copy of it is under way, stays where it is. One thread.
 */
#ifndef ATTND_SERVICE_PREFIX_HOST_H
#define ATTND_SERVICE_PREFIX_HOST_H

#include "schemas/abi.h"
#include "schemas/errors.h"

struct attnd_host;

struct attnd_host_block {
    struct attnd_block_key key, parent; /* parent: if there is one */
    uint32_t space, pages;
    uint32_t publisher; /* session */
    uint32_t depth;     /* blocks before it */
    uint32_t holds;     /* copies under way */
    uint8_t has_parent;
    uint8_t filled;    /* its bytes are there */
    uint8_t forgotten; /* nobody finds it; it goes with its last hold */
    uint8_t used;
    uint32_t first;        /* of its places; the others by a list of the dictionary's */
    uint32_t next;         /* 1 + block: in its bucket, or free */
    uint32_t newer, older; /* 1 + block: where neither holds nor forgotten */
    void *mover;           /* the caller's: what copies it now; NULL: nothing */
};

/* The cost of a place in the daemon's memory at most: a block, the list of places, two buckets. */
#define ATTND_HOST_PLACE_BYTES (80u + 4u + 2u * 4u)

/** attnd_host_new() - without any place. Return: 0; -ATTND_E_NO_MEMORY; -ATTND_E_SYSTEM: no random
 * numbers for the index. */
int attnd_host_new(struct attnd_host **out);
/** attnd_host_free() - nothing of it is held. NULL is fine. */
void attnd_host_free(struct attnd_host *host);

/** attnd_host_grow() - @places more, behind those that there are. Return: 0; -ATTND_E_NO_MEMORY;
 * -ATTND_E_RANGE: more than 2^31 in all. */
int attnd_host_grow(struct attnd_host *host, uint32_t places);

/** attnd_host_find() - ATTND_NONE: it is not there. */
uint32_t attnd_host_find(const struct attnd_host *host, uint32_t space,
                         const struct attnd_block_key *key);
/** attnd_host_at() - borrowed, until the next attnd_host_grow(). */
struct attnd_host_block *attnd_host_at(const struct attnd_host *host, uint32_t block);

/**
 * attnd_host_add() - places for a block whose key is not there; others go for it
 * @block: key, parent, space, pages, publisher and depth of it
 * It is held once, and not filled. Return: its number; ATTND_NONE: what is not held is not enough.
 */
uint32_t attnd_host_add(struct attnd_host *host, const struct attnd_host_block *block);

/** attnd_host_hold() - once more: it stays where it is. */
void attnd_host_hold(struct attnd_host *host, uint32_t block);
/** attnd_host_drop() - once less. With the last hold it is the most recently used, or goes if it is
 * forgotten or was never filled. */
void attnd_host_drop(struct attnd_host *host, uint32_t block);
/** attnd_host_use() - it is the most recently used. */
void attnd_host_use(struct attnd_host *host, uint32_t block);
/** attnd_host_forget() - nobody finds it from now on. */
void attnd_host_forget(struct attnd_host *host, uint32_t block);
/** attnd_host_forget_space() - all of a namespace. */
void attnd_host_forget_space(struct attnd_host *host, uint32_t space);

/** attnd_host_places() - of a block, in the order of its pages. @places: [pages] */
void attnd_host_places(const struct attnd_host *host, uint32_t block, uint32_t *places);

/* Numbers that can be read of it. */
struct attnd_host_info {
    uint32_t places, places_used;
    uint32_t blocks; /* that can be found */
    uint64_t evicted;
};
struct attnd_host_info attnd_host_info(const struct attnd_host *host);
/** attnd_host_in_space() - blocks of a namespace that can be found. */
uint32_t attnd_host_in_space(const struct attnd_host *host, uint32_t space);
/** attnd_host_bytes() - of the daemon's memory. */
uint64_t attnd_host_bytes(const struct attnd_host *host);

#endif
