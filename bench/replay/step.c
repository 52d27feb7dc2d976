/* step.c - one step through all layers: plan once, then append and run for each layer.
 *
 * As in an engine, a layer's q, k and v exist only after the layer before it has answered, so each
 * layer is submitted and awaited; the plan travels with the first layer on the same lane and is not
 * waited for. A run that the worker took down with it is submitted again, its append included: both
 * may be repeated, the same rows go to the same places. */
#include "bench/replay/engine.h"
#include "ipc/wake.h"

#include <string.h>

#define ANSWER_TIMEOUT_NS 60000000000u
#define REPEATS_MAX 32

enum { TAG_PLAN = 1, TAG_APPEND = 2, TAG_RUN = 3 };

static void fill_rows(const struct replay_engine *engine, enum replay_kind kind, uint32_t layer,
                      uint32_t heads, uint64_t offset_bytes)
{
    const struct replay_batch *batch = &engine->batch;
    uint32_t dim = engine->options->head_dim;

    for (uint32_t s = 0; s < batch->slots; s++) {
        const struct replay_slot *slot = &batch->slot[s];

        for (uint32_t i = 0; i < slot->row_count; i++) {
            uint32_t position = slot->position_begin + i;
            uint64_t row = slot->row_begin + i;
            struct replay_site site = {
                .token = replay_token(engine->job->trace, slot->request->trace, position),
                .position = position,
                .layer = layer};
            uint16_t *out =
                (uint16_t *)(void *)(engine->buffers.address + offset_bytes) + row * heads * dim;

            for (site.head = 0; site.head < heads; site.head++)
                replay_model_bits(&engine->model, kind, &site, out + (size_t)site.head * dim);
        }
    }
}

static void fill(struct replay_engine *engine, uint32_t layer)
{
    const struct replay_options *options = engine->options;
    uint64_t begin_ns = attnd_clock_ns();

    fill_rows(engine, REPLAY_Q, layer, options->heads_q, engine->buffers.q_offset);
    fill_rows(engine, REPLAY_K, layer, options->heads_kv, engine->buffers.k_offset);
    fill_rows(engine, REPLAY_V, layer, options->heads_kv, engine->buffers.v_offset);
    engine->stats->fill_ns += attnd_clock_ns() - begin_ns;
}

static int submit_plan(struct replay_engine *engine, bool advance)
{
    struct replay_batch *batch = &engine->batch;
    struct attnd_op op = {.user_data = TAG_PLAN};
    int code;

    if (advance) {
        struct attnd_advance args = {.size = sizeof(args),
                                     .entries = batch->level[batch->levels - 1].entries +
                                                (batch->levels == 2 ? batch->level[0].entries : 0),
                                     .kv_len = batch->advance_len,
                                     .page_indptr = batch->advance_indptr,
                                     .page_indices = batch->advance_pages};
        code = attnd_plan_advance(engine->session, engine->plan, &args, &op);
        return code ? replay_fail_call(engine, "attnd_plan_advance", code) : 0;
    }
    struct attnd_batch args = {.size = sizeof(args),
                               .levels = batch->levels,
                               .flags = ATTND_CAUSAL,
                               .reserve_pages = batch->reserve_pages,
                               .level = batch->view};
    code = attnd_plan_set(engine->session, engine->plan, &args, &op);
    return code ? replay_fail_call(engine, "attnd_plan_set", code) : 0;
}

static int submit_layer(struct replay_engine *engine, uint32_t layer)
{
    const struct replay_buffers *b = &engine->buffers;
    struct attnd_append_args append = {.size = sizeof(append),
                                       .layer = layer,
                                       .k = {b->memory, b->k_offset},
                                       .v = {b->memory, b->v_offset}};
    struct attnd_run_args run = {.size = sizeof(run),
                                 .layer = layer,
                                 .q = {b->memory, b->q_offset},
                                 .o = {b->memory, b->o_offset},
                                 .lse = {b->memory, b->lse_offset}};
    struct attnd_op append_op = {.user_data = TAG_APPEND, .flags = ATTND_SKIP_SUCCESS};
    struct attnd_op run_op = {.user_data = TAG_RUN};
    int code = attnd_append(engine->session, engine->plan, &append, &append_op);

    if (code)
        return replay_fail_call(engine, "attnd_append", code);
    code = attnd_run(engine->session, engine->plan, &run, &run_op);
    return code ? replay_fail_call(engine, "attnd_run", code) : 0;
}

