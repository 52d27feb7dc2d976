/*
 * maps.c - the life of a memory object in the worker, as the daemon sees it.
 *
 * Messages are sent in the order they became due and answered in that order, so an unmap may follow
 * its map before the map is answered. An index is in the due queue at most once; what it is due for
 * is its state at the time of sending, and an index that is due for nothing any more is passed
 * over. That is also what makes a restart simple: states change, the queue is the same.
 */
#include "service/supervise/maps.h"

#include <assert.h>

static int is_not_mapped(const struct attnd_maps *maps, uint32_t index)
{
    uint8_t state = maps->state[index];
    return state == ATTND_MAP_TO_MAP || state == ATTND_MAP_MAPPING || state == ATTND_MAP_FAILED ||
           state == ATTND_MAP_BARRED;
}

static void enter(struct attnd_maps *maps, uint32_t index, enum attnd_map_state state)
{
    maps->not_mapped -= (uint32_t)is_not_mapped(maps, index);
    maps->state[index] = (uint8_t)state;
    maps->not_mapped += (uint32_t)is_not_mapped(maps, index);
}

static void enqueue(struct attnd_maps *maps, uint32_t index)
{
    if (maps->due[index])
        return;
    maps->due[index] = 1;
    maps->due_index[(maps->due_begin + maps->due_count++) % ATTND_MEMORIES_MAX] = index;
}

void attnd_maps_add(struct attnd_maps *maps, uint32_t index)
{
    assert(index < ATTND_MEMORIES_MAX && maps->state[index] == ATTND_MAP_NONE);
    maps->deaths[index] = 0;
    enter(maps, index, ATTND_MAP_TO_MAP);
    enqueue(maps, index);
}

int attnd_maps_remove(struct attnd_maps *maps, uint32_t index)
{
    switch (maps->state[index]) {
    case ATTND_MAP_TO_MAP:
    case ATTND_MAP_FAILED:
    case ATTND_MAP_BARRED:
        enter(maps, index, ATTND_MAP_NONE);
        return 1;
    case ATTND_MAP_MAPPING:
    case ATTND_MAP_MAPPED:
        enter(maps, index, ATTND_MAP_TO_UNMAP);
        enqueue(maps, index);
        return 0;
    default:
        assert(0); /* removed twice */
        return 0;
    }
}

int attnd_maps_due(struct attnd_maps *maps, uint32_t *index)
{
    while (maps->due_count) {
        uint32_t first = maps->due_index[maps->due_begin];
        if (maps->state[first] == ATTND_MAP_TO_MAP || maps->state[first] == ATTND_MAP_TO_UNMAP) {
            *index = first;
            return 1;
        }
        maps->due[first] = 0;
        maps->due_begin = (maps->due_begin + 1) % ATTND_MEMORIES_MAX;
        maps->due_count--;
    }
    return 0;
}

void attnd_maps_sent(struct attnd_maps *maps)
{
    uint32_t index = maps->due_index[maps->due_begin];
    int mapping = maps->state[index] == ATTND_MAP_TO_MAP;
    /* The state is not due any more, so the next attnd_maps_due() takes it off the queue. */
    enter(maps, index, mapping ? ATTND_MAP_MAPPING : ATTND_MAP_UNMAPPING);
}

int attnd_maps_mapped(struct attnd_maps *maps, uint32_t index, int code)
{
    if (maps->state[index] != ATTND_MAP_MAPPING)
        return 0;
    maps->code[index] = code;
    if (code >= 0)
        maps->deaths[index] = 0; /* it kills nobody */
    enter(maps, index, code < 0 ? ATTND_MAP_FAILED : ATTND_MAP_MAPPED);
    return 1;
}

int attnd_maps_unmapped(struct attnd_maps *maps, uint32_t index)
{
    if (maps->state[index] != ATTND_MAP_UNMAPPING)
        return 0;
    enter(maps, index, ATTND_MAP_NONE);
    return 1;
}

uint32_t attnd_maps_lost(struct attnd_maps *maps, uint32_t *freed)
{
    uint32_t count = 0;
    for (uint32_t index = 0; index < ATTND_MEMORIES_MAX; index++) {
        switch (maps->state[index]) {
        case ATTND_MAP_NONE:
        case ATTND_MAP_BARRED:
            break;
        case ATTND_MAP_TO_UNMAP:
        case ATTND_MAP_UNMAPPING:
            enter(maps, index, ATTND_MAP_NONE);
            freed[count++] = index;
            break;
        default:
            enter(maps, index, ATTND_MAP_TO_MAP);
            enqueue(maps, index);
        }
    }
    return count;
}

void attnd_maps_bar(struct attnd_maps *maps, uint32_t index, int code)
{
    assert(maps->state[index] == ATTND_MAP_TO_MAP && code < 0);
    maps->code[index] = code;
    enter(maps, index, ATTND_MAP_BARRED);
}
