/*
 * control.h - one control call: what its handler gets and what it gives back. Also what the files
 * of the control plane say to each other; the data plane needs none of it.
 */
#ifndef ATTND_SERVICE_RPC_CONTROL_H
#define ATTND_SERVICE_RPC_CONTROL_H

#include "ipc/fdpass.h"
#include "persistent/backend.h"
#include "schemas/attnd.pb-c.h"
#include "service/service.h"

/* A call while its handler runs. Whatever the reply points to comes from attnd_call_alloc(). */
struct attnd_call {
    struct attnd_service *service;
    struct attnd_client *client;
    const Attnd__Request *request;
    int *fds; /* received; a handler that keeps one sets it to -1, the rest are closed after it */
    int fds_count;
    Attnd__Reply *reply;
    int reply_fds[ATTND_FDS_MAX]; /* stay their owners' */
    int reply_fds_count;
    struct attnd_fault *fault;
};

/* A handler's return: the reply is sent later, by attnd_control_answer(). */
#define ATTND_CALL_LATER 1

/* Return: 0; a negative code with details in call->fault, then the reply's result is dropped; or
 * ATTND_CALL_LATER. */
typedef int attnd_call_fn(struct attnd_call *call);

/* ---- control.c ---- */

/** attnd_control_new() - the service's message buffers. Return: 0 or -ATTND_E_NO_MEMORY. */
int attnd_control_new(struct attnd_service *service);
void attnd_control_free(struct attnd_service *service);

/** attnd_control_reset() - forget the last request and reply: their memory serves the next. */
void attnd_control_reset(struct attnd_service *service);

/** attnd_control_serve() - receive, serve and answer one datagram, if there is one. May end the
 * client. */
void attnd_control_serve(struct attnd_client *client);

/** attnd_control_answer() - what a handler left open
 * @reply: id and result are set
 * @fd:    goes with it and stays its owner's; -1: none
 * @fault: goes instead of the result if its code is not 0
 * May end the client. */
void attnd_control_answer(struct attnd_client *client, Attnd__Reply *reply, int fd,
                          const struct attnd_fault *fault);

/** attnd_call_alloc() - memory until the reply is sent; zeroed. NULL: the message would be too
 * large for a datagram anyway. */
void *attnd_call_alloc(struct attnd_call *call, size_t bytes);

/* ---- the handlers ---- */

attnd_call_fn attnd_call_hello, attnd_call_mapped;                   /* handshake.c */
attnd_call_fn attnd_call_memory_register, attnd_call_memory_release; /* memory_calls.c */
attnd_call_fn attnd_call_wake_open;
attnd_call_fn attnd_call_pool_create, attnd_call_pool_share;         /* pool_calls.c */
attnd_call_fn attnd_call_pool_attach, attnd_call_pool_release;       /* pool_calls.c */
attnd_call_fn attnd_call_pages_alloc, attnd_call_pages_share;        /* lease_calls.c */
attnd_call_fn attnd_call_pages_free, attnd_call_pages_offer;         /* lease_calls.c */
attnd_call_fn attnd_call_pages_claim;                                /* lease_calls.c */
attnd_call_fn attnd_call_plan_create, attnd_call_plan_destroy;       /* plan_calls.c */
attnd_call_fn attnd_call_mailbox_open, attnd_call_prepare;           /* stream_calls.c */
attnd_call_fn attnd_call_unprepare;                                  /* stream_calls.c */
attnd_call_fn attnd_call_status;                                     /* status.c */

/* ---- session.c: clients from accept() to the last close() ---- */

/** attnd_client_accept() - a loop callback: take one connection from the listening socket. */
void attnd_client_accept(void *service, uint32_t poll_events);

/** attnd_service_listen() - run.c: watch the listening socket. */
void attnd_service_listen(struct attnd_service *service);

/** attnd_client_enroll() - a visitor becomes a session: gets a slot and an id.
 * Return: 0, or -ATTND_E_RANGE (field sessions) if all are taken, or all that one process may have.
 */
int attnd_client_enroll(struct attnd_client *client, struct attnd_fault *fault);

/**
 * attnd_client_share() - may a process have one more of what all sessions share?
 * @pid:  0: not known (it is in another pid namespace): yes
 * @has:  how many it has
 * @all:  how many there can be
 * Return: 0; -ATTND_E_NO_MEMORY with @field, how many it would have, and ATTND_SHARE_MAX(@all).
 */
int attnd_client_share(pid_t pid, uint32_t has, uint32_t all, uint32_t field,
                       struct attnd_fault *fault);

/** attnd_client_opened() - the handshake is done: drop its deadline. */
void attnd_client_opened(struct attnd_client *client);

/** attnd_client_watch_doorbell() - wake the loop when the client rings. Return: 0 or
 * -ATTND_E_NO_MEMORY. */
int attnd_client_watch_doorbell(struct attnd_client *client);

/** attnd_client_end() - the peer is gone: drain, then free. Harmless on a dying one. */
void attnd_client_end(struct attnd_client *client);

/** attnd_client_reap() - free the drained ones that the kernel has let go of; after a sweep.
 * @all: every one, when the loop is gone. */
