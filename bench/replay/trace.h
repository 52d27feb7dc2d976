/*
 * trace.h - a request trace: when each request came, how long its prompt and answer were, and which
 * prompts begin alike.
 *
 * Two formats. Mooncake: JSON lines {"timestamp": ms, "input_length", "output_length", "hash_ids"},
 * one id for each 512 tokens of the prompt, equal ids meaning equal tokens. Azure: CSV lines
 * TIMESTAMP,ContextTokens,GeneratedTokens; such prompts share nothing, so every block gets an id of
 * its own. The format is told by the first line.
 */
#ifndef ATTND_BENCH_REPLAY_TRACE_H
#define ATTND_BENCH_REPLAY_TRACE_H

#include <stddef.h>
#include <stdint.h>

#define REPLAY_BLOCK_TOKENS 512u /* a hash id covers */
#define REPLAY_TOKENS_MAX (1u << 24)
#define REPLAY_REQUESTS_MAX (1u << 22)
#define REPLAY_LINE_BYTES_MAX (1u << 20)
#define REPLAY_FILE_BYTES_MAX ((size_t)1 << 30)

struct replay_trace_request {
    uint64_t arrival_ns; /* since the first request of the trace */
    uint32_t index;      /* in the file's order: the identity of its own tokens */
    uint32_t input_tokens, output_tokens;
    uint32_t blocks;      /* ceil(input_tokens / 512) */
    size_t blocks_offset; /* into block_ids */
};

struct replay_trace {
    struct replay_trace_request *request; /* sorted by arrival */
    uint32_t requests;
    uint64_t *block_ids;
    size_t block_ids_count;
    uint32_t bad_lines; /* skipped */
    uint32_t clipped;   /* requests that replay_trace_clip() shortened */
    /* while loading */
    uint32_t requests_room;
    size_t block_ids_room;
};

/* The line that could not be read, and why. */
struct replay_trace_error {
    uint64_t line; /* from 1; 0: the file itself */
    char text[160];
};

struct replay_trace_options {
    uint32_t limit; /* requests; 0: all */
    int skip_bad;
    /* Told of each line that is skipped; may be NULL. */
    void (*skipped)(const struct replay_trace_error *error);
};

/**
 * replay_trace_load() - read a whole trace
 * @error: filled on failure; line 0 if the file cannot be read
 * Return: 0, and replay_trace_free() frees it; -1.
 */
int replay_trace_load(const char *path, const struct replay_trace_options *options,
                      struct replay_trace *trace, struct replay_trace_error *error);

/** replay_trace_parse() - the same from memory; @text need not be terminated. */
int replay_trace_parse(const char *text, size_t bytes, const struct replay_trace_options *options,
                       struct replay_trace *trace, struct replay_trace_error *error);

/**
 * replay_trace_clip() - no request longer than @context_max tokens, prompt and answer together
 * The answer keeps at most half of them, the prompt what is left, from its beginning: prefixes stay
 * shared.
 */
void replay_trace_clip(struct replay_trace *trace, uint32_t context_max);

void replay_trace_free(struct replay_trace *trace);

/* ---- one line (trace_line.c) ---- */

/* What a line says. arrival_ns counts from an epoch of the format. */
struct replay_line {
    uint64_t arrival_ns;
    uint32_t input_tokens, output_tokens;
    uint64_t *ids; /* [room], the caller's */
    uint32_t ids_count, ids_room;
    char why[160];
};

/** replay_line_is_csv_header() - does the file begin as an Azure trace does? */
int replay_line_is_csv_header(const char *text, size_t bytes);

/** replay_line_json(), replay_line_csv()
 * Return: NULL, or why the line is refused: static, or in @line. */
const char *replay_line_json(const char *text, size_t bytes, struct replay_line *line);
const char *replay_line_csv(const char *text, size_t bytes, struct replay_line *line);

#endif
