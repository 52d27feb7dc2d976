/*
 * arrival.h - pages that a session has leased and whose bytes are still on their way, layer by
 * layer.
 *
 * A plan whose batch names such pages remembers the arrivals, and a run or an append of it in layer
 * L goes when layer L has arrived: not before, and not later. The transfer that brings the bytes
 * holds a lease of each page of its own, so a page that the session frees meanwhile is nobody
 * else's. An arrival that failed stays until its pages are freed: until then whatever reads or
 * writes them fails with its fault.
 */
#ifndef ATTND_SERVICE_OBJECTS_ARRIVAL_H
#define ATTND_SERVICE_OBJECTS_ARRIVAL_H

#include "service/objects/pool.h"

struct attnd_arrival {
    struct attnd_attachment *attachment; /* NULL: its session has let go of the pool */
    uint64_t serial;                     /* never used again */
    uint32_t slot;                       /* among its attachment's */
    uint32_t layers;                     /* that have arrived: of all pages, from the first on */
    uint32_t left;                       /* pages that the session has not freed */
    int over;                            /* nobody brings anything any more */
    struct attnd_fault fault;            /* code 0: it has not failed */
    uint32_t count;
    int32_t pages[];
};

/**
 * attnd_arrival_begin() - the session's leases of @pages are of pages that arrive
 * Return: 0; -ATTND_E_FULL (field count) the attachment has ATTND_ARRIVALS_MAX; -ATTND_E_NO_MEMORY.
 */
int attnd_arrival_begin(struct attnd_client *client, struct attnd_attachment *attachment,
                        const int32_t *pages, uint32_t count, struct attnd_arrival **out,
                        struct attnd_fault *fault);
/** attnd_arrival_layers() - so many have arrived now. */
void attnd_arrival_layers(struct attnd_arrival *arrival, uint32_t layers);
/** attnd_arrival_end() - all have, or, with @fault, no more will. It is not to be named any more.
 */
void attnd_arrival_end(struct attnd_arrival *arrival, const struct attnd_fault *fault);

/** attnd_arrival_forget() - the session has no lease of @page any more. */
void attnd_arrival_forget(struct attnd_attachment *attachment, int32_t page);
/** attnd_arrival_forget_all() - the attachment goes. */
void attnd_arrival_forget_all(struct attnd_client *client, struct attnd_attachment *attachment);

/** attnd_arrival_check() - has every byte of @pages arrived? Return: 0; -ATTND_E_BUSY (field pages)
 * not yet; the fault of one that failed. */
int attnd_arrival_check(const struct attnd_attachment *attachment, const int32_t *pages,
                        uint32_t count, struct attnd_fault *fault);

/* Arrivals that a plan's pages are of (arrival.h). */
#define ATTND_PLAN_AWAITS_MAX 32u
struct attnd_plan_await {
    uint64_t serial;
    uint32_t slot;
};
struct attnd_plan_awaits {
    uint32_t count;
    struct attnd_plan_await on[ATTND_PLAN_AWAITS_MAX];
};

/** attnd_arrival_collect() - a plan that is set, or advanced, waits for what of @pages is on its
 * way. Return: 0; 1 for too many arrivals: try again when one of them has ended. */
int attnd_arrival_collect(const struct attnd_attachment *attachment,
                          struct attnd_plan_awaits *awaits, const int32_t *pages, uint32_t count);
/** attnd_arrival_gate() - may layer @layer of the plan's pages be read and written? Return: 1; 0
 * not yet; < 0 an arrival has failed. */
int attnd_arrival_gate(const struct attnd_attachment *attachment, struct attnd_plan_awaits *awaits,
                       uint32_t layer, struct attnd_fault *fault);

/** attnd_arrival_whole() - has everything arrived that a plan waits for? A launched run asks
 * nobody. Return: 0; -ATTND_E_BUSY (field kv_indices) not yet; the fault of an arrival that failed.
 */
int attnd_arrival_whole(const struct attnd_attachment *attachment, struct attnd_plan_awaits *awaits,
                        struct attnd_fault *fault);

#endif
