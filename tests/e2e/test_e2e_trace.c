/*
 * test_e2e_trace.c - what the service tells of items: each that is executed while somebody asks is
 * told once, with its time.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/traced.h"

#include "schemas/abi.h"
#include "service/ctl/attnctl.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define STRANGER 65533u /* a user that nobody is */
#define ITEMS_MAX 100000u
/* The clock of a GPU is set by the host's now and then. */
#define CLOCK_NS (e2e_on_gpu() ? 50000u : 0u)

struct reader {
    const struct harness *harness;
    uint32_t next[ATTND_TRACE_WORKERS_MAX];
    size_t next_count;
    uint32_t worker_pid;
    uint64_t lost;
    struct attnd_trace_record items[ITEMS_MAX];
    size_t count, wanted;
};

/* @from: where to go on; NULL: the first question. */
static Attnd__Reply *ask_once(const struct harness *harness, struct reader *from)
{
    Attnd__TraceQuery query = ATTND__TRACE_QUERY__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    Attnd__Reply *reply;

    if (from) {
        query.next = from->next;
        query.n_next = from->next_count;
        query.worker_pid = from->worker_pid;
        query.has_worker_pid = from->worker_pid != 0;
    }
    request.call_case = ATTND__REQUEST__CALL_TRACE;
    request.trace = &query;
    CHECK_EQUAL(attnctl_ask(harness->socket, &request, &reply), 0);
    return reply;
}

static void ask(struct reader *reader)
{
    Attnd__Reply *reply = ask_once(reader->harness, reader);
    CHECK_EQUAL(reply->code, 0);
    const Attnd__TraceReply *trace = reply->trace;
    const size_t count = trace->records.len / sizeof(*reader->items);

    CHECK_EQUAL(trace->records.len % sizeof(*reader->items), 0);
    CHECK(reader->count + count <= ITEMS_MAX);
    if (count)
        memcpy(reader->items + reader->count, trace->records.data, trace->records.len);
    reader->count += count;
    CHECK(trace->n_next >= 1 && trace->n_next <= ATTND_TRACE_WORKERS_MAX);
    memcpy(reader->next, trace->next, trace->n_next * sizeof(*reader->next));
    reader->next_count = trace->n_next;
    reader->worker_pid = trace->worker_pid;
    CHECK(reader->worker_pid > 0);
    reader->lost += trace->lost;
    attnd__reply__free_unpacked(reply, NULL);
}

/* Items of runs, all of them neighbours or not. */
static int has_wanted(void *context)
{
    struct reader *reader = context;
    size_t items = 0;

    ask(reader);
    for (size_t i = 0; i < reader->count; i++)
        items += reader->items[i].count;
    CHECK(items <= reader->wanted);
    return items == reader->wanted;
}

static struct reader *new_reader(const struct harness *harness)
{
    struct reader *reader = calloc(1, sizeof(*reader));
    CHECK(reader);
    reader->harness = harness;
    return reader;
}

/* ---- what is told ---- */

/* A run's items, as the service counts them. */
static uint64_t items_so_far(const struct harness *harness)
{
    Attnd__Status *status = harness_status(harness);
    const uint64_t tiles = status->tiles;
    attnd__status__free_unpacked(status, NULL);
    return tiles;
}

static void each_item_of_a_run_is_told_once_within_the_run_s_time(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = traced_batch();
    struct reader *reader = new_reader(harness);
    uint8_t *seen[2] = {calloc(ITEMS_MAX, 1), calloc(ITEMS_MAX, 1)};
    struct traced_times times;
    uint32_t kinds[3] = {0};
    struct engine engine;
    struct trial trial;

    CHECK(seen[0] && seen[1]);
    engine_open(&engine, harness->socket, "told");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    const uint32_t session = traced_session(engine.session);
    const uint64_t before = items_so_far(harness);
    ask(reader);
    traced_run(&trial, &times);
    reader->wanted = items_so_far(harness) - before;
    CHECK(reader->wanted > 8 && reader->wanted % 2 == 0);
    harness_eventually(has_wanted, reader, 10000, "all items");
    CHECK_EQUAL(reader->lost, 0);
    for (size_t i = 0; i < reader->count; i++) {
        const struct attnd_trace_record *item = &reader->items[i];
        CHECK_EQUAL(item->session, session);
        CHECK(item->layer < 2 && item->kind <= ATTND_TRACE_MEMORY);
        const struct attnd_completion *run = &times.done[item->layer];
        CHECK(item->begin_ns + CLOCK_NS >= run->begin_ns);
        CHECK(attnd_trace_end_ns(item) <= run->end_ns + CLOCK_NS);
        CHECK(attnd_trace_lasted_ns(item) > 0);
        for (uint32_t j = 0; j < item->count; j++) {
            CHECK(item->item + j < reader->wanted / 2);
            CHECK_EQUAL(seen[item->layer][item->item + j]++, 0);
        }
        kinds[item->kind]++;
    }
    CHECK(kinds[ATTND_TRACE_COMPUTE] && kinds[ATTND_TRACE_MEMORY]);
    trial_end(&trial);
    engine_close(&engine);
    free(seen[0]);
    free(seen[1]);
    free(reader);
}

