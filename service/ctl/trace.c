/*
 * trace.c - `attnctl trace`: what the worker executes, as a timeline that Perfetto opens.
 *
 * The file is a JSON object of the trace event format. Each tile worker is a process in it, each of
 * its consumer groups a thread, and each item a complete event. Times are microseconds of
 * CLOCK_MONOTONIC, as in completions, so that an engine's own events fit beside them.
 *
 * The worker records into a ring for as long as somebody asks, and waits for nobody. So this asks,
 * again and again, and says how many records it was too late for.
 */
#include "schemas/abi.h"
#include "service/args/args.h"
#include "service/ctl/attnctl.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAUSE_NS 10000000 /* after an answer with nothing in it */
#define SECONDS_MAX 3600

enum { KEY_SECONDS = 'n', KEY_OUTPUT = 'o', KEY_SESSION = 'S' };

struct trace_options {
    struct attnctl_options common;
    double seconds;
    const char *path; /* NULL: standard output */
    uint32_t session; /* 0: all */
};

/* What is written, and what of it was written before. */
struct writer {
    FILE *out;
    uint32_t session;
    uint64_t events, items, lost;
    uint32_t groups;
    int gpu;
    uint8_t named[UINT16_MAX + 1]; /* tracks */
};

static volatile sig_atomic_t ended;

static void end(int number)
{
    (void)number;
    ended = 1;
}

/* ---- the file ---- */

static void begin_event(struct writer *writer)
{
    fputs(writer->events++ ? ",\n" : "\n", writer->out);
}

/* Perfetto sorts by these numbers; 0 means something else to it. */
static void print_place(const struct writer *writer, uint32_t track)
{
    fprintf(writer->out, "\"pid\":%" PRIu32 ",\"tid\":%" PRIu32,
            writer->gpu ? track / writer->groups + 1 : 1,
            writer->gpu ? track % writer->groups + 1 : track + 1);
}

/* A tile worker of a GPU is what one SM executes; of a processor, a thread. */
static void name_track(struct writer *writer, uint32_t track)
{
    if (writer->named[track])
        return;
    writer->named[track] = 1;
    begin_event(writer);
    fputs("{\"ph\":\"M\",\"name\":\"process_name\",", writer->out);
    print_place(writer, track);
    if (writer->gpu)
        fprintf(writer->out, ",\"args\":{\"name\":\"SM %" PRIu32 "\"}}", track / writer->groups);
    else
        fputs(",\"args\":{\"name\":\"tile workers\"}}", writer->out);
    begin_event(writer);
    fputs("{\"ph\":\"M\",\"name\":\"thread_name\",", writer->out);
    print_place(writer, track);
    fprintf(writer->out, ",\"args\":{\"name\":\"%s %" PRIu32 "\"}}",
            writer->gpu ? "consumer group" : "thread",
            writer->gpu ? track % writer->groups : track);
}

static const char *kind_name(uint8_t kind)
{
    static const char *const names[] = {[ATTND_TRACE_COMPUTE] = "compute-bound",
                                        [ATTND_TRACE_MEMORY] = "memory-bound",
                                        [ATTND_TRACE_APPEND] = "append",
                                        [ATTND_TRACE_MERGE] = "merge"};

    return kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "item";
}

static void print_record(struct writer *writer, const struct attnd_trace_record *record)
{
    if (writer->session && record->session != writer->session)
        return;
    name_track(writer, record->track);
    begin_event(writer);
    fprintf(writer->out,
            "{\"ph\":\"X\",\"name\":\"%s, session %" PRIu32 "\",\"cat\":\"%s\",\"ts\":%" PRIu64
            ".%03" PRIu64 ",\"dur\":%" PRIu32 ".%03" PRIu32 ",",
            kind_name(record->kind), record->session, kind_name(record->kind),
            record->begin_ns / 1000, record->begin_ns % 1000, record->lasted_ns / 1000,
            record->lasted_ns % 1000);
    print_place(writer, record->track);
    fprintf(writer->out,
            ",\"args\":{\"session\":%" PRIu32 ",\"layer\":%" PRIu16 ",\"item\":%" PRIu32
            ",\"items\":%" PRIu16 "}}",
            record->session, record->layer, record->item, record->count);
    writer->items++;
}

/* The records of an answer, which lie at no particular address. */
static void print_records(struct writer *writer, const Attnd__TraceReply *reply)
{
    const size_t bytes = sizeof(struct attnd_trace_record);

    writer->groups = reply->groups ? reply->groups : 1;
    writer->gpu = reply->backend && strcmp(reply->backend, "cuda") == 0;
    writer->lost += reply->lost;
    for (size_t at = 0; at + bytes <= reply->records.len; at += bytes) {
        struct attnd_trace_record record;
        memcpy(&record, reply->records.data + at, bytes);
        print_record(writer, &record);
    }
}

