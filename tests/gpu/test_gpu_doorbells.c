/*
 * test_gpu_doorbells.c - rings of a stream whose lane is not free, whose service cannot hear them,
 * or whose worker dies; and what is prepared while one is under way.
 */
#include "tests/gpu/support/by_stream.h"
#include "tests/gpu/support/load.h"
#include "tests/gpu/support/long_run.h"
#include "tests/gpu/support/neighbour.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/launched.h"

#include "client/internal.h"
#include "schemas/atomics.h"
#include "service/supervise/worker_abi.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define CLIENT_MS 30000
#define LANE 3u
#define LATE_MS 20u

struct ringer {
    struct engine engine;
    struct trial trial;
    CUstream stream;
    uint32_t prepared;
    CUdeviceptr words; /* the mailbox, where it lies on the GPU */
};

static void open_ringer(struct ringer *ringer, const struct harness *harness)
{
    const struct random_batch batch = launched_batch();
    uint32_t memory;

    *ringer = (struct ringer){.words = 0};
    gpu_open();
    gpu_engine_open(&ringer->engine, harness->socket, "ringer");
    launched_begin(&ringer->trial, &ringer->engine, &batch);
    CHECK_OK(launched_prepare(&ringer->trial, 0, LANE, &ringer->prepared));
    CHECK_CUDA(cuStreamCreate(&ringer->stream, CU_STREAM_NON_BLOCKING));
    CHECK_OK(attnd_cuda_stream_open(ringer->engine.session));
    CHECK_OK(attnd_mailbox(ringer->engine.session, &memory));
    CHECK_OK(attnd_cuda_map(ringer->engine.session, memory, &ringer->words));
}

static void close_ringer(struct ringer *ringer)
{
    CHECK_OK(attnd_unprepare(ringer->engine.session, ringer->prepared));
    CHECK_OK(attnd_cuda_unmap(ringer->words));
    launched_close(&ringer->engine, &ringer->trial);
}

static void write_doorbell(const struct ringer *ringer, uint32_t value)
{
    CHECK_CUDA(cuMemcpyHtoD(ringer->words + LANE * sizeof(value), &value, sizeof(value)));
    CHECK_CUDA(cuStreamSynchronize(NULL)); /* the call may return before the word is there */
}

static uint32_t read_doorbell(const struct ringer *ringer)
{
    uint32_t value;

    CHECK_CUDA(cuMemcpyDtoH(&value, ringer->words + LANE * sizeof(value), sizeof(value)));
    return value;
}

static void ring(const struct ringer *ringer)
{
    CHECK_OK(
        attnd_cuda_run_on_stream(ringer->engine.session, LANE, ringer->prepared, ringer->stream));
}

static void is_right(struct ringer *ringer)
{
    CHECK_CUDA(cuStreamSynchronize(ringer->stream));
    CHECK_OK(attnd_cuda_lane_error(ringer->engine.session, LANE));
    CHECK_EQUAL(read_doorbell(ringer), 1);
    engine_pull(&ringer->engine);
    launched_verify(&ringer->trial, 0);
    engine_push(&ringer->engine); /* poison again */
}

/* As after a ring that was given up: it was taken, and its answer is still to come. */
static int owed(void *context)
{
    struct ringer ringer;

    open_ringer(&ringer, context);
    for (uint32_t round = 0; round < 3; round++) {
        write_doorbell(&ringer, 0);
        ring(&ringer);
        harness_sleep_ms(LATE_MS);
        CHECK_EQUAL(cuStreamQuery(ringer.stream), CUDA_ERROR_NOT_READY);
        CHECK_EQUAL(read_doorbell(&ringer), 0); /* it has not rung */
        write_doorbell(&ringer, 1 + ATTND_E_WORKER_RESTARTED);
        is_right(&ringer);
    }
    close_ringer(&ringer);
    return 0;
}

static void a_ring_waits_for_the_answer_that_is_owed_to_the_one_before(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(owed, *state), CLIENT_MS), 0);
}

/* Whatever a lane rests at is no obstacle, and a ring that is rung twice is a ring. */
static int rest(void *context)
{
    static const uint32_t words[] = {1, 2, 1 + ATTND_E_TIMEOUT, 0x7fffffff};
    struct ringer ringer;

    open_ringer(&ringer, context);
    for (uint32_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        write_doorbell(&ringer, words[i]);
        ring(&ringer);
        is_right(&ringer);
    }
    write_doorbell(&ringer, ATTND_DOORBELL_RUNG + ringer.prepared);
    ring(&ringer);
    is_right(&ringer);
    close_ringer(&ringer);
    return 0;
}