static void nothing_is_recorded_before_somebody_asks(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = traced_batch();
    struct traced_times times;
    struct engine engine;
    struct trial trial;

    engine_open(&engine, harness->socket, "alone");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    traced_run(&trial, &times);
    Attnd__Reply *reply = ask_once(harness, NULL);
    CHECK_EQUAL(reply->code, 0);
    for (size_t w = 0; w < reply->trace->n_next; w++)
        CHECK_EQUAL(reply->trace->next[w], 0);
    attnd__reply__free_unpacked(reply, NULL);
    trial_end(&trial);
    engine_close(&engine);
}

static void run_until_it_is_back(struct trial *trial)
{
    struct attnd_completion done;

    do {
        const struct attnd_op op = {.user_data = 1};
        CHECK_OK(trial_submit_as(trial, 0, &op));
        CHECK_EQUAL(attnd_wait(trial->engine->session, &done, 1, TRIAL_WAIT_NS), 1);
        CHECK(done.fault.code == 0 || done.fault.code == -ATTND_E_WORKER_RESTARTED);
    } while (done.fault.code != 0);
}

static void the_records_of_the_next_worker_begin_again(void **state)
{
    struct harness *harness = *state;
    const struct random_batch batch = traced_batch();
    struct reader *reader = new_reader(harness);
    struct traced_times times;
    struct engine engine;
    struct trial trial;

    engine_open(&engine, harness->socket, "survivor");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    ask(reader);
    const uint32_t first_pid = reader->worker_pid;
    CHECK_EQUAL(kill(harness_worker(harness), SIGKILL), 0);
    run_until_it_is_back(&trial);
    ask(reader);
    CHECK(reader->worker_pid != first_pid);
    reader->count = 0;
    const uint64_t before = items_so_far(harness);
    traced_run(&trial, &times);
    reader->wanted = items_so_far(harness) - before;
    harness_eventually(has_wanted, reader, 10000, "the items of the next worker");
    CHECK_EQUAL(reader->lost, 0);
    trial_end(&trial);
    engine_close(&engine);
    free(reader);
}

/* ---- what is in work at once ---- */

struct span {
    uint64_t begin_ns, end_ns;
};

static struct span span_of(const struct attnd_trace_record *item)
{
    return (struct span){item->begin_ns, attnd_trace_end_ns(item)};
}

/* Whether an item began while the other thread had one of the other session in hand, and between
 * two of that session. Not for how long they were in hand: a thread may be without a processor. */
static int is_beside_other(const struct reader *reader, const struct attnd_trace_record *item)
{
    const struct span mine = span_of(item);
    int before = 0, beside = 0, behind = 0;

    for (size_t i = 0; i < reader->count; i++) {
        const struct attnd_trace_record *other = &reader->items[i];
        const struct span span = span_of(other);
        if (other->session == item->session)
            continue;
        before |= span.begin_ns < mine.begin_ns;
        behind |= span.begin_ns > mine.begin_ns;
        beside |= other->track != item->track && span.begin_ns < mine.end_ns &&
                  mine.begin_ns < span.end_ns;
    }
    return before && beside && behind;
}

/* The share of a session's items. Where one session follows the other it is 0. */
static double share_beside_other(const struct reader *reader, uint32_t session)
{
    uint32_t items = 0, beside = 0;

    for (size_t i = 0; i < reader->count; i++) {
        if (reader->items[i].session != session)
            continue;
        items++;
        beside += (uint32_t)is_beside_other(reader, &reader->items[i]);
    }
    CHECK(items > 1);
    return (double)beside / (double)items;
}

struct pair {
    struct engine engine[2];
    struct trial trial[2];
    uint32_t session[2];
};

