/*
 * test_e2e_peers_layers.c - pages go to another service layer by layer, while they are still being
 * written there.
 *
 * Every value of a layer is one number, so attention over it is that number, whatever the scores
 * are; a pool begins with zeros, so a run that went too early is off. Numbers are small integers,
 * which fp16 has exactly.
 */
#include "client/attnd.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/hand_over.h"
#include "tests/support/oracle/bits16.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 4u
#define PAGES 3u
#define PAGE_SIZE 16u
#define TOKENS (PAGES * PAGE_SIZE)
#define HEADS 2u
#define DIM 64u
#define ROW (HEADS * DIM)
#define ROW_BYTES (ROW * 2u)
#define LONG_MS 20000u

static struct harness giver, claimer;

static const struct side_shape shape = {
    .layers = LAYERS, .pages = 32, .page_size = PAGE_SIZE, .heads_kv = HEADS, .dim = DIM};

/* An engine with a plan of one request over PAGES pages. */
struct engine_of {
    struct side side;
    uint32_t plan, memory;
    uint16_t *rows; /* q, o of each layer; or k, v of each layer */
    int32_t pages[PAGES];
};

static void open_engine(struct engine_of *engine, const struct harness *service)
{
    const uint64_t bytes = 2u * LAYERS * TOKENS * ROW_BYTES;
    void *address;

    side_open(&engine->side, service, &shape, SIDE_OF_SERVICE);
    CHECK_OK(attnd_memory_create(engine->side.session, bytes, &engine->memory, &address));
    engine->rows = address;
    CHECK_OK(attnd_plan_create(engine->side.session,
                               &ATTND_ARGS(plan_args, .pool = engine->side.pool, .requests = 1,
                                           .rows = TOKENS, .pages = PAGES, .levels = 1,
                                           .heads_q = HEADS),
                               &engine->plan));
}

/* All tokens are queries, of which each sees itself and those before it. */
static int set_plan(struct engine_of *engine, uint32_t queries)
{
    int32_t rows[] = {0, (int32_t)queries}, pages[] = {0, PAGES}, last = PAGE_SIZE;
    const struct attnd_level level = {1, rows, pages, engine->pages, &last};
    const struct attnd_batch batch = ATTND_ARGS(batch, .flags = ATTND_CAUSAL, .level = &level);
    struct attnd_completion done = {0};

    CHECK_OK(attnd_plan_set(engine->side.session, engine->plan, &batch, NULL));
    CHECK_EQUAL(attnd_wait(engine->side.session, &done, 1, LONG_MS * UINT64_C(1000000)), 1);
    CHECK_EQUAL(done.operation, ATTND_PLAN_SET);
    return done.fault.code;
}

static uint16_t value_of(uint32_t layer)
{
    return bits16_round(ATTND_DTYPE_FP16, layer + 1);
}

static uint64_t k_at(uint32_t layer)
{
    return 2ull * layer * TOKENS * ROW_BYTES;
}

/* The giver: pages that are offered, and nothing in them yet. */
static void offer_layers(struct engine_of *engine, struct attnd_token *ticket)
{
    CHECK_OK(attnd_pages_alloc(engine->side.session, engine->side.pool, PAGES, engine->pages));
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < TOKENS * ROW; i++) {
            uint16_t *k = engine->rows + k_at(layer) / 2;
            k[i] = 0;
            k[TOKENS * ROW + i] = value_of(layer);
        }
    CHECK_EQUAL(set_plan(engine, TOKENS), 0);
    CHECK_OK(attnd_pages_offer_layers(engine->side.session, engine->side.pool, PAGES, engine->pages,
                                      60000, ticket));
}

/* An append, and behind it the word that the layer is whole. */
static void write_layer(const struct engine_of *engine, const struct attnd_token *ticket,
                        uint32_t layer)
{
    const struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS};

    CHECK_OK(
        attnd_append(engine->side.session, engine->plan,
                     &ATTND_ARGS(append_args, .layer = layer, .k = {engine->memory, k_at(layer)},
                                 .v = {engine->memory, k_at(layer) + TOKENS * ROW_BYTES}),
                     &quiet));
    CHECK_OK(attnd_pages_ready(engine->side.session, engine->side.pool, ticket, layer + 1, &quiet));
}