static void a_lane_at_rest_is_rung_whatever_became_of_its_last_run(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(rest, *state), CLIENT_MS), 0);
}

/* Doorbells are rung and answered at device scope, which reaches no further than a memory
 * synchronization domain. A stream may have another one than the worker. */
static int ring_from_another_domain(void *context)
{
    CUstreamAttrValue domain = {.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE};
    CUkernelNodeAttrValue rings_in = domain;
    struct ringer ringer;
    CUgraph graph;
    CUgraphNode node;
    CUgraphNodeType kind;
    size_t nodes = 1;

    open_ringer(&ringer, context);
    CHECK_CUDA(cuStreamSetAttribute(ringer.stream, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &domain));
    ring(&ringer);
    is_right(&ringer);
    CHECK_CUDA(cuStreamBeginCapture(ringer.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_OK(attnd_cuda_run_on_stream(ringer.engine.session, LANE, ringer.prepared, ringer.stream));
    CHECK_CUDA(cuStreamEndCapture(ringer.stream, &graph));
    CHECK_CUDA(cuGraphGetNodes(graph, &node, &nodes));
    CHECK_EQUAL(nodes, 1);
    CHECK_CUDA(cuGraphNodeGetType(node, &kind));
    CHECK_EQUAL(kind,
                gpu_under_mps() ? CU_GRAPH_NODE_TYPE_KERNEL : CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    if (kind == CU_GRAPH_NODE_TYPE_KERNEL) {
        CHECK_CUDA(
            cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &rings_in));
        CHECK_EQUAL(rings_in.memSyncDomain, CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT);
    }
    CHECK_CUDA(cuGraphDestroy(graph));
    close_ringer(&ringer);
    return 0;
}

static void a_ring_is_in_the_workers_domain_whatever_its_streams_is(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(ring_from_another_domain, *state), CLIENT_MS), 0);
}

#define ROOMY_BYTES (8u << 20) /* from the first of the rows; the trials need less */

/* A run of the ringer's first layer with room for more rows. */
static uint32_t prepare_roomy(const struct ringer *ringer, uint32_t lane)
{
    const uint64_t at = ringer->engine.rows_offset_bytes + ROOMY_BYTES;
    const struct attnd_prepare_args args = {.size = sizeof(args),
                                            .lane = lane,
                                            .q = {ringer->engine.memory, at},
                                            .o = {ringer->engine.memory, at + ROOMY_BYTES / 2}};
    uint32_t prepared;

    CHECK_OK(attnd_prepare(ringer->engine.session, ringer->trial.plan, &args, &prepared));
    return prepared;
}

/* One of the plan's runs cannot be executed, and must stay so while lengths advance beside runs of
 * another. */
