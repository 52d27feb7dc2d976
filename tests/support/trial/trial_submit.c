/*
 * trial_submit.c - a batch through the public API, and its completions back.
 *
 * user_data is the trial's address, so several trials of one session can be under way, and a wait
 * hands each completion to its trial.
 */
#include "tests/support/trial/trial_internal.h"

#include "client/attnd_tables.h"
#include "tests/support/harness/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static struct attnd_op op_of(const struct trial *trial, uint32_t lane, uint32_t flags)
{
    return (struct attnd_op){
        .user_data = (uint64_t)(uintptr_t)trial, .lane = (uint16_t)lane, .flags = (uint16_t)flags};
}

/* What counts is what was accepted and will answer when it succeeds. */
static int submitted(struct trial *trial, uint32_t flags, int code)
{
    if (code == 0 && !(flags & ATTND_SKIP_SUCCESS))
        trial->expected++;
    return code;
}

/* Contiguous rows are asked for by zeros. */
static struct attnd_strides asked(const struct random_rows *layout,
                                  const struct attnd_strides *strides)
{
    if (!layout->heads_first && !layout->pad)
        return (struct attnd_strides){0, 0};
    return *strides;
}

static struct attnd_tensor at(const struct trial *trial, uint64_t offset_bytes)
{
    return (struct attnd_tensor){.memory = trial->engine->memory,
                                 .offset_bytes = trial->engine->rows_offset_bytes + offset_bytes};
}

/* Return: NULL: the batch has none. */
static const struct attnd_variant *variant_of(const struct trial *trial, struct attnd_variant *to)
{
    const struct random_variant *from = &trial->batch.variant;
    const struct random_shape *shape = &trial->batch.shape;
    const int scaled = from->q_scale != 0 || from->k_scale != 0 || from->v_scale != 0;

    if (!from->window && from->soft_cap == 0 && !from->position_encoding && !from->sinks &&
        !from->mask && !from->kv_scales && !from->fixed_split && !scaled)
        return NULL;
    *to = (struct attnd_variant)ATTND_VARIANT_INIT;
    to->window_left = from->window ? (int32_t)(from->window - 1) : -1;
    to->logits_soft_cap = from->soft_cap;
    to->position_encoding = from->position_encoding;
    to->flags = from->rope_append ? ATTND_VARIANT_ROPE_APPEND : 0;
    to->rope_theta = from->rope_theta;
    to->rope_scale = from->rope_scale;
    to->rope_old_context = from->rope_old_context;
    to->rope_low_freq_factor = from->rope_low;
    to->rope_high_freq_factor = from->rope_high;
    to->rope_dim = from->rope_dim;
    to->fixed_split = from->fixed_split;
    to->q_scale = from->q_scale;
    to->k_scale = from->k_scale;
    to->v_scale = from->v_scale;
    if (from->sinks) {
        to->sinks.memory = trial->engine->memory;
        to->sinks.offset_bytes = trial->engine->rows_offset_bytes + trial->sinks;
        to->sinks.layer_stride = from->sinks == 2 ? shape->heads_kv * shape->group : 0;
    }
    if (from->kv_scales) {
        to->kv_scales.memory = trial->engine->memory;
        to->kv_scales.offset_bytes = trial->engine->rows_offset_bytes + trial->kv_scales;
        to->kv_scales.layer_stride = from->kv_scales == 2 ? 2 * shape->heads_kv : 0;
    }
    if (from->mask) {
        to->mask.memory = trial->engine->memory;
        to->mask.offset_bytes = trial->engine->rows_offset_bytes + trial->mask;
    }
    return to;
}

/* An array where the engine's session reads it in place, if it has such memory. */
static const int32_t *placed(const struct trial *trial, uint64_t *at, const int32_t *array,
                             uint64_t count)
{
    uint64_t bytes;
    uint8_t *const tables = attnd_tables_memory(trial->engine->session, &bytes);
    const uint64_t begin = *at;

    if (!tables || !array)
        return array;
    *at += count * sizeof(*array);
    CHECK(*at <= bytes);
    return memcpy(tables + begin, array, count * sizeof(*array));
}

static struct attnd_level level_of(const struct trial *trial, uint32_t l, uint64_t *at)
{
    const uint32_t requests = trial->batch.level[l].requests;
    const int32_t *const kv_indptr = trial->level[l].kv_indptr;

