/*
 * test_e2e_bad_input.c - what is wrong is named: code, field, index, value and limit; and nothing
 * else is disturbed.
 *
 * A table of one-word lies: each row sets one field of an otherwise good batch, run, append or
 * advance. After every row the same plan takes a good batch again and another session computes. In
 * a fault, limit is the nearest value that would have been accepted.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/liar.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* A plan for 4 requests, 64 rows, 32 pages, 2 levels, 4 query heads. */
#define ROWS_BYTES 65536

enum stage { SET, ADVANCE, APPEND, RUN };

struct scene {
    struct engine engine; /* its session is the one that lies */
    uint32_t pool, plan, planes, rows;
    uint8_t *bytes; /* of rows, [ROWS_BYTES] */

    /* Requests of 1, 4 and 0 queries with 32, 19 and 0 keys. */
    int32_t qo[6], kv[6], ids[40], last[6];
    struct attnd_level level[3];
    struct attnd_batch batch;
    int32_t kv_len[6], page_indptr[6], page_indices[8];
    struct attnd_advance advance;
    struct attnd_append_args append;
    struct attnd_run_args run;
    uint32_t named_plan;
    struct attnd_op op;
};

static void scene_reset(struct scene *scene)
{
    memcpy(scene->qo, (int32_t[]){0, 1, 5, 5, 5, 5}, sizeof(scene->qo));
    memcpy(scene->kv, (int32_t[]){0, 2, 4, 4, 4, 4}, sizeof(scene->kv));
    for (int32_t i = 0; i < 40; i++)
        scene->ids[i] = 3 + i;
    memcpy(scene->last, (int32_t[]){16, 3, -1, -1, -1, -1}, sizeof(scene->last));
    for (int l = 0; l < 3; l++)
        scene->level[l] = (struct attnd_level){3, scene->qo, scene->kv, scene->ids, scene->last};
    scene->batch = (struct attnd_batch){
        .size = sizeof(scene->batch), .levels = 1, .level = scene->level, .reserve_pages = 1};

    memcpy(scene->kv_len, (int32_t[]){33, 20, 1}, 3 * sizeof(int32_t));
    memcpy(scene->page_indptr, (int32_t[]){0, 1, 1, 2}, 4 * sizeof(int32_t));
    memcpy(scene->page_indices, (int32_t[]){50, 51, 52, 53}, 4 * sizeof(int32_t));
    scene->advance = (struct attnd_advance){sizeof(scene->advance), 3, scene->kv_len,
                                            scene->page_indptr, scene->page_indices};
    scene->append = (struct attnd_append_args){
        sizeof(scene->append), 0, {scene->rows, 20480}, {scene->rows, 24576}};
    scene->run = (struct attnd_run_args){
        sizeof(scene->run), 0, {scene->rows, 0}, {scene->rows, 8192}, {scene->rows, 16384}};
    scene->named_plan = scene->plan;
    scene->op = (struct attnd_op){.user_data = 1};
}

static void scene_open(struct scene *scene, const struct harness *harness)
{
    struct attnd_plan_args args = {
        .size = sizeof(args), .requests = 4, .rows = 64, .pages = 32, .levels = 2, .heads_q = 4};

    engine_open(&scene->engine, harness->socket, "liar");
    struct attnd_session *session = scene->engine.session;
    liar_pool(session, &scene->planes, &scene->pool);
    CHECK_OK(attnd_memory_create(session, ROWS_BYTES, &scene->rows, (void **)&scene->bytes));
    args.pool = scene->pool;
    CHECK_OK(attnd_plan_create(session, &args, &scene->plan));
    scene_reset(scene);
}

/* ---- one word wrong ---- */

struct lie {
    const char *what;
    enum stage stage; /* the operation that must be refused */
    size_t offset, bytes;
    int64_t value;
    struct attnd_fault want;
};