void attnd_client_reap(struct attnd_service *service, int all);

/** attnd_client_unmap() - handshake.c: segments and doorbells. */
void attnd_client_unmap(struct attnd_client *client);

/** attnd_client_name() - for the log. */
static inline const char *attnd_client_name(const struct attnd_client *client)
{
    return client->name[0] ? client->name : "unnamed";
}

/** attnd_client_vacant() - handle of a free slot of one of the client's tables, 0 if all are used.
 */
uint32_t attnd_client_vacant(void *const *table);

/* ---- memory.c ---- */

/**
 * attnd_memory_new() - an object known to the worker
 * @source: what stands for it, checked by the caller as far as that goes; its descriptor is taken
 *          over on success
 * @payer:  whose budget it counts against, after attnd_memory_afford(); NULL: nobody's
 * Return: 0 with one reference, the caller's; -ATTND_E_NO_MEMORY the worker's table is full, or the
 * daemon has no descriptor left for it (field memory).
 */
int attnd_memory_new(struct attnd_service *service, const struct attnd_memory_source *source,
                     struct attnd_client *payer, struct attnd_memory **out,
                     struct attnd_fault *fault);

/**
 * attnd_memory_afford() - do @size_bytes more of @kind fit in what is left of @payer's budget for
 * it and, of host memory, of all sessions'? Return: 0; -ATTND_E_NO_MEMORY (field size, limit what
 * is left).
 */
int attnd_memory_afford(const struct attnd_client *payer, uint32_t kind, uint64_t size_bytes,
                        struct attnd_fault *fault);

/** attnd_memory_wake() - the memory of the worker's wake word, which is made when it is first asked
 * for and lives as long as the service. The worker is told when it has mapped it. Return: 0 and
 * *out, borrowed; -ATTND_E_UNSUPPORTED the worker's kernels do not leave; as attnd_memory_new(). */
int attnd_memory_wake(struct attnd_service *service, struct attnd_memory **out,
                      struct attnd_fault *fault);

/** attnd_memory_share() - has @client's process room for one more in the worker's table? Return: 0;
 * -ATTND_E_NO_MEMORY (field memory). */
int attnd_memory_share(const struct attnd_client *client, struct attnd_fault *fault);

/** attnd_memory_make() - the same over memory of the daemon's making: a memfd sealed as a pool, or
 * memory of the GPU; @size_bytes is rounded up to pages of @kind.
 * @kind: as a client sent it. -ATTND_E_INVALID no such kind; -ATTND_E_UNSUPPORTED the worker's
 * backend has none of it. */
int attnd_memory_make(struct attnd_client *payer, uint32_t kind, uint64_t size_bytes,
                      struct attnd_memory **out, struct attnd_fault *fault);

/** attnd_memory_check_now() - memory_calls.c: can memory of @kind be tried now, if the worker has
 * to do that before the reply? Return: 0; -ATTND_E_WORKER_RESTARTED nobody is there to do it;
 * -ATTND_E_BUSY the session has one under way. */
int attnd_memory_check_now(const struct attnd_call *call, uint32_t kind);

/** attnd_memory_waits() - memory_calls.c: is @memory, new, being tried, so that the reply waits? */
int attnd_memory_waits(const struct attnd_service *service, const struct attnd_memory *memory);

/** attnd_pool_tried() - pool_calls.c: the memory made for client->import_pool has been tried; its
 * creation is answered. @fault: code 0, or why there is no pool. */
void attnd_pool_tried(struct attnd_client *client, const struct attnd_fault *fault);

/** attnd_memory_released() - memory_calls.c: the worker let go of what request @id of a session
 * released. */
void attnd_memory_released(struct attnd_service *service, uint32_t session, uint64_t id);

/** attnd_memory_bind() - a handle of the session, which takes over the caller's reference.
 * Return: 0, or -ATTND_E_NO_MEMORY (no handle free; the reference stays the caller's). */
int attnd_memory_bind(struct attnd_client *client, struct attnd_memory *memory, uint32_t *handle,
                      struct attnd_fault *fault);
void attnd_memory_unbind(struct attnd_client *client, uint32_t handle);

/* ---- pool_check.c: a PoolCreate against the rules ---- */

/** attnd_pool_check_shape() - every scalar. Return: 0, -ATTND_E_RANGE, -ATTND_E_UNSUPPORTED. */
int attnd_pool_check_shape(const Attnd__PoolCreate *desc, struct attnd_heap_pool *shape,
                           struct attnd_fault *fault);

/** attnd_pool_check_variant() - does the worker execute a head dimension and element type that
 * attnd_pool_check_shape() let pass? Return: 0; -ATTND_E_UNSUPPORTED (field head_dim or dtype,
 * limit what it has). */
int attnd_pool_check_variant(const struct attnd_worker_info *worker,
                             const struct attnd_heap_pool *shape, struct attnd_fault *fault);

/** attnd_pool_check_plane() - strides and extent of one plane in memory of @memory_bytes
 * @field: K or V; @layer: the fault's index. Return: 0, -ATTND_E_RANGE, -ATTND_E_INVALID. */
