/*
 * trace_calls.c - what the worker executed, as many records as fit one reply.
 *
 * A reader is nothing that the daemon knows: it asks from where it left off, and the worker records
 * for as long as somebody asks. Records show what every session does, so they are for operators:
 * root, and the user whom the service runs as.
 */
#include "service/rpc/calls.h"
#include "service/supervise/trace.h"

#include <unistd.h>

#define RECORDS_MAX 3072u /* 96 KiB of a datagram's 128 */

/* Of the worker, which the records are of. */
static void describe(const struct attnd_queue *queue, Attnd__TraceReply *reply)
{
    const struct attnd_worker_info *info = &queue->info;

    /* protobuf-c's strings are not const, and packing does not write them. */
    reply->backend = (char *)(uintptr_t)info->backend;
    reply->isa = (char *)(uintptr_t)info->isa;
    reply->tile_workers = info->tile_workers;
    reply->groups = attnd_trace_groups(queue);
    reply->has_tile_workers = reply->has_groups = 1;
}

int attnd_call_trace(struct attnd_call *call)
{
    const Attnd__TraceQuery *query = call->request->trace;
    const uid_t uid = call->client->uid;
    struct attnd_queue *queue = call->service->queue;
    const uint64_t now_ns = attnd_clock_ns();
    Attnd__TraceReply *reply = attnd_call_alloc(call, sizeof(*reply));
    struct attnd_trace_record *records = attnd_call_alloc(call, RECORDS_MAX * sizeof(*records));

    if (uid != 0 && uid != geteuid())
        return attnd_fault_set(call->fault, -ATTND_E_PERMISSION, ATTND_F_SESSION, 0, (int64_t)uid,
                               (int64_t)geteuid());
    if (!reply || !records)
        return attnd_fault_set(call->fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    attnd__trace_reply__init(reply);
    reply->time_ns = now_ns;
    reply->next = attnd_trace_watch(queue, now_ns);
    if (query->has_next) {
        reply->next = query->next;
        const uint32_t count =
            attnd_trace_read(queue, &reply->next, records, RECORDS_MAX, &reply->lost);
        reply->records.data = (uint8_t *)records;
        reply->has_records = 1;
        reply->records.len = count * sizeof(*records);
    }
    describe(queue, reply);
    call->reply->result_case = ATTND__REPLY__RESULT_TRACE;
    call->reply->trace = reply;
    return 0;
}
