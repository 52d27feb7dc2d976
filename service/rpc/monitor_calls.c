/*
 * monitor_calls.c - events for people who watch, as many as fit one reply.
 *
 * A reader is nothing that the daemon knows: it asks from where it left off. An event shows what an
 * engine does and the words it tags its operations with, so it is shown to operators and to the
 * session's own user, and to nobody else.
 */
#include "service/rpc/calls.h"

#include <unistd.h>

#define EVENTS_MAX 512u

/* protobuf-c's strings are not const, and packing does not write them. */
static char *text_of(const struct attnd_monitor_event *event)
{
    return event->text[0] ? (char *)(uintptr_t)event->text : NULL;
}

static int is_wanted(const struct attnd_client *asker, const Attnd__MonitorQuery *query,
                     const struct attnd_monitor_event *event)
{
    if (asker->uid != 0 && asker->uid != geteuid() && event->session && asker->uid != event->uid)
        return 0;
    if (query->has_session && query->session && event->session != query->session)
        return 0;
    return !(query->has_faults && query->faults) || event->kind != ATTND_MONITOR_OPERATION ||
           event->fault.code != 0;
}

static void fill_operation(Attnd__MonitorEvent *message, const struct attnd_monitor_event *event)
{
    message->opcode = event->opcode;
    message->lane = event->lane;
    message->plan = event->plan;
    message->user_data = event->user_data;
    message->latency_ns = event->latency_ns;
    message->duration_ns = event->duration_ns;
    message->has_opcode = message->has_lane = message->has_plan = message->has_user_data = 1;
    message->has_latency_ns = 1;
    message->has_duration_ns = event->duration_ns != 0;
}

static void fill(Attnd__MonitorEvent *message, const struct attnd_monitor_event *event)
{
    attnd__monitor_event__init(message);
    message->time_ns = event->time_ns;
    message->kind = (Attnd__MonitorKind)event->kind;
    message->session = event->session;
    message->has_session = event->session != 0;
    message->pid = event->pid;
    message->has_pid = event->pid != 0;
    message->text = text_of(event);
    if (event->kind == ATTND_MONITOR_OPERATION)
        fill_operation(message, event);
    if (event->fault.code == 0)
        return;
    message->code = event->fault.code;
    message->field = event->fault.field;
    message->index = event->fault.index;
    message->value = event->fault.value;
    message->limit = event->fault.limit;
    message->has_code = message->has_field = message->has_index = 1;
    message->has_value = message->has_limit = 1;
}

int attnd_call_monitor(struct attnd_call *call)
{
    const Attnd__MonitorQuery *query = call->request->monitor;
    struct attnd_monitor *monitor = &call->service->monitor;
    const uint64_t now_ns = attnd_clock_ns();
    Attnd__MonitorReply *reply = attnd_call_result(call, ATTND__REPLY__RESULT_MONITOR);
    Attnd__MonitorEvent *events = attnd_call_alloc(call, EVENTS_MAX * sizeof(*events));
    Attnd__MonitorEvent **list = attnd_call_alloc(call, EVENTS_MAX * sizeof(Attnd__MonitorEvent *));

    if (!reply || !events || !list || attnd_monitor_watch(monitor, now_ns) < 0)
        return attnd_call_no_memory(call);
    reply->next = query->has_next ? query->next : monitor->next;
    reply->lost = attnd_monitor_from(monitor, &reply->next);
    reply->time_ns = now_ns;
    reply->events = list;
    for (; reply->next < monitor->next && reply->n_events < EVENTS_MAX; reply->next++) {
        const struct attnd_monitor_event *event = attnd_monitor_at(monitor, reply->next);
        if (!is_wanted(call->client, query, event))
            continue;
        fill(&events[reply->n_events], event);
        list[reply->n_events] = &events[reply->n_events];
        reply->n_events++;
    }
    return 0;
}
