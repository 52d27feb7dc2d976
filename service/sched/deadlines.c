/*
 * deadlines.c - which operation of a session is too late first: a heap of those that have a
 * deadline. Each knows its place, because most of them leave before it.
 */
#include "service/sched/deadlines.h"

#include "service/sched/scheduler.h"

static void put(struct attnd_deadlines *deadlines, uint32_t place, struct attnd_sched_op *op)
{
    deadlines->heap[place] = op;
    op->deadline_place = place + 1;
}

static uint32_t rise(struct attnd_deadlines *deadlines, uint32_t place, uint64_t deadline_ns)
{
    while (place > 0 && deadlines->heap[(place - 1) / 2]->deadline_ns > deadline_ns) {
        put(deadlines, place, deadlines->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    return place;
}

static uint32_t sink(struct attnd_deadlines *deadlines, uint32_t place, uint64_t deadline_ns)
{
    struct attnd_sched_op **heap = deadlines->heap;

    for (uint32_t child = 2 * place + 1; child < deadlines->count; child = 2 * place + 1) {
        if (child + 1 < deadlines->count && heap[child + 1]->deadline_ns < heap[child]->deadline_ns)
            child++;
        if (heap[child]->deadline_ns >= deadline_ns)
            break;
        put(deadlines, place, heap[child]);
        place = child;
    }
    return place;
}

void attnd_deadlines_add(struct attnd_deadlines *deadlines, struct attnd_sched_op *op)
{
    put(deadlines, rise(deadlines, deadlines->count++, op->deadline_ns), op);
}

void attnd_deadlines_remove(struct attnd_deadlines *deadlines, struct attnd_sched_op *op)
{
    if (!op->deadline_place)
        return;
    const uint32_t place = op->deadline_place - 1;
    struct attnd_sched_op *last = deadlines->heap[--deadlines->count];

    op->deadline_place = 0;
    if (last == op)
        return;
    const uint32_t risen = rise(deadlines, place, last->deadline_ns);
    put(deadlines, risen == place ? sink(deadlines, place, last->deadline_ns) : risen, last);
}

struct attnd_sched_op *attnd_deadlines_first(const struct attnd_deadlines *deadlines)
{
    return deadlines->count ? deadlines->heap[0] : NULL;
}

void attnd_deadline_arm(struct attnd_scheduler *scheduler, uint64_t when_ns)
{
    if (scheduler->timer_ns <= when_ns)
        return;
    scheduler->timer_ns = when_ns;
    attnd_loop_timer_set(scheduler->service->loop, scheduler->timer, when_ns);
}