static void claim_early(struct engine_of *engine, const struct attnd_token *ticket)
{
    const struct attnd_claim_args args = {.size = sizeof(args),
                                          .pool = engine->side.pool,
                                          .pages_max = PAGES,
                                          .flags = ATTND_CLAIM_EARLY,
                                          .ticket = ticket};

    CHECK_OK(attnd_pages_claim_async(engine->side.session, &args, NULL));
    const struct attnd_completion completion = side_wait(&engine->side, LONG_MS);
    side_take(&engine->side, &completion, PAGES, engine->pages);
}

/* One query behind all keys, each layer in a lane of its own. */
static void run_layer(const struct engine_of *engine, uint32_t layer)
{
    CHECK_OK(attnd_run(engine->side.session, engine->plan,
                       &ATTND_ARGS(run_args, .layer = layer, .q = {engine->memory, 0},
                                   .o = {engine->memory, (1u + layer) * ROW_BYTES}),
                       &(struct attnd_op){.user_data = layer, .lane = (uint16_t)layer}));
}

static struct attnd_completion next(const struct engine_of *engine)
{
    struct attnd_completion done = {0};

    CHECK_EQUAL(attnd_wait(engine->side.session, &done, 1, LONG_MS * UINT64_C(1000000)), 1);
    return done;
}

static void expect_layer(const struct engine_of *engine, uint32_t layer)
{
    const struct attnd_completion done = next(engine);

    CHECK_EQUAL(done.operation, ATTND_RUN);
    CHECK_EQUAL(done.fault.code, 0);
    CHECK_EQUAL(done.user_data, layer);
    for (uint32_t i = 0; i < ROW; i++)
        CHECK_EQUAL(engine->rows[(1 + layer) * ROW + i], value_of(layer));
}

static void begin(struct engine_of *from, struct engine_of *to, struct attnd_token *ticket)
{
    hand_over_start(&giver, &claimer, NULL);
    open_engine(from, &giver);
    open_engine(to, &claimer);
    offer_layers(from, ticket);
    claim_early(to, ticket);
    CHECK_EQUAL(set_plan(to, 1), 0);
}

static void end(struct engine_of *from, struct engine_of *to)
{
    if (from->side.session)
        side_close(&from->side);
    if (to->side.session)
        side_close(&to->side);
    harness_stop(&claimer);
    harness_stop(&giver);
}

/* ---- tests ---- */

static void a_run_of_a_layer_goes_when_that_layer_is_here(void **state)
{
    struct engine_of from, to;
    struct attnd_token ticket;
    (void)state;

    begin(&from, &to, &ticket);
    for (uint32_t layer = LAYERS; layer-- > 0;) /* the last one first: nobody stands behind it */
        run_layer(&to, layer);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        write_layer(&from, &ticket, layer);
        expect_layer(&to, layer);
    }
    CHECK_EQUAL(side_leased(&claimer), PAGES);
    CHECK_OK(attnd_pages_free(from.side.session, from.side.pool, PAGES, from.pages));
    side_await_free(&giver, "the giver has its pages back");
    /* All has come: the pages are like others. */
    CHECK_OK(attnd_pages_offer(to.side.session, to.side.pool, PAGES, to.pages, 1000, &ticket));
    end(&from, &to);
}

