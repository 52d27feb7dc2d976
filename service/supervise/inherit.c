/*
 * inherit.c - what becomes of everything that a dead worker had.
 *
 * First its runs: the rooms above answer them. Then its mappings: all are due again, for the next
 * worker, with one exception. Memory that two workers in a row were bringing in when a signal ended
 * them is given to no third. To pin more than the machine has is how a worker gets killed, and it
 * would be killed again, and again. Once may be chance: an operator who kills a worker does not
 * look what it is doing. The memory's owner gets an error, and others go on.
 */
#include "service/supervise/internal.h"

#include "schemas/atomics.h"

#define DEATHS_BARRED 2u

/* Finds memories that it was bringing in when a signal ended it; counts a death for each. Return:
 * how many. */
static uint32_t find_suspects(struct attnd_supervisor *supervisor, uint32_t *suspects)
{
    uint32_t *words = supervisor->service->queue->head->pinning, count = 0;
    for (uint32_t i = 0; i < ATTND_PINNING; i++) {
        uint32_t index = attnd_observe32(&words[i]) - 1;
        if (!supervisor->process.signal || index >= ATTND_MEMORIES_MAX ||
            supervisor->maps.state[index] != ATTND_MAP_MAPPING)
            continue;
        supervisor->maps.deaths[index]++;
        suspects[count++] = index;
    }
    return count;
}

static void bar(struct attnd_supervisor *supervisor, uint32_t index)
{
    const struct attnd_fault fault = {.code = -ATTND_E_NO_MEMORY,
                                      .field = ATTND_F_SIZE,
                                      .value = (int64_t)supervisor->sources[index].size_bytes};
    attnd_maps_bar(&supervisor->maps, index, fault.code);
    supervisor->events->mapped(supervisor->service, index, &fault);
}

/* Messages that are due again. */
static void judge(struct attnd_supervisor *supervisor, uint32_t index)
{
    if (supervisor->maps.state[index] != ATTND_MAP_TO_MAP)
        return;
    int again = supervisor->maps.deaths[index] >= DEATHS_BARRED;
    attnd_log(ATTND_LOG_WARNING, "memory %u of %llu bytes was being brought in%s", index,
              (unsigned long long)supervisor->sources[index].size_bytes,
              again ? ", again: no other worker is given it" : "");
    if (again)
        bar(supervisor, index);
}

void attnd_supervisor_inherit(struct attnd_supervisor *supervisor)
{
    uint32_t freed[ATTND_MEMORIES_MAX];
    uint32_t suspects[ATTND_PINNING];
    uint32_t suspected = find_suspects(supervisor, suspects); /* before its queue is given up */
    const struct attnd_supervisor_events *events = supervisor->events;
    events->lost(supervisor->service);
    attnd_copies_lost(supervisor);
    uint32_t count = attnd_maps_lost(&supervisor->maps, freed);
    for (uint32_t i = 0; i < suspected; i++)
        judge(supervisor, suspects[i]);
    for (uint32_t i = 0; i < count; i++)
        events->unmapped(supervisor->service, freed[i]);
    events->imports_lost(supervisor->service);
}