    return (struct attnd_level){
        .requests = requests,
        .qo_indptr = placed(trial, at, trial->level[l].qo_indptr, requests + UINT64_C(1)),
        .kv_indptr = placed(trial, at, kv_indptr, requests + UINT64_C(1)),
        .kv_indices = placed(trial, at, trial->level[l].kv_indices, (uint64_t)kv_indptr[requests]),
        .kv_last_page_len = placed(trial, at, trial->level[l].last_page_len, requests)};
}

int trial_submit_set(struct trial *trial, uint32_t lane, uint32_t flags)
{
    const struct random_batch *batch = &trial->batch;
    const struct attnd_op op = op_of(trial, lane, flags);
    struct attnd_level level[RANDOM_LEVELS_MAX];
    struct attnd_batch api = {.size = sizeof(api), .level = level};
    struct attnd_variant variant;
    uint64_t placed_bytes = 0;

    for (uint32_t l = 0; l < batch->levels; l++)
        level[l] = level_of(trial, l, &placed_bytes);
    api.dtype = batch->shape.kv_dtype ? batch->shape.dtype : 0;
    api.levels = batch->levels;
    api.flags = (batch->causal ? ATTND_CAUSAL : 0) | (batch->lse_ln ? ATTND_LSE_LN : 0);
    api.reserve_pages = batch->reserve_pages;
    api.sm_scale = batch->sm_scale;
    api.q = asked(&batch->q, &trial->q);
    api.o = asked(&batch->o, &trial->o);
    api.lse = asked(&batch->lse, &trial->lse);
    api.k = asked(&batch->kv_rows, &trial->kv);
    api.v = batch->shape.dim_vo ? trial->kv : api.k; /* as far apart as those of k */
    api.variant = variant_of(trial, &variant);
    api.mask_indptr = batch->variant.mask
                          ? placed(trial, &placed_bytes, trial->mask_indptr,
                                   batch->level[batch->levels - 1].requests + UINT64_C(1))
                          : NULL;
    return submitted(trial, flags, attnd_plan_set(trial->engine->session, trial->plan, &api, &op));
}

int trial_submit_advance(struct trial *trial, uint32_t step, uint32_t lane, uint32_t flags)
{
    const struct random_batch *batch = &trial->batch;
    const struct attnd_op op = op_of(trial, lane, flags);
    int32_t kv_len[RANDOM_LEVELS_MAX * RANDOM_REQUESTS_MAX];
    int32_t indptr[RANDOM_LEVELS_MAX * RANDOM_REQUESTS_MAX + 1] = {0};
    uint32_t entries = 0, pages = 0;

    for (uint32_t l = 0; l < batch->levels; l++)
        for (uint32_t e = 0; e < batch->level[l].requests; e++, entries++) {
            kv_len[entries] = batch->level[l].entry[e].kv_len[step];
            pages += (uint32_t)(random_batch_pages(batch, l, e, step) -
                                random_batch_pages(batch, l, e, step - 1));
            indptr[entries + 1] = (int32_t)pages;
        }
    int32_t *indices = trial_allocate(pages, sizeof(*indices));
    for (uint32_t l = 0, i = 0; l < batch->levels; l++)
        for (uint32_t e = 0; e < batch->level[l].requests; e++, i++)
            memcpy(indices + indptr[i],
                   trial->level[l].list + trial->level[l].list_indptr[e] +
                       random_batch_pages(batch, l, e, step - 1),
                   (size_t)(indptr[i + 1] - indptr[i]) * sizeof(*indices));

    const struct attnd_advance advance = {.size = sizeof(advance),
                                          .entries = entries,
                                          .kv_len = kv_len,
                                          .page_indptr = pages ? indptr : NULL,
                                          .page_indices = pages ? indices : NULL};
    int code = attnd_plan_advance(trial->engine->session, trial->plan, &advance, &op);
    trial_free(indices);
    return submitted(trial, flags, code);
}

int trial_submit_append(struct trial *trial, uint32_t step, uint32_t layer, uint32_t lane,
                        uint32_t flags)
{
    const struct attnd_op op = op_of(trial, lane, flags);
    const struct trial_place *place = &trial->place[step][layer];
    const struct attnd_append_args args = {
        .size = sizeof(args), .layer = layer, .k = at(trial, place->k), .v = at(trial, place->v)};

    return submitted(trial, flags, attnd_append(trial->engine->session, trial->plan, &args, &op));
}

static int run(const struct trial *trial, uint32_t step, uint32_t layer, const struct attnd_op *op)
{
    const struct trial_place *place = &trial->place[step][layer];
    struct attnd_run_args args = {
        .size = sizeof(args), .layer = layer, .q = at(trial, place->q), .o = at(trial, place->o)};

    if (trial->batch.want_lse)
        args.lse = at(trial, place->lse);
    return attnd_run(trial->engine->session, trial->plan, &args, op);
}