static int beside_a_bad_one(void *context)
{
    struct ringer ringer;
    struct attnd_memory_info info = {.size = sizeof(info)};
    int32_t kv_len[3];
    uint32_t bad, roomy;

    open_ringer(&ringer, context);
    struct attnd_session *session = ringer.engine.session;
    const struct trial_place *place = &ringer.trial.place[0][0];
    const uint64_t rows = ringer.engine.rows_offset_bytes;
    CHECK_OK(attnd_memory_info(session, ringer.engine.memory, &info));
    const struct attnd_prepare_args args = {
        .size = sizeof(args),
        .lane = LANE + 1,
        .q = {ringer.engine.memory, rows + place->q},
        .o = {ringer.engine.memory,
              (info.size_bytes - (place->o_end - place->o_begin - 128)) & ~UINT64_C(15)}};
    CHECK_OK(attnd_prepare(session, ringer.trial.plan, &args, &bad));
    roomy = prepare_roomy(&ringer, LANE + 2);

    /* One row more than there is room for. */
    struct trial large;
    struct random_batch batch = ringer.trial.batch;
    batch.level[0].entry[0].qo_len = 2;
    ringer.engine.window_begin = ringer.engine.pages / 2;
    ringer.engine.window_end = ringer.engine.pages;
    trial_begin(&large, &ringer.engine, &batch, ringer.trial.rows_end);
    launched_set(&large, 0);
    CHECK_OK(attnd_cuda_run_on_stream(session, LANE + 1, bad, ringer.stream));
    CHECK_CUDA(cuStreamSynchronize(ringer.stream));
    CHECK_ERROR(attnd_cuda_lane_error(session, LANE + 1), ATTND_E_RANGE);
    for (uint32_t e = 0; e < 3; e++)
        kv_len[e] = batch.level[0].entry[e].kv_len[0];
    for (uint32_t step = 0; step < 20; step++) {
        for (uint32_t i = 0; i < 8; i++)
            CHECK_OK(attnd_cuda_run_on_stream(session, LANE + 2, roomy, ringer.stream));
        launched_advance(&large, 0, kv_len);
        CHECK_OK(attnd_cuda_run_on_stream(session, LANE + 1, bad, ringer.stream));
        CHECK_CUDA(cuStreamSynchronize(ringer.stream));
        CHECK_OK(attnd_cuda_lane_error(session, LANE + 2));
        CHECK_ERROR(attnd_cuda_lane_error(session, LANE + 1), ATTND_E_RANGE);
    }
    launched_set(&ringer.trial, 0); /* and a set mends it */
    CHECK_OK(attnd_cuda_run_on_stream(session, LANE + 1, bad, ringer.stream));
    CHECK_CUDA(cuStreamSynchronize(ringer.stream));
    CHECK_OK(attnd_cuda_lane_error(session, LANE + 1));
    CHECK_OK(attnd_unprepare(session, bad));
    CHECK_OK(attnd_unprepare(session, roomy));
    trial_end(&large);
    close_ringer(&ringer);
    return 0;
}

static void a_bad_run_stays_bad_while_its_plan_advances_and_a_set_mends_it(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(beside_a_bad_one, *state), CLIENT_MS), 0);
}

/* ---- graphs that outlive their runs ---- */

static int replay_what_is_gone(void *context)
{
    const struct harness *harness = context;
    struct engine engine;
    struct layers layers;

    captured_open(&layers, &engine, harness->socket, "gone", LANE);
    layers_replay(&layers);
    layers_right(&layers);
    layers_unprepare(&layers);
    layers_prepare_anew(&layers);
    layers_replay(&layers);
    layers_failed(&layers, ATTND_E_UNKNOWN);
    layers_queue(&layers);
    layers_right(&layers);
    captured_close(&layers, &engine);
    return 0;
}

static void a_graph_of_runs_that_are_gone_starts_none_that_have_their_slots(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(replay_what_is_gone, *state), CLIENT_MS), 0);
}

/* ---- beside a run that takes long ---- */

/* What the daemon writes for the worker to read. */
static struct attnd_queue_head *queue_of(pid_t worker)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)worker, ATTND_WORKER_FD_QUEUE);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    struct attnd_queue_head *head =
        mmap(NULL, ATTND_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(head != MAP_FAILED);
    close(fd);
    return head;
}

struct sent {
    struct attnd_queue_head *queue;
    uint32_t before;
};

static int has_sent(void *context)
{
    const struct sent *sent = context;

    return attnd_observe32(&sent->queue->command_tail) != sent->before;
}

struct preparer {
    const struct long_run *run;
    uint32_t prepared, done;
};

static void *prepare_another(void *context)
{
    struct preparer *self = context;

    CHECK_OK(long_prepare(self->run, LANE + 1, &self->prepared));
    harness_say(&self->done, 1);
    return NULL;
}

/* A run of the plan is in flight, so the next one of it waits, in nobody's way: what another
 * session asks of the worker, and what takes no tiles, is answered long before. */
