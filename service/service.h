/*
 * service.h - the daemon's state, and who owns which part of it.
 *
 * One thread runs everything here (the loop's). Two halves share this header:
 *   control plane   control, session, memory, pool, lease, status: messages on the socket
 *   data plane      queue, sched, submit, planobj, supervise: rings, lanes, runs, the worker
 * The control plane calls the data plane to map memory, make plans and drain sessions; the data
 * plane looks up handles and leases. References are counted where objects outlive their session: a
 * memory or a pool is freed when its last reference goes, and runs in flight hold references.
 */
#ifndef ATTND_SERVICE_SERVICE_H
#define ATTND_SERVICE_SERVICE_H

#include "ipc/admit.h"
#include "ipc/loop.h"
#include "ipc/ring.h"
#include "ipc/shm.h"
#include "ipc/wake.h"
#include "persistent/plan/plan.h"
#include "schemas/abi.h"
#include "schemas/errors.h"

#include <sys/types.h>

#define ATTND_SESSIONS_MAX 64u
#define ATTND_VISITORS_MAX 32u /* connections that are no session (yet) */
#define ATTND_POOLS_MAX 1024u  /* in the service */
#define ATTND_SECRET_BYTES 16u /* pool tokens and page tickets */
#define ATTND_ALLOW_UIDS_MAX 16u
#define ATTND_DEVICES_MAX 64u
#define ATTND_PAGE_LEASES_MAX 32767u /* of one page */
#define ATTND_HANDLES_MAX 1024u      /* per session and kind; handle h is slot h - 1 */
/* Of what all sessions share, one process may have half: it cannot use up what others need. */
#define ATTND_SHARE_MAX(all) ((all) / 2)
#define ATTND_OPS_MAX 4096u /* per session: bounded by its completion ring */

struct attnd_service;

enum attnd_log_level {
    ATTND_LOG_ERROR = 3,
    ATTND_LOG_WARNING = 4,
    ATTND_LOG_INFO = 6,
    ATTND_LOG_DEBUG = 7
};

/* ---- memory (memory.c, device.c): objects the worker maps; the daemon never does ---- */

struct attnd_memory {
    uint32_t index;  /* in the worker's memory table */
    uint32_t refs;   /* session handles, pools and runs in flight */
    int fd;          /* -1: the kind has none, or unreferenced and the worker has not let go yet */
    uint32_t payer;  /* session whose budget it counts against; 0: memory of the GPU, imported */
    uint32_t kind;   /* enum attnd_memory_kind */
    uint32_t made;   /* by the daemon; 0: imported */
    pid_t maker;     /* process whose share it is of; 0: nobody's */
    uint32_t pools;  /* that lie in it */
    uint32_t deaths; /* in a row: of workers that were bringing it in */
    uint64_t size_bytes;
    uint8_t handle[ATTND_IPC_HANDLE_BYTES]; /* beside or instead of the descriptor, by kind */
    struct attnd_fault fault;               /* why the worker that lives cannot map it; code 0 */
    uint32_t release_session;               /* that waits until the worker let go; 0: none */
    uint64_t release_id;                    /* its request */
};

/* ---- pools (pool.c) and leases (lease.c) ---- */

struct attnd_pool {
    uint32_t id;
    uint32_t refs;                /* attachments and tickets */
    pid_t maker;                  /* process whose share it is of; 0: nobody's */
    uint32_t page_owner;          /* PageOwner of attnd.proto */
    struct attnd_heap_pool shape; /* private copy of *heap */
    struct attnd_heap_pool *heap; /* in the queue segment, planes behind it */
    uint64_t heap_offset_bytes;
    uint64_t heap_bytes;
    uint32_t memories_count;
    struct attnd_memory **memories; /* referenced; distinct */
    uint16_t *leases;               /* [pages] all leases of a page; NULL for OWNER_ENGINE */
    int32_t *free_pages;            /* stack of pages that came back */
    uint32_t free_count;
    uint32_t fresh;                       /* pages from here on were never leased */
    uint8_t token[2][ATTND_SECRET_BYTES]; /* [writable]; all zero: never shared */
    struct attnd_pool *next;
};