int trial_prepare(const struct trial *trial, uint32_t step, uint32_t layer, uint32_t lane,
                  uint32_t *prepared)
{
    const struct trial_place *place = &trial->place[step][layer];
    struct attnd_prepare_args args = {.size = sizeof(args),
                                      .layer = layer,
                                      .lane = lane,
                                      .q = at(trial, place->q),
                                      .o = at(trial, place->o)};

    if (trial->batch.want_lse)
        args.lse = at(trial, place->lse);
    return attnd_prepare(trial->engine->session, trial->plan, &args, prepared);
}

int trial_submit_run(struct trial *trial, uint32_t step, uint32_t layer, uint32_t lane,
                     uint32_t flags)
{
    const struct attnd_op op = op_of(trial, lane, flags);

    if (trial->engine->runner)
        return trial->engine->runner->run(trial, step, layer, lane);
    return submitted(trial, flags, run(trial, step, layer, &op));
}

int trial_submit_as(const struct trial *trial, uint32_t layer, const struct attnd_op *op)
{
    return run(trial, 0, layer, op);
}

static int refused(struct trial *trial, const char *what, int code)
{
    struct attnd_fault fault;
    char sentence[160];

    if (code == 0)
        return 0;
    attnd_last_fault(&fault);
    snprintf(trial->why, sizeof(trial->why), "%s was refused: %s", what,
             attnd_fault_string(&fault, sentence, sizeof(sentence)));
    return 1;
}

int trial_submit(struct trial *trial)
{
    const struct random_batch *batch = &trial->batch;
    const uint32_t lane = batch->lane;
    const uint32_t flags = trial->quiet ? ATTND_SKIP_SUCCESS : 0;

    if (refused(trial, "plan_set", trial_submit_set(trial, lane, flags)))
        return 1;
    for (uint32_t step = 0; step < batch->steps; step++) {
        if (step > 0 &&
            refused(trial, "plan_advance", trial_submit_advance(trial, step, lane, flags)))
            return 1;
        for (uint32_t layer = 0; layer < batch->shape.layers; layer++) {
            if (batch->append &&
                refused(trial, "append", trial_submit_append(trial, step, layer, lane, flags)))
                return 1;
            if (trial->engine->runner && trial_await(trial))
                return 1;
            if (refused(trial, "run", trial_submit_run(trial, step, layer, lane, 0)))
                return 1;
        }
    }
    return 0;
}

/* ---- completions ---- */

static void deliver(const struct attnd_completion *completion)
{
    struct trial *trial = (struct trial *)(uintptr_t)completion->user_data;

    /* A quiet operation that failed answers although nothing was due. */
    if (completion->fault.code && trial->quiet && completion->operation != ATTND_RUN)
        trial->expected++;
    trial->completed++;
    if (completion->fault.code && !trial->failure.fault.code)
        trial->failure = *completion;
}

int trial_await(struct trial *trial)
{
    static const char *const names[] = {"?", "plan_set", "plan_advance", "append", "run"};
    struct attnd_completion completions[16];
    struct attnd_fault *fault = &trial->failure.fault;
    char sentence[160];
    const uint32_t before = trial->completed;

    while (trial->completed < trial->expected && !trial->lost) {
        int count = attnd_wait(trial->engine->session, completions, 16, TRIAL_WAIT_NS);
        if (count <= 0) {
            snprintf(trial->why, sizeof(trial->why), "%u of %u completions came, then %s",
                     trial->completed, trial->expected,
                     count ? attnd_error_name(count) : "none for 20 s");
            trial->lost = 1;
            return 1;
        }
        for (int i = 0; i < count; i++)
            deliver(&completions[i]);
    }
    if (trial->completed != before)
        engine_pull(trial->engine);
    if (!fault->code)
        return 0;
    snprintf(trial->why, sizeof(trial->why), "%s completed with %s",
             names[trial->failure.operation <= ATTND_RUN ? trial->failure.operation : 0],
             attnd_fault_string(fault, sentence, sizeof(sentence)));
    return 1;
}

int trial_settle(struct trial *trial)
{
    const struct engine_runner *runner = trial->engine->runner;
    const int code = runner ? runner->settle(trial) : 0;

    if (runner)
        engine_pull(trial->engine);
    if (code == 0)
        return 0;
    snprintf(trial->why, sizeof(trial->why), "a run ended with %s", attnd_error_name(code));
    return 1;
}
