/*
 * monitor.c - `attnctl monitor`: what happens, as it happens.
 *
 * The daemon keeps the last events in a ring and waits for nobody. So this asks, again and again,
 * for what came since the last answer, and says how many events it was too late for.
 */
#include "schemas/abi.h"
#include "service/args/args.h"
#include "service/ctl/attnctl.h"
#include "service/ctl/json.h"

#include <inttypes.h>
#include <time.h>
#include <unistd.h>

#define FULL 512u /* events of one answer at most: there are more */

enum { KEY_SESSION = 'S', KEY_FAULTS = 'f', KEY_COUNT = 'c' };

struct monitor_options {
    struct attnctl_options common;
    uint32_t session; /* 0: all */
    int faults;
    uint64_t count; /* events until it leaves; 0: it does not */
};

/* CLOCK_MONOTONIC of the daemon to the time of day: added to it. */
static int64_t day_ns(uint64_t daemon_ns)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec - (int64_t)daemon_ns;
}

/* ---- one event ---- */

static const char *operation_name(uint32_t opcode)
{
    static const char *const names[] = {
        [ATTND_OP_PLAN_SET] = "plan set",
        [ATTND_OP_PLAN_ADVANCE] = "plan advance",
        [ATTND_OP_APPEND] = "append",
        [ATTND_OP_RUN] = "run",
        [ATTND_OP_CANCEL] = "cancel",
        [ATTND_OP_MERGE] = "merge",
        [ATTND_OP_PAGES_CLAIM] = "pages claim",
        [ATTND_OP_PAGES_READY] = "pages ready",
        [ATTND_OP_PREFIX_MATCH] = "prefix match",
        [ATTND_OP_PREFIX_PUBLISH] = "prefix publish",
        [ATTND_OP_PREFIX_CLAIM] = "prefix claim",
        [ATTND_OP_PREFIX_ABANDON] = "prefix abandon",
        [ATTND_OP_PREFIX_PIN] = "prefix pin",
        [ATTND_OP_PREFIX_UNPIN] = "prefix unpin",
    };
    const size_t count = sizeof(names) / sizeof(names[0]);

    return opcode < count && names[opcode] ? names[opcode] : "operation";
}

/* Return: @text; "" if nothing is wrong. */
static const char *fault_text(const Attnd__MonitorEvent *event, char *text, size_t bytes)
{
    const struct attnd_fault fault = {.code = event->code,
                                      .field = event->field,
                                      .index = event->index,
                                      .value = event->value,
                                      .limit = event->limit};

    text[0] = 0;
    return event->code ? attnd_fault_string(&fault, text, bytes) : text;
}

static void print_operation(FILE *out, const Attnd__MonitorEvent *event)
{
    char latency[24], worker[24];
    const int prefix = event->opcode >= ATTND_OP_PREFIX_MATCH;

    fprintf(out, "%s, lane %" PRIu32 ", %s %" PRIu32 ", tag %#" PRIx64 ", %s",
            operation_name(event->opcode), event->lane, prefix ? "namespace" : "plan", event->plan,
            event->user_data, attnctl_time_text(event->latency_ns, latency, sizeof(latency)));
    if (event->has_duration_ns)
        fprintf(out, " (worker %s)", attnctl_time_text(event->duration_ns, worker, sizeof(worker)));
}

static void print_what(FILE *out, const Attnd__MonitorEvent *event)
{
    const char *text = event->text ? event->text : "";

    switch ((int)event->kind) {
    case ATTND__MONITOR_KIND__MONITOR_OPENED:
        fprintf(out, "opened by pid %" PRIu32 " (%s)", event->pid, text);
        return;
    case ATTND__MONITOR_KIND__MONITOR_ENDED:
        fprintf(out, "is gone: %s", text);
        return;
    case ATTND__MONITOR_KIND__MONITOR_REFUSED:
        fprintf(out, "call %s", text[0] ? text : "that waited");
        return;
    case ATTND__MONITOR_KIND__MONITOR_OPERATION:
        print_operation(out, event);
        return;
    default:
        fprintf(out, "%s", text);
    }
}

void attnctl_print_event(FILE *out, const Attnd__MonitorEvent *event, int64_t offset_ns)
{
    const int64_t when_ns = (int64_t)event->time_ns + offset_ns;
    const time_t second = (time_t)(when_ns / 1000000000);
    char clock[16] = "", fault[256];
    struct tm day;

    if (localtime_r(&second, &day))
        (void)strftime(clock, sizeof(clock), "%H:%M:%S", &day);
    fprintf(out, "%s.%06" PRId64 " ", clock, when_ns % 1000000000 / 1000);
    if (event->session)
        fprintf(out, "session %" PRIu32 ": ", event->session);
    else
        fprintf(out, "worker: ");
    print_what(out, event);
    fault_text(event, fault, sizeof(fault));
    fprintf(out, "%s%s\n", fault[0] ? ": " : "", fault);
}

