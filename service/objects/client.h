/*
 * client.h - a client and everything that is kept for it; the handles by which it names objects.
 *
 * The struct is read by every room above this one. Its life is in session/, its operations in
 * sched/, its mailbox in prepared/.
 */
#ifndef ATTND_SERVICE_OBJECTS_CLIENT_H
#define ATTND_SERVICE_OBJECTS_CLIENT_H

#include "ipc/closer.h"
#include "ipc/discard.h"
#include "ipc/ring.h"
#include "ipc/shm.h"
#include "ipc/wake.h"
#include "service/service.h"

struct attnd_attachment;    /* pool.h */
struct attnd_courier_line;  /* ipc/courier.h */
struct attnd_plan_object;   /* planobj.h */
struct attnd_prefix_handle; /* prefix/prefix.h */
struct attnd_client_lanes;  /* sched/lanes.h */
struct attnd_mail;          /* prepared/prepared.h */

enum attnd_client_state {
    ATTND_CLIENT_HELLO,   /* connected, nothing known */
    ATTND_CLIENT_MAPPING, /* segments sent, not yet sealed */
    ATTND_CLIENT_OPEN,
    ATTND_CLIENT_DYING /* gone; its work is being drained */
};

struct attnd_client {
    struct attnd_closing closing; /* first: of its segments, at the very end */
    struct attnd_service *service;
    uint32_t id;
    enum attnd_client_state state;
    int socket;
    int pidfd; /* -1 where the kernel has none */
    pid_t pid;
    uid_t uid;
    int allowed; /* uid is on the allow-list; others get -ATTND_E_PERMISSION to every call */
    char name[32];
    char ending[96];                             /* why the service ended it; "": it did not */
    struct attnd_account account;                /* of the thread's time */
    struct attnd_courier_line *knocks, *replies; /* wakes.c; NULL: it is woken by the loop */
    struct attnd_work call;                      /* a datagram of it waits to be served */
    struct attnd_kept *again;   /* a request that goes on by turns, rpc/call.c; NULL: none. No other
                                   is served meanwhile */
    uint64_t again_bytes;       /* of the daemon's own memory that are charged for it */
    uint32_t again_done;        /* how far it is, as its handler counts */
    struct attnd_work end;      /* what is left of it is given back */
    uint32_t end_stage, end_at; /* session.c: how far that is */
    struct attnd_watch *socket_watch, *pidfd_watch, *doorbell_watch, *hello_timer, *read_timer;
    struct attnd_watch *end_watch;    /* of the pidfd, once nothing is left but to give back */
    uint32_t watches_ending;          /* unwatched, but the kernel may still hold the fd or word */
    struct attnd_client *next;        /* among visitors, or among the drained */
    uint64_t used[ATTND_QUOTA_KINDS]; /* quota.h */
    uint64_t device_memory_bytes;     /* counted against options.device_memory_max_bytes */

    struct attnd_shm submission, completion;
    int notify_fd;      /* write end of the pipe that the client polls */
    int notify_peer_fd; /* its read end, until the client has it */
    int doorbell_fd;    /* eventfd the client writes, -1 with futex doorbells */
    uint32_t ring_entries;
    uint64_t arena_offset_bytes, arena_bytes;
    uint64_t segments_charged_bytes; /* of host memory; 0: it is not enrolled */
    uint64_t results_offset_bytes;   /* ATTND_RESULT_WORDS int32 in the completion segment */
    struct attnd_consumer sq;
    struct attnd_producer cq;

    uint32_t import;      /* handle of memory that the worker tries out; 0: none */
    uint32_t import_pool; /* handle of the pool that it was made for, not answered yet; 0: none */
    uint64_t import_id;   /* the request that waits for it */
    uint32_t alloc_pool;  /* handle of the pool of which it waits for pages; 0: none */
    uint32_t alloc_count; /* how many */
    uint64_t alloc_id;    /* the request */

    struct attnd_memory *memories[ATTND_HANDLES_MAX];
    struct attnd_attachment *attachments[ATTND_HANDLES_MAX];
    struct attnd_plan_object *plans[ATTND_HANDLES_MAX];
    struct attnd_prefix_handle *prefixes[ATTND_HANDLES_MAX];

    struct attnd_client_lanes *lanes; /* sched's; NULL: not open */
    struct attnd_mail *mail;          /* prepared's; NULL: no mailbox */
    uint32_t weight;                  /* against other sessions'; 0: 1 */
    uint32_t in_flight;               /* operations accepted and not completed */
    uint32_t holds;                   /* HOLD commands that the worker has not acked */
    struct attnd_work_stats stats;
};

/** attnd_client_discards() - under whose name what it sent is closed (ipc/discard.h). */
static inline uint32_t attnd_client_discards(const struct attnd_client *client)
{
    return client->allowed ? client->uid : ATTND_DISCARD_STRANGERS;
}

/** attnd_client_memory(), _attachment(), _plan() - the object behind a handle, or NULL. Borrowed.
 */
struct attnd_memory *attnd_client_memory(const struct attnd_client *client, uint32_t handle);
struct attnd_attachment *attnd_client_attachment(const struct attnd_client *client,
                                                 uint32_t handle);
struct attnd_plan_object *attnd_client_plan(const struct attnd_client *client, uint32_t handle);

/** attnd_client_vacant() - handle of a free slot of one of the client's tables, 0 if all are used.
 */
uint32_t attnd_client_vacant(void *const *table);

/** attnd_client_name() - for the log. */
static inline const char *attnd_client_name(const struct attnd_client *client)
{
    return client->name[0] ? client->name : "unnamed";
}

/** attnd_client_arena() - where the client puts batches; it may write there at any time. */
static inline const void *attnd_client_arena(const struct attnd_client *client)
{
    return (const char *)client->submission.address + client->arena_offset_bytes;
}

#endif
