/*
 * monitor.h - what happened a moment ago, for people who watch: a ring of events that is written
 * over.
 *
 * The daemon writes each event once, and readers ask for what came since. A reader that is slow
 * finds the oldest written over, and learns how many. The daemon waits for no reader and knows
 * none: there is one ring for all of them.
 */
#ifndef ATTND_SERVICE_BASE_MONITOR_H
#define ATTND_SERVICE_BASE_MONITOR_H

#include "schemas/errors.h"

#include <stdint.h>
#include <sys/types.h>

#define ATTND_MONITOR_EVENTS 8192u
#define ATTND_MONITOR_PATIENCE_NS 5000000000u

/* As MonitorKind in attnd.proto. */
enum attnd_monitor_kind {
    ATTND_MONITOR_OPENED = 1,    /* a session; text: its name */
    ATTND_MONITOR_ENDED = 2,     /* a session; text: how */
    ATTND_MONITOR_OPERATION = 3, /* that was submitted, and is over */
    ATTND_MONITOR_REFUSED = 4,   /* a call; text: which */
    ATTND_MONITOR_WORKER = 5     /* text: what became of it; of no session */
};

struct attnd_monitor_event {
    uint64_t time_ns; /* CLOCK_MONOTONIC */
    uint32_t session; /* 0: of none */
    uid_t uid;        /* of the session */
    uint32_t pid;
    uint8_t kind, opcode; /* enum attnd_monitor_kind; enum attnd_opcode */
    uint16_t lane;
    uint32_t plan; /* or the namespace of a prefix operation */
    uint64_t user_data;
    uint64_t latency_ns;      /* from taken out of the ring to done */
    uint64_t duration_ns;     /* of a run: from begun by the worker to done */
    struct attnd_fault fault; /* code 0: it went well */
    char text[64];
};

struct attnd_monitor {
    struct attnd_monitor_event *events; /* [ATTND_MONITOR_EVENTS]; NULL: nobody watches */
    uint64_t begin, next;               /* numbers of events: the first that is kept, the next */
    uint64_t until_ns;                  /* nobody has asked since ATTND_MONITOR_PATIENCE_NS */
};

/** attnd_monitor_wants() - 1: make an event and give it to attnd_monitor_add(). 0: nobody watches,
 * and the event is counted. */
static inline int attnd_monitor_wants(struct attnd_monitor *monitor)
{
    if (monitor->events)
        return 1;
    monitor->next++;
    return 0;
}

/** attnd_monitor_add() - @event is copied; the oldest goes. Where nobody has asked for long, the
 * ring goes and the event is counted only. */
void attnd_monitor_add(struct attnd_monitor *monitor, const struct attnd_monitor_event *event);

/** attnd_monitor_say() - an event of no fault, made of its parts. @text is cut to what fits. */
void attnd_monitor_say(struct attnd_monitor *monitor, enum attnd_monitor_kind kind,
                       uint32_t session, uid_t uid, pid_t pid, const char *text);

/** attnd_monitor_watch() - keep events from now on, for the next ATTND_MONITOR_PATIENCE_NS.
 * Return: 0; -ATTND_E_NO_MEMORY. */
int attnd_monitor_watch(struct attnd_monitor *monitor, uint64_t now_ns);

/**
 * attnd_monitor_from() - where a reader goes on
 * @number: of the event it wants next; receives the first that there is
 * Return: how many events are lost in between.
 */
uint64_t attnd_monitor_from(const struct attnd_monitor *monitor, uint64_t *number);

/** attnd_monitor_at() - event @number, from attnd_monitor_from() to monitor->next. */
const struct attnd_monitor_event *attnd_monitor_at(const struct attnd_monitor *monitor,
                                                   uint64_t number);

void attnd_monitor_free(struct attnd_monitor *monitor);

#endif
