/*
 * calls.h - the handlers, one function a call of attnd.proto, and the events that end a call which
 * waited.
 */
#ifndef ATTND_SERVICE_RPC_CALLS_H
#define ATTND_SERVICE_RPC_CALLS_H

#include "service/prepared/prepared.h"
#include "service/rpc/call.h"

/* Return: 0; a negative code with details in call->fault, then the reply's result is dropped; or
 * ATTND_CALL_LATER. */
typedef int attnd_call_fn(struct attnd_call *call);

attnd_call_fn attnd_call_hello, attnd_call_mapped;                   /* handshake.c */
attnd_call_fn attnd_call_memory_register, attnd_call_memory_release; /* memory_calls.c */
attnd_call_fn attnd_call_wake_open;                                  /* memory_calls.c */
attnd_call_fn attnd_call_pool_create, attnd_call_pool_share;         /* pool_calls.c */
attnd_call_fn attnd_call_pool_attach, attnd_call_pool_release;       /* pool_calls.c */
attnd_call_fn attnd_call_pages_alloc, attnd_call_pages_share;        /* lease_calls.c */
attnd_call_fn attnd_call_pages_free, attnd_call_pages_offer;         /* lease_calls.c */
attnd_call_fn attnd_call_pages_claim;                                /* lease_calls.c */
attnd_call_fn attnd_call_plan_create, attnd_call_plan_destroy;       /* plan_calls.c */
attnd_call_fn attnd_call_mailbox_open, attnd_call_prepare;           /* prepared_calls.c */
attnd_call_fn attnd_call_unprepare;                                  /* prepared_calls.c */
attnd_call_fn attnd_call_plan_image, attnd_call_kernel_file;         /* engine_calls.c */
attnd_call_fn attnd_call_session_weight;                             /* operator_calls.c */
attnd_call_fn attnd_call_prefix_open, attnd_call_prefix_share;       /* prefix_calls.c */
attnd_call_fn attnd_call_prefix_attach, attnd_call_prefix_release;   /* prefix_calls.c */
attnd_call_fn attnd_call_prefix_query;                               /* prefix_calls.c */
attnd_call_fn attnd_call_peer_hello;                                 /* peer_calls.c */
attnd_call_fn attnd_call_status;                                     /* status.c */
attnd_call_fn attnd_call_session_kill;                               /* operator_calls.c */
attnd_call_fn attnd_call_monitor;                                    /* monitor_calls.c */
attnd_call_fn attnd_call_trace;                                      /* trace_calls.c */

/* ---- what the worker has to try before the reply: imports.c ---- */

/** attnd_memory_check_now() - can memory of @kind be tried now, if the worker has
 * to do that before the reply? Return: 0; -ATTND_E_WORKER_RESTARTED nobody is there to do it;
 * -ATTND_E_BUSY the session has one under way. */
int attnd_memory_check_now(const struct attnd_call *call, uint32_t kind);

/** attnd_memory_waits() - is @memory, new, being tried, so that the reply waits? */
int attnd_memory_waits(const struct attnd_service *service, const struct attnd_memory *memory);

/** attnd_pool_tried() - pool_calls.c: the memory made for client->import_pool has been tried; its
 * creation is answered. @fault: code 0, or why there is no pool. */
void attnd_pool_tried(struct attnd_client *client, const struct attnd_fault *fault);

/** attnd_memory_released() - the worker let go of what request @id of a session
 * released. */
void attnd_memory_released(struct attnd_service *service, uint32_t session, uint64_t id);

/** attnd_memory_mapped() - the supervisor's event: the worker's answer to a map. @fault's code is
 * 0, or says why it could not. An engine that waits for it is answered. */
void attnd_memory_mapped(struct attnd_service *service, uint32_t index,
                         const struct attnd_fault *fault);
/** attnd_memory_lost() - the supervisor's event: the worker is gone, perhaps because of what it was
 * given to import. Those imports are answered -ATTND_E_WORKER_RESTARTED and not tried again. Host
 * memory is kept. */
void attnd_memory_lost(struct attnd_service *service);

/* ---- lease_calls.c ---- */

/** attnd_pages_freed() - the event of a tree's second tier: pages of @pool have become free.
 * Sessions that wait for pages of it are answered. */
void attnd_pages_freed(struct attnd_service *service, struct attnd_pool *pool);

/* ---- prefix_calls.c ---- */

/** attnd_host_cache_fill() - how the host memory below prefix trees is, in the call's memory; NULL
 * where there is none. Return: 0; -ATTND_E_NO_MEMORY. */
int attnd_host_cache_fill(struct attnd_call *call, Attnd__HostCache **out);

/* ---- pool_reply.c ---- */

/** attnd_pool_describe() - the reply to a session that has just attached a pool as @handle.
 * Return: 0; -ATTND_E_NO_MEMORY. */
int attnd_pool_describe(struct attnd_call *call, uint32_t handle);

/* ---- prepared_calls.c ---- */

/** attnd_prepared_answered() - the event of prepared/: the call that waits is answered. The client
 * may be ended by it, and its mailbox gone. */
void attnd_prepared_answered(struct attnd_mail *mail, const struct attnd_prepared_answer *answer);

#endif