static void an_append_behind_keys_that_arrive_waits_for_its_layer(void **state)
{
    struct engine_of from, to;
    struct attnd_token ticket;
    (void)state;

    begin(&from, &to, &ticket);
    /* The last token is written over here: if its layer came later, it would be lost. */
    for (uint32_t i = 0; i < ROW; i++)
        to.rows[10 * ROW + i] = bits16_round(ATTND_DTYPE_FP16, 7);
    CHECK_OK(attnd_append(to.side.session, to.plan,
                          &ATTND_ARGS(append_args, .layer = 0, .k = {to.memory, 9 * ROW_BYTES},
                                      .v = {to.memory, 10 * ROW_BYTES}),
                          &(struct attnd_op){.user_data = 1}));
    write_layer(&from, &ticket, 0);
    const struct attnd_completion done = next(&to);
    CHECK_EQUAL(done.operation, ATTND_APPEND);
    CHECK_EQUAL(done.fault.code, 0);
    for (uint32_t layer = 1; layer < LAYERS; layer++)
        write_layer(&from, &ticket, layer);
    run_layer(&to, LAYERS - 1); /* all layers are here when this one is */
    expect_layer(&to, LAYERS - 1);
    const struct attnd_plane *v = &to.side.info.desc.v[0];
    const uint16_t *row = (const uint16_t *)(const void *)(to.side.address + v->offset_bytes) +
                          to.pages[PAGES - 1] * v->stride_page + (PAGE_SIZE - 1) * v->stride_token;
    CHECK_EQUAL(row[0], bits16_round(ATTND_DTYPE_FP16, 7));
    CHECK_EQUAL(row[-v->stride_token], value_of(0));
    end(&from, &to);
}

static void pages_on_their_way_are_passed_on_to_nobody(void **state)
{
    struct engine_of from, to;
    struct attnd_token ticket, second;
    struct attnd_fault fault;
    uint32_t pool, prepared;
    int32_t pages[PAGES];
    (void)state;

    begin(&from, &to, &ticket);
    CHECK_ERROR(attnd_pages_offer(to.side.session, to.side.pool, PAGES, to.pages, 1000, &second),
                ATTND_E_BUSY);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_PAGES);
    /* A launched run would not ask. */
    CHECK_ERROR(
        attnd_prepare(to.side.session, to.plan,
                      &ATTND_ARGS(prepare_args, .q = {to.memory, 0}, .o = {to.memory, ROW_BYTES}),
                      &prepared),
        ATTND_E_BUSY);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_KV_INDICES);
    CHECK_ERROR(attnd_pages_claim(from.side.session, &ticket, &pool, pages, PAGES),
                ATTND_E_BUSY); /* it is lent */
    CHECK_OK(attnd_pages_offer_layers(from.side.session, from.side.pool, PAGES, from.pages, 60000,
                                      &second));
    CHECK_ERROR(attnd_pages_claim(from.side.session, &second, &pool, pages, PAGES),
                ATTND_E_BUSY); /* it is not whole */
    end(&from, &to);
}

/* Whoever waits is told; and until the pages are freed, whoever asks. */
static void expect_lost(struct engine_of *to, int code)
{
    CHECK_EQUAL(next(to).fault.code, code);
    run_layer(to, 0);
    CHECK_EQUAL(next(to).fault.code, code);
    CHECK_EQUAL(set_plan(to, 1), 0);
    run_layer(to, 1);
    CHECK_EQUAL(next(to).fault.code, code);
    CHECK_OK(attnd_pages_free(to->side.session, to->side.pool, PAGES, to->pages));
    side_await_free(&claimer, "nothing is leased here");
    CHECK_OK(attnd_pages_alloc(to->side.session, to->side.pool, PAGES, to->pages));
    CHECK_EQUAL(set_plan(to, 1), 0);
    run_layer(to, 2);
    CHECK_EQUAL(next(to).fault.code, 0);
}

static void layers_that_will_never_come_fail_their_runs(void **state)
{
    struct engine_of from, to;
    struct attnd_token ticket;
    (void)state;

    begin(&from, &to, &ticket);
    run_layer(&to, 0);
    write_layer(&from, &ticket, 0);
    expect_layer(&to, 0);
    run_layer(&to, 1);
    side_close(&from.side); /* its engine is gone, and the other layers with it */
    expect_lost(&to, -ATTND_E_EXPIRED);
    side_await_free(&giver, "and there");
    end(&from, &to);
}

