/* launched.c - prepared runs of a trial. */
#include "tests/support/harness/launched.h"

#include "tests/support/harness/check.h"
#include "tests/support/harness/e2e.h"

#include <string.h>

struct random_batch launched_batch(void)
{
    struct random_batch batch = e2e_batch();

    batch.shape.layers = LAUNCHED_LAYERS;
    batch.shape.page_size = 4;
    batch.steps = 2;
    batch.reserve_pages = 3;
    batch.level[0].requests = 3;
    for (uint32_t e = 0; e < 3; e++)
        batch.level[0].entry[e] =
            (struct random_entry){.qo_len = 1, .kv_len = {9 + 7 * (int32_t)e, 19 + 7 * (int32_t)e}};
    return batch;
}

void launched_begin(struct trial *trial, struct engine *engine, const struct random_batch *batch)
{
    trial_begin(trial, engine, batch, 0);
    launched_set(trial, 0);
}

void launched_open(struct engine *engine, struct trial *trial, const char *socket_path,
                   const char *name, const struct random_batch *batch)
{
    engine_open(engine, socket_path, name);
    launched_begin(trial, engine, batch);
}

void launched_open_all(struct engine *engine, struct trial *trial, const char *socket_path,
                       const char *name, const struct random_batch *batch, uint32_t lane,
                       uint32_t prepared[LAUNCHED_LAYERS])
{
    launched_open(engine, trial, socket_path, name, batch);
    launched_prepare_all(trial, lane, prepared);
}

void launched_close(struct engine *engine, struct trial *trial)
{
    trial_end(trial);
    engine_close(engine);
}

void launched_close_all(struct engine *engine, struct trial *trial,
                        const uint32_t prepared[LAUNCHED_LAYERS])
{
    launched_unprepare_all(trial, prepared);
    launched_close(engine, trial);
}

int launched_prepare(const struct trial *trial, uint32_t layer, uint32_t lane, uint32_t *prepared)
{
    return trial_prepare(trial, 0, layer, lane, prepared);
}

void launched_prepare_at(const struct trial *trial, uint32_t layer, uint32_t lane, uint32_t gone,
                         uint32_t *prepared)
{
    CHECK_OK(launched_prepare(trial, layer, lane, prepared));
    while ((*prepared ^ gone) % ATTND_DOORBELL_SLOTS) { /* slots are given out in turn */
        CHECK_OK(attnd_unprepare(trial->engine->session, *prepared));
        CHECK_OK(launched_prepare(trial, layer, lane, prepared));
    }
    CHECK(*prepared != gone);
}

void launched_prepare_all(const struct trial *trial, uint32_t lane,
                          uint32_t prepared[LAUNCHED_LAYERS])
{
    for (uint32_t layer = 0; layer < LAUNCHED_LAYERS; layer++)
        CHECK_OK(launched_prepare(trial, layer, lane, &prepared[layer]));
}

void launched_unprepare_all(const struct trial *trial, const uint32_t prepared[LAUNCHED_LAYERS])
{
    for (uint32_t layer = 0; layer < LAUNCHED_LAYERS; layer++)
        CHECK_OK(attnd_unprepare(trial->engine->session, prepared[layer]));
}

int launched_ring(const struct trial *trial, uint32_t lane, uint32_t prepared)
{
    CHECK_OK(attnd_launch(trial->engine->session, lane, prepared));
    return attnd_launch_wait(trial->engine->session, lane, TRIAL_WAIT_NS);
}

void launched_verify(struct trial *trial, uint32_t layer)
{
    trial_must(trial, trial_verify_run(trial, 0, layer));
}

void launched_untouched(const struct trial *trial, uint32_t layer)
{
    const struct trial_place *place = &trial->place[0][layer];
    const uint8_t *rows = trial->engine->rows;

    for (uint64_t at = place->o_begin; at + 2 <= place->o_end; at += 2)
        CHECK_EQUAL(memcmp(rows + at, rows + place->o_begin, 2), 0);
}

void launched_set(struct trial *trial, uint32_t lane)
{
    CHECK_OK(trial_submit_set(trial, lane, 0));
    trial_must(trial, trial_await(trial));
}

void launched_extend(struct trial *trial, uint32_t lane)
{
    CHECK_OK(trial_submit_advance(trial, 1, lane, 0));
    trial_must(trial, trial_await(trial));
}

void launched_advance(struct trial *trial, uint32_t lane, const int32_t *kv_len)
{
    const struct attnd_op op = {.user_data = (uint64_t)(uintptr_t)trial, .lane = (uint16_t)lane};
    const uint32_t entries = trial->batch.level[0].requests;
    const struct attnd_advance advance = {
        .size = sizeof(advance), .entries = entries, .kv_len = kv_len};

    CHECK_OK(attnd_plan_advance(trial->engine->session, trial->plan, &advance, &op));
    trial->expected++;
    trial_must(trial, trial_await(trial));
    for (uint32_t e = 0; e < entries; e++)
        trial->batch.level[0].entry[e].kv_len[0] = kv_len[e];
}

struct attnd_mailbox *launched_mailbox(struct attnd_session *session)
{
    uint32_t memory;

    CHECK_OK(attnd_mailbox(session, &memory));
    return attnd_memory_address(session, memory);
}

int launched_from_host(void)
{
    struct attnd_session *session;
    void *state;

    if (!e2e_on_gpu())
        return 1;
    CHECK_EQUAL(e2e_start(&state), 0);
    const struct attnd_open_args args = {.size = sizeof(args),
                                         .socket_path = ((struct harness *)state)->socket};
    CHECK_OK(attnd_open(&args, &session));
    int from_host = launched_mailbox(session) != NULL;
    attnd_close(session);
    CHECK_EQUAL(e2e_stop(&state), 0);
    return from_host;
}