/* ---- questions ---- */

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Return: the exit code; after ATTNCTL_EXIT_OK *reply has a trace. */
static enum attnctl_exit ask(const struct trace_options *options, Attnd__TraceQuery *query,
                             Attnd__Reply **reply)
{
    Attnd__Request request = ATTND__REQUEST__INIT;
    const char *path = options->common.socket_path;
    enum attnctl_exit code = ATTNCTL_EXIT_OK;

    request.call_case = ATTND__REQUEST__CALL_TRACE;
    request.trace = query;
    int rc = attnctl_ask(path, &request, reply);
    if (rc < 0)
        return attnctl_explain(stderr, path, rc);
    if ((*reply)->code < 0)
        code = attnctl_refused(stderr, *reply);
    else if ((*reply)->result_case != ATTND__REPLY__RESULT_TRACE)
        code = attnctl_explain(stderr, path, -ATTND_E_PROTOCOL);
    if (code != ATTNCTL_EXIT_OK)
        attnd__reply__free_unpacked(*reply, NULL);
    return code;
}

/* Until the time is up, and then until nothing of it is left. */
static enum attnctl_exit follow(const struct trace_options *options, struct writer *writer)
{
    static const struct timespec pause = {.tv_nsec = PAUSE_NS};
    Attnd__TraceQuery query = ATTND__TRACE_QUERY__INIT;
    uint64_t end_ns = 0;

    for (;;) {
        Attnd__Reply *reply;
        enum attnctl_exit code = ask(options, &query, &reply);
        if (code != ATTNCTL_EXIT_OK)
            return code;
        const size_t got = reply->trace->records.len;
        print_records(writer, reply->trace);
        if (!query.has_next)
            end_ns = now_ns() + (uint64_t)(options->seconds * 1e9);
        query.next = reply->trace->next;
        query.has_next = 1;
        attnd__reply__free_unpacked(reply, NULL);
        if (ferror(writer->out))
            return ATTNCTL_EXIT_ANSWER;
        if (now_ns() >= end_ns || ended)
            return ATTNCTL_EXIT_OK;
        if (got == 0)
            nanosleep(&pause, NULL);
    }
}

static enum attnctl_exit record(const struct trace_options *options, struct writer *writer)
{
    const struct sigaction action = {.sa_handler = end};

    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", writer->out);
    enum attnctl_exit code = follow(options, writer);
    fprintf(writer->out, "\n],\"otherData\":{\"items\":%" PRIu64 ",\"lost\":%" PRIu64 "}}\n",
            writer->items, writer->lost);
    if ((fflush(writer->out) != 0 || ferror(writer->out)) && code == ATTNCTL_EXIT_OK) {
        fprintf(stderr, "attnctl: %s: %s\n", options->path ? options->path : "standard output",
                strerror(errno));
        code = ATTNCTL_EXIT_ANSWER;
    }
    if (code == ATTNCTL_EXIT_OK)
        fprintf(stderr, "attnctl: %" PRIu64 " items%s", writer->items, writer->lost ? "" : "\n");
    if (code == ATTNCTL_EXIT_OK && writer->lost)
        fprintf(stderr, "; %" PRIu64 " are lost: they came faster than they were read\n",
                writer->lost);
    return code;
}

/* ---- the command ---- */

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct trace_options *options = state->input;
    char *rest;

    switch (key) {
    case KEY_SECONDS:
        options->seconds = strtod(text, &rest);
        if (rest == text || *rest || !(options->seconds > 0 && options->seconds <= SECONDS_MAX))
            argp_error(state, "--seconds wants a number above 0 and at most %d, not '%s'",
                       SECONDS_MAX, text);
        return 0;
    case KEY_OUTPUT:
        options->path = text;
        return 0;
    case KEY_SESSION:
        options->session = attnd_args_number32(state, "session", text, 1, UINT32_MAX);
        return 0;
    default:
        state->input = &options->common;
        error_t rc = attnctl_parse_option(key, text, state);
        state->input = options;
        return rc;
    }
}

enum attnctl_exit attnctl_trace(int argc, char **argv)
{
    static const struct argp_option list[] = {
        {"seconds", KEY_SECONDS, "N", 0, "How long (default: 1); Ctrl-C ends it early", 0},
        {"output", KEY_OUTPUT, "FILE", 0, "Where to (default: standard output)", 0},
        {"session", KEY_SESSION, "SESSION", 0, "Items of this session only", 0},
        ATTNCTL_SOCKET_OPTION,
        {0}};
    static const struct argp parser = {
        .options = list,
        .parser = parse_option,
        .children = attnd_args_help,
        .doc = "Record what the worker executes: a timeline for Perfetto.\vEach item is an event: "
               "its consumer group of an SM, or thread; session; compute-bound, memory-bound or "
               "append; begin and end. Open the file at https://ui.perfetto.dev. The worker "
               "records only while somebody asks, into a ring of 65,536 items: what is lost is "
               "counted. Root and the service's user may ask."};
    struct trace_options options = {.seconds = 1};
    struct writer *writer = calloc(1, sizeof(*writer));

    argp_err_exit_status = ATTNCTL_EXIT_USAGE;
    argp_parse(&parser, argc, argv, 0, NULL, &options);
    if (!writer)
        return ATTNCTL_EXIT_ANSWER;
    writer->session = options.session;
    writer->out = options.path ? fopen(options.path, "we") : stdout;
    if (!writer->out) {
        fprintf(stderr, "attnctl: %s: %s\n", options.path, strerror(errno));
        free(writer);
        return ATTNCTL_EXIT_USAGE;
    }
    enum attnctl_exit code = record(&options, writer);
    if (options.path)
        (void)fclose(writer->out);
    free(writer);
    return code;
}
