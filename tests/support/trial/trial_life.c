/* trial_life.c - the life of a trial, from a description to a verdict. */
#include "tests/support/trial/trial_internal.h"

#include "tests/support/harness/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What fixed splits a plan has room for follows from its other capacities. */
static uint32_t tight_plan(const struct trial *trial)
{
    const struct random_batch *batch = &trial->batch;
    uint32_t requests = 0, pages = 0;

    for (uint32_t l = 0; l < batch->levels; l++) {
        requests += batch->level[l].requests;
        pages += (uint32_t)trial->level[l].kv_indptr[batch->level[l].requests];
    }
    pages += batch->reserve_pages * batch->level[batch->levels - 1].requests;
    /* A plan is for something: its capacities begin at 1. */
    return engine_plan(trial->engine, requests ? requests : 1, trial->rows ? trial->rows : 1,
                       pages ? pages : 1, batch->levels, batch->variant.fixed_split);
}

void trial_begin(struct trial *trial, struct engine *engine, const struct random_batch *batch,
                 uint64_t rows_begin)
{
    struct prng prng = prng_fork(batch->seed, 0);

    CHECK(random_batch_valid(batch) && batch->shape.layers <= ENGINE_LAYERS_MAX);
    memset(trial, 0, sizeof(*trial));
    trial->engine = engine;
    trial->batch = *batch;
    trial->quiet = (int)batch->quiet && !engine->runner; /* which waits for what is before a run */
    trial->rows = random_batch_rows(batch);
    trial->rows_end = rows_begin;
    engine_pool(engine, &batch->shape);
    trial_begin_tables(trial, &prng);
    trial_begin_pages(trial, &prng);
    trial_begin_rows(trial, &prng);
    engine_push(engine);
    trial->plan = batch->tight || batch->variant.fixed_split ? tight_plan(trial) : engine->plan;
}

void trial_forget(struct trial *trial)
{
    for (uint32_t l = 0; l < trial->batch.levels; l++) {
        free(trial->level[l].list);
        free(trial->level[l].kv_indices);
    }
    free(trial->pages_used);
    free(trial->filled);
}

void trial_end(struct trial *trial)
{
    if (trial->engine->runner)
        trial->engine->runner->end(trial);
    trial_poison_pages(trial);
    engine_push(trial->engine);
    if (trial->plan != trial->engine->plan)
        CHECK_OK(attnd_plan_destroy(trial->engine->session, trial->plan));
    trial_forget(trial);
}

int trial_judge(struct trial *trial)
{
    if (trial_settle(trial))
        return 1;
    for (uint32_t step = 0; step < trial->batch.steps; step++)
        for (uint32_t layer = 0; layer < trial->batch.shape.layers; layer++) {
            trial_store(trial, step, layer);
            if (trial_verify_run(trial, step, layer))
                return 1;
        }
    /* Nothing but append may write there; now and then that is worth a look. */
    return trial->batch.append || trial->batch.seed % 8 == 0 ? trial_verify_pages(trial) : 0;
}

static int was_refused(const struct trial *trial)
{
    const struct attnd_completion *failure = &trial->failure;

    return failure->operation == ATTND_PLAN_SET && failure->fault.code == -ATTND_E_UNSUPPORTED &&
           failure->fault.index == ATTND_F_BACKEND;
}

int trial_run(struct engine *engine, const struct random_batch *batch, char *why, size_t why_bytes)
{
    struct trial trial;

    trial_begin(&trial, engine, batch, 0);
    int wrong = trial_submit(&trial) || trial_judge(&trial);
    if (wrong) {
        snprintf(why, why_bytes, "%s", trial.why);
        (void)trial_await(&trial); /* let it finish before its rows and pages are taken away */
        if (trial.lost)
            trial_must(&trial, 1);
    }
    trial_end(&trial);
    return wrong && was_refused(&trial) ? TRIAL_REFUSED : wrong;
}

void trial_must(const struct trial *trial, int wrong)
{
    if (!wrong)
        return;
    random_batch_print(stderr, &trial->batch);
    check_say(__FILE__, __LINE__, "%s", trial->why);
    check_failed(__FILE__, __LINE__);
}

void trial_expect(struct engine *engine, const struct random_batch *batch)
{
    struct trial trial;

    trial_begin(&trial, engine, batch, 0);
    trial_must(&trial, trial_submit(&trial) || trial_judge(&trial));
    trial_end(&trial);
}