static int prepare_beside(void *context)
{
    const struct harness *harness = context;
    struct attnd_session *session, *other;
    struct long_run run;
    struct preparer preparer = {.run = &run};
    pthread_t thread;
    uint32_t mailbox;

    gpu_open();
    session = e2e_open(harness);
    other = e2e_open(harness);
    long_open(&run, session, LANE);
    struct sent sent = {queue_of(harness_worker(harness)), 0};
    long_ring(&run);
    long_await_taken(&run);
    sent.before = attnd_peek32(&sent.queue->command_tail);
    CHECK_EQUAL(pthread_create(&thread, NULL, prepare_another, &preparer), 0);
    harness_eventually(has_sent, &sent, 5000, "the daemon has sent the worker the other run");
    uint64_t begin_ns = harness_now_ns();
    CHECK_OK(attnd_mailbox(other, &mailbox));
    printf("another session's call beside it: %.1f ms\n",
           (double)(harness_now_ns() - begin_ns) / 1e6);
    CHECK(long_runs(&run));
    CHECK_EQUAL(attnd_observe32(&preparer.done), 0);
    CHECK_EQUAL(long_await(&run), 0);
    printf("the long run ended %.1f ms after that began\n",
           (double)(harness_now_ns() - begin_ns) / 1e6);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    CHECK_OK(attnd_unprepare(session, preparer.prepared));
    long_close(&run);
    (void)munmap(sent.queue, ATTND_PAGE_BYTES);
    attnd_close(other);
    attnd_close(session);
    return 0;
}

static void a_run_prepared_beside_another_of_its_plan_delays_nobody(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(prepare_beside, *state), CLIENT_MS), 0);
}

/* ---- workers that end ---- */

/* Kernels whose process is dead may be there for a while yet. Here it is only stopped, and the
 * daemon's word for it is said in its place. */
static int outlive(void *context)
{
    const struct harness *harness = context;
    struct neighbour neighbour;
    struct long_run run;

    gpu_open();
    neighbour_open(&neighbour);
    struct attnd_session *session = e2e_open(harness);
    pid_t worker = harness_worker(harness);
    long_open(&run, session, LANE);
    struct attnd_queue_head *head = queue_of(worker);

    long_ring(&run);
    CHECK_EQUAL(long_await(&run), 0); /* its kernels are there */
    long_ring(&run);
    long_await_taken(&run);
    CHECK(long_runs(&run));
    CHECK_EQUAL(harness_stop_worker(harness), worker); /* else it might read the word itself */
    CHECK(long_runs(&run));
    uint64_t begin_ns = harness_now_ns();
    attnd_publish32(&head->park, ATTND_PARK_OVER);
    CHECK_ERROR(long_await(&run), ATTND_E_WORKER_RESTARTED);
    double ms = (double)(harness_now_ns() - begin_ns) / 1e6;
    printf("its kernels let go after %.1f ms\n", ms);
    CHECK(ms < 100); /* their host's heartbeat stands still for 2 s before they look at it */
    neighbour_await_alone(&neighbour);
    CHECK_EQUAL(kill(worker, SIGKILL), 0); /* takes nobody along: no kernel of it is left */
    CHECK_CUDA(cuMemsetD8(run.address, 0, 4096));
    CHECK_CUDA(cuCtxSynchronize());
    int rc;
    do {
        long_ring(&run); /* the next worker */
        rc = long_await(&run);
    } while (rc == -ATTND_E_WORKER_RESTARTED);
    CHECK_EQUAL(rc, 0);
    long_close(&run);
    (void)munmap(head, ATTND_PAGE_BYTES);
    attnd_close(session);
    return 0;
}

static void kernels_that_outlive_their_process_end_at_once(void **state)
{
    if (!gpu_under_mps()) {
        puts("without MPS a process ends with its kernels");
        return;
    }
    CHECK_EQUAL(harness_join(harness_fork(outlive, *state), CLIENT_MS), 0);
}

/* Under MPS not before its kernels have left: they would take this process along. */
static void end_worker(const struct harness *harness)
{
    pid_t worker = harness_worker(harness);

    if (gpu_under_mps()) {
        struct attnd_queue_head *head = queue_of(worker);
        struct neighbour neighbour;
        neighbour_open(&neighbour);
        CHECK_EQUAL(harness_stop_worker(harness), worker);
        attnd_publish32(&head->park, ATTND_PARK_OVER);
        neighbour_await_alone(&neighbour);
        (void)munmap(head, ATTND_PAGE_BYTES);
    }
    CHECK_EQUAL(kill(worker, SIGKILL), 0);
}

static int is_counted(void *context)
{
    Attnd__Status *status = harness_status(context);
    const Attnd__SessionStatus *session = status->sessions[0];
    int is = session->launch_errors == 1 && session->launch_error == ATTND_E_WORKER_RESTARTED &&
             session->launch_error_lane == LANE;

    attnd__status__free_unpacked(status, NULL);
    return is;
}

