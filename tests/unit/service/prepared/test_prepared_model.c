/*
 * test_prepared_model.c - a session that does what it likes with prepared runs, and a worker that
 * executes, answers in any order, and dies.
 *
 * The claim is about what is in flight. Whenever the worker executes a launched run, what that run
 * reads may not change under it: the plan's tiles (its version), the lengths of its generation, the
 * memory it writes. The worker here obeys its orders as late as it may and rings itself as often as
 * it may.
 */
#include "service/sched/lane.h"
#include "tests/support/harness/check.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"
#include "tests/support/rigs/prepared_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LANES = 3, PLANS = 2, RUNS_MAX = 8, COMMANDS_MAX = 64, ROUNDS = 200, STEPS = 400 };

/* A launched run in flight, and what it relies on. */
struct flight {
    struct attnd_run body;
    uint32_t slot;
    uint64_t set_version;
    int32_t kv_len;
};

static struct prng prng;
static struct {
    int watched;                                  /* 1 + mailbox */
    uint32_t session;                             /* of the mailbox */
    struct attnd_run known[ATTND_QUEUE_PREPARED]; /* by slot - ATTND_QUEUE_RUNS */
    uint32_t told[RUNS_MAX], told_count;          /* which of them it was last told of */
    uint64_t held[PLANS];
    struct flight flights[LANES]; /* body.kind 0: none */
    struct attnd_command waiting[COMMANDS_MAX];
    uint32_t waiting_count;
} worker;

static struct {
    uint32_t plans[PLANS];
    uint32_t prepared[RUNS_MAX], prepared_count;
    uint32_t submitted, completed;
    int calling, opened;
    uint64_t begun, deaths, sets;
} engine;

static uint32_t below(uint32_t limit)
{
    return (uint32_t)prng_below(&prng, limit);
}

/* ---- what must not change ---- */

static const struct attnd_plan_head *head_at(uint64_t offset_bytes)
{
    return attnd_heap_at(stage.service.queue, offset_bytes);
}

static int32_t length_of(const struct attnd_run *body)
{
    const struct attnd_plan_head *head = head_at(body->plan_offset_bytes);
    const int32_t *kv_len = (const void *)((const char *)head + head->kv_len_offset_bytes);
    return kv_len[body->generation * head->entries_max];
}

static void check_flights(void)
{
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const struct flight *flight = &worker.flights[lane];
        if (!flight->body.kind)
            continue;
        CHECK_EQUAL(head_at(flight->body.plan_offset_bytes)->set_version, flight->set_version);
        CHECK_EQUAL(length_of(&flight->body), flight->kv_len);
        CHECK(stage.service.memories[flight->body.o.memory] != NULL);
        CHECK_EQUAL(attnd_maps_ready(stage.service.scheduler->maps, flight->body.o.memory), 1);
    }
}

/* ---- the worker ---- */

static int is_held(uint64_t offset_bytes)
{
    for (uint32_t i = 0; i < PLANS; i++)
        if (worker.held[i] == offset_bytes)
            return 1;
    return 0;
}

static void hold(uint64_t from, uint64_t to)
{
    for (uint32_t i = 0; i < PLANS; i++)
        if (worker.held[i] == from) {
            worker.held[i] = to;
            return;
        }
}

static void obey(const struct attnd_command *command)
{
    const uint64_t plan = command->body.plan_offset_bytes;
    uint32_t number = command->run - ATTND_QUEUE_RUNS;
    switch (command->kind) {
    case ATTND_COMMAND_PREPARED:
        CHECK(number < ATTND_QUEUE_PREPARED);
        worker.known[number] = command->body;
        worker.told[worker.told_count++ % RUNS_MAX] = number;
        break;
    case ATTND_COMMAND_MAILBOX: {
        const struct attnd_mailbox_slot *slot = &stage.service.queue->mailboxes[command->run];
        worker.watched = slot->memory == ATTND_NONE ? 0 : 1 + (int)command->run;
        worker.session = slot->session;
        break;
    }
    case ATTND_COMMAND_HOLD:
        CHECK(!is_held(plan));
        hold(0, plan);
        break;
    case ATTND_COMMAND_PUBLISH:
        hold(plan, 0);
        for (uint32_t i = 0; i < ATTND_QUEUE_PREPARED; i++)
            if (worker.known[i].kind && worker.known[i].plan_offset_bytes == plan) {
                worker.known[i].generation = command->body.generation;
                worker.known[i].items = command->body.items;
            }
        break;
    default:
        break;
    }
}