static int fail_completion(struct replay_engine *engine, const struct attnd_completion *completion)
{
    static const char *const names[] = {"an operation", "a plan", "an append", "a run"};
    char text[160];

    return replay_fail(engine, "%s failed: %s",
                       completion->user_data <= TAG_RUN ? names[completion->user_data] : names[0],
                       attnd_fault_string(&completion->fault, text, sizeof(text)));
}

struct answer {
    bool run_done, again; /* again: the worker was restarted under it */
    uint64_t plan_end_ns, run_ns;
};

static int take(struct replay_engine *engine, const struct attnd_completion *completion,
                struct answer *answer)
{
    if (completion->operation == ATTND_PAGES_CLAIM)
        return replay_brought(engine, completion);
    if (completion->operation >= ATTND_MATCH)
        return replay_tree_taken(engine, completion);
    if (completion->fault.code == -ATTND_E_WORKER_RESTARTED && completion->user_data != TAG_PLAN)
        answer->again = true;
    else if (completion->fault.code)
        return fail_completion(engine, completion);
    if (completion->user_data == TAG_PLAN)
        answer->plan_end_ns = completion->end_ns;
    if (completion->user_data == TAG_RUN) {
        answer->run_done = true;
        answer->run_ns += completion->end_ns - completion->begin_ns;
    }
    return 0;
}

/* Until the run that was submitted last has answered. */
static int await_run(struct replay_engine *engine, struct answer *answer)
{
    while (!answer->run_done) {
        struct attnd_completion completions[8];
        int count = attnd_wait(engine->session, completions, 8, ANSWER_TIMEOUT_NS);

        if (count < 0)
            return replay_fail_call(engine, "attnd_wait", count);
        if (!count)
            return replay_fail(engine, "the service has not answered for a minute");
        for (int i = 0; i < count; i++)
            if (take(engine, &completions[i], answer))
                return -1;
    }
    return 0;
}

static int run_layer(struct replay_engine *engine, uint32_t layer, struct answer *answer)
{
    for (int repeats = 0; repeats <= REPEATS_MAX; repeats++) {
        answer->run_done = answer->again = false;
        if (submit_layer(engine, layer) || await_run(engine, answer))
            return -1;
        engine->stats->runs++;
        if (!answer->again)
            return 0;
        engine->stats->repeated++;
    }
    return replay_fail(engine, "the worker was restarted %d times under one run", REPEATS_MAX);
}

static void account(struct replay_engine *engine, bool advance, uint64_t plan_ns, uint64_t step_ns)
{
    const struct replay_options *options = engine->options;
    struct replay_stats *stats = engine->stats;
    uint64_t token_bytes = 2ull * 2 * options->heads_kv * options->head_dim * options->layers;

    stats->steps++;
    stats->kv_bytes_read += engine->batch.kv_tokens * token_bytes;
    stats->kv_bytes_flat += engine->batch.kv_tokens_flat * token_bytes;
    stats->attention_ns += step_ns;
    engine->clock_ns += step_ns;
    bench_histogram_add(&stats->step_ns, step_ns);
    if (advance) {
        stats->plan_advances++;
        bench_histogram_add(&stats->plan_advance_ns, plan_ns);
    } else {
        stats->plan_sets++;
        bench_histogram_add(&stats->plan_set_ns, plan_ns);
    }
}

int replay_step(struct replay_engine *engine, bool advance)
{
    struct answer answer = {0};
    uint64_t plan_begin_ns = 0, step_ns = 0;

    for (uint32_t layer = 0; layer < engine->options->layers; layer++) {
        uint64_t begin_ns;

        fill(engine, layer);
        begin_ns = attnd_clock_ns();
        if (!layer) {
            plan_begin_ns = begin_ns;
            if (submit_plan(engine, advance))
                return -1;
        }
        if (run_layer(engine, layer, &answer))
            return -1;
        step_ns += attnd_clock_ns() - begin_ns;
        replay_check(engine, layer);
    }
    engine->stats->service_ns += answer.run_ns;
    account(engine, advance, answer.plan_end_ns - plan_begin_ns, step_ns);
    return 0;
}
