/*
 * test_e2e_handover.c - a prefill engine fills pages and leaves; a decode engine goes on with them.
 *
 * The prefill stores every key and value by append, so what the decode engine attends to has never
 * been in its own memory: it builds its shadow from the same seed.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define PAGES_MAX 64

struct handover {
    const struct harness *harness;
    int dies; /* the prefill engine is killed instead of closing */
    struct attnd_token token, ticket;
    uint32_t count;
    int32_t pages[PAGES_MAX];
    uint32_t offered, never;
};

/* Every key of every request is new. */
static struct random_batch prefill_batch(void)
{
    struct random_batch batch = e2e_batch();

    batch.shape.service_pool = 1;
    batch.append = 1;
    batch.level[0].requests = 3;
    batch.level[0].entry[0] = (struct random_entry){.qo_len = 100, .kv_len = {100}};
    batch.level[0].entry[1] = (struct random_entry){.qo_len = 7, .kv_len = {7}};
    batch.level[0].entry[2] = (struct random_entry){.qo_len = 50, .kv_len = {50}};
    return batch;
}

/* Three tokens for each request, within the pages it has. */
static struct random_batch decode_batch(void)
{
    struct random_batch batch = prefill_batch();

    batch.steps = 3;
    for (uint32_t e = 0; e < batch.level[0].requests; e++) {
        struct random_entry *entry = &batch.level[0].entry[e];
        entry->qo_len = 1;
        for (uint32_t s = 0; s < batch.steps; s++)
            entry->kv_len[s] = entry->kv_len[0] + (int32_t)s + (s == 0);
    }
    return batch;
}

static int prefill(void *context)
{
    struct handover *handover = context;
    const struct random_batch batch = prefill_batch();
    struct engine engine;
    struct trial trial;

    engine_open(&engine, handover->harness->socket, "prefill");
    trial_begin(&trial, &engine, &batch, 0);
    trial_must(&trial, trial_submit(&trial) || trial_judge(&trial));
    CHECK_OK(attnd_pool_share(engine.session, engine.pool, 1, &handover->token));
    handover->count = trial.pages_used_count;
    CHECK(handover->count <= PAGES_MAX);
    memcpy(handover->pages, trial.pages_used, handover->count * sizeof(int32_t));
    CHECK_OK(attnd_pages_offer(engine.session, engine.pool, handover->count, handover->pages, 30000,
                               &handover->ticket));
    harness_say(&handover->offered, 1);
    if (handover->dies)
        harness_await(&handover->never, 1);
    engine_close(&engine);
    return 0;
}

static int gone(void *context)
{
    Attnd__Status *status = harness_status(context);
    int sessions = (int)status->n_sessions;

    attnd__status__free_unpacked(status, NULL);
    return sessions == 0;
}

static void decode(const struct handover *handover)
{
    const struct random_batch before = prefill_batch(), batch = decode_batch();
    int32_t pages[PAGES_MAX];
    uint32_t pool = 0;
    struct engine engine;
    struct trial history, trial;

    engine_open(&engine, handover->harness->socket, "decode");
    engine_attach(&engine, &batch.shape, &handover->token);
    CHECK_EQUAL(attnd_pages_claim(engine.session, &handover->ticket, &pool, pages, PAGES_MAX),
                handover->count);
    CHECK_EQUAL(pool, engine.pool);
    for (uint32_t i = 0; i < handover->count; i++)
        CHECK_EQUAL(pages[i], handover->pages[i]);

    trial_begin(&history, &engine, &before, 0); /* into the shadow only */
    for (uint32_t layer = 0; layer < before.shape.layers; layer++)
        trial_store(&history, 0, layer);
    CHECK_EQUAL(trial_verify_pages(&history), 0);
    engine.fill = ENGINE_FILLS_NOTHING;
    trial_begin(&trial, &engine, &batch, history.rows_end);
    trial_must(&trial, trial_submit(&trial) || trial_judge(&trial));
    trial_end(&trial);
    trial_end(&history);
    engine_close(&engine);
}

static struct handover *begin(const struct harness *harness, int dies)
{
    struct handover *handover = harness_shared(sizeof(*handover));

    handover->harness = harness;
    handover->dies = dies;
    return handover;
}

static void pages_go_to_another_process_without_a_copy(void **state)
{
    struct handover *handover = begin(*state, 0);

    CHECK_EQUAL(harness_join(harness_fork(prefill, handover), 20000), 0);
    harness_eventually(gone, *state, 5000, "the prefill session is gone");
    decode(handover);
}

static void a_giver_that_is_killed_does_not_take_them_along(void **state)
{
    struct handover *handover = begin(*state, 1);
    pid_t pid = harness_fork(prefill, handover);

    harness_await(&handover->offered, 1);
    harness_kill(pid);
    harness_eventually(gone, *state, 5000, "the prefill session is gone");
    decode(handover);
}

static void a_ticket_is_claimed_once(void **state)
{
    struct handover *handover = begin(*state, 0);
    const struct random_batch batch = prefill_batch();
    int32_t pages[PAGES_MAX];
    uint32_t pool;
    struct engine first, second;

    CHECK_EQUAL(harness_join(harness_fork(prefill, handover), 20000), 0);
    engine_open(&first, handover->harness->socket, "first");
    engine_open(&second, handover->harness->socket, "second");
    CHECK_ERROR(attnd_pages_claim(first.session, &handover->ticket, &pool, pages, PAGES_MAX),
                ATTND_E_PERMISSION); /* the pool is not attached */
    engine_attach(&first, &batch.shape, &handover->token);
    engine_attach(&second, &batch.shape, &handover->token);
    CHECK_ERROR(attnd_pages_claim(first.session, &handover->ticket, &pool, pages, 1),
                ATTND_E_NO_SPACE); /* and is still valid */
    CHECK_OK(attnd_pages_claim(first.session, &handover->ticket, &pool, pages, PAGES_MAX));
    CHECK_ERROR(attnd_pages_claim(second.session, &handover->ticket, &pool, pages, PAGES_MAX),
                ATTND_E_EXPIRED);
    engine_close(&first);
    engine_close(&second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(pages_go_to_another_process_without_a_copy),
        E2E_TEST(a_giver_that_is_killed_does_not_take_them_along),
        E2E_TEST(a_ticket_is_claimed_once),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
