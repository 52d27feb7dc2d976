/*
 * fuzz_trace.c - any bytes as a request trace, in both formats.
 *
 * What is read is within the limits that trace.h gives, in the order of arrival, and clipping it
 * keeps prompts and answers within the context. Without skipping, a bad line is named.
 */
#include "bench/replay/trace.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static void check(const struct replay_trace *trace, uint32_t context_max)
{
    for (uint32_t i = 0; i < trace->requests; i++) {
        const struct replay_trace_request *request = &trace->request[i];
        fuzz_require(request->input_tokens >= 1 && request->input_tokens <= REPLAY_TOKENS_MAX &&
                         request->output_tokens <= REPLAY_TOKENS_MAX,
                     "lengths are within their limits");
        fuzz_require(request->blocks == (request->input_tokens + REPLAY_BLOCK_TOKENS - 1) /
                                            REPLAY_BLOCK_TOKENS &&
                         request->blocks_offset + request->blocks <= trace->block_ids_count,
                     "a prompt has the ids of its blocks");
        fuzz_require(i == 0 || trace->request[i - 1].arrival_ns <= request->arrival_ns,
                     "requests come in order");
        fuzz_require(!context_max ||
                         (uint64_t)request->input_tokens + request->output_tokens <= context_max,
                     "a clipped request fits");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!data || !bytes)
        return 0;
    const struct replay_trace_options options = {.limit = data[0] & 2 ? 3 : 0,
                                                 .skip_bad = data[0] & 1};
    struct replay_trace trace;
    struct replay_trace_error error = {0};
    /* In memory of exactly the size that it has. */
    char *text = malloc(bytes - 1 ? bytes - 1 : 1);

    fuzz_require(text != NULL, "memory");
    memcpy(text, data + 1, bytes - 1);
    const int code = replay_trace_parse(text, bytes - 1, &options, &trace, &error);
    free(text);
    if (code) {
        fuzz_require(error.text[0] != 0, "a refusal says why");
        return 0;
    }
    fuzz_require(!options.limit || trace.requests <= options.limit, "no more than were asked for");
    check(&trace, 0);
    replay_trace_clip(&trace, 64);
    check(&trace, 64);
    replay_trace_free(&trace);
    return 0;
}
