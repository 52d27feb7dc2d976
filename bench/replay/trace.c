/* trace.c - lines to requests. The file is read whole (it is bounded), cut into lines, and each
 * line is judged by itself: a bad one names its number and stops the load, or is counted and left
 * out when the caller asked for that. */
#include "bench/replay/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Ids made up for prompts without any; real ones are below. */
#define OWN_ID_BASE ((uint64_t)1 << 63)

static int fail(struct replay_trace_error *error, uint64_t line, const char *text)
{
    error->line = line;
    snprintf(error->text, sizeof(error->text), "%s", text);
    return -1;
}

/* Room for one more element. Return: the array, moved or not; NULL without memory. */
static void *grow(void *array, size_t count, size_t *room, size_t element_bytes)
{
    if (count < *room)
        return array;
    *room = *room ? *room * 2 : 1024;
    if (*room < count)
        *room = count;
    return reallocarray(array, *room, element_bytes);
}

static int add_request(struct replay_trace *trace, const struct replay_line *line)
{
    uint32_t blocks = (line->input_tokens + REPLAY_BLOCK_TOKENS - 1) / REPLAY_BLOCK_TOKENS;
    size_t requests_room = trace->requests_room;
    struct replay_trace_request *requests =
        grow(trace->request, trace->requests, &requests_room, sizeof(*requests));
    uint64_t *ids;

    if (!requests)
        return -1;
    trace->request = requests;
    trace->requests_room = (uint32_t)requests_room;
    ids = grow(trace->block_ids, trace->block_ids_count + blocks, &trace->block_ids_room,
               sizeof(*ids));
    if (!ids)
        return -1;
    trace->block_ids = ids;
    for (uint32_t i = 0; i < blocks; i++)
        ids[trace->block_ids_count + i] =
            line->ids_count ? line->ids[i] : OWN_ID_BASE + trace->block_ids_count + i;
    requests[trace->requests] =
        (struct replay_trace_request){.arrival_ns = line->arrival_ns,
                                      .index = trace->requests,
                                      .input_tokens = line->input_tokens,
                                      .output_tokens = line->output_tokens,
                                      .blocks = blocks,
                                      .blocks_offset = trace->block_ids_count};
    trace->requests++;
    trace->block_ids_count += blocks;
    return 0;
}

static int by_arrival(const void *a, const void *b)
{
    const struct replay_trace_request *x = a, *y = b;

    if (x->arrival_ns != y->arrival_ns)
        return x->arrival_ns < y->arrival_ns ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static void order_by_arrival(struct replay_trace *trace)
{
    uint64_t first_ns;

    if (!trace->requests)
        return;
    qsort(trace->request, trace->requests, sizeof(trace->request[0]), by_arrival);
    first_ns = trace->request[0].arrival_ns;
    for (uint32_t i = 0; i < trace->requests; i++)
        trace->request[i].arrival_ns -= first_ns;
}

static const char *read_line(const char *text, size_t bytes, bool csv, struct replay_line *line)
{
    if (bytes > REPLAY_LINE_BYTES_MAX)
        return "the line is longer than 1 MiB";
    return csv ? replay_line_csv(text, bytes, line) : replay_line_json(text, bytes, line);
}

static bool is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != ' ' && text[i] != '\t')
            return false;
    return true;
}

/* What the lines of a file have in common. */
struct parser {
    const struct replay_trace_options *options;
    struct replay_trace *trace;
    struct replay_trace_error *error;
    struct replay_line line; /* lends room for hash ids */
    uint64_t number;         /* of the line, from 1 */
    bool csv;
};