#define AT(field) offsetof(struct scene, field), sizeof(((struct scene *)0)->field)
static const struct lie lies[] = {
    {"qo_indptr begins late", SET, AT(qo[0]), 1, WANT(INVALID, QO_INDPTR, 0, 1, 0)},
    {"qo_indptr falls", SET, AT(qo[2]), 0, WANT(INVALID, QO_INDPTR, 2, 0, 1)},
    {"kv_indptr begins late", SET, AT(kv[0]), 1, WANT(INVALID, KV_INDPTR, 0, 1, 0)},
    {"kv_indptr falls", SET, AT(kv[1]), 5, WANT(INVALID, KV_INDPTR, 2, 4, 5)},
    {"page id out of the pool", SET, AT(ids[2]), LIAR_PAGES,
     WANT(RANGE, KV_INDICES, 2, LIAR_PAGES, 99)},
    {"page id negative", SET, AT(ids[3]), -1, WANT(RANGE, KV_INDICES, 3, -1, 0)},
    {"last page of 0", SET, AT(last[0]), 0, WANT(RANGE, KV_LAST_PAGE_LEN, 0, 0, 1)},
    {"last page too long", SET, AT(last[1]), 17, WANT(RANGE, KV_LAST_PAGE_LEN, 1, 17, 16)},
    {"too many requests", SET, AT(level[0].requests), 5, WANT(NO_SPACE, REQUESTS, 0, 5, 4)},
    {"too many rows", SET, AT(qo[3]), 65, WANT(NO_SPACE, ROWS, 0, 65, 64)},
    {"too many pages", SET, AT(kv[3]), 33, WANT(NO_SPACE, PAGES, 0, 33, 32)},
    {"too much reserve", SET, AT(batch.reserve_pages), 10, WANT(NO_SPACE, RESERVE_PAGES, 0, 10, 9)},
    {"too many levels", SET, AT(batch.levels), 3, WANT(NO_SPACE, LEVELS, 0, 3, 2)},
    {"heads that do not divide", SET, AT(batch.heads_q), 5, WANT(INVALID, HEADS_Q, 0, 5, 4)},
    {"more heads than the plan", SET, AT(batch.heads_q), 8, WANT(NO_SPACE, HEADS_Q, 0, 8, 4)},
    {"another dtype", SET, AT(batch.dtype), 2, WANT(INVALID, DTYPE, 0, 2, 1)},
    {"unknown flags", SET, AT(batch.flags), 8, WANT(INVALID, FLAGS, 0, 8, 7)},
    {"negative stride", SET, AT(batch.q.row), -1, WANT(RANGE, Q, 0, -1, 0)},
    {"stride that overflows", SET, AT(batch.v.head), INT64_MAX,
     WANT(RANGE, V, 1, INT64_MAX, INT64_MAX / 2)},
    {"o overlaps itself", SET, AT(batch.o.head), 32, WANT(INVALID, O, 1, 32, 64)},
    {"plan unknown to set", SET, AT(named_plan), 999, WANT(UNKNOWN, PLAN, 0, 999, 0)},
    {"lane out of range", SET, AT(op.lane), 64, WANT(RANGE, LANE, 0, 64, 63)},
    {"unknown operation flag", SET, AT(op.flags), 4, WANT(INVALID, FLAGS, 0, 4, 1)},

    {"entries of another batch", ADVANCE, AT(advance.entries), 2, WANT(RANGE, REQUESTS, 0, 2, 3)},
    {"negative length", ADVANCE, AT(kv_len[1]), -1, WANT(RANGE, KV_LEN, 1, -1, 0)},
    {"length beyond the pages", ADVANCE, AT(kv_len[0]), 49, WANT(RANGE, KV_LEN, 0, 49, 48)},
    {"appended list falls", ADVANCE, AT(page_indptr[1]), 3, WANT(INVALID, KV_INDPTR, 2, 1, 3)},
    {"more than the reserve", ADVANCE, AT(page_indptr[1]), 2, WANT(INVALID, KV_INDPTR, 2, 1, 2)},
    {"appended id out of the pool", ADVANCE, AT(page_indices[1]), LIAR_PAGES,
     WANT(RANGE, KV_INDICES, 1, LIAR_PAGES, 99)},
    {"appended id negative", ADVANCE, AT(page_indices[0]), -7, WANT(RANGE, KV_INDICES, 0, -7, 0)},
    {"plan unknown to advance", ADVANCE, AT(named_plan), 999, WANT(UNKNOWN, PLAN, 0, 999, 0)},

    {"unknown k memory", APPEND, AT(append.k.memory), 77, WANT(UNKNOWN, K, 0, 77, 0)},
    {"no v memory", APPEND, AT(append.v.memory), 0, WANT(UNKNOWN, V, 0, 0, 0)},
    {"k past its memory", APPEND, AT(append.k.offset_bytes), ROWS_BYTES - 16,
     WANT(RANGE, K, 0, ROWS_BYTES - 16 + 5 * 2 * 64 * 2, ROWS_BYTES)},
    {"no such layer to append to", APPEND, AT(append.layer), 1, WANT(RANGE, LAYER, 0, 1, 0)},

    {"plan unknown to run", RUN, AT(named_plan), 999, WANT(UNKNOWN, PLAN, 0, 999, 0)},
    {"no such layer", RUN, AT(run.layer), 7, WANT(RANGE, LAYER, 0, 7, 0)},
    {"unknown q memory", RUN, AT(run.q.memory), 77, WANT(UNKNOWN, Q, 0, 77, 0)},
    {"no o memory", RUN, AT(run.o.memory), 0, WANT(UNKNOWN, O, 0, 0, 0)},
    {"unknown lse memory", RUN, AT(run.lse.memory), 77, WANT(UNKNOWN, LSE, 0, 77, 0)},
    {"q rows past the buffer", RUN, AT(run.q.offset_bytes), ROWS_BYTES - 2544,
     WANT(RANGE, Q, 0, ROWS_BYTES + 16, ROWS_BYTES)},
    {"o rows past the buffer", RUN, AT(run.o.offset_bytes), ROWS_BYTES,
     WANT(RANGE, O, 0, ROWS_BYTES + 2560, ROWS_BYTES)},
    {"lse rows past the buffer", RUN, AT(run.lse.offset_bytes), ROWS_BYTES - 76,
     WANT(RANGE, LSE, 0, ROWS_BYTES + 4, ROWS_BYTES)},
    {"offset that overflows", RUN, AT(run.q.offset_bytes), -16,
     WANT(RANGE, Q, 0, INT64_MAX, ROWS_BYTES)},
    {"q not aligned", RUN, AT(run.q.offset_bytes), 8, WANT(INVALID, Q, 0, 8, 16)},
    {"lse not aligned", RUN, AT(run.lse.offset_bytes), 16386, WANT(INVALID, LSE, 0, 16386, 4)},
    {"o over q", RUN, AT(run.o.offset_bytes), 2544, WANT(OVERLAP, O, 0, 2544, 0)},
    {"lse over o", RUN, AT(run.lse.offset_bytes), 8192, WANT(OVERLAP, LSE, 0, 8192, 8192)},
};

