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
#include "schemas/clock.h"
#include "service/args/args.h"
#include "service/ctl/attnctl.h"
#include "service/ctl/json.h"
#include "service/ctl/overlap.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS 10000000 /* after an answer with nothing in it */
#define SECONDS_MAX 3600
#define DEPTH_MAX 16u   /* items within items */
#define TIME_DIGITS 16u /* nanoseconds of a hundred days, which a double holds */

enum { KEY_SECONDS = 'n', KEY_OUTPUT = 'o', KEY_SESSION = 'S' };

struct trace_options {
    struct attnctl_options common;
    double seconds;
    const char *path; /* NULL: standard output */
    uint32_t session; /* 0: all */
};

/* The records; written when all of them are there, because that takes longer than to ask. */
struct recording {
    struct attnd_trace_record *records;
    size_t count, count_max;
    uint64_t lost;
    struct attnctl_overlap overlap;
    int gpu;
    size_t printed; /* events */
    int failed;     /* one of them was not */
};

static volatile sig_atomic_t ended;

static void end(int number)
{
    (void)number;
    ended = 1;
}

/* ---- the file ---- */

static int by_place_and_time(const void *a, const void *b)
{
    const struct attnd_trace_record *x = a, *y = b;

    if (x->track != y->track)
        return x->track < y->track ? -1 : 1;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->begin_ns != y->begin_ns)
        return x->begin_ns < y->begin_ns ? -1 : 1;
    const uint64_t x_end_ns = attnd_trace_end_ns(x), y_end_ns = attnd_trace_end_ns(y);
    return x_end_ns > y_end_ns ? -1 : x_end_ns < y_end_ns;
}

/* Slices of a track are drawn as a stack, so they may only nest. A thread's do, where an item made
 * way for another. On an SM an item begins while the stores of the one before are on their way: its
 * slice begins when that is over. @records: of one track, in order. */
static void make_nest(struct attnd_trace_record *records, size_t count)
{
    uint64_t open[DEPTH_MAX];
    size_t depth = 0;

    for (size_t i = 0; i < count; i++) {
        struct attnd_trace_record *record = &records[i];
        while (depth && open[depth - 1] <= record->begin_ns)
            depth--;
        while (depth && open[depth - 1] < attnd_trace_end_ns(record))
            record->begin_ns = open[--depth];
        if (depth < DEPTH_MAX)
            open[depth++] = attnd_trace_end_ns(record);
    }
}

/* Numbers from 1: to Perfetto 0 is another thing. */
static int process_of(const struct recording *recording, const struct attnd_trace_record *record)
{
    return recording->gpu ? record->track + 1 : 1;
}

static int thread_of(const struct recording *recording, const struct attnd_trace_record *record)
{
    return recording->gpu ? record->group + 1 : record->track + 1;
}

/* @event: taken; NULL is a failure. A recording can be long, so it is never one value. */
static void print_event(FILE *out, struct recording *recording, json_t *event)
{
    fputs(recording->printed++ ? ",\n" : "\n", out);
    if (!event || json_dumpf(event, out, JSON_COMPACT | JSON_REAL_PRECISION(TIME_DIGITS)) < 0)
        recording->failed = 1;
    json_decref(event);
}

static void print_name(FILE *out, struct recording *recording,
                       const struct attnd_trace_record *record, const char *what, const char *name)
{
    print_event(out, recording,
                json_pack("{ss ss si si s{ss}}", "ph", "M", "name", what, "pid",
                          process_of(recording, record), "tid", thread_of(recording, record),
                          "args", "name", name));
}

static void print_names(FILE *out, struct recording *recording,
                        const struct attnd_trace_record *record)
{
    char name[32] = "tile workers";

    if (recording->gpu)
        snprintf(name, sizeof(name), "SM %u", record->track);
    print_name(out, recording, record, "process_name", name);
    snprintf(name, sizeof(name), "%s %u", recording->gpu ? "consumer group" : "thread",
             recording->gpu ? record->group : record->track);
    print_name(out, recording, record, "thread_name", name);
}

static const char *kind_name(uint8_t kind)
{
    static const char *const names[] = {[ATTND_TRACE_COMPUTE] = "compute-bound",
                                        [ATTND_TRACE_MEMORY] = "memory-bound",
                                        [ATTND_TRACE_APPEND] = "append",
                                        [ATTND_TRACE_MERGE] = "merge"};

    return kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "item";
}

