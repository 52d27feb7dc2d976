/* tree.c - prefixes from the service's tree: what admit.c asks of it, and what it answers.
 *
 * A request asks for its beginning by a match that waits for the engine that computes the next
 * block. It is submitted once and answered between the completions of a step or before one. Then
 * the rest is claimed, computed, and published as its pages fill. What other engines computed comes
 * back in the same way as what this one did. */
#include "bench/replay/engine.h"

#include <string.h>

#define MATCH_PATIENCE_NS 100000u /* what is there is told within tens of microseconds */
#define ANSWER_TIMEOUT_NS 60000000000u

int replay_tree_attach(struct replay_engine *engine)
{
    struct attnd_prefix_info info = {.size = sizeof(info)};
    int code =
        attnd_prefix_attach(engine->session, &engine->job->prefix_token, &engine->prefix_handle);

    if (!code)
        code = attnd_prefix_info(engine->session, engine->prefix_handle, &info);
    memcpy(engine->salt, info.salt, sizeof(engine->salt));
    return code ? replay_fail_call(engine, "attnd_prefix_attach", code) : 0;
}

void replay_tree_keys(const struct replay_engine *engine, const uint64_t *names, uint32_t count,
                      struct attnd_prefix_key *keys)
{
    for (uint32_t i = 0; i < count; i++)
        attnd_prefix_key(engine->salt, i ? &keys[i - 1] : NULL, &names[i], sizeof(names[i]),
                         &keys[i]);
}

static struct attnd_prefix_args args_of(const struct replay_engine *engine,
                                        const struct replay_request *request, uint32_t begin,
                                        uint32_t end)
{
    return (struct attnd_prefix_args){.size = sizeof(struct attnd_prefix_args),
                                      .prefix = engine->prefix_handle,
                                      .blocks = end - begin,
                                      .keys = request->tree_keys + begin,
                                      .parent = begin ? &request->tree_keys[begin - 1] : NULL};
}

/* What a request waits for is answered to it; the rest is a publish or an end of claims. */
int replay_tree_taken(struct replay_engine *engine, const struct attnd_completion *completion)
{
    struct attnd_prefix_result result = {.size = sizeof(result)};
    struct replay_request *request = (struct replay_request *)(uintptr_t)completion->user_data;

    if (completion->operation == ATTND_PUBLISH && completion->fault.code == -ATTND_E_UNKNOWN) {
        engine->stats->publishes_refused++; /* the tree has let go of what was before */
        return 0;
    }
    if (completion->fault.code) {
        char text[160];
        return replay_fail(engine, "an operation on the prefix tree failed: %s",
                           attnd_fault_string(&completion->fault, text, sizeof(text)));
    }
    if (attnd_prefix_result(engine->session, completion, &result))
        return replay_fail(engine, "a completion makes no sense");
    if (completion->operation != ATTND_MATCH && completion->operation != ATTND_CLAIM)
        return 0;
    request->answer = REPLAY_ANSWERED;
    request->answer_blocks = result.blocks;
    request->answer_foreign = result.foreign;
    if (result.pages_count)
        memcpy(request->pages, result.pages, result.pages_count * sizeof(request->pages[0]));
    return 0;
}

static int await(struct replay_engine *engine, const struct replay_request *request,
                 uint64_t timeout_ns)
{
    struct attnd_completion completions[8];

    while (request->answer == REPLAY_ASKED) {
        int count = attnd_wait(engine->session, completions, 8, timeout_ns);

        if (count < 0)
            return replay_fail_call(engine, "attnd_wait", count);
        if (!count)
            return 0;
        for (int i = 0; i < count; i++)
            if (replay_tree_taken(engine, &completions[i]))
                return -1;
    }
    return 0;
}

int replay_tree_match(struct replay_engine *engine, struct replay_request *request, uint32_t blocks)
{
    struct attnd_prefix_args args = args_of(engine, request, 0, blocks);
    struct attnd_op op = {.user_data = (uintptr_t)request};
    uint64_t patience_ns = 0;
    int code;

    if (request->answer == REPLAY_UNASKED) {
        args.flags = ATTND_PREFIX_MATCH_WAITS;
        code = attnd_prefix_match(engine->session, &args, &op);
        if (code == -ATTND_E_FULL)
            return 0;
        if (code)
            return replay_fail_call(engine, "attnd_prefix_match", code);
        request->answer = REPLAY_ASKED;
        patience_ns = MATCH_PATIENCE_NS;
    }
    if (await(engine, request, patience_ns))
        return -1;
    return request->answer == REPLAY_ANSWERED;
}

int replay_tree_claim(struct replay_engine *engine, struct replay_request *request, uint32_t begin)
{
    struct attnd_prefix_args args = args_of(engine, request, begin, request->keys_count);
    struct attnd_op op = {.user_data = (uintptr_t)request};
    int code;

    if (begin == request->keys_count)
        return 1;
    request->answer = REPLAY_ASKED;
    code = attnd_prefix_claim(engine->session, &args, &op);
    if (code)
        return replay_fail_call(engine, "attnd_prefix_claim", code);
    if (await(engine, request, ANSWER_TIMEOUT_NS))
        return -1;
    if (request->answer == REPLAY_ASKED)
        return replay_fail(engine, "the service has not answered for a minute");
    return request->answer_blocks > 0;
}

int replay_tree_publish(struct replay_engine *engine, struct replay_request *request, uint32_t end)
{
    struct attnd_prefix_args args = args_of(engine, request, request->ready_pages, end);
    struct attnd_op op = {.flags = ATTND_SKIP_SUCCESS};
    int code =
        attnd_prefix_publish(engine->session, &args, request->pages + request->ready_pages, &op);

    return code ? replay_fail_call(engine, "attnd_prefix_publish", code) : 0;
}

int replay_tree_leave(struct replay_engine *engine, struct replay_request *request)
{
    struct attnd_prefix_args args = args_of(engine, request, 0, request->keys_count);
    struct attnd_op op = {.flags = ATTND_SKIP_SUCCESS};
    int code;

    if (!request->keys_count)
        return 0;
    code = attnd_prefix_abandon(engine->session, &args, &op);
    return code ? replay_fail_call(engine, "attnd_prefix_abandon", code) : 0;
}