static void a_killed_giver_fails_the_runs_that_wait(void **state)
{
    struct engine_of from, to;
    struct attnd_token ticket;
    (void)state;

    begin(&from, &to, &ticket);
    run_layer(&to, 0);
    harness_kill_daemon(&giver);
    expect_lost(&to, -ATTND_E_PEER_LOST);
    end(&from, &to);
}

struct dying {
    const struct attnd_token *ticket;
    uint32_t claimed;
};

static int claim_and_wait(void *context)
{
    struct dying *dying = context;
    struct engine_of to;

    open_engine(&to, &claimer);
    claim_early(&to, dying->ticket);
    harness_say(&dying->claimed, 1);
    return attnd_wait(to.side.session, &(struct attnd_completion){0}, 1, ATTND_FOREVER) != 1;
}

static int only_the_givers(void *context)
{
    (void)context;
    return side_leased(&giver) == PAGES && side_leased(&claimer) == 0;
}

/* An engine that dies between: the ticket is as it was, and another one claims it. */
static void a_claimer_that_dies_between_layers_leaves_the_ticket(void **state)
{
    struct engine_of from, to;
    struct attnd_token ticket;
    struct dying *dying = harness_shared(sizeof(*dying));
    (void)state;

    hand_over_start(&giver, &claimer, NULL);
    open_engine(&from, &giver);
    offer_layers(&from, &ticket);
    dying->ticket = &ticket;
    const pid_t pid = harness_fork(claim_and_wait, dying);
    harness_await(&dying->claimed, 1);
    write_layer(&from, &ticket, 0);
    harness_kill(pid);
    harness_eventually(only_the_givers, NULL, LONG_MS, "nothing is leased for the dead");
    open_engine(&to, &claimer);
    int claimed = 0;
    for (int tries = 0; !claimed && tries < 200; tries++) { /* until the ticket has returned */
        const struct attnd_claim_args args = {.size = sizeof(args),
                                              .pool = to.side.pool,
                                              .pages_max = PAGES,
                                              .flags = ATTND_CLAIM_EARLY,
                                              .ticket = &ticket};
        CHECK_OK(attnd_pages_claim_async(to.side.session, &args, NULL));
        const struct attnd_completion completion = side_wait(&to.side, LONG_MS);
        claimed = completion.fault.code == 0;
        if (claimed)
            side_take(&to.side, &completion, PAGES, to.pages);
        else
            CHECK_EQUAL(completion.fault.code, -ATTND_E_BUSY);
        if (!claimed)
            harness_sleep_ms(10);
    }
    CHECK(claimed);
    CHECK_EQUAL(set_plan(&to, 1), 0);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        run_layer(&to, layer);
        if (layer > 0)
            write_layer(&from, &ticket, layer);
        expect_layer(&to, layer);
    }
    end(&from, &to);
}

static void a_layer_is_whole_only_behind_its_append(void **state)
{
    struct engine_of from, to;
    struct attnd_token ticket;
    struct attnd_completion done;
    (void)state;

    begin(&from, &to, &ticket);
    run_layer(&to, 0);
    const pid_t worker = harness_stop_worker(&giver);
    write_layer(&from, &ticket, 0);
    CHECK_EQUAL(attnd_wait(to.side.session, &done, 1, 100000000), 0);
    CHECK_EQUAL(kill(worker, SIGCONT), 0);
    expect_layer(&to, 0);
    end(&from, &to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(a_run_of_a_layer_goes_when_that_layer_is_here),
        E2E_OWN_TEST(an_append_behind_keys_that_arrive_waits_for_its_layer),
        E2E_OWN_TEST(a_layer_is_whole_only_behind_its_append),
        E2E_OWN_TEST(pages_on_their_way_are_passed_on_to_nobody),
        E2E_OWN_TEST(layers_that_will_never_come_fail_their_runs),
        E2E_OWN_TEST(a_killed_giver_fails_the_runs_that_wait),
        E2E_OWN_TEST(a_claimer_that_dies_between_layers_leaves_the_ticket),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
