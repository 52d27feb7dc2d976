/*
 * events.h - what the rooms above are told by the scheduler.
 */
#ifndef ATTND_SERVICE_SCHED_EVENTS_H
#define ATTND_SERVICE_SCHED_EVENTS_H

struct attnd_client;

/* Events that the rooms above have asked to hear. */
struct attnd_sched_events {
    /* Nothing of a dying session is in flight any more. */
    void (*drained)(struct attnd_client *client);
    /* A session broke the protocol and is to be ended. */
    void (*broken)(struct attnd_client *client, const char *why);
};

#endif
