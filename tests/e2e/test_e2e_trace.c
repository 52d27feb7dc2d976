/*
 * test_e2e_trace.c - attnctl trace: every item that is executed while somebody asks is told once,
 * with its time, and a file of them is what Perfetto reads.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/json.h"
#include "tests/support/trial/trial.h"

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

/* Prefills and decodes, so that both classes are there. */
static struct random_batch mixed_batch(void)
{
    struct random_batch batch = e2e_batch();

    batch.level[0].requests = 3;
    batch.level[0].entry[0] = (struct random_entry){.qo_len = 200, .kv_len = {700}};
    batch.level[0].entry[1] = (struct random_entry){.qo_len = 1, .kv_len = {900}};
    batch.level[0].entry[2] = (struct random_entry){.qo_len = 1, .kv_len = {300}};
    return batch;
}

/* Runs of two layers, one after the other. */
struct run_times {
    struct attnd_completion done[2];
};

static void run_both(struct trial *trial, struct run_times *times)
{
    for (uint32_t layer = 0; layer < 2; layer++) {
        const struct attnd_op op = {.user_data = layer};
        CHECK_OK(trial_submit_as(trial, layer, &op));
        CHECK_EQUAL(attnd_wait(trial->engine->session, &times->done[layer], 1, TRIAL_WAIT_NS), 1);
        CHECK_EQUAL(times->done[layer].fault.code, 0);
    }
}

static uint32_t session_of(struct attnd_session *session)
{
    struct attnd_info info = {.size = sizeof(info)};
    CHECK_OK(attnd_info(session, &info));
    return info.session;
}

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
    const struct random_batch batch = mixed_batch();
    struct reader *reader = new_reader(harness);
    uint8_t *seen[2] = {calloc(ITEMS_MAX, 1), calloc(ITEMS_MAX, 1)};
    struct run_times times;
    uint32_t kinds[3] = {0};
    struct engine engine;
    struct trial trial;

    CHECK(seen[0] && seen[1]);
    engine_open(&engine, harness->socket, "told");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    const uint32_t session = session_of(engine.session);
    const uint64_t before = items_so_far(harness);
    ask(reader);
    run_both(&trial, &times);
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
    const struct random_batch batch = mixed_batch();
    struct run_times times;
    struct engine engine;
    struct trial trial;

    engine_open(&engine, harness->socket, "alone");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    run_both(&trial, &times);
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
    const struct random_batch batch = mixed_batch();
    struct reader *reader = new_reader(harness);
    struct run_times times;
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
    run_both(&trial, &times);
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
        pair->session[i] = session_of(pair->engine[i].session);
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

/* ---- the command ---- */

static char path[512];

static int run_command(void *context)
{
    static const char *const arguments[] = {"trace", "--seconds", "0.5", "--output", path, NULL};
    char nothing[64];

    CHECK_EQUAL(harness_attnctl(context, arguments, nothing, sizeof(nothing)), 0);
    CHECK_EQUAL(nothing[0], 0);
    return 0;
}

struct slice {
    double begin, end;
};

static int by_begin(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end > y->end ? -1 : x->end < y->end;
}

/* Perfetto draws slices of a track as a stack: each lies within the one below or beside it. */
static void check_stack(struct slice *slices, size_t count)
{
    double open[16];
    size_t depth = 0;

    qsort(slices, count, sizeof(*slices), by_begin);
    for (size_t i = 0; i < count; i++) {
        while (depth && open[depth - 1] <= slices[i].begin + 1e-3)
            depth--;
        CHECK(!depth || slices[i].end <= open[depth - 1] + 1e-3);
        CHECK(depth < 16);
        open[depth++] = slices[i].end;
    }
}

static void check_event(const json_t *event, const char *session_name, uint32_t session)
{
    CHECK(json_number(event, "pid") >= 1 && json_number(event, "tid") >= 1);
    if (json_is(event, "ph", "M"))
        return;
    CHECK(json_is(event, "ph", "X"));
    CHECK(strstr(json_text(event, "name"), session_name));
    CHECK(json_is(event, "cat", "compute-bound") || json_is(event, "cat", "memory-bound"));
    CHECK(json_number(event, "ts") > 0 && json_number(event, "dur") >= 0);
    CHECK_EQUAL((uint32_t)json_number(json_object_get(event, "args"), "session"), session);
}