/* The doorbell says that a worker has taken it, and that one is no more. */
static int count_restarted(void *context)
{
    struct harness *harness = context;
    struct ringer ringer;

    open_ringer(&ringer, harness);
    ring(&ringer);
    is_right(&ringer);
    write_doorbell(&ringer, 0);
    end_worker(harness);
    uint64_t begin_ns = harness_now_ns();
    while (read_doorbell(&ringer) != 1 + ATTND_E_WORKER_RESTARTED)
        CHECK(harness_now_ns() - begin_ns < 10000000000u);
    harness_eventually(is_counted, harness, 5000, "the answer is one error of the session");
    CHECK_ERROR(attnd_cuda_lane_error(ringer.engine.session, LANE), ATTND_E_WORKER_RESTARTED);
    ring(&ringer);
    is_right(&ringer);
    CHECK(is_counted(harness));
    close_ringer(&ringer);
    return 0;
}

static void rings_that_a_worker_took_with_it_are_counted_as_errors(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(count_restarted, *state), CLIENT_MS), 0);
}

/* A caller that asks a graph for its edges in the plain way is refused if one of them is more than
 * an edge. */
static int capture_two(void *context)
{
    struct ringer ringer;
    CUgraph graph;
    CUgraphNode from, to;
    CUgraphEdgeData data = {.type = 0xff};
    size_t edges = 1;

    open_ringer(&ringer, context);
    CHECK_CUDA(cuStreamBeginCapture(ringer.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < 2; i++)
        CHECK_OK(
            attnd_cuda_run_on_stream(ringer.engine.session, LANE, ringer.prepared, ringer.stream));
    CHECK_CUDA(cuStreamEndCapture(ringer.stream, &graph));
    CHECK_CUDA(cuGraphGetEdges_v2(graph, &from, &to, &data, &edges));
    CHECK_EQUAL(edges, 1);
    CHECK_EQUAL(data.type, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT);
    CHECK_CUDA(cuGraphDestroy(graph));
    close_ringer(&ringer);
    return 0;
}

static void a_captured_ring_leaves_plain_edges(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(capture_two, *state), CLIENT_MS), 0);
}

/* A worker of processors sleeps until attnd_launch() wakes it. */
static int ring_a_cpu(void *context)
{
    const struct harness *harness = context;
    struct attnd_fault fault;
    CUstream stream;

    gpu_open();
    struct attnd_session *session = e2e_open(harness);
    CHECK_CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_ERROR(attnd_cuda_run_on_stream(session, LANE, 600, stream), ATTND_E_UNSUPPORTED);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_BACKEND);
    CHECK_ERROR(attnd_cuda_stream_open(session), ATTND_E_UNSUPPORTED);
    CHECK_ERROR(attnd_cuda_lane_error(session, LANE), ATTND_E_UNSUPPORTED);
    attnd_close(session);
    return 0;
}

static void a_worker_of_processors_cannot_be_rung_by_a_stream(void **state)
{
    static const char *const options[] = {"--backend", "cpu", NULL};
    struct harness *harness = *state;

    harness_stop(harness);
    harness_start(harness, options);
    CHECK_EQUAL(harness_join(harness_fork(ring_a_cpu, harness), CLIENT_MS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_ring_waits_for_the_answer_that_is_owed_to_the_one_before),
        E2E_TEST(a_lane_at_rest_is_rung_whatever_became_of_its_last_run),
        E2E_TEST(a_ring_is_in_the_workers_domain_whatever_its_streams_is),
        E2E_TEST(a_captured_ring_leaves_plain_edges),
        E2E_TEST(a_bad_run_stays_bad_while_its_plan_advances_and_a_set_mends_it),
        E2E_TEST(a_graph_of_runs_that_are_gone_starts_none_that_have_their_slots),
        E2E_TEST(a_run_prepared_beside_another_of_its_plan_delays_nobody),
        E2E_TEST(rings_that_a_worker_took_with_it_are_counted_as_errors),
        E2E_TEST(kernels_that_outlive_their_process_end_at_once),
        E2E_TEST(a_worker_of_processors_cannot_be_rung_by_a_stream),
    };

    harness_init();
    (void)setenv("ATTND_TEST_EXECUTE", "service", 1); /* rings are what is tested */
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