/* What came of an operation: refused on the spot, or in its completion. */
static struct attnd_fault outcome(struct scene *scene, int code)
{
    struct attnd_completion completion;
    struct attnd_fault fault;

    if (code < 0) {
        attnd_last_fault(&fault);
        return fault;
    }
    CHECK_EQUAL(attnd_wait(scene->engine.session, &completion, 1, TRIAL_WAIT_NS), 1);
    CHECK_EQUAL(completion.user_data, 1);
    return completion.fault;
}

static struct attnd_fault submit(struct scene *scene, enum stage stage)
{
    struct attnd_session *session = scene->engine.session;
    const uint32_t plan = scene->named_plan;

    switch (stage) {
    case SET:
        return outcome(scene, attnd_plan_set(session, plan, &scene->batch, &scene->op));
    case ADVANCE:
        return outcome(scene, attnd_plan_advance(session, plan, &scene->advance, &scene->op));
    case APPEND:
        return outcome(scene, attnd_append(session, plan, &scene->append, &scene->op));
    default:
        return outcome(scene, attnd_run(session, plan, &scene->run, &scene->op));
    }
}

static void expect_success(struct scene *scene, enum stage stage)
{
    CHECK_EQUAL(submit(scene, stage).code, 0);
}

/* The same session and another still work. */
static void expect_undisturbed(struct scene *scene, struct engine *neighbour)
{
    const struct random_batch batch = e2e_batch();

    scene_reset(scene);
    for (enum stage stage = SET; stage <= RUN; stage++)
        expect_success(scene, stage);
    trial_expect(neighbour, &batch);
}

