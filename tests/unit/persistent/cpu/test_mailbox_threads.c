/* test_mailbox_threads.c - doorbells of the CPU backend: rung, held, replaced and let go while its
 * threads run. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "persistent/backend.h"
#include "persistent/plan/plan.h"
#include "schemas/atomics.h"
#include "schemas/futex.h"
#include "tests/support/rigs/cpu_rig.h"

enum { LANES = 4, RINGS = 300, MAILBOX = 9, SESSION = 77 };

struct scene {
    struct rig rig;
    struct rig_work work[LANES];
    struct rig_memory memory;
    struct attnd_mailbox *box;
};

static struct rig_batch batch_of(uint64_t seed, uint32_t rows)
{
    return (struct rig_batch){.seed = seed,
                              .dtype = ATTND_FP16,
                              .heads_kv = 2,
                              .group = 2,
                              .dim = 64,
                              .page_size = 8,
                              .requests = 2,
                              .qo_len = {1, rows},
                              .kv_len = {60, rows + 30},
                              .causal = 1,
                              .split = 16,
                              .tile_class = ATTND_TILE_MEMORY};
}

static int tell(struct scene *scene, const struct attnd_command *command)
{
    rig_send(&scene->rig, command);
    return rig_await(&scene->rig, command->tag);
}

static int tell_mailbox(struct scene *scene, uint32_t memory, uint32_t fresh)
{
    scene->rig.mailboxes[MAILBOX].memory = memory;
    scene->rig.mailboxes[MAILBOX].session = SESSION;
    scene->rig.mailboxes[MAILBOX].fresh = fresh;
    return tell(scene, &(struct attnd_command){.kind = ATTND_COMMAND_MAILBOX, .run = MAILBOX});
}

/* Prepared run i. */
static struct attnd_command prepared_of(struct scene *scene, uint32_t i, struct rig_work *work,
                                        uint32_t lane)
{
    const uint32_t run = RIG_RUNS + i;
    rig_run(work, run, ATTND_RUN_ATTEND);
    struct attnd_run *body = &scene->rig.runs[run];
    body->mailbox = MAILBOX;
    body->session = SESSION;
    body->lane = lane;
    return (struct attnd_command){
        .kind = ATTND_COMMAND_PREPARED, .run = run, .tag = i, .body = *body};
}

/* Work i, launched on lane i. */
static struct attnd_command prepared(struct scene *scene, uint32_t i)
{
    return prepared_of(scene, i, &scene->work[i], i);
}

static struct attnd_command about_plan(const struct scene *scene, uint32_t kind, uint32_t i)
{
    return (struct attnd_command){
        .kind = kind,
        .tag = i,
        .body = {.plan_offset_bytes = scene->work[i].plan_offset_bytes,
                 .items = attnd_plan_items(scene->work[i].plan, ATTND_RUN_ATTEND)}};
}

static void open_scene(struct scene *scene, uint32_t threads, uint32_t rows)
{
    rig_open(&scene->rig, threads, NULL);
    scene->memory = rig_map(&scene->rig, ATTND_PAGE_BYTES);
    scene->box = scene->memory.address;
    for (uint32_t i = 0; i < LANES; i++) {
        struct rig_batch batch = batch_of(i + 1, rows);
        rig_make(&scene->work[i], &scene->rig, &batch);
    }
    assert_int_equal(attnd_backend_cpu.start(scene->rig.backend), 0);
    assert_int_equal(scene->rig.head->info.mailbox_kind, ATTND_KIND_HOST);
    assert_int_equal(tell_mailbox(scene, scene->memory.index, 1), 0);
    for (uint32_t i = 0; i < LANES; i++) {
        struct attnd_command command = prepared(scene, i);
        assert_int_equal(tell(scene, &command), 0);
    }
}

static void close_scene(struct scene *scene)
{
    assert_int_equal(tell_mailbox(scene, ATTND_NONE, 0), 0);
    for (uint32_t i = 0; i < LANES; i++)
        rig_free(&scene->work[i]);
    rig_unmap(&scene->rig, &scene->memory);
    rig_close(&scene->rig);
}

static void ring(struct attnd_mailbox *box, uint32_t lane, uint32_t run)
{
    attnd_publish32(&box->doorbell[lane], ATTND_DOORBELL_RUNG + run);
    (void)attnd_arrive32(&box->rung, 1);
    (void)attnd_futex_wake(&box->rung, INT_MAX);
}