static int may_answer(const struct attnd_command *command)
{
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const struct flight *flight = &worker.flights[lane];
        if (!flight->body.kind)
            continue;
        if (command->kind == ATTND_COMMAND_HOLD &&
            command->body.plan_offset_bytes == flight->body.plan_offset_bytes)
            return 0;
        if (command->kind == ATTND_COMMAND_PREPARED && command->run == flight->slot)
            return 0;
        if (command->kind == ATTND_COMMAND_MAILBOX && !worker.watched)
            return 0;
    }
    return 1;
}

static void take_command(void)
{
    struct attnd_command command;
    if (worker.waiting_count == COMMANDS_MAX || !prepared_rig_take(&command))
        return;
    obey(&command);
    worker.waiting[worker.waiting_count++] = command;
}

static void answer_any(void)
{
    if (!worker.waiting_count)
        return;
    uint32_t i = below(worker.waiting_count);
    struct attnd_command command = worker.waiting[i];
    if (!may_answer(&command))
        return;
    worker.waiting[i] = worker.waiting[--worker.waiting_count];
    prepared_rig_retire(&command, 0);
}

static void begin_any(void)
{
    const uint32_t of_engine = engine.prepared[below(RUNS_MAX)];
    const struct attnd_run *body =
        &worker.known[of_engine && below(2) ? of_engine - ATTND_QUEUE_RUNS
                                            : worker.told[below(RUNS_MAX)]];
    if (!body->kind || body->code || !worker.watched || body->session != worker.session ||
        body->mailbox != (uint32_t)worker.watched - 1 || is_held(body->plan_offset_bytes) ||
        worker.flights[body->lane].body.kind)
        return;
    worker.flights[body->lane] =
        (struct flight){.body = *body,
                        .slot = ATTND_QUEUE_RUNS + (uint32_t)(body - worker.known),
                        .set_version = head_at(body->plan_offset_bytes)->set_version,
                        .kv_len = length_of(body)};
    engine.begun++;
}

static void die(void)
{
    memset(&worker, 0, sizeof(worker));
    prepared_rig_new_worker();
    engine.deaths++;
}

/* ---- the engine ---- */

static void collect(void)
{
    struct attnd_cqe cqe;
    int code;
    uint32_t prepared;
    while (stage_completion(&client, &cqe))
        engine.completed++;
    while (prepared_rig_answer(prepared_rig_peer, &code, &prepared)) {
        CHECK_EQUAL(engine.calling, 1); /* answered once */
        CHECK_EQUAL(code, 0);
        engine.calling = 0;
        engine.opened = 1;
        if (prepared)
            engine.prepared[engine.prepared_count++] = prepared;
    }
}

static void submit_any(void)
{
    uint32_t plan = engine.plans[below(PLANS)], choice = below(4);
    uint64_t at = 512u * (engine.submitted % 32);
    struct attnd_sqe sqe;
    if (engine.submitted - engine.completed >= 8)
        return;
    if (choice == 0)
        sqe = stage_batch(&client, plan, at, 1 + (int32_t)below(4), 5 + (int32_t)below(8), 0, 1);
    else if (choice == 1)
        sqe = stage_run(plan, 0, 9);
    else
        sqe = stage_advance(&client, plan, at, 1 + (int32_t)below(8));
    sqe.lane = (uint16_t)below(LANES);
    engine.sets += choice == 0;
    engine.submitted += stage_submit(&client, &sqe) == 0;
}