static void every_lie_is_named_and_disturbs_nothing(void **state)
{
    const struct harness *harness = *state;
    struct scene scene = {0};
    struct engine neighbour;
    int wrong = 0;

    scene_open(&scene, harness);
    engine_open(&neighbour, harness->socket, "neighbour");
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        const struct lie *lie = &lies[i];
        struct attnd_fault got;
        char sentence[2][160];

        scene_reset(&scene);
        if (lie->stage != SET)
            expect_success(&scene, SET);
        memcpy((char *)&scene + lie->offset, &lie->value, lie->bytes); /* little-endian */
        got = submit(&scene, lie->stage);
        if (!liar_same_fault(&got, &lie->want)) {
            fprintf(stderr, "%s:\n  got  %s\n  want %s\n", lie->what,
                    attnd_fault_string(&got, sentence[0], sizeof(sentence[0])),
                    attnd_fault_string(&lie->want, sentence[1], sizeof(sentence[1])));
            wrong++;
        }
        expect_undisturbed(&scene, &neighbour);
    }
    CHECK_EQUAL(wrong, 0);
    engine_close(&neighbour);
    engine_close(&scene.engine);
}

/* ---- what is not one word ---- */

static void expect_fault(struct scene *scene, enum stage stage, struct attnd_fault want)
{
    struct attnd_fault got = submit(scene, stage);
    char sentence[160];

    if (!liar_same_fault(&got, &want))
        check_say(__FILE__, __LINE__, "got %s",
                  attnd_fault_string(&got, sentence, sizeof(sentence)));
    CHECK(liar_same_fault(&got, &want));
}

static void what_takes_more_than_one_word_is_named_too(void **state)
{
    const struct harness *harness = *state;
    struct scene scene = {0};
    struct engine neighbour;

    scene_open(&scene, harness);
    engine_open(&neighbour, harness->socket, "neighbour");

    scene.batch.levels = 2; /* the levels do not own the same rows */
    scene.level[0].requests = 1;
    scene.level[1].requests = 3;
    expect_fault(&scene, SET, (struct attnd_fault)WANT(INVALID, QO_INDPTR, 3, 5, 1));
    expect_undisturbed(&scene, &neighbour);

    /* The 32 bits of the float. */
    scene.batch.sm_scale = NAN;
    expect_fault(&scene, SET, (struct attnd_fault)WANT(RANGE, SM_SCALE, 0, 0x7fc00000, 0));
    scene.batch.sm_scale = -0.5f;
    expect_fault(&scene, SET, (struct attnd_fault)WANT(RANGE, SM_SCALE, 0, 0xbf000000, 0));
    expect_undisturbed(&scene, &neighbour);

    expect_success(&scene, SET); /* two pages where one is reserved */
    memcpy(scene.page_indptr, (int32_t[]){0, 2, 2, 2}, 4 * sizeof(int32_t));
    expect_fault(&scene, ADVANCE, (struct attnd_fault)WANT(RANGE, KV_INDPTR, 1, 2, 1));
    expect_undisturbed(&scene, &neighbour);

    scene.qo[2] = scene.qo[3] = 41; /* 40 new rows for a request of 19 keys */
    expect_success(&scene, SET);
    expect_fault(&scene, APPEND, (struct attnd_fault)WANT(RANGE, KV_LEN, 1, 19, 40));
    expect_undisturbed(&scene, &neighbour);

    expect_success(&scene, SET); /* o in the pool, and what is to be appended too */
    scene.run.o = (struct attnd_tensor){scene.planes, LIAR_PLANE_BYTES / 2};
    expect_fault(&scene, RUN, (struct attnd_fault)WANT(OVERLAP, O, 0, LIAR_PLANE_BYTES / 2, 0));
    scene.append.v = (struct attnd_tensor){scene.planes, LIAR_PLANE_BYTES};
    expect_fault(&scene, APPEND,
                 (struct attnd_fault)WANT(OVERLAP, V, 0, LIAR_PLANE_BYTES, LIAR_PLANE_BYTES));
    expect_undisturbed(&scene, &neighbour);

    engine_close(&neighbour);
    engine_close(&scene.engine);
}