/* Return: the answer. */
static uint32_t wait_for(struct attnd_mailbox *box, uint32_t lane)
{
    uint32_t answer;
    while (!attnd_doorbell_rests(answer = attnd_observe32(&box->doorbell[lane])))
        (void)attnd_futex_wait(&box->doorbell[lane], answer, NULL);
    return answer;
}

static void sleep_us(long us)
{
    const struct timespec time = {0, us * 1000};
    (void)nanosleep(&time, NULL);
}

/* ---- claims ---- */

struct ringer {
    struct scene *scene;
    uint32_t lane, wrong;
};

static void *ring_on(void *context)
{
    struct ringer *self = context;
    for (uint32_t i = 0; i < RINGS; i++) {
        ring(self->scene->box, self->lane, RIG_RUNS + self->lane);
        self->wrong += wait_for(self->scene->box, self->lane) != 1;
    }
    return NULL;
}

static void rings_of_all_lanes_are_answered_while_plans_are_held_and_shown(void **state)
{
    static struct scene scene;
    struct ringer ringers[LANES];
    pthread_t threads[LANES];
    (void)state;
    open_scene(&scene, 3, 5);
    for (uint32_t i = 0; i < LANES; i++) {
        ringers[i] = (struct ringer){.scene = &scene, .lane = i};
        assert_int_equal(pthread_create(&threads[i], NULL, ring_on, &ringers[i]), 0);
    }
    for (uint32_t round = 0; round < 100; round++) {
        struct attnd_command hold = about_plan(&scene, ATTND_COMMAND_HOLD, round % LANES);
        struct attnd_command show = about_plan(&scene, ATTND_COMMAND_PUBLISH, round % LANES);
        assert_int_equal(tell(&scene, &hold), 0);
        assert_int_equal(tell(&scene, &show), 0);
        if (round % 10 == 0) { /* threads end and begin anew: rings wait */
            assert_int_equal(attnd_backend_cpu.park(scene.rig.backend), 0);
            assert_int_equal(attnd_backend_cpu.start(scene.rig.backend), 0);
        }
    }
    for (uint32_t i = 0; i < LANES; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(ringers[i].wrong, 0);
        rig_judge(&scene.work[i], "rings");
    }
    assert_int_equal(attnd_peek64(&scene.rig.mailboxes[MAILBOX].runs), LANES * RINGS);
    close_scene(&scene);
}

static void a_held_plan_is_not_run_and_its_doorbell_stays(void **state)
{
    static struct scene scene;
    (void)state;
    open_scene(&scene, 2, 5);
    struct attnd_command hold = about_plan(&scene, ATTND_COMMAND_HOLD, 1);
    struct attnd_command show = about_plan(&scene, ATTND_COMMAND_PUBLISH, 1);
    assert_int_equal(tell(&scene, &hold), 0);
    ring(scene.box, 1, RIG_RUNS + 1);
    ring(scene.box, 2, RIG_RUNS + 2); /* of another plan */
    assert_int_equal(wait_for(scene.box, 2), 1);
    sleep_us(2000);
    assert_int_equal(attnd_observe32(&scene.box->doorbell[1]), ATTND_DOORBELL_RUNG + RIG_RUNS + 1);
    assert_int_equal(tell(&scene, &show), 0);
    assert_int_equal(wait_for(scene.box, 1), 1);
    rig_judge(&scene.work[1], "after the hold");
    close_scene(&scene);
}

static void a_hold_is_answered_when_nothing_of_the_plan_runs(void **state)
{
    static struct scene scene;
    int code, early = 0;
    (void)state;
    open_scene(&scene, 2, 200);
    for (uint32_t round = 0; round < 10; round++) {
        struct attnd_command hold = about_plan(&scene, ATTND_COMMAND_HOLD, 0);
        struct attnd_command show = about_plan(&scene, ATTND_COMMAND_PUBLISH, 0);
        ring(scene.box, 0, RIG_RUNS);
        while (attnd_doorbell_rung(attnd_observe32(&scene.box->doorbell[0])))
            attnd_relax();
        rig_send(&scene.rig, &hold);
        while (attnd_observe32(&scene.box->doorbell[0]) == 0 && !early)
            early = rig_acked(&scene.rig, 0, &code);
        /* Answered before the run, or the run was answered in between the two looks. */
        assert_true(!early || attnd_observe32(&scene.box->doorbell[0]) == 1);
        if (!early)
            assert_int_equal(rig_await(&scene.rig, 0), 0);
        early = 0;
        assert_int_equal(tell(&scene, &show), 0);
    }
    rig_judge(&scene.work[0], "before the hold");
    close_scene(&scene);
}