/* Return: 0; -1 if the load ends here. */
static int parse_line(struct parser *p, const char *text, size_t bytes)
{
    const char *why;

    if (p->number == 1 && replay_line_is_csv_header(text, bytes)) {
        p->csv = true;
        return 0;
    }
    if (!p->csv && is_blank(text, bytes)) /* between JSON lines, and at the end, it is nothing */
        return 0;
    why = read_line(text, bytes, p->csv, &p->line);
    if (!why)
        return add_request(p->trace, &p->line) ? fail(p->error, p->number, "out of memory") : 0;
    fail(p->error, p->number, why);
    if (!p->options->skip_bad)
        return -1;
    p->trace->bad_lines++;
    if (p->options->skipped)
        p->options->skipped(p->error);
    return 0;
}

/* The lines of the file one after the other. */
static int parse_lines(struct parser *p, const char *text, size_t bytes)
{
    uint32_t limit = p->options->limit ? p->options->limit : REPLAY_REQUESTS_MAX;
    const char *end = text + bytes;

    while (text < end && p->trace->requests < limit) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((newline ? newline : end) - text);

        if (length && text[length - 1] == '\r')
            length--;
        p->number++;
        if (parse_line(p, text, length))
            return -1;
        text = newline ? newline + 1 : end;
    }
    if (!p->options->limit && text < end)
        return fail(p->error, 0, "more requests than a trace may have");
    return 0;
}

int replay_trace_parse(const char *text, size_t bytes, const struct replay_trace_options *options,
                       struct replay_trace *trace, struct replay_trace_error *error)
{
    struct parser parser = {.options = options,
                            .trace = trace,
                            .error = error,
                            .line = {.ids_room = REPLAY_TOKENS_MAX / REPLAY_BLOCK_TOKENS}};
    int result;

    *trace = (struct replay_trace){0};
    parser.line.ids = calloc(parser.line.ids_room, sizeof(parser.line.ids[0]));
    if (!parser.line.ids)
        return fail(error, 0, "out of memory");
    result = parse_lines(&parser, text, bytes);
    free(parser.line.ids);
    if (!result && !trace->requests)
        result = fail(error, 0, "no requests in it");
    if (result)
        replay_trace_free(trace);
    else
        order_by_arrival(trace);
    return result;
}

/* The file in memory, or NULL with the reason in @error. */
static char *read_file(const char *path, size_t *bytes, struct replay_trace_error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t room = 1 << 16;
    char *text = fd < 0 ? NULL : malloc(room);
    ssize_t got = -1;

    *bytes = 0;
    while (text && (got = read(fd, text + *bytes, room - *bytes)) > 0) {
        *bytes += (size_t)got;
        if (*bytes < room)
            continue;
        room *= 2;
        char *larger = room > REPLAY_FILE_BYTES_MAX ? NULL : realloc(text, room);
        errno = EFBIG;
        if (!larger)
            break;
        text = larger;
    }
    if (!text || got) {
        fail(error, 0, strerror(errno));
        free(text);
        text = NULL;
    }
    if (fd >= 0)
        close(fd);
    return text;
}

int replay_trace_load(const char *path, const struct replay_trace_options *options,
                      struct replay_trace *trace, struct replay_trace_error *error)
{
    size_t bytes;
    char *text = read_file(path, &bytes, error);
    int result;

    if (!text)
        return -1;
    result = replay_trace_parse(text, bytes, options, trace, error);
    free(text);
    return result;
}

void replay_trace_clip(struct replay_trace *trace, uint32_t context_max)
{
    for (uint32_t i = 0; i < trace->requests; i++) {
        struct replay_trace_request *request = &trace->request[i];
        uint32_t output_max = context_max / 2;

        if ((uint64_t)request->input_tokens + request->output_tokens <= context_max)
            continue;
        trace->clipped++;
        if (request->output_tokens > output_max)
            request->output_tokens = output_max;
        if (request->input_tokens > context_max - request->output_tokens)
            request->input_tokens = context_max - request->output_tokens;
        request->blocks = (request->input_tokens + REPLAY_BLOCK_TOKENS - 1) / REPLAY_BLOCK_TOKENS;
    }
}

void replay_trace_free(struct replay_trace *trace)
{
    free(trace->request);
    free(trace->block_ids);
    *trace = (struct replay_trace){0};
}
