/*
 * pool.h - pools of pages, and the sessions' holds on them.
 */
#ifndef ATTND_SERVICE_OBJECTS_POOL_H
#define ATTND_SERVICE_OBJECTS_POOL_H

#include "service/objects/memory.h"

struct attnd_arrival;     /* arrival.h */
struct attnd_pool_prefix; /* prefix/prefix.h */

/* Another keeper of pages of a pool beside sessions and tickets: its prefix tree, by one lease of
 * each. */
struct attnd_page_keeper {
    /* Give up leases until @pages more pages are free, if that can be, and of @most pages at once;
     * they come by attnd_lease_drop(). Return: how many pages. */
    uint32_t (*evict)(struct attnd_pool *pool, uint32_t pages, uint32_t most);
    /* One lease of @page is left, which may be the keeper's. */
    void (*idle)(struct attnd_pool *pool, int32_t page);
    /* A session took pages, or gave some back. */
    void (*changed)(struct attnd_pool *pool);
    void (*end)(struct attnd_pool *pool); /* the pool goes */
};

struct attnd_pool {
    uint32_t id;
    uint32_t refs;                /* attachments and tickets */
    struct attnd_payer payer;     /* that made it */
    uint64_t charged_bytes;       /* of the daemon's memory, against the payer */
    uint32_t page_owner;          /* PageOwner of attnd.proto */
    struct attnd_heap_pool shape; /* private copy of *heap */
    struct attnd_heap_pool *heap; /* in the queue segment, planes behind it */
    uint64_t heap_offset_bytes;
    uint64_t heap_bytes;
    uint32_t memories_count;
    struct attnd_memory **memories;   /* referenced; distinct */
    uint64_t memory_bytes;            /* of all of them */
    struct attnd_interval *intervals; /* of its planes, those of each memory together */
    uint32_t *intervals_end;          /* [memories_count] */
    uint16_t *leases;                 /* [pages] all leases of a page; NULL for OWNER_ENGINE */
    uint16_t *quiet; /* [pages] of those, such as make no page shared (lease.c); NULL: none yet */
    int32_t *free_pages; /* stack of pages that came back */
    uint32_t free_count;
    uint32_t readers;      /* attachments for reading */
    uint32_t reader_pages; /* of each attachment for reading: that it has leases of */
    uint32_t fresh;        /* pages from here on were never leased */
    uint8_t token[2][ATTND_SECRET_BYTES];   /* [writable]; all zero: never shared */
    const struct attnd_page_keeper *keeper; /* NULL: nobody */
    struct attnd_pool_prefix *prefix;       /* the keeper's */
    struct attnd_pool *next;
};

/* Pages of an attachment whose bytes are on their way (arrival.h). */
#define ATTND_ARRIVALS_MAX 255u
struct attnd_arrivals {
    struct attnd_service *service;
    struct attnd_payer payer;
    uint64_t serials;
    struct attnd_arrival *slot[ATTND_ARRIVALS_MAX];
    uint8_t of_page[]; /* [pages] 1 + slot; 0: none */
};

/* One session's hold on a pool. */
struct attnd_attachment {
    struct attnd_pool *pool;
    int writable;
    int16_t *held; /* [pages] minus the leases of this session (lease.c); NULL for OWNER_ENGINE */
    uint64_t held_count;    /* sum of held */
    uint64_t releases;      /* calls that made one of held less */
    uint32_t dropped;       /* pages up to here have none any more: it is being given back */
    uint32_t plans;         /* plan objects of this session that use it; control plane counts */
    uint32_t prefixes;      /* handles of this session on namespaces of the pool */
    uint32_t claims;        /* operations in flight that bring pages to it */
    uint32_t memory;        /* handle that came with the attachment and goes with it; 0: none */
    uint64_t charged_bytes; /* of the daemon's memory, against the session */
    struct attnd_arrivals *arrivals; /* NULL: none yet */
};

/**
 * attnd_pool_new() - a pool nobody is attached to yet
 * @maker:    counts for it, and for the daemon's memory that it costs (quota.h)
 * @planes:   k[layers], v[layers], memories as the worker knows them; copied
 * @memories: [memories_count] distinct; each gets a reference of the pool's own
 * Return: 0, with one reference, the caller's; -ATTND_E_NO_MEMORY.
 */
int attnd_pool_new(struct attnd_client *maker, const struct attnd_heap_pool *shape,
                   uint32_t page_owner, const struct attnd_heap_plane *planes,
                   struct attnd_memory *const *memories, uint32_t memories_count,
                   struct attnd_pool **out, struct attnd_fault *fault);
void attnd_pool_ref(struct attnd_pool *pool);
/** attnd_pool_unref() - the last reference frees the pool; nothing of it is in flight then. */
void attnd_pool_unref(struct attnd_service *service, struct attnd_pool *pool);

/** attnd_pool_occupy() - the bytes of its planes belong to @pool, as its memories know from now on.
 * attnd_pool_new() does this. */
void attnd_pool_occupy(struct attnd_pool *pool);

/** attnd_pool_planes() - k[layers], v[layers] in the heap. */
const struct attnd_heap_plane *attnd_pool_planes(const struct attnd_pool *pool);

/** attnd_pool_lone() - the one memory of the daemon's making the pool lies in, or NULL. */
struct attnd_memory *attnd_pool_lone(const struct attnd_pool *pool);

/** attnd_client_attach() - a handle of the session; takes a reference of its own. A session without
 * a handle of attnd_pool_lone() gets one with it. Return: 0 or -ATTND_E_NO_MEMORY. */
int attnd_client_attach(struct attnd_client *client, struct attnd_pool *pool, int writable,
                        uint32_t *handle, struct attnd_fault *fault);
/** attnd_client_attached() - the lowest handle of @client on @pool; 0: none. */
uint32_t attnd_client_attached(const struct attnd_client *client, const struct attnd_pool *pool);
/** attnd_client_detach() - frees the session's leases; no plan uses the attachment any more. */
void attnd_client_detach(struct attnd_client *client, uint32_t handle);

#endif