/* One session's hold on a pool. */
struct attnd_attachment {
    struct attnd_pool *pool;
    int writable;
    int16_t *held; /* [pages] minus the leases of this session (lease.c); NULL for OWNER_ENGINE */
    uint64_t held_count; /* sum of held */
    uint32_t plans;      /* plan objects of this session that use it; control plane counts */
    uint32_t memory;     /* handle that came with the attachment and goes with it; 0: none */
};

/* ---- plan objects (planobj.c) ---- */

struct attnd_plan_object {
    struct attnd_plan *plan;
    struct attnd_attachment *attachment;
    struct attnd_batch_limits limits;
    uint64_t heap_offset_bytes, heap_bytes;
    uint32_t generation;                         /* that a run submitted now would use */
    uint32_t generation_runs[ATTND_GENERATIONS]; /* runs in flight that use each */
    uint32_t in_flight;                          /* operations queued or dispatched */
    uint32_t filled;                             /* a plan_set succeeded */
    uint32_t prepared;                           /* runs that a mailbox rings */
    struct attnd_plan_prepared *prepared_runs;   /* of those; NULL: never had any */

    /* of the batch it is filled with */
    uint64_t set_version; /* as the worker finds them in the heap */
    uint32_t advance_version;
    uint32_t tile_items, append_items; /* queue items of a run and of an append */
    uint64_t q_bytes, o_bytes, lse_bytes, k_bytes, v_bytes; /* extents from a tensor's offset */
    uint64_t scratch_bytes;                                 /* of a run */
    struct attnd_append_entry *append;                      /* planobj.c; [append_entries] */
    uint32_t append_first, append_entries;                  /* the last level's */
    uint32_t kv_len_stride;                                 /* between generations */
    const int32_t *kv_pages, *kv_len;                       /* in the heap */
};

/* ---- sessions (session.c) and their operations (sched.c, submit.c) ---- */

struct attnd_sched_op;      /* sched.h */
struct attnd_session_lanes; /* sched.h */
struct attnd_mail;          /* stream.h */
struct attnd_plan_prepared; /* stream.h */

enum attnd_session_state {
    ATTND_SESSION_HELLO,   /* connected, nothing known */
    ATTND_SESSION_MAPPING, /* segments sent, not yet sealed */
    ATTND_SESSION_OPEN,
    ATTND_SESSION_DYING /* gone; its work is being drained */
};

struct attnd_session_stats {
    uint64_t runs, appends, busy_ns, kv_bytes, tiles;
};

struct attnd_client {
    struct attnd_service *service;
    uint32_t id;
    enum attnd_session_state state;
    int socket;
    int pidfd; /* -1 where the kernel has none */
    pid_t pid;
    uid_t uid;
    int allowed; /* uid is on the allow-list; others get -ATTND_E_PERMISSION to every call */
    char name[32];
    struct attnd_watch *socket_watch, *pidfd_watch, *doorbell_watch, *hello_timer;
    uint32_t watches_ending;      /* unwatched, but the kernel may still hold the fd or word */
    struct attnd_client *next;    /* among visitors, or among the drained */
    uint64_t memory_bytes;        /* on the host, counted against options.memory_max_bytes */
    uint64_t device_memory_bytes; /* counted against options.device_memory_max_bytes */

    struct attnd_shm submission, completion;
    int notify_fd;      /* write end of the pipe that the client polls */
    int notify_peer_fd; /* its read end, until the client has it */
    int doorbell_fd;    /* eventfd the client writes, -1 with futex doorbells */
    uint32_t ring_entries;
    uint64_t arena_offset_bytes, arena_bytes;
    struct attnd_consumer sq;
    struct attnd_producer cq;

    uint32_t import;      /* handle of memory that the worker tries out; 0: none */
    uint32_t import_pool; /* handle of the pool that it was made for, not told of yet; 0: none */
    uint64_t import_id;   /* the request that waits for it */

