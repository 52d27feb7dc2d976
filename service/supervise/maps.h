/*
 * maps.h - which memory objects the worker has mapped, and which messages about it are due.
 *
 * A memory may be registered and named by a run before the worker has heard of it; the worker may
 * die at any point of that. So each index of the memory table has a state here, and a run is
 * dispatched only when everything it names is MAPPED.
 *
 *   NONE -> TO_MAP -> MAPPING -> MAPPED -> TO_UNMAP -> UNMAPPING -> NONE
 *                            \-> FAILED -> NONE
 *
 * and BARRED -> NONE: a worker died of it, and no other is given it.
 */
#ifndef ATTND_SERVICE_SUPERVISE_MAPS_H
#define ATTND_SERVICE_SUPERVISE_MAPS_H

#include "schemas/abi.h"

enum attnd_map_state {
    ATTND_MAP_NONE,
    ATTND_MAP_TO_MAP,  /* message due */
    ATTND_MAP_MAPPING, /* message sent */
    ATTND_MAP_MAPPED,
    ATTND_MAP_FAILED,    /* the worker could not; code[] says why */
    ATTND_MAP_TO_UNMAP,  /* message due */
    ATTND_MAP_UNMAPPING, /* message sent */
    ATTND_MAP_BARRED,    /* as FAILED, for whatever worker comes */
};

struct attnd_maps {
    uint32_t not_mapped; /* indices in TO_MAP, MAPPING, FAILED or BARRED: 0 in the common case */
    uint8_t state[ATTND_MEMORIES_MAX];
    int32_t code[ATTND_MEMORIES_MAX];
    uint8_t deaths[ATTND_MEMORIES_MAX];     /* in a row: of workers that were bringing it in */
    uint8_t due[ATTND_MEMORIES_MAX];        /* 1: in the queue below */
    uint32_t due_index[ATTND_MEMORIES_MAX]; /* circular: each index at most once */
    uint32_t due_begin, due_count;
};

/** attnd_maps_add() - a memory object came to life at @index. */
void attnd_maps_add(struct attnd_maps *maps, uint32_t index);
/** attnd_maps_remove() - its last reference went. Return: 1 the worker never had it: the index is
 * free now; 0 after an answer. */
int attnd_maps_remove(struct attnd_maps *maps, uint32_t index);

/** attnd_maps_due() - the next message. Return: 1 with *index, whose state is TO_MAP or TO_UNMAP;
 * 0 none. */
int attnd_maps_due(struct attnd_maps *maps, uint32_t *index);
/** attnd_maps_sent() - the message for the index that attnd_maps_due() named is on its way. */
void attnd_maps_sent(struct attnd_maps *maps);

/** attnd_maps_mapped() - the worker's answer to a map. Return: 1 the state follows it; 0 it comes
 * too late, an unmap is on its way already. */
int attnd_maps_mapped(struct attnd_maps *maps, uint32_t index, int code);
/** attnd_maps_unmapped() - the worker's answer to an unmap. Return: 1 the index is free now. */
int attnd_maps_unmapped(struct attnd_maps *maps, uint32_t index);

/**
 * attnd_maps_lost() - the worker died with all its mappings: everything alive is due again
 * @freed: [ATTND_MEMORIES_MAX], receives the indices that were on their way out and are free now
 * Return: how many those are.
 */
uint32_t attnd_maps_lost(struct attnd_maps *maps, uint32_t *freed);

/** attnd_maps_bar() - @index, which is due again since attnd_maps_lost(), never is. */
void attnd_maps_bar(struct attnd_maps *maps, uint32_t index, int code);

/** attnd_maps_ready() - 1 mapped; 0 not yet; -ATTND_E_* the worker could not map it. */
static inline int attnd_maps_ready(const struct attnd_maps *maps, uint32_t index)
{
    if (maps->state[index] == ATTND_MAP_FAILED || maps->state[index] == ATTND_MAP_BARRED)
        return maps->code[index];
    return maps->state[index] == ATTND_MAP_MAPPED;
}

#endif
