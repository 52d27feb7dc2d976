/*
 * trace_calls.c - what the worker executed, as many records as fit one reply.
 *
 * A reader is nothing that the daemon knows: it asks from where it left off, and the worker records
 * for as long as somebody asks. Records show what every session does, so they are for operators:
 * root, and the user whom the service runs as.
 */
#include "service/rpc/calls.h"
#include "service/rpc/data_status.h"
#include "service/supervise/trace.h"

#include <unistd.h>

#define RECORDS_MAX 3072u /* 96 KiB of a datagram's 128 */

/* Numbers as protobuf-c has them, of which the query may have any count. */
static void take_next(const Attnd__TraceQuery *query, uint32_t workers, uint32_t *next)
{
    for (uint32_t w = 0; w < workers; w++)
        next[w] = w < query->n_next ? query->next[w] : 0;
}

static uint32_t patience_of(const Attnd__TraceQuery *query)
{
    return query->has_patience_ms && query->patience_ms < ATTND_TRACE_PATIENCE_MS
               ? query->patience_ms
               : ATTND_TRACE_PATIENCE_MS;
}

int attnd_call_trace(struct attnd_call *call)
{
    const Attnd__TraceQuery *query = call->request->trace;
    const uid_t uid = call->client->uid;
    struct attnd_queue *queue = call->service->queue;
    const uint32_t workers = attnd_trace_workers(queue);
    const uint64_t now_ns = attnd_clock_ns();
    struct attnd_data_status data;
    Attnd__TraceReply *reply = attnd_call_result(call, ATTND__REPLY__RESULT_TRACE);
    struct attnd_trace_record *records = attnd_call_alloc(call, RECORDS_MAX * sizeof(*records));
    uint32_t *next = attnd_call_alloc(call, (workers + 1) * sizeof(*next));

    if (uid != 0 && uid != geteuid())
        return attnd_fault_set(call->fault, -ATTND_E_PERMISSION, ATTND_F_DAEMON_UID, 0,
                               (int64_t)geteuid(), (int64_t)uid);
    if (!reply || !records || !next)
        return attnd_call_no_memory(call);
    attnd_data_status(call->service, &data);
    reply->time_ns = now_ns;
    reply->worker_pid = (uint32_t)data.worker_pid;
    reply->has_worker_pid = 1;
    /* protobuf-c's strings are not const, and packing does not write them. */
    reply->backend = (char *)(uintptr_t)queue->info.backend;
    reply->next = next;
    reply->n_next = workers;
    if (!query->has_worker_pid) {
        attnd_trace_watch(queue, now_ns, patience_of(query), next);
    } else {
        attnd_trace_watch(queue, now_ns, patience_of(query), NULL);
        take_next(query, query->worker_pid == reply->worker_pid ? workers : 0, next);
        reply->has_records = 1;
        reply->records.data = (uint8_t *)records;
        reply->records.len =
            sizeof(*records) * attnd_trace_read(queue, next, records, RECORDS_MAX, &reply->lost);
    }
    return 0;
}