static int print_event_json(const Attnd__MonitorEvent *event, int64_t offset_ns)
{
    static const char *const names[] = {
        [ATTND__MONITOR_KIND__MONITOR_OPENED] = "opened",
        [ATTND__MONITOR_KIND__MONITOR_ENDED] = "ended",
        [ATTND__MONITOR_KIND__MONITOR_OPERATION] = "operation",
        [ATTND__MONITOR_KIND__MONITOR_REFUSED] = "refused",
        [ATTND__MONITOR_KIND__MONITOR_WORKER] = "worker",
    };
    const unsigned kind = (unsigned)event->kind;
    json_t *object = attnd_json_message(&event->base);
    char fault[256];

    json_object_del(object, "kind");
    json_object_set_new(
        object, "event",
        json_string(kind < sizeof(names) / sizeof(names[0]) && names[kind] ? names[kind] : ""));
    json_object_set_new(object, "unix_ns",
                        json_integer((json_int_t)event->time_ns + (json_int_t)offset_ns));
    if (event->kind == ATTND__MONITOR_KIND__MONITOR_OPERATION)
        json_object_set_new(object, "operation", json_string(operation_name(event->opcode)));
    if (event->code)
        json_object_set_new(object, "fault",
                            attnd_json_text(fault_text(event, fault, sizeof(fault))));
    return attnd_json_print(stdout, object, JSON_COMPACT);
}

/* ---- answers ---- */

/* Return: 0; -ATTND_E_SYSTEM. */
static int print_answer(const struct monitor_options *options, const Attnd__MonitorReply *reply,
                        uint64_t *printed)
{
    const int64_t offset_ns = day_ns(reply->time_ns);
    int rc = 0;

    if (reply->lost && options->common.json)
        rc = attnd_json_print(stdout, json_pack("{so}", "lost", attnd_json_count(reply->lost)),
                              JSON_COMPACT);
    else if (reply->lost)
        printf("... %" PRIu64 " events are lost: they came faster than they were read\n",
               reply->lost);
    for (size_t i = 0; rc == 0 && i < reply->n_events; i++) {
        if (options->common.json)
            rc = print_event_json(reply->events[i], offset_ns);
        else
            attnctl_print_event(stdout, reply->events[i], offset_ns);
        if (++*printed == options->count)
            break;
    }
    return rc < 0 || fflush(stdout) != 0 || ferror(stdout) ? -ATTND_E_SYSTEM : 0;
}

static enum attnctl_exit follow(const struct monitor_options *options)
{
    static const struct timespec pause = {.tv_nsec = 50000000};
    Attnd__MonitorQuery query = ATTND__MONITOR_QUERY__INIT;
    uint64_t printed = 0;

    query.session = options->session;
    query.has_session = options->session != 0;
    query.faults = options->faults;
    query.has_faults = options->faults;
    for (;;) {
        Attnd__Reply *reply;
        enum attnctl_exit code =
            attnctl_ask_for(options->common.socket_path, ATTND__REQUEST__CALL_MONITOR, &query,
                            ATTND__REPLY__RESULT_MONITOR, &reply);
        if (code != ATTNCTL_EXIT_OK)
            return code;
        if (!query.has_next && isatty(STDOUT_FILENO)) /* nothing may happen for long */
            fprintf(stderr, "attnctl: watching until Ctrl-C\n");
        const int more = reply->monitor->n_events == FULL;
        int rc = print_answer(options, reply->monitor, &printed);
        query.next = reply->monitor->next;
        query.has_next = 1;
        attnd__reply__free_unpacked(reply, NULL);
        if (rc < 0)
            return ATTNCTL_EXIT_ANSWER;
        if (options->count && printed >= options->count)
            return ATTNCTL_EXIT_OK;
        if (!more)
            nanosleep(&pause, NULL);
    }
}

/* ---- the command ---- */

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct monitor_options *options = state->input;

    switch (key) {
    case KEY_SESSION:
        options->session = attnd_args_number32(state, "session", text, 1, UINT32_MAX);
        return 0;
    case KEY_FAULTS:
        options->faults = 1;
        return 0;
    case KEY_COUNT:
        options->count = attnd_args_number(state, "count", text, 1, INT64_MAX);
        return 0;
    default:
        return attnctl_parse_common(key, text, state, &options->common);
    }
}

enum attnctl_exit attnctl_monitor(int argc, char **argv)
{
    static const struct argp_option list[] = {
        {"session", KEY_SESSION, "SESSION", 0, "Of this session only", 0},
        {"faults", KEY_FAULTS, NULL, 0,
         "Leave out operations that went well: what is left is faults, refused calls, and what "
         "becomes of sessions and the worker",
         0},
        {"count", KEY_COUNT, "N", 0, "Leave after N events (default: on Ctrl-C)", 0},
        {"json", ATTNCTL_KEY_JSON, NULL, 0, "One JSON object for each event, a line each", 0},
        ATTNCTL_SOCKET_OPTION,
        {0}};
    static const struct argp parser = {
        .options = list,
        .parser = parse_option,
        .children = attnd_args_help,
        .doc = "Show operations, faults and sessions as they come and go.\vThe service keeps the "
               "last 8192 events and waits for nobody: a reader that is slower is told how many "
               "it has lost. Root and the service's user see every session, others those of their "
               "own user. Runs that a CUDA stream launches do not pass the service: `attnctl "
               "status` counts them."};
    struct monitor_options options = {0};

    attnctl_parse_with(&parser, argc, argv, &options);
    return follow(&options);
}