static void doorbells_that_name_nothing_are_answered_at_once(void **state)
{
    static struct scene scene;
    const uint32_t wild[] = {0,
                             1,
                             RIG_RUNS - 1,
                             RIG_RUNS + 1,
                             RIG_RUNS + RIG_PREPARED - 1,
                             RIG_RUNS + RIG_PREPARED,
                             ATTND_DOORBELL_RUNS - 1};
    (void)state;
    open_scene(&scene, 2, 5);
    for (size_t i = 0; i < sizeof(wild) / sizeof(wild[0]); i++) {
        ring(scene.box, 0, wild[i]);
        assert_int_equal(wait_for(scene.box, 0), 1 + ATTND_E_UNKNOWN);
    }
    assert_int_equal(attnd_peek32(&scene.box->error[0]), ATTND_E_UNKNOWN);
    assert_int_equal(attnd_peek32(&scene.rig.mailboxes[MAILBOX].errors),
                     sizeof(wild) / sizeof(wild[0]));

    scene.rig.runs[RIG_RUNS].session = SESSION + 1; /* of another session with this mailbox */
    struct attnd_command other = {.kind = ATTND_COMMAND_PREPARED,
                                  .run = RIG_RUNS,
                                  .tag = 5,
                                  .body = scene.rig.runs[RIG_RUNS]};
    assert_int_equal(tell(&scene, &other), 0);
    ring(scene.box, 0, RIG_RUNS);
    assert_int_equal(wait_for(scene.box, 0), 1 + ATTND_E_UNKNOWN);

    struct attnd_command bad = prepared(&scene, 0);
    bad.body.code = ATTND_E_RANGE;
    assert_int_equal(tell(&scene, &bad), 0);
    ring(scene.box, 0, RIG_RUNS);
    assert_int_equal(wait_for(scene.box, 0), 1 + ATTND_E_RANGE);
    assert_int_equal(attnd_peek32(&scene.box->error[0]), ATTND_E_UNKNOWN); /* the first stays */

    struct attnd_command unmapped = prepared(&scene, 0);
    unmapped.body.o.memory = 4000;
    assert_int_equal(tell(&scene, &unmapped), -ATTND_E_UNKNOWN);
    ring(scene.box, 0, RIG_RUNS);
    assert_int_equal(wait_for(scene.box, 0), 1 + ATTND_E_UNKNOWN);

    struct attnd_command later = prepared(&scene, 0); /* the slot is another one's by now */
    later.body.serial = ATTND_DOORBELL_SERIALS - 1;
    assert_int_equal(tell(&scene, &later), 0);
    ring(scene.box, 0, RIG_RUNS);
    assert_int_equal(wait_for(scene.box, 0), 1 + ATTND_E_UNKNOWN);
    ring(scene.box, 0, attnd_doorbell_number(RIG_RUNS, 1));
    assert_int_equal(wait_for(scene.box, 0), 1 + ATTND_E_UNKNOWN);
    ring(scene.box, 0, attnd_doorbell_number(RIG_RUNS, ATTND_DOORBELL_SERIALS - 1));
    assert_int_equal(wait_for(scene.box, 0), 1);

    struct attnd_command append = prepared(&scene, 0);
    append.body.kind = ATTND_RUN_APPEND;
    assert_int_equal(tell(&scene, &append), -ATTND_E_UNSUPPORTED);
    close_scene(&scene);
}

/* Two prepared runs of one lane. The first is one item, so that another thread has nothing to do
 * but to look at doorbells meanwhile; the second is rung in the place of 0, which says that the
 * first is under way, and so before its answer. Again until that has come true often enough: on a
 * busy machine the answer may be there first. */
