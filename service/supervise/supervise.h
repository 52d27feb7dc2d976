/*
 * supervise.h - keeps a worker running on the queue and sends it what memory there is.
 */
#ifndef ATTND_SERVICE_SUPERVISE_SUPERVISE_H
#define ATTND_SERVICE_SUPERVISE_SUPERVISE_H

#include "persistent/backend.h"
#include "service/service.h"
#include "service/supervise/copies.h"
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

/* Events of the worker that the rooms above have asked to hear. Each may call back into the
 * supervisor. */
struct attnd_supervisor_events {
    /* It is RUNNING with @scratch_bytes of scratch. Return: 0; < 0: it cannot be used and is
     * killed.
     */
    int (*up)(struct attnd_service *service, uint64_t scratch_bytes);
    /* Its process is gone, and with it everything that it was given to do. */
    void (*lost)(struct attnd_service *service);
    /* After lost(): of what it was to map, everything that had an answer has been answered. */
    void (*imports_lost)(struct attnd_service *service);
    /* Memory @index was tried; @fault's code is 0, or says why it cannot be had. */
    void (*mapped)(struct attnd_service *service, uint32_t index, const struct attnd_fault *fault);
    /* It let go of memory @index, which may be used again. */
    void (*unmapped)(struct attnd_service *service, uint32_t index);
    /* A copy of attnd_copies_send() has ended; -ATTND_E_WORKER_RESTARTED: its worker is gone. */
    void (*copied)(struct attnd_service *service, void *context, int code);
    /* The same of attnd_copies_bring(). */
    void (*brought)(struct attnd_service *service, void *context, int code);
    /* All that it had said so far has been heard: runs may have waited for a mapping. */
    void (*heard)(struct attnd_service *service);
};

struct attnd_supervisor {
    struct attnd_service *service;
    const struct attnd_supervisor_events *events;
    struct attnd_maps maps;
    struct attnd_copies copies;
    struct attnd_memory_source sources[ATTND_MEMORIES_MAX]; /* of indices that are not NONE */
    struct attnd_watch *retire_watch;
    struct attnd_process process;
    enum attnd_supervision state;
    int condemned; /* SIGKILL is on its way */
    uint32_t restarts;
    uint64_t deaths_ns[ATTND_DEATHS_KEPT]; /* the last ones, circular */
    uint32_t deaths;
    uint64_t delay_ns; /* before the next start; 0: none */
    struct attnd_watch *control_watch, *pidfd_watch;
    struct attnd_watch *timer; /* the next start, or how long one may take; NULL: it is stopped */
    struct attnd_fault fault;  /* why the worker says it cannot start */
    char last_end[96];         /* how the worker before this one ended */
    struct attnd_watch *watchdog;         /* as timer */
    uint32_t heartbeat, heartbeat_missed; /* seen last; looks since that found it unchanged */
};

/** attnd_supervisor_new() - @events is borrowed and outlives the supervisor. */
int attnd_supervisor_new(struct attnd_service *service,
                         const struct attnd_supervisor_events *events,
                         struct attnd_supervisor **out);
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

/**
 * attnd_supervisor_map() - a memory object came to life at @index: the worker is to map it, and
 * each worker after it
 * @source: copied; its descriptor and handle stay the caller's until attnd_supervisor_unmap()
 */
int attnd_supervisor_map(struct attnd_supervisor *supervisor, uint32_t index,
                         const struct attnd_memory_source *source);
/** attnd_supervisor_unmap() - the last reference went: the worker drops it. @index may be reused
 * after the event unmapped, which may come before this returns. The fd may be closed now. */
void attnd_supervisor_unmap(struct attnd_supervisor *supervisor, uint32_t index);

/** attnd_supervisor_watch_retires() - the loop is woken by the worker's answers; anew for each
 * worker. Return: 0; -ATTND_E_NO_MEMORY. */
int attnd_supervisor_watch_retires(struct attnd_supervisor *supervisor, struct attnd_fault *fault);
void attnd_supervisor_unwatch_retires(struct attnd_supervisor *supervisor);

/** attnd_supervisor_worker() - what the worker said of itself when it came up, or the last one did.
 */
const struct attnd_worker_info *attnd_supervisor_worker(const struct attnd_service *service);
/** attnd_supervisor_running() - 1: it answers; 0: it is gone, or not yet there again. */
int attnd_supervisor_running(const struct attnd_service *service);

/** attnd_supervisor_state_name() - for status; static storage. */
const char *attnd_supervisor_state_name(const struct attnd_supervisor *supervisor);

#endif
