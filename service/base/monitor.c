/*
 * monitor.c - the ring costs a copy of an event while somebody watches, and else a count.
 *
 * Events have numbers that are never used twice, also while nothing is kept. So a reader that was
 * away for long learns exactly how many it has missed.
 */
#include "service/base/monitor.h"

#include "ipc/wake.h"

#include <stdio.h>
#include <stdlib.h>

static void forget(struct attnd_monitor *monitor)
{
    free(monitor->events);
    monitor->events = NULL;
}

void attnd_monitor_add(struct attnd_monitor *monitor, const struct attnd_monitor_event *event)
{
    if (monitor->events && event->time_ns > monitor->until_ns)
        forget(monitor);
    if (monitor->events)
        monitor->events[monitor->next % ATTND_MONITOR_EVENTS] = *event;
    monitor->next++;
}

void attnd_monitor_say(struct attnd_monitor *monitor, enum attnd_monitor_kind kind,
                       uint32_t session, uid_t uid, pid_t pid, const char *text)
{
    if (!attnd_monitor_wants(monitor))
        return;
    struct attnd_monitor_event event = {.time_ns = attnd_clock_ns(),
                                        .kind = (uint8_t)kind,
                                        .session = session,
                                        .uid = uid,
                                        .pid = (uint32_t)pid};
    snprintf(event.text, sizeof(event.text), "%s", text);
    attnd_monitor_add(monitor, &event);
}

int attnd_monitor_watch(struct attnd_monitor *monitor, uint64_t now_ns)
{
    if (monitor->events && now_ns > monitor->until_ns)
        forget(monitor);
    if (!monitor->events) {
        monitor->events = calloc(ATTND_MONITOR_EVENTS, sizeof(*monitor->events));
        if (!monitor->events)
            return -ATTND_E_NO_MEMORY;
        monitor->begin = monitor->next;
    }
    monitor->until_ns = now_ns + ATTND_MONITOR_PATIENCE_NS;
    return 0;
}

uint64_t attnd_monitor_from(const struct attnd_monitor *monitor, uint64_t *number)
{
    uint64_t first = monitor->begin, wanted = *number;

    if (monitor->next - first > ATTND_MONITOR_EVENTS)
        first = monitor->next - ATTND_MONITOR_EVENTS;
    if (wanted > monitor->next) /* of another daemon than this one */
        wanted = monitor->next;
    *number = wanted > first ? wanted : first;
    return *number - wanted;
}

const struct attnd_monitor_event *attnd_monitor_at(const struct attnd_monitor *monitor,
                                                   uint64_t number)
{
    return &monitor->events[number % ATTND_MONITOR_EVENTS];
}

void attnd_monitor_free(struct attnd_monitor *monitor)
{
    forget(monitor);
}
