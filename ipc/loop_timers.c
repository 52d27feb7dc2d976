/*
 * loop_timers.c - timers in a binary heap, the earliest on top.
 *
 * Clients set most of them, and to any time they like, so none of these steps may look at all. A
 * timer knows its place, and is taken out from anywhere. Equal times fire in the order in which
 * they were set. The array has room for every timer that there is: setting one never fails.
 */
#include "ipc/loop_impl.h"
#include "ipc/wake.h"

#include <assert.h>
#include <stdlib.h>

#define ROOM_MIN 64u
/* Callbacks of one turn; the rest of those that are due have the next one. */
#define TURN_NS 200000u

int attnd_timers_reserve(struct attnd_timers *timers)
{
    if (timers->reserved < timers->room) {
        timers->reserved++;
        return 0;
    }
    const uint32_t room = timers->room ? 2 * timers->room : ROOM_MIN;
    void *grown = realloc(timers->heap, room * sizeof(struct attnd_watch *));
    if (!grown)
        return -ATTND_E_NO_MEMORY;
    timers->heap = grown;
    timers->room = room;
    timers->reserved++;
    return 0;
}

static int before(const struct attnd_watch *a, const struct attnd_watch *b)
{
    return a->when_ns < b->when_ns || (a->when_ns == b->when_ns && a->number < b->number);
}

static void put(struct attnd_timers *timers, uint32_t place, struct attnd_watch *watch)
{
    timers->heap[place] = watch;
    watch->place = place + 1;
}

static uint32_t rise(struct attnd_timers *timers, uint32_t place, const struct attnd_watch *watch)
{
    while (place > 0 && before(watch, timers->heap[(place - 1) / 2])) {
        put(timers, place, timers->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    return place;
}

static uint32_t sink(struct attnd_timers *timers, uint32_t place, const struct attnd_watch *watch)
{
    for (uint32_t child = 2 * place + 1; child < timers->count; child = 2 * place + 1) {
        if (child + 1 < timers->count && before(timers->heap[child + 1], timers->heap[child]))
            child++;
        if (!before(timers->heap[child], watch))
            break;
        put(timers, place, timers->heap[child]);
        place = child;
    }
    return place;
}

void attnd_timers_take(struct attnd_timers *timers, struct attnd_watch *watch)
{
    if (!watch->place)
        return;
    const uint32_t place = watch->place - 1;
    struct attnd_watch *last = timers->heap[--timers->count];

    watch->place = 0;
    if (last == watch)
        return;
    const uint32_t risen = rise(timers, place, last);
    put(timers, risen == place ? sink(timers, place, last) : risen, last);
}

void attnd_timers_set(struct attnd_timers *timers, struct attnd_watch *watch, uint64_t when_ns)
{
    attnd_timers_take(timers, watch);
    if (when_ns == UINT64_MAX)
        return;
    assert(timers->count < timers->reserved);
    /* One for a time gone by stands behind those that are due already. */
    watch->when_ns = when_ns > timers->fired_ns ? when_ns : timers->fired_ns;
    watch->number = timers->numbers++;
    put(timers, rise(timers, timers->count++, watch), watch);
}

struct attnd_watch *attnd_timers_next(const struct attnd_timers *timers)
{
    return timers->count ? timers->heap[0] : NULL;
}

void attnd_timers_fire(struct attnd_loop *loop, uint64_t now_ns)
{
    struct attnd_timers *timers = &loop->timers;
    const uint64_t numbers = timers->numbers;
    struct attnd_watch *watch;

    timers->fired_ns = now_ns;
    while ((watch = attnd_timers_next(timers)) && watch->when_ns <= now_ns &&
           watch->number < numbers) {
        attnd_timers_take(timers, watch);
        watch->timer_fn(watch->context);
        if (!watch->lasts)
            attnd_loop_unwatch(loop, watch, NULL, NULL);
        if (attnd_clock_ns() - now_ns >= TURN_NS)
            return;
    }
}