static void print_record(FILE *out, struct recording *recording,
                         const struct attnd_trace_record *record)
{
    const char *kind = kind_name(record->kind);
    char name[48];

    snprintf(name, sizeof(name), "%s, session %" PRIu32, kind, record->session);
    print_event(out, recording,
                json_pack("{ss ss ss sf sf si si s{sI si sI si}}", "ph", "X", "name", name, "cat",
                          kind, "ts", (double)record->begin_ns / 1e3, "dur",
                          (double)attnd_trace_lasted_ns(record) / 1e3, "pid",
                          process_of(recording, record), "tid", thread_of(recording, record),
                          "args", "session", (json_int_t)record->session, "layer", record->layer,
                          "item", (json_int_t)record->item, "items", record->count));
}

/* The end of the track that begins at record @at. */
static size_t track_end(const struct recording *recording, size_t at)
{
    const struct attnd_trace_record *first = &recording->records[at];

    while (at < recording->count && recording->records[at].track == first->track &&
           recording->records[at].group == first->group)
        at++;
    return at;
}

static void print_tracks(FILE *out, struct recording *recording)
{
    if (recording->count)
        qsort(recording->records, recording->count, sizeof(*recording->records), by_place_and_time);
    for (size_t at = 0, end; at < recording->count; at = end) {
        end = track_end(recording, at);
        make_nest(recording->records + at, end - at);
        print_names(out, recording, &recording->records[at]);
        for (size_t i = at; i < end; i++)
            print_record(out, recording, &recording->records[i]);
    }
}

/* Return: 0; -ATTND_E_SYSTEM. */
static int print_file(FILE *out, struct recording *recording)
{
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", out);
    print_tracks(out, recording);
    fputs("\n],\"otherData\":", out);
    int rc = attnd_json_print(out,
                              json_pack("{sI sI sI sI}", "items", (json_int_t)recording->count,
                                        "lost", (json_int_t)recording->lost, "layer_busy_ns",
                                        (json_int_t)recording->overlap.busy_ns, "layer_together_ns",
                                        (json_int_t)recording->overlap.overlap_ns),
                              JSON_COMPACT);
    fputs("}\n", out);
    return rc < 0 || recording->failed || fflush(out) != 0 || ferror(out) ? -ATTND_E_SYSTEM : 0;
}

/* ---- answers ---- */

/* Return: 0; -ATTND_E_NO_MEMORY. */
static int make_room(struct recording *recording, size_t more)
{
    if (recording->records && recording->count + more <= recording->count_max)
        return 0;
    const size_t wanted = 2 * recording->count_max + more + 1;
    void *grown = realloc(recording->records, wanted * sizeof(*recording->records));
    if (!grown)
        return -ATTND_E_NO_MEMORY;
    recording->records = grown;
    recording->count_max = wanted;
    return 0;
}

/* The records of an answer, which lie at no particular address. Return: as make_room(). */
static int keep(struct recording *recording, const Attnd__TraceReply *reply, uint32_t session)
{
    const size_t bytes = sizeof(struct attnd_trace_record);

    recording->gpu = reply->backend && strcmp(reply->backend, "cuda") == 0;
    recording->lost += reply->lost;
    int rc = make_room(recording, reply->records.len / bytes);
    for (size_t at = 0; rc == 0 && at + bytes <= reply->records.len; at += bytes) {
        struct attnd_trace_record *record = &recording->records[recording->count];
        memcpy(record, reply->records.data + at, bytes);
        recording->count += !session || record->session == session;
    }
    return rc;
}

/* ---- questions ---- */

/* Where the next question goes on. Return: 0; -ATTND_E_NO_MEMORY. */
static int go_on(Attnd__TraceQuery *query, const Attnd__TraceReply *reply)
{
    uint32_t *next = realloc(query->next, (reply->n_next + 1) * sizeof(*next));

    if (!next)
        return -ATTND_E_NO_MEMORY;
    if (reply->n_next)
        memcpy(next, reply->next, reply->n_next * sizeof(*next));
    query->next = next;
    query->n_next = reply->n_next;
    query->worker_pid = reply->worker_pid;
    query->has_worker_pid = 1;
    return 0;
}

