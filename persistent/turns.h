/*
 * turns.h - whose items are next where runs of several sessions are in flight: the choice alone,
 * for the GPU's dispatcher and for a test that plays workers.
 *
 * Each session is a flow with a clock: the time of workers that its items took, over its weight. A
 * flow that was idle is set forward to the earliest of those that are not, so nobody saves up time.
 * Next is the run whose flow would have the earliest clock at the end of it: clock, and what is
 * left of the run. So
 *
 *   - equal runs of equal sessions are executed one after the other, as they came: each of them
 *     alone ends as early as it would beside the others' items, or earlier;
 *   - a short run passes long ones. It waits for as much of each other session as it is itself;
 *   - what is left counts up to ATTND_TURNS_AHEAD_NS. Longer runs take turns by items, and a flow
 * of short runs is no more than that ahead of a long one.
 *
 * Runs of two flows of equal weight that read the same keys first, and have come equally far, are
 * twins: where it is the turn of one, items of both are taken alternately, so that what one has
 * brought from the memory the other reads out of a cache. They end together, earlier than the
 * second one would.
 *
 * Of one flow the oldest run is next. Items are charged when they are taken, by what items of the
 * session took last, and by what they took when they are done. Before one is done they are thought
 * to take what those of any session took last: so equal runs look equal.
 */
#ifndef ATTND_PERSISTENT_TURNS_H
#define ATTND_PERSISTENT_TURNS_H

#include "persistent/visible.h"

/* Runs are named by their position, free-running; no more are in flight at once. */
#define ATTND_TURNS_RUNS 256u
/* Sessions that are remembered; if all of them have runs, another shares one's clock. */
#define ATTND_TURNS_FLOWS 64u
/* Time of workers: a quarter of a millisecond of 131. */
#define ATTND_TURNS_AHEAD_NS (32u << 20)
/* What an item is thought to take before one of its session has ended. */
#define ATTND_TURNS_ITEM_NS 20000u
/* Twins are no further apart: what 131 workers read in 6 us, 27 MB, stays in a cache of 60. */
#define ATTND_TURNS_TWIN_NS 800000
/* Clocks count nanoseconds in 16ths, for the sake of weights. */
#define ATTND_TURNS_UNIT 16

struct attnd_turns_flow {
    int64_t clock;
    uint32_t session, weight;
    uint32_t busy;    /* runs with items left */
    uint32_t item_ns; /* as last seen; 0: none was */
    uint32_t look;    /* of attnd_turns_next() */
    uint32_t held;    /* runs that are not over */
};

struct attnd_turns_run {
    int64_t charged_ns;
    uint64_t reads; /* runs that read the same keys first have the same; 0: no matter */
    uint32_t flow, items;
    uint32_t taken, done; /* as last told */
    uint32_t met, zero;   /* 1: it had a twin */
};

/* All zero is empty. */
struct attnd_turns {
    struct attnd_turns_flow flow[ATTND_TURNS_FLOWS];
    struct attnd_turns_run run[ATTND_TURNS_RUNS];
    uint32_t busy;    /* flows with items left */
    uint32_t item_ns; /* of any, as last seen; 0: none was */
    uint32_t look;
    uint32_t met; /* runs that were named with a twin, ever */
};

/* Whose items are next. */
struct attnd_turns_choice {
    uint32_t at, twin; /* positions, the same if there is no twin; @twin is the later one */
};

/* The clock that a flow which was idle begins with is no earlier. */
static ATTND_HOST_DEVICE int64_t attnd_turns_now(const struct attnd_turns *turns)
{
    int64_t now = INT64_MAX;
    for (uint32_t i = 0; i < ATTND_TURNS_FLOWS; i++)
        if (turns->flow[i].busy && turns->flow[i].clock < now)
            now = turns->flow[i].clock;
    return now;
}

/* The flow of @session: its own, or that of a session without runs that is the furthest behind. */
static ATTND_HOST_DEVICE uint32_t attnd_turns_flow_of(struct attnd_turns *turns, uint32_t session)
{
    uint32_t best = session % ATTND_TURNS_FLOWS;
    for (uint32_t i = 0; i < ATTND_TURNS_FLOWS; i++) {
        const struct attnd_turns_flow *flow = &turns->flow[i], *other = &turns->flow[best];
        if (flow->weight && flow->session == session)
            return i;
        if (!flow->held && (other->held || (flow->weight == 0 && other->weight) ||
                            (!flow->weight == !other->weight && flow->clock < other->clock)))
            best = i;
    }
    struct attnd_turns_flow *flow = &turns->flow[best];
    if (!flow->held) {
        flow->session = session;
        flow->clock = 0;
        flow->item_ns = 0;
    }
    return best;
}

/* What items of a flow are thought to take, each. */
static ATTND_HOST_DEVICE uint32_t attnd_turns_item_ns(const struct attnd_turns *turns,
                                                      const struct attnd_turns_flow *flow)
{
    return flow->item_ns ? flow->item_ns : turns->item_ns ? turns->item_ns : ATTND_TURNS_ITEM_NS;
}

/**
 * attnd_turns_begin() - a run was published
 * @at:     its position; the run that had its place is over, and attnd_turns_note() was told so
 * @weight: of the session, 0: 1
 * @items:  at least 1
 * @reads:  what it reads first, by any name; 0: nothing that others should read with it
 */