static void call_any(void)
{
    struct attnd_fault fault = {0};
    int rc;
    if (engine.calling)
        return;
    if (!engine.opened) {
        rc = attnd_prepared_open(client.daemon, 1, 0, 0, &fault);
    } else if (engine.prepared_count && below(3) == 0) {
        uint32_t i = below(engine.prepared_count), run = engine.prepared[i];
        engine.prepared[i] = engine.prepared[--engine.prepared_count];
        rc = attnd_prepared_remove(client.daemon, 1, run, &fault);
        CHECK_EQUAL(rc, 1);
    } else if (engine.prepared_count < RUNS_MAX) {
        const struct attnd_sqe_run wish = prepared_rig_wish(below(STAGE_LAYERS));
        rc = attnd_prepared_add(client.daemon, 1, engine.plans[below(PLANS)], below(LANES), &wish,
                                &fault);
        CHECK(rc == 1 || rc == -ATTND_E_INVALID || rc == -ATTND_E_NO_SPACE);
    } else {
        return;
    }
    engine.calling = rc == 1;
}

static void one_step(void)
{
    switch (below(16)) {
    case 0:
    case 1:
        submit_any();
        break;
    case 2:
    case 3:
        call_any();
        break;
    case 4:
        if (below(40) == 0)
            die();
        break;
    case 5: {
        uint32_t lane = below(LANES);
        worker.flights[lane].body.kind = 0; /* done */
        break;
    }
    case 6:
        stage_memory_mapped(&stage);
        attnd_lane_retry(stage.service.scheduler);
        break;
    case 7:
    case 8:
    case 9:
        take_command();
        break;
    case 10:
    case 11:
    case 12:
        answer_any();
        break;
    default:
        begin_any();
        break;
    }
    check_flights();
    collect();
    check_flights();
}

static void calm_down(void)
{
    for (uint32_t i = 0; i < 2000; i++) {
        for (uint32_t lane = 0; lane < LANES; lane++)
            worker.flights[lane].body.kind = 0;
        stage_memory_mapped(&stage);
        attnd_lane_retry(stage.service.scheduler);
        take_command();
        answer_any();
        if (client.daemon)
            collect();
    }
}

static void new_session(void)
{
    uint64_t begun = engine.begun, deaths = engine.deaths, sets = engine.sets;
    memset(&engine, 0, sizeof(engine));
    engine.begun = begun;
    engine.deaths = deaths;
    engine.sets = sets;
    for (uint32_t i = 0; i < PLANS; i++)
        engine.plans[i] = stage_plan(&client);
}

static void what_a_launched_run_reads_does_not_change_under_it(void **state)
{
    (void)state;
    memset(&worker, 0, sizeof(worker));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        new_session();
        for (uint32_t step = 0; step < STEPS; step++)
            one_step();
        if (round % 3 == 0) { /* everything that was asked is answered */
            calm_down();
            CHECK_EQUAL(engine.completed, engine.submitted);
            CHECK_EQUAL(engine.calling, 0);
            CHECK_EQUAL(stage.service.prepared_runs->prepared_count, engine.prepared_count);
        }
        attnd_client_end(client.daemon); /* in the middle of it */
        client.daemon = NULL;
        for (uint32_t step = 0; step < 20; step++) {
            take_command();
            check_flights();
            answer_any();
        }
        if (round % 5 == 0)
            die();
        calm_down();
        CHECK(stage.service.clients[0] == NULL);
        CHECK_EQUAL(stage.service.prepared_runs->prepared_count, 0);
        CHECK_EQUAL(stage.service.prepared_runs->scratch.used_bytes, 0);
        for (uint32_t i = 0; i < PLANS; i++)
            CHECK_EQUAL(worker.held[i], 0); /* or the next plan there would never run */
        close(prepared_rig_peer);
        prepared_rig_peer = prepared_rig_connect(&client);
    }
    printf("%llu runs launched, %llu sets, %llu deaths\n", (unsigned long long)engine.begun,
           (unsigned long long)engine.sets, (unsigned long long)engine.deaths);
    CHECK(engine.begun > 100 && engine.sets > 100 && engine.deaths > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_a_launched_run_reads_does_not_change_under_it,
                                        prepared_rig_setup, prepared_rig_teardown),
    };
    check_failed = _fail;
    prng = prng_fork(test_seed(), 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