/* Until the time is up. @query: its numbers are freed by the caller. */
static enum attnctl_exit follow(const struct trace_options *options, Attnd__TraceQuery *query,
                                struct recording *recording)
{
    static const struct timespec pause = {.tv_nsec = PAUSE_NS};
    uint64_t end_ns = 0;

    for (;;) {
        Attnd__Reply *reply;
        enum attnctl_exit code =
            attnctl_ask_for(options->common.socket_path, ATTND__REQUEST__CALL_TRACE, query,
                            ATTND__REPLY__RESULT_TRACE, &reply);
        if (code != ATTNCTL_EXIT_OK)
            return code;
        const size_t got = reply->trace->records.len;
        int rc = keep(recording, reply->trace, options->session);
        if (rc == 0)
            rc = go_on(query, reply->trace);
        attnd__reply__free_unpacked(reply, NULL);
        if (rc < 0) {
            fprintf(stderr, "attnctl: out of memory after %zu items\n", recording->count);
            return ATTNCTL_EXIT_ANSWER;
        }
        if (!end_ns)
            end_ns = attnd_clock_ns() + (uint64_t)(options->seconds * 1e9);
        if (attnd_clock_ns() >= end_ns || ended)
            return ATTNCTL_EXIT_OK;
        if (got == 0)
            nanosleep(&pause, NULL);
    }
}

static void say_what_there_is(const struct recording *recording)
{
    const struct attnctl_overlap *overlap = &recording->overlap;

    fprintf(stderr, "attnctl: %zu items", recording->count);
    if (recording->lost)
        fprintf(stderr, "; %" PRIu64 " are lost: they came faster than they were read",
                recording->lost);
    if (overlap->busy_ns)
        fprintf(stderr, "; sessions were in the same layer for %.2f %% of the time",
                100.0 * (double)overlap->overlap_ns / (double)overlap->busy_ns);
    fputc('\n', stderr);
}

/* Return: 0; -ATTND_E_SYSTEM, -ATTND_E_NO_MEMORY with errno. */
static int finish(struct recording *recording, FILE *out)
{
    int rc = attnctl_overlap(recording->records, recording->count, &recording->overlap);

    return rc < 0 ? rc : print_file(out, recording);
}

static enum attnctl_exit record(const struct trace_options *options, FILE *out)
{
    const struct sigaction action = {.sa_handler = end};
    Attnd__TraceQuery query = ATTND__TRACE_QUERY__INIT;
    struct recording recording = {0};

    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    enum attnctl_exit code = follow(options, &query, &recording);
    if (code == ATTNCTL_EXIT_OK && finish(&recording, out) < 0) {
        fprintf(stderr, "attnctl: %s: %s\n", options->path ? options->path : "standard output",
                strerror(errno));
        code = ATTNCTL_EXIT_ANSWER;
    }
    if (code == ATTNCTL_EXIT_OK)
        say_what_there_is(&recording);
    free(recording.records);
    free(query.next);
    return code;
}

/* ---- the command ---- */

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct trace_options *options = state->input;

    switch (key) {
    case KEY_SECONDS:
        options->seconds = attnd_args_decimal(state, "seconds", text, 0.01, SECONDS_MAX);
        return 0;
    case KEY_OUTPUT:
        options->path = text;
        return 0;
    case KEY_SESSION:
        options->session = attnd_args_number32(state, "session", text, 1, UINT32_MAX);
        return 0;
    default:
        return attnctl_parse_common(key, text, state, &options->common);
    }
}

/* It says what every session did, so it is its owner's alone, and it is not where somebody else's
 * link leads. */
static FILE *open_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;

    if (fd >= 0 && !file)
        close(fd);
    return file;
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
               "records only while somebody asks, into rings of 131,072 items: what is lost is "
               "counted. Root and the service's user may ask."};
    struct trace_options options = {.seconds = 1};

    attnctl_parse_with(&parser, argc, argv, &options);
    FILE *out = options.path ? open_file(options.path) : stdout;
    if (!out) {
        fprintf(stderr, "attnctl: %s: %s\n", options.path, strerror(errno));
        return ATTNCTL_EXIT_USAGE;
    }
    enum attnctl_exit code = record(&options, out);
    if (options.path && fclose(out) != 0 && code == ATTNCTL_EXIT_OK)
        code = ATTNCTL_EXIT_ANSWER;
    return code;
}
