/*
 * supervise.h - keeps a worker running on the queue and tells it what memory there is.
 */
#ifndef ATTND_SERVICE_SUPERVISE_SUPERVISE_H
#define ATTND_SERVICE_SUPERVISE_SUPERVISE_H

#include "service/service.h"
#include "service/supervise/maps.h"
#include "service/supervise/queue.h"
#include "service/supervise/spawn.h"

#define ATTND_DEATHS_KEPT 5u

enum attnd_supervision {
    ATTND_WORKER_DOWN,      /* none; a timer starts the next one */
    ATTND_WORKER_COMING_UP, /* started, not yet READY */
    ATTND_WORKER_UP,
    ATTND_WORKER_STOPPED /* for good */
};

struct attnd_supervisor {
    struct attnd_service *service;
    struct attnd_maps maps;
    struct attnd_process process;
    enum attnd_supervision state;
    int condemned; /* SIGKILL is on its way */
    uint32_t restarts;
    uint64_t deaths_ns[ATTND_DEATHS_KEPT]; /* the last ones, circular */
    uint32_t deaths;
    uint64_t delay_ns; /* before the next start; 0: none */
    struct attnd_watch *control_watch, *pidfd_watch, *timer;
    struct attnd_fault fault; /* why the worker says it cannot start */
    char last_end[96];        /* how the worker before this one ended */
    struct attnd_watch *watchdog;
    uint32_t heart, heartbeat_missed; /* seen last; looks since that found it unchanged */
};

int attnd_supervisor_new(struct attnd_service *service, struct attnd_supervisor **out);
void attnd_supervisor_free(struct attnd_supervisor *supervisor);

/** attnd_supervisor_start() - the first worker. Blocks until it is RUNNING, at most @timeout_ns.
 * Return: 0; what the worker said; -ATTND_E_SYSTEM; -ATTND_E_TIMEOUT. */
int attnd_supervisor_start(struct attnd_supervisor *supervisor, uint64_t timeout_ns,
                           struct attnd_fault *fault);

/** attnd_supervisor_stop() - park the worker, end and collect it; no runs are in flight, or they
 * are given up. Only when @timeout_ns is over by force. */
void attnd_supervisor_stop(struct attnd_supervisor *supervisor, uint64_t timeout_ns);

/** attnd_supervisor_kill() - the worker broke the protocol. Its death is handled like any other.
 * NULL is fine. */
void attnd_supervisor_kill(struct attnd_supervisor *supervisor, const char *why);

/** attnd_watchdog_start()/stop() - watchdog.c: from now on the worker's heart has to beat. Harmless
 * twice. */
void attnd_watchdog_start(struct attnd_supervisor *supervisor);
void attnd_watchdog_stop(struct attnd_supervisor *supervisor);

/** attnd_talk_send_due() - supervise_talk.c: send messages about memory that are due. */
void attnd_talk_send_due(struct attnd_supervisor *supervisor);
/** attnd_talk_receive() - take what the worker says. Return: 1; 0 at end of file. */
int attnd_talk_receive(struct attnd_supervisor *supervisor);

/** attnd_supervisor_state_name() - for status; static storage. */
const char *attnd_supervisor_state_name(const struct attnd_supervisor *supervisor);

#endif