    struct attnd_memory *memories[ATTND_HANDLES_MAX];
    struct attnd_attachment *attachments[ATTND_HANDLES_MAX];
    struct attnd_plan_object *plans[ATTND_HANDLES_MAX];

    struct attnd_session_lanes *lanes; /* data plane's */
    struct attnd_mail *mail;           /* data plane's; NULL: no mailbox */
    uint32_t in_flight;                /* operations accepted and not completed */
    struct attnd_staging staging;
    struct attnd_session_stats stats;
};

/* ---- the daemon ---- */

struct attnd_options {
    char socket_path[108];   /* sockaddr_un's limit */
    const char *backend;     /* "auto", "cpu", "cuda" */
    const char *worker_path; /* NULL: attnd-worker beside the daemon, else on PATH */
    const char *isa;         /* NULL: best */
    const char *residency;   /* "auto", "shared", "exclusive", "elastic" */
    const char *inject;      /* tests: a fault that the first worker makes; NULL: none */
    enum attnd_loop_kind loop;
    uint32_t threads;          /* of the worker; 0: all processors */
    uint32_t device;           /* GPU of the worker, in the order of CUDA */
    uint32_t sms;              /* that "shared" is resident on; 0: half */
    int burst;                 /* and more when much is queued */
    uint32_t watchdog_s;       /* a worker that does not move for so long is killed; 0: never */
    uint64_t heap_bytes;       /* pools' planes and plans */
    uint64_t scratch_bytes;    /* partials; 0: as much as the worker thinks best */
    uint64_t memory_max_bytes; /* of the host, one session's: made for it and registered */
    uint64_t host_memory_max_bytes;   /* of all sessions, made and registered */
    uint64_t device_memory_max_bytes; /* of the GPU, made for one session; 0: all there is */
    uid_t allow_uids[ATTND_ALLOW_UIDS_MAX];
    uint32_t allow_uids_count;
    int trust; /* 1: handles of engines are passed on to the driver unseen */
    enum attnd_log_level log_level;
};

struct attnd_queue;      /* queue.h: the queue segment, heap, command and retire rings */
struct attnd_supervisor; /* supervise.h: the worker process */
struct attnd_scheduler;  /* sched.h */
struct attnd_device;     /* device.h: the driver of the GPU whose memory can be made */
struct attnd_tickets;    /* ticket.c */
struct attnd_control;    /* control.h: message buffers */

struct attnd_service {
    struct attnd_options options;
    struct attnd_loop *loop;
    int listen_fd;
    struct attnd_watch *listen_watch, *listen_timer;
    uint64_t start_ns;
    struct attnd_client *clients[ATTND_SESSIONS_MAX]; /* sessions: MAPPING, OPEN, DYING */
    struct attnd_client *visitors;                    /* HELLO: no session (yet) */
    uint32_t visitors_count;
    struct attnd_client *drained; /* freed at the end of a sweep, when no callback can name them */
    uint32_t next_session_id;
    struct attnd_memory *memories[ATTND_MEMORIES_MAX];
    uint64_t host_memory_bytes; /* of them, counted against options.host_memory_max_bytes */
    struct attnd_pool *pools;
    uint32_t pools_count;
    uint32_t next_pool_id;
    struct attnd_tickets *tickets;
    struct attnd_control *control;
    struct attnd_queue *queue;
    struct attnd_supervisor *supervisor;
    struct attnd_scheduler *scheduler;
    struct attnd_device *device; /* NULL: the worker's backend has no memory of its own */
    struct attnd_memory *wake;   /* of the wake word; NULL: nobody has asked for it yet */
    struct attnd_session_stats totals;
    int stopping;
};

/* ---- control plane, for the data plane ---- */

/** attnd_memory_ref()/unref() - count a use; the last unref unmaps it in the worker and closes it.
 */