int attnd_pool_check_plane(const struct attnd_heap_pool *shape, const Attnd__Plane *plane,
                           uint64_t memory_bytes, enum attnd_field field, uint32_t layer,
                           struct attnd_fault *fault);

/** attnd_pool_plane_bytes() - one contiguous plane. Return: 0, -ATTND_E_RANGE on overflow of all
 * planes together. */
int attnd_pool_plane_bytes(const struct attnd_heap_pool *shape, uint64_t *bytes,
                           struct attnd_fault *fault);

/* ---- pool.c ---- */

/**
 * attnd_pool_new() - a pool nobody is attached to yet
 * @planes:   k[layers], v[layers], memories as the worker knows them; copied
 * @memories: [memories_count] distinct; each gets a reference of the pool's own
 * Return: 0, with one reference, the caller's; -ATTND_E_NO_MEMORY.
 */
int attnd_pool_new(struct attnd_service *service, const struct attnd_heap_pool *shape,
                   uint32_t page_owner, const struct attnd_heap_plane *planes,
                   struct attnd_memory *const *memories, uint32_t memories_count,
                   struct attnd_pool **out, struct attnd_fault *fault);
void attnd_pool_ref(struct attnd_pool *pool);
/** attnd_pool_unref() - the last reference frees the pool; nothing of it is in flight then. */
void attnd_pool_unref(struct attnd_service *service, struct attnd_pool *pool);

/** attnd_pool_planes() - k[layers], v[layers] in the heap. */
const struct attnd_heap_plane *attnd_pool_planes(const struct attnd_pool *pool);

/** attnd_pool_lone() - the one memory of the daemon's making the pool lies in, or NULL. */
struct attnd_memory *attnd_pool_lone(const struct attnd_pool *pool);

/** attnd_client_attach() - a handle of the session; takes a reference of its own. A session without
 * a handle of attnd_pool_lone() gets one with it. Return: 0 or -ATTND_E_NO_MEMORY. */
int attnd_client_attach(struct attnd_client *client, struct attnd_pool *pool, int writable,
                        uint32_t *handle, struct attnd_fault *fault);
/** attnd_client_detach() - frees the session's leases; no plan uses the attachment any more. */
void attnd_client_detach(struct attnd_client *client, uint32_t handle);

/* ---- lease.c: on the pages of one attachment; for all of them or for none ---- */

int attnd_lease_alloc(struct attnd_attachment *attachment, uint32_t count, int32_t *pages,
                      struct attnd_fault *fault);
int attnd_lease_share(struct attnd_attachment *attachment, const int32_t *pages, uint32_t count,
                      struct attnd_fault *fault);
int attnd_lease_free(struct attnd_attachment *attachment, const int32_t *pages, uint32_t count,
                     struct attnd_fault *fault);
/** attnd_lease_give() - the session's leases become nobody's: the caller keeps the pages. */
int attnd_lease_give(struct attnd_attachment *attachment, const int32_t *pages, uint32_t count,
                     struct attnd_fault *fault);
/** attnd_lease_take() - and somebody's again. */
void attnd_lease_take(struct attnd_attachment *attachment, const int32_t *pages, uint32_t count);
/** attnd_lease_drop() - leases that are nobody's are given up. */
void attnd_lease_drop(struct attnd_pool *pool, const int32_t *pages, uint32_t count);
/** attnd_lease_drop_all() - every lease of an attachment. */
void attnd_lease_drop_all(struct attnd_attachment *attachment);
/** attnd_lease_count() - pages with at least one lease. */
uint32_t attnd_lease_count(const struct attnd_pool *pool);

/* ---- ticket.c ---- */

struct attnd_ticket {
    struct attnd_service *service;
    struct attnd_pool *pool; /* referenced */
    struct attnd_watch *timer;
    pid_t giver; /* process whose share it is of; 0: nobody's */
    uint32_t slot;
    uint32_t count;
    uint8_t secret[ATTND_SECRET_BYTES];
    int32_t pages[];
};

/** attnd_secret_make() - 16 random bytes. Return: 0 or -ATTND_E_SYSTEM. */
int attnd_secret_make(uint8_t *secret, struct attnd_fault *fault);
/** attnd_secret_equal() - in constant time. */
int attnd_secret_equal(const uint8_t *a, const uint8_t *b);

/** attnd_ticket_offer() - move leases of @attachment to a ticket of the process @giver. */
int attnd_ticket_offer(struct attnd_service *service, struct attnd_attachment *attachment,
                       pid_t giver, const int32_t *pages, uint32_t count, uint32_t expire_ms,
                       const struct attnd_ticket **out, struct attnd_fault *fault);
/** attnd_ticket_find() - NULL if it expired or was claimed or never was. */
struct attnd_ticket *attnd_ticket_find(struct attnd_service *service, const uint8_t *secret);
/** attnd_ticket_claim() - its leases go to @attachment, of its pool; the ticket is gone. */
void attnd_ticket_claim(struct attnd_ticket *ticket, struct attnd_attachment *attachment);
/** attnd_ticket_free_all() - at the end of the service. */
void attnd_ticket_free_all(struct attnd_service *service);

#endif
