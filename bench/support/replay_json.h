/*
 * replay_json.h - what figures take from a comparison that attnd-replay wrote (--json FILE).
 */
#ifndef ATTND_BENCH_SUPPORT_REPLAY_JSON_H
#define ATTND_BENCH_SUPPORT_REPLAY_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One of the two replays; requests 0: it is not in the file. */
struct bench_replay_side {
    uint64_t requests, prompt_tokens, prompt_computed, evicted, steps, mismatches;
    double attention_s, pages_s; /* of all engines together */
};

struct bench_replay_file {
    uint64_t engines, context_max;
    struct bench_replay_side service, engine; /* by --cache */
};

/** bench_replay_read() - @why: receives a sentence. Return: 0; -1. */
int bench_replay_read(const char *path, struct bench_replay_file *file, char *why,
                      size_t why_bytes);

#endif