/* Slices of a track. Return: how many; its name is among the events as well. */
static size_t slices_of(const json_t *events, double pid, double tid, struct slice *slices)
{
    size_t count = 0, names = 0, index;
    const json_t *event;

    json_array_foreach(events, index, event)
    {
        if (json_number(event, "pid") != pid || json_number(event, "tid") != tid)
            continue;
        names += (size_t)json_is(event, "name", "thread_name");
        if (!json_is(event, "ph", "X"))
            continue;
        const double begin = json_number(event, "ts");
        slices[count++] = (struct slice){begin, begin + json_number(event, "dur")};
    }
    CHECK_EQUAL(names, count > 0);
    return count;
}

static void check_file(uint32_t session)
{
    char name[64];
    size_t index, slices_count = 0, tracks = 0;
    const json_t *event;
    json_t *document = json_load_file(path, 0, NULL);
    CHECK(document);
    const json_t *events = json_object_get(document, "traceEvents");
    struct slice *slices = calloc(json_array_size(events) + 1, sizeof(*slices));

    CHECK(slices && json_array_size(events) > 0);
    (void)snprintf(name, sizeof(name), "session %u", session);
    json_array_foreach(events, index, event)
    {
        check_event(event, name, session);
        if (!json_is(event, "name", "thread_name"))
            continue;
        const size_t count =
            slices_of(events, json_number(event, "pid"), json_number(event, "tid"), slices);
        check_stack(slices, count);
        slices_count += count;
        tracks++;
    }
    const json_t *other = json_object_get(document, "otherData");
    CHECK(tracks > 0 && slices_count > 0);
    CHECK_EQUAL(json_number(other, "items"), slices_count);
    CHECK_EQUAL(json_number(other, "lost"), 0);
    CHECK(json_number(other, "layer_busy_ns") > 0);
    CHECK_EQUAL(json_number(other, "layer_together_ns"), 0); /* there is one session */
    free(slices);
    json_decref(document);
}

/* In place of the file there is a link then, which leads where nothing is made. */
static void expect_file_of_its_owner(const struct harness *harness)
{
    const char *const arguments[] = {"trace", "--output", path, NULL};
    struct stat file;
    char output[64];

    CHECK(stat(path, &file) == 0 && (file.st_mode & 0777) == 0600);
    CHECK(unlink(path) == 0 && symlink("trace-elsewhere", path) == 0);
    CHECK_EQUAL(harness_attnctl(harness, arguments, output, sizeof(output)), ATTNCTL_EXIT_USAGE);
    CHECK(stat(path, &file) < 0 && unlink(path) == 0);
}

static void the_command_writes_a_timeline_whose_slices_nest(void **state)
{
    struct harness *harness = *state;
    const struct random_batch batch = mixed_batch();
    struct run_times times;
    struct engine engine;
    struct trial trial;
    int status = 0;

    (void)snprintf(path, sizeof(path), "%s/trace.json", harness->directory);
    engine_open(&engine, harness->socket, "drawn");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    const pid_t tracing = harness_fork(run_command, harness);
    do
        run_both(&trial, &times);
    while (harness_reap(tracing, 0, &status) == 0);
    CHECK_EQUAL(status, 0);
    check_file(session_of(engine.session));
    expect_file_of_its_owner(harness);
    trial_end(&trial);
    engine_close(&engine);
}

static void a_time_or_a_file_that_cannot_be_is_refused(void **state)
{
    static const char *const wrong[][4] = {
        {"trace", "--seconds=0", NULL},   {"trace", "--seconds=x", NULL},
        {"trace", "--seconds=nan", NULL}, {"trace", "--seconds=4000", NULL},
        {"trace", "--session=0", NULL},   {"trace", "--output=/nowhere/at/all", NULL}};
    char output[64];

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK_EQUAL(harness_attnctl(*state, wrong[i], output, sizeof(output)), ATTNCTL_EXIT_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(each_item_of_a_run_is_told_once_within_the_run_s_time),
        E2E_TEST(nothing_is_recorded_before_somebody_asks),
        E2E_TEST(the_records_of_the_next_worker_begin_again),
        E2E_OWN_TEST(compute_bound_and_memory_bound_items_of_two_sessions_are_in_work_at_once),
        E2E_OWN_TEST(others_than_operators_are_refused),
        E2E_TEST(the_command_writes_a_timeline_whose_slices_nest),
        E2E_TEST(a_time_or_a_file_that_cannot_be_is_refused),
    };
    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