static void a_ring_of_a_lane_that_is_not_at_rest_is_gone_with_the_answer(void **state)
{
    static struct scene scene;
    static struct rig_work slow;
    const struct rig_batch batch = {.seed = 99,
                                    .dtype = ATTND_FP16,
                                    .heads_kv = 1,
                                    .group = 1,
                                    .dim = 64,
                                    .page_size = 64,
                                    .requests = 1,
                                    .qo_len = {16},
                                    .kv_len = {30000},
                                    .tile_class = ATTND_TILE_MEMORY};
    uint32_t rung = 0;
    (void)state;
    open_scene(&scene, 2, 5);
    rig_make(&slow, &scene.rig, &batch);
    struct attnd_command first = prepared_of(&scene, LANES, &slow, 0);
    assert_int_equal(first.body.items, 1);
    assert_int_equal(tell(&scene, &first), 0);
    for (uint32_t round = 0; rung < 10; round++) {
        ring(scene.box, 0, RIG_RUNS + LANES);
        while (attnd_doorbell_rung(attnd_observe32(&scene.box->doorbell[0])))
            attnd_relax();
        if (attnd_claim32(&scene.box->doorbell[0], 0, ATTND_DOORBELL_RUNG + RIG_RUNS)) {
            (void)attnd_arrive32(&scene.box->rung, 1);
            (void)attnd_futex_wake(&scene.box->rung, INT_MAX);
            rung++;
        }
        assert_int_equal(wait_for(scene.box, 0), 1);
        /* Both runs answer with 1; of the second there are more tiles than one. */
        assert_int_equal(attnd_peek64(&scene.rig.mailboxes[MAILBOX].tiles), round + 1);
    }
    rig_free(&slow);
    close_scene(&scene);
}

/* Its engine is gone, and an item of it has hours to go. */
static void a_run_whose_mailbox_is_let_go_ends(void **state)
{
    static struct scene scene;
    static struct rig_work endless;
    (void)state;
    open_scene(&scene, 2, 5);
    rig_make_endless(&endless, &scene.rig, 1);
    struct attnd_command first = prepared_of(&scene, LANES, &endless, 0);
    assert_int_equal(tell(&scene, &first), 0);
    ring(scene.box, 0, RIG_RUNS + LANES);
    while (attnd_doorbell_rung(attnd_observe32(&scene.box->doorbell[0])))
        attnd_relax();
    sleep_us(2000);
    assert_int_equal(tell_mailbox(&scene, ATTND_NONE, 0), 0); /* when nothing of it is in flight */
    assert_int_equal(attnd_peek64(&scene.rig.mailboxes[MAILBOX].tiles), 0);
    rig_free(&endless);
    assert_int_equal(tell_mailbox(&scene, scene.memory.index, 1), 0);
    close_scene(&scene);
}

/* As a worker finds it whose predecessor died: taken, rung, at rest; there is nothing else. */
static void a_mailbox_that_is_not_fresh_has_no_wait_left_open(void **state)
{
    static struct scene scene;
    (void)state;
    open_scene(&scene, 2, 5);
    assert_int_equal(tell_mailbox(&scene, ATTND_NONE, 0), 0);
    attnd_poke32(&scene.box->doorbell[0], 0);
    ring(scene.box, 1, RIG_RUNS + 1);
    attnd_poke32(&scene.box->doorbell[2], 1 + ATTND_E_RANGE);
    const struct attnd_mailbox_slot *slot = &scene.rig.mailboxes[MAILBOX];
    const uint64_t rings = attnd_peek64(&slot->runs);
    sleep_us(2000); /* nobody looks */
    assert_int_equal(attnd_observe32(&scene.box->doorbell[1]), ATTND_DOORBELL_RUNG + RIG_RUNS + 1);
    assert_int_equal(tell_mailbox(&scene, scene.memory.index, 0), 0);
    assert_int_equal(wait_for(scene.box, 0), 1 + ATTND_E_WORKER_RESTARTED);
    assert_int_equal(scene.box->error[0], ATTND_E_WORKER_RESTARTED);
    assert_int_equal(wait_for(scene.box, 1), 1);
    assert_int_equal(scene.box->doorbell[2], 1 + ATTND_E_RANGE);
    rig_judge(&scene.work[1], "pending before");
    assert_int_equal(attnd_peek64(&slot->runs), rings + 2);
    assert_int_equal(attnd_peek32(&slot->errors), 1);
    assert_int_equal(attnd_peek32(&slot->error_code), ATTND_E_WORKER_RESTARTED);
    assert_int_equal(attnd_peek32(&slot->error_lane), 0);
    close_scene(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rings_of_all_lanes_are_answered_while_plans_are_held_and_shown),
        cmocka_unit_test(a_held_plan_is_not_run_and_its_doorbell_stays),
        cmocka_unit_test(a_hold_is_answered_when_nothing_of_the_plan_runs),
        cmocka_unit_test(doorbells_that_name_nothing_are_answered_at_once),
        cmocka_unit_test(a_ring_of_a_lane_that_is_not_at_rest_is_gone_with_the_answer),
        cmocka_unit_test(a_run_whose_mailbox_is_let_go_ends),
        cmocka_unit_test(a_mailbox_that_is_not_fresh_has_no_wait_left_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
