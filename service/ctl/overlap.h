/*
 * overlap.h - how much of a timeline two sessions or more were in one layer at once.
 *
 * What sessions with equal pages could save by reading them together is bounded by that: nobody
 * waits for another session to come to the layer it is in.
 */
#ifndef ATTND_SERVICE_CTL_OVERLAP_H
#define ATTND_SERVICE_CTL_OVERLAP_H

#include "schemas/abi.h"

#include <stddef.h>

/* Times of a layer in which some session had items in work, summed over layers. */
struct attnctl_overlap {
    uint64_t busy_ns;    /* of at least one session */
    uint64_t overlap_ns; /* of two or more */
};

/**
 * attnctl_overlap() - look at items that were recorded
 * @records: in any order; reordered by layer, session and begin
 *
 * A session is in a layer from the begin of an item to its end; between two items it is in none.
 * Threads: one. Return: 0; -ATTND_E_NO_MEMORY.
 */
int attnctl_overlap(struct attnd_trace_record *records, size_t count,
                    struct attnctl_overlap *overlap);

#endif