void attnd_memory_ref(struct attnd_memory *memory);
void attnd_memory_unref(struct attnd_service *service, struct attnd_memory *memory);

/** attnd_memory_mapped() - the worker's answer to a map: @fault's code 0, or why it could not. An
 * engine that waits for it is answered. */
void attnd_memory_mapped(struct attnd_service *service, uint32_t index,
                         const struct attnd_fault *fault);
/** attnd_memory_lost() - the worker is gone, perhaps because of what it was given to import: those
 * imports are answered -ATTND_E_WORKER_RESTARTED and not tried again. Host memory is kept. */
void attnd_memory_lost(struct attnd_service *service);

/** attnd_client_memory() - the object behind a handle, or NULL. Borrowed. */
struct attnd_memory *attnd_client_memory(const struct attnd_client *client, uint32_t handle);
struct attnd_attachment *attnd_client_attachment(const struct attnd_client *client,
                                                 uint32_t handle);
struct attnd_plan_object *attnd_client_plan(const struct attnd_client *client, uint32_t handle);

/**
 * attnd_lease_check() - does the attachment hold a lease of each page?
 * Pages of an engine-owned pool always pass. Return: 0, or -ATTND_E_NOT_LEASED (field kv_indices).
 */
int attnd_lease_check(const struct attnd_attachment *attachment, const int32_t *pages,
                      uint32_t count, struct attnd_fault *fault);

/** attnd_lease_shared() - 1 if the page has more than one lease and may not be written. */
int attnd_lease_shared(const struct attnd_pool *pool, uint32_t page);

/** attnd_client_drained() - the data plane's last word on a dying session: nothing of it is in
 * flight. Its plans, pools and memory go now; @client itself stays valid until the sweep or loop
 * callback that this happens in has returned. */
void attnd_client_drained(struct attnd_client *client);

/** attnd_client_kill() - end a session that broke the protocol (logged with @why). Calls
 * attnd_sched_close(). Harmless on a dying one. */
void attnd_client_kill(struct attnd_client *client, const char *why);

/* ---- data plane, for the control plane ---- */

/* queue.c + supervise.c + sched.c. Termination signals are blocked in the daemon: the worker's
 * process unblocks them. */
int attnd_data_start(struct attnd_service *service, struct attnd_fault *fault);
/** attnd_data_stop() - drain runs in flight (their completions are posted), park the worker, reap
 * it, unwatch everything; bounded by @timeout_ns. The loop no longer runs. What the service points
 * to stays valid: attnd_sched_close(), attnd_planobj_destroy(), attnd_heap_free() and
 * attnd_supervisor_unmap() are still called, and then end at once. */
void attnd_data_stop(struct attnd_service *service, uint64_t timeout_ns);
/** attnd_data_free() - last: the loop and every session are gone. NULL pointers are fine. */
void attnd_data_free(struct attnd_service *service);

/** attnd_data_watch_retires() - the loop is woken by the worker's answers; anew for each worker.
 * Return: 0; -ATTND_E_NO_MEMORY. */
int attnd_data_watch_retires(struct attnd_service *service, struct attnd_fault *fault);

/** attnd_data_sweep()/asleep() - struct attnd_loop_hooks, context is the service. */
int attnd_data_sweep(void *service);
void attnd_data_asleep(void *service, int asleep);
int attnd_data_expecting(void *service); /* 1: the worker has runs */

/** attnd_data_caught_up() - sweep; has an open session's call come to its turn? A call comes after
 * everything that was submitted before it, unless the completion ring has no room for that; but one
 * sweep takes only so much of a session. The sweep may end the client.
 * Return: 1 serve it, 0 ask again in the loop's next turn. */
int attnd_data_caught_up(struct attnd_client *client);

/** attnd_heap_alloc() - queue heap memory, 64-byte aligned, zeroed. Return: offset, 0 if full. */
uint64_t attnd_heap_alloc(struct attnd_queue *queue, uint64_t bytes);
void attnd_heap_free(struct attnd_queue *queue, uint64_t offset_bytes, uint64_t bytes);
void *attnd_heap_at(struct attnd_queue *queue, uint64_t offset_bytes);
void attnd_heap_usage(const struct attnd_queue *queue, uint64_t *bytes, uint64_t *used_bytes);