static void open_pair(struct pair *pair, const struct harness *harness)
{
    struct random_batch batch[2] = {e2e_batch(), e2e_batch()};

    batch[0].level[0].requests = 1;
    batch[0].level[0].entry[0] = (struct random_entry){.qo_len = 200, .kv_len = {900}};
    batch[1].level[0].requests = RANDOM_REQUESTS_MAX;
    for (uint32_t e = 0; e < RANDOM_REQUESTS_MAX; e++)
        batch[1].level[0].entry[e] = (struct random_entry){.qo_len = 1, .kv_len = {900}};
    for (int i = 0; i < 2; i++) {
        engine_open(&pair->engine[i], harness->socket, i ? "decodes" : "prefills");
        trial_begin(&pair->trial[i], &pair->engine[i], &batch[i], 0);
        CHECK_OK(trial_submit_set(&pair->trial[i], 0, 0));
        CHECK_EQUAL(trial_await(&pair->trial[i]), 0);
        pair->session[i] = traced_session(pair->engine[i].session);
    }
}

/* Both are queued before either begins. Return: items of both. */
static size_t run_pair(struct pair *pair, const struct harness *harness)
{
    const uint64_t before = items_so_far(harness);
    const pid_t worker = e2e_hold_worker(harness);
    struct attnd_completion done;

    for (int i = 0; i < 2; i++) {
        const struct attnd_op op = {.user_data = 1};
        CHECK_OK(trial_submit_as(&pair->trial[i], 0, &op));
    }
    e2e_let_go(worker);
    for (int i = 0; i < 2; i++) {
        CHECK_EQUAL(attnd_wait(pair->engine[i].session, &done, 1, TRIAL_WAIT_NS), 1);
        CHECK_EQUAL(done.fault.code, 0);
    }
    return items_so_far(harness) - before;
}

/* One session's prefill and another's decodes, two plans that know nothing of each other. */
static void compute_bound_and_memory_bound_items_of_two_sessions_are_in_work_at_once(void **state)
{
    static const char *const options[] = {"--threads", "2", NULL};
    static struct harness harness;
    static struct pair pair;
    struct reader *reader;
    double share = 0;

    (void)state;
    if (e2e_on_gpu())
        skip(); /* there workers walk runs in the order in which they were published */
    harness_start(&harness, options);
    reader = new_reader(&harness);
    open_pair(&pair, &harness);
    for (uint32_t round = 0; round < 50 && share < 0.5; round++) { /* other programs run, too */
        ask(reader);
        reader->count = 0;
        reader->wanted = run_pair(&pair, &harness);
        harness_eventually(has_wanted, reader, 10000, "the items of both");
        for (int i = 0; i < 2; i++) {
            const double session_share = share_beside_other(reader, pair.session[i]);
            share = session_share > share ? session_share : share;
        }
    }
    print_message("beside the other session's: %.2f of the items\n", share);
    CHECK(share >= 0.5);
    for (int i = 0; i < 2; i++) {
        trial_end(&pair.trial[i]);
        engine_close(&pair.engine[i]);
    }
    free(reader);
    harness_stop(&harness);
}

/* ---- to whom ---- */

static int ask_as_stranger(void *context)
{
    CHECK_EQUAL(setuid(STRANGER), 0);
    Attnd__Reply *reply = ask_once(context, NULL);
    CHECK_EQUAL(reply->code, -ATTND_E_PERMISSION);
    attnd__reply__free_unpacked(reply, NULL);
    return 0;
}

static void others_than_operators_are_refused(void **state)
{
    static const char *const options[] = {"--allow-uid", "0", "--allow-uid", "65533", NULL};
    static struct harness harness;

    (void)state;
    if (getuid() != 0)
        skip(); /* nobody else can become another user */
    harness_start(&harness, options);
    CHECK_EQUAL(chmod(harness.directory, 0755), 0);
    CHECK_EQUAL(harness_join(harness_fork(ask_as_stranger, &harness), 10000), 0);
    harness_stop(&harness);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(each_item_of_a_run_is_told_once_within_the_run_s_time),
        E2E_TEST(nothing_is_recorded_before_somebody_asks),
        E2E_TEST(the_records_of_the_next_worker_begin_again),
        E2E_OWN_TEST(compute_bound_and_memory_bound_items_of_two_sessions_are_in_work_at_once),
        E2E_OWN_TEST(others_than_operators_are_refused),
    };
    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