static void a_plan_without_a_batch_does_nothing(void **state)
{
    const struct harness *harness = *state;
    struct scene scene = {0};
    struct engine neighbour;

    scene_open(&scene, harness);
    engine_open(&neighbour, harness->socket, "neighbour");
    for (enum stage stage = ADVANCE; stage <= RUN; stage++)
        expect_fault(&scene, stage, (struct attnd_fault)WANT(INVALID, PLAN, 0, scene.plan, 0));
    scene.kv[0] = 1;
    CHECK_EQUAL(submit(&scene, SET).code, -ATTND_E_INVALID);
    expect_fault(&scene, RUN, (struct attnd_fault)WANT(INVALID, PLAN, 0, scene.plan, 0));
    expect_undisturbed(&scene, &neighbour);
    engine_close(&neighbour);
    engine_close(&scene.engine);
}

/* ---- a batch that is refused leaves the one before ---- */

/* A run of the scene's batch, as it is set, with its o and lse in @out. */
static void compute(struct scene *scene, uint8_t *out)
{
    memset(scene->bytes + 8192, 0xa5, 12288);
    expect_success(scene, RUN);
    memcpy(out, scene->bytes + 8192, 12288);
}

/* The plan has a batch, an advance and keys; @out is what a run of it says. */
static void be_set(struct scene *scene, uint8_t *out)
{
    scene_reset(scene);
    for (uint32_t i = 0; i < ROWS_BYTES / 2; i++)
        ((uint16_t *)(void *)scene->bytes)[i] = (uint16_t)(0x3000 + i * 2654435761u % 4096);
    expect_success(scene, SET);
    expect_success(scene, APPEND);
    expect_success(scene, ADVANCE);
    compute(scene, out);
}

static void expect_kept(struct scene *scene, const uint8_t *before, const char *what)
{
    uint8_t after[12288];
    scene_reset(scene);
    compute(scene, after);
    if (memcmp(before, after, sizeof(after)) != 0)
        check_say(__FILE__, __LINE__, "another result after: %s", what);
    CHECK(memcmp(before, after, sizeof(after)) == 0);
}

static void a_batch_that_is_refused_leaves_the_one_before(void **state)
{
    const struct harness *harness = *state;
    struct scene scene = {0};
    uint8_t before[12288];

    scene_open(&scene, harness);
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        const struct lie *lie = &lies[i];
        if (lie->stage != SET && lie->stage != ADVANCE)
            continue;
        be_set(&scene, before);
        memcpy((char *)&scene + lie->offset, &lie->value, lie->bytes);
        CHECK(submit(&scene, lie->stage).code < 0);
        expect_kept(&scene, before, lie->what);
        expect_success(&scene, SET); /* and a retry is right */
        expect_success(&scene, RUN);
    }
    engine_close(&scene.engine);
}