/** attnd_supervisor_map() - tell the worker of a memory object (kept for restarts). */
int attnd_supervisor_map(struct attnd_supervisor *supervisor, const struct attnd_memory *memory);
/** attnd_supervisor_unmap() - the last reference went: the worker drops it. @index may be reused
 * after attnd_memory_unmapped(), which may be called before this returns. The fd may be closed now.
 */
void attnd_supervisor_unmap(struct attnd_supervisor *supervisor, uint32_t index);
/** attnd_memory_unmapped() - the worker let go of an index (control plane frees the slot). */
void attnd_memory_unmapped(struct attnd_service *service, uint32_t index);

/** attnd_planobj_create() - heap memory and planner state for capacities. */
int attnd_planobj_create(struct attnd_service *service, struct attnd_attachment *attachment,
                         const struct attnd_batch_limits *limits, uint32_t heads_q,
                         struct attnd_plan_object **out, struct attnd_fault *fault);
/** attnd_planobj_destroy() - only when in_flight is 0. */
void attnd_planobj_destroy(struct attnd_service *service, struct attnd_plan_object *object);

/** attnd_sched_open()/close() - a session's lanes. close: queued operations are dropped, dispatched
 * ones cancelled and awaited, then attnd_client_drained() is called (possibly at once). */
int attnd_sched_open(struct attnd_client *client);
void attnd_sched_close(struct attnd_client *client);

/* The three below answer request @id later, through stream_calls.c, where they return 1; otherwise
 * they return a fault's code. A session has one of them open at a time. */

/** attnd_prepared_open() - a mailbox for the session. -ATTND_E_BUSY it has one;
 * -ATTND_E_UNSUPPORTED (field mailbox) the worker watches none; -ATTND_E_NO_MEMORY. */
int attnd_prepared_open(struct attnd_client *client, uint64_t id, struct attnd_fault *fault);

/**
 * attnd_prepared_add() - a run that the session's stream may ring
 * @wish: what a submitted run would say; checked here
 */
int attnd_prepared_add(struct attnd_client *client, uint64_t id, uint32_t plan, uint32_t lane,
                       const struct attnd_sqe_run *wish, struct attnd_fault *fault);
/** attnd_prepared_remove() - @run: index into the run table; answered when nothing of it is in
 * flight. */
int attnd_prepared_remove(struct attnd_client *client, uint64_t id, uint32_t run,
                          struct attnd_fault *fault);

struct attnd_prepared_status {
    uint32_t prepared;
    uint64_t rings, busy_ns;
    uint32_t errors, error_code, error_lane; /* of the last one, ATTND_E_* */
};
/** attnd_prepared_status() - Return: 1; 0 the session has no mailbox. */
int attnd_prepared_status(const struct attnd_client *client, struct attnd_prepared_status *status);

/** attnd_data_worker() - what the worker said of itself when it came up, or the last one did. */
const struct attnd_worker_info *attnd_data_worker(const struct attnd_service *service);
/** attnd_data_running() - 1: it answers; 0: it is gone, or not yet there again. */
int attnd_data_running(const struct attnd_service *service);

struct attnd_data_status {
    const char *backend, *isa, *worker_state;
    pid_t worker_pid;
    uint32_t worker_restarts, tile_workers, queue_runs, queue_waiting;
    const char *worker_last_end; /* of the worker before; NULL: this is the first */
    const char *residency;       /* NULL: no GPU */
    uint32_t sms, sms_resident, sms_burst, launches;
    int mps;
};
void attnd_data_status(const struct attnd_service *service, struct attnd_data_status *status);

/* ---- log (log.c): the only place of the daemon and worker that prints ---- */

void attnd_log_level(enum attnd_log_level level);
void attnd_log(enum attnd_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