static ATTND_HOST_DEVICE void attnd_turns_begin(struct attnd_turns *turns, uint32_t at,
                                                uint32_t session, uint32_t weight, uint32_t items,
                                                uint64_t reads)
{
    if (turns->busy == 0)
        for (uint32_t i = 0; i < ATTND_TURNS_FLOWS; i++)
            turns->flow[i].clock = 0;
    const uint32_t index = attnd_turns_flow_of(turns, session);
    struct attnd_turns_flow *flow = &turns->flow[index];
    struct attnd_turns_run *run = &turns->run[at % ATTND_TURNS_RUNS];
    flow->weight = weight ? weight : 1;
    if (flow->busy == 0) {
        const int64_t now = turns->busy ? attnd_turns_now(turns) : 0;
        flow->clock = flow->clock > now ? flow->clock : now;
        turns->busy++;
    }
    flow->busy++;
    flow->held++;
    run->charged_ns = 0;
    run->reads = reads;
    run->met = 0;
    run->flow = index;
    run->items = items;
    run->taken = run->done = 0;
}

/**
 * attnd_turns_note() - what became of a run
 * @taken:   of its items; may be more than there are
 * @done:    of them
 * @busy_ns: what those took
 */
static ATTND_HOST_DEVICE void attnd_turns_note(struct attnd_turns *turns, uint32_t at,
                                               uint32_t taken, uint32_t done, uint64_t busy_ns)
{
    struct attnd_turns_run *run = &turns->run[at % ATTND_TURNS_RUNS];
    struct attnd_turns_flow *flow = &turns->flow[run->flow];
    taken = taken > run->items ? run->items : taken < done ? done : taken;
    if (done) {
        const uint64_t each = busy_ns / done + 1;
        flow->item_ns = each > ATTND_TURNS_AHEAD_NS ? ATTND_TURNS_AHEAD_NS : (uint32_t)each;
        turns->item_ns = flow->item_ns;
    }
    const int64_t item_ns = attnd_turns_item_ns(turns, flow);
    const int64_t charge = (int64_t)busy_ns + (int64_t)(taken - done) * item_ns;
    const int was_busy = run->taken < run->items, was_held = run->done < run->items;
    flow->clock += (charge - run->charged_ns) * ATTND_TURNS_UNIT / (int64_t)flow->weight;
    run->charged_ns = charge;
    run->taken = taken;
    run->done = done;
    flow->held -= was_held && done == run->items;
    if (was_busy && taken == run->items && --flow->busy == 0)
        turns->busy--;
}

/* The oldest twin of the run at @at, or @at. */
static ATTND_HOST_DEVICE uint32_t attnd_turns_twin(struct attnd_turns *turns, uint32_t at,
                                                   uint32_t begin, uint32_t end)
{
    struct attnd_turns_run *run = &turns->run[at % ATTND_TURNS_RUNS];
    if (run->reads == 0)
        return at;
    for (uint32_t i = begin; i != end; i++) {
        struct attnd_turns_run *other = &turns->run[i % ATTND_TURNS_RUNS];
        if (other->reads != run->reads || other->flow == run->flow || other->taken == other->items)
            continue;
        const struct attnd_turns_flow *one = &turns->flow[run->flow],
                                      *two = &turns->flow[other->flow];
        const int64_t apart = (int64_t)other->taken - (int64_t)run->taken;
        const uint32_t a_ns = one->item_ns ? one->item_ns : ATTND_TURNS_ITEM_NS;
        const uint32_t b_ns = two->item_ns ? two->item_ns : ATTND_TURNS_ITEM_NS;
        const int64_t ns = (apart < 0 ? -apart : apart) * (int64_t)(a_ns > b_ns ? a_ns : b_ns);
        if (one->weight != two->weight || ns > ATTND_TURNS_TWIN_NS)
            continue;
        turns->met += 2 - run->met - other->met;
        run->met = other->met = 1;
        return i;
    }
    return at;
}

/**
 * attnd_turns_next() - the run whose items are to be taken next
 * @begin, @end: positions in flight, of runs that have begun
 * Return: its position, and its twin's; @end for both: whoever takes items by position takes those
 * anyway.
 */
static ATTND_HOST_DEVICE struct attnd_turns_choice attnd_turns_next(struct attnd_turns *turns,
                                                                    uint32_t begin, uint32_t end)
{
    struct attnd_turns_choice choice = {end, end};
    uint32_t next = end, first = end;
    int64_t earliest = 0;
    if (turns->busy < 2)
        return choice;
    turns->look++;
    for (uint32_t at = begin; at != end; at++) {
        const struct attnd_turns_run *run = &turns->run[at % ATTND_TURNS_RUNS];
        struct attnd_turns_flow *flow = &turns->flow[run->flow];
        if (run->taken == run->items || flow->look == turns->look)
            continue;
        flow->look = turns->look;
        const int64_t all_ns =
            (int64_t)(run->items - run->taken) * attnd_turns_item_ns(turns, flow);
        const int64_t left_ns = all_ns < ATTND_TURNS_AHEAD_NS ? all_ns : ATTND_TURNS_AHEAD_NS;
        const int64_t key = flow->clock + left_ns * ATTND_TURNS_UNIT / (int64_t)flow->weight;
        if (first == end)
            first = at;
        if (next == end || key < earliest) {
            next = at;
            earliest = key;
        }
    }
    if (next == end)
        return choice;
    const uint32_t twin = attnd_turns_twin(turns, next, begin, end);
    if (twin == next && next == first)
        return choice;
    const int later = twin - begin > next - begin;
    choice.at = later ? next : twin;
    choice.twin = later ? twin : next;
    return choice;
}

#endif