/* What the planner refuses, and what lies outside the batch. */
static void what_the_planner_refuses_leaves_the_one_before(void **state)
{
    struct attnd_variant variant = ATTND_ARGS(variant, .position_encoding = ATTND_POSITION_ROPE,
                                              .flags = ATTND_VARIANT_ROPE_APPEND);
    const int32_t first_rows[] = {0, 2, 5}, last_rows[] = {0, 3, 5};
    const struct harness *harness = *state;
    struct scene scene = {0};
    uint8_t before[12288];

    scene_open(&scene, harness);
    be_set(&scene, before);
    scene.batch.variant = &variant;
    scene.batch.levels = 2; /* the first ends inside a request of the second */
    scene.level[0] = (struct attnd_level){2, first_rows, scene.kv, scene.ids, scene.last};
    scene.level[1] = (struct attnd_level){2, last_rows, scene.kv, scene.ids, scene.last};
    CHECK_EQUAL(submit(&scene, SET).code, -ATTND_E_UNSUPPORTED);
    expect_kept(&scene, before, "keys that were stored rotated");
    be_set(&scene, before);
    variant = (struct attnd_variant)ATTND_ARGS(variant, .sinks.memory = 999);
    scene.batch.variant = &variant;
    CHECK_EQUAL(submit(&scene, SET).code, -ATTND_E_UNKNOWN);
    expect_kept(&scene, before, "sinks in no memory");
    engine_close(&scene.engine);
}

/* Who submits behind a set does not know that it will be refused. */
static void what_was_submitted_behind_a_refused_batch_is_refused(void **state)
{
    const struct harness *harness = *state;
    const struct attnd_op elsewhere = {.user_data = 1, .lane = 1};
    struct attnd_completion completions[3];
    struct scene scene = {0};
    uint8_t before[12288];
    uint32_t count = 0;

    scene_open(&scene, harness);
    for (uint32_t round = 0; round < 50; round++) {
        be_set(&scene, before);
        scene.kv[0] = 1;
        struct attnd_session *session = scene.engine.session;
        CHECK_OK(attnd_plan_set(session, scene.plan, &scene.batch, &scene.op));
        CHECK_OK(attnd_plan_advance(session, scene.plan, &scene.advance, &scene.op));
        CHECK_OK(attnd_run(session, scene.plan, &scene.run, &scene.op));
        for (count = 0; count < 3;) {
            int got = attnd_wait(session, completions + count, 3 - count, TRIAL_WAIT_NS);
            CHECK(got > 0);
            count += (uint32_t)got;
        }
        CHECK_EQUAL(completions[0].fault.field, ATTND_F_KV_INDPTR);
        for (uint32_t i = 1; i < 3; i++) {
            CHECK_EQUAL(completions[i].fault.code, -ATTND_E_INVALID);
            CHECK_EQUAL(completions[i].fault.field, ATTND_F_PLAN);
        }
        expect_kept(&scene, before, "a refused set with what was behind it");
        scene.op = elsewhere;
        expect_success(&scene, RUN);
    }
    engine_close(&scene.engine);
}

static void pages_without_a_lease_are_refused(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;
    struct trial trial;

    engine_open(&engine, harness->socket, "liar");
    batch.shape.service_pool = 1;
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(attnd_pages_free(engine.session, engine.pool, 1, &trial.level[0].kv_indices[9]));
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 1);
    CHECK_EQUAL(trial.failure.fault.code, -ATTND_E_NOT_LEASED);
    CHECK_EQUAL(trial.failure.fault.field, ATTND_F_KV_INDICES);
    CHECK_EQUAL(trial.failure.fault.index, 9);
    CHECK_EQUAL(trial.failure.fault.value, trial.level[0].kv_indices[9]);
    engine_close(&engine);
    trial_forget(&trial);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(every_lie_is_named_and_disturbs_nothing),
        E2E_TEST(what_takes_more_than_one_word_is_named_too),
        E2E_TEST(a_plan_without_a_batch_does_nothing),
        E2E_TEST(a_batch_that_is_refused_leaves_the_one_before),
        E2E_TEST(what_the_planner_refuses_leaves_the_one_before),
        E2E_TEST(what_was_submitted_behind_a_refused_batch_is_refused),
        E2E_TEST(pages_without_a_lease_are_refused),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
