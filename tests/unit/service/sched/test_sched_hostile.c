/* test_sched_hostile.c - clients and workers that do what they should not: the others do not
 * notice, and nothing is decided twice. */
#include "ipc/fdpass.h"
#include "schemas/atomics.h"
#include "service/rpc/calls.h"
#include "service/sched/lane.h"
#include "service/supervise/internal.h"
#include "service/supervise/worker_abi.h"
#include "tests/support/rigs/sched_rig.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int setup(void **state)
{
    (void)state;
    return sched_rig_begin(8);
}

/* A plan whose runs need more than half of the worker's scratch. */
static uint32_t greedy_plan(void)
{
    uint32_t plan = sched_rig_filled_plan();
    client.daemon->plans[plan - 1]->scratch_bytes = STAGE_SCRATCH_BYTES / 2 + 64;
    return plan;
}

/* ---- handles ---- */

static uint32_t new_memory(void)
{
    struct attnd_memory *memory;
    struct attnd_fault fault = {0};
    uint32_t handle;
    client.daemon->service->options.memory_max_bytes = UINT32_MAX;
    client.daemon->service->options.host_memory_max_bytes = UINT32_MAX;
    CHECK_EQUAL(
        attnd_memory_make(client.daemon, ATTND_KIND_HOST, STAGE_TENSOR_BYTES, &memory, &fault), 0);
    CHECK_EQUAL(attnd_memory_bind(client.daemon, memory, &handle, &fault), 0);
    return handle;
}

static int release(uint32_t handle)
{
    Attnd__MemoryRelease release = ATTND__MEMORY_RELEASE__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    struct attnd_fault fault = {0};
    struct attnd_call call = {
        .service = &stage.service, .client = client.daemon, .request = &request, .fault = &fault};
    release.memory = handle;
    request.memory_release = &release;
    return attnd_call_memory_release(&call);
}

static void memory_that_a_queued_run_names_is_not_released(void **state)
{
    uint32_t plan = sched_rig_filled_plan(), memory = new_memory();
    struct attnd_sqe second = stage_run(plan, 0, 2);
    (void)state;
    stage_memory_mapped(&stage);
    second.u.run.o_memory = memory;
    sched_rig_submit(stage_run(plan, 0, 1));
    sched_rig_submit(second);
    stage_sweep(&stage);
    CHECK_EQUAL(release(memory), -ATTND_E_BUSY);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    const struct attnd_run *run = sched_rig_must_command();
    CHECK_EQUAL(run->o.memory, client.daemon->memories[memory - 1]->index);
    CHECK_EQUAL(release(memory), -ATTND_E_BUSY);
    stage_retire(&stage, run, 0);
    stage_sweep(&stage);
    CHECK_EQUAL(release(memory), 0);
}

static void a_handle_that_comes_later_is_not_what_a_queued_run_meant(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    struct attnd_sqe second = stage_run(plan, 0, 2);
    (void)state;
    second.u.run.o_memory = 3;
    sched_rig_submit(stage_run(plan, 0, 1));
    sched_rig_submit(second);
    stage_sweep(&stage);
    CHECK_EQUAL(new_memory(), 3);
    stage_memory_mapped(&stage);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    stage_expect(&client, 1, 0);
    CHECK_EQUAL(stage_expect(&client, 2, -ATTND_E_UNKNOWN).field, ATTND_F_O);
}

/* ---- rings ---- */

static void a_cancel_needs_no_room_for_a_completion(void **state)
{
    uint32_t plan = sched_rig_filled_plan();
    (void)state;
    for (uint16_t lane = 0; lane < 8; lane++)
        sched_rig_submit(stage_run(plan, lane, lane));
    CHECK_EQUAL(stage_sweep(&stage), 8);
    const struct attnd_run *run = sched_rig_must_command();
    sched_rig_submit(stage_cancel(0));
    CHECK_EQUAL(stage_sweep(&stage), 1);
    CHECK_EQUAL(run->cancel, 1);
}

/* Asked when there is no time left. */
static int caught_up_at_the_end_of_a_piece(struct attnd_client *peer)
{
    struct attnd_works *works = &stage.service.works;
    struct attnd_account *before = attnd_work_enter(works, &peer->account);

    while (!attnd_work_spent(works))
        ;
    const int caught_up = attnd_sched_caught_up(peer);
    (void)attnd_work_leave(works, before);
    return caught_up;
}

static void a_call_comes_after_all_that_was_submitted_before_it(void **state)
{
    struct stage_client eager;
    uint32_t asked = 0;
    (void)state;
    stage_connect(&stage, &eager, 256, 1);
    const struct attnd_sqe bad = stage_run(99, 0, 5);
    for (int i = 0; i < 200; i++)
        CHECK_EQUAL(stage_submit(&eager, &bad), 0);
    while (!caught_up_at_the_end_of_a_piece(eager.daemon)) {
        asked++;
        CHECK_EQUAL(stage_submit(&eager, &bad), 0); /* what comes later is not waited for */
    }
    CHECK(asked > 0 && asked <= 200); /* each time one at least is taken */
    for (int i = 0; i < 200; i++)
        stage_expect(&eager, 5, -ATTND_E_UNKNOWN);
}

static void a_full_completion_ring_does_not_hold_a_call_up(void **state)
{
    const struct attnd_sqe bad = stage_run(99, 0, 5);
    (void)state;
    for (int i = 0; i < 8; i++)
        sched_rig_submit(bad);
    CHECK_EQUAL(stage_sweep(&stage), 8);
    sched_rig_submit(bad);
    CHECK(attnd_sched_caught_up(client.daemon));
}

/* ---- lines ---- */

static void a_run_that_waits_for_a_mapping_holds_nobody_up(void **state)
{
    uint32_t plan = sched_rig_filled_plan(), memory = new_memory();
    struct attnd_sqe first = stage_run(plan, 0, 1);
    (void)state;
    first.u.run.o_memory = memory; /* the worker has not mapped it */
    sched_rig_submit(first);
    sched_rig_submit(stage_run(plan, 1, 2));
    stage_sweep(&stage);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    stage_expect(&client, 2, 0);
    CHECK(stage_command(&stage) == NULL);
    stage_memory_mapped(&stage);
    attnd_lane_retry(stage.service.scheduler);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    stage_expect(&client, 1, 0);
}

static void what_waits_behind_a_cancelled_run_goes_at_once(void **state)
{
    uint32_t greedy = greedy_plan(), plan = sched_rig_filled_plan();
    (void)state;
    sched_rig_submit(stage_run(greedy, 0, 1));
    sched_rig_submit(stage_run(greedy, 1, 2));
    sched_rig_submit(stage_run(plan, 2, 3));
    stage_sweep(&stage);
    (void)sched_rig_must_command();
    CHECK(stage_command(&stage) == NULL);
    sched_rig_submit(stage_cancel(2));
    stage_sweep(&stage);
    stage_expect(&client, 2, -ATTND_E_CANCELLED);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
    stage_expect(&client, 3, 0);
}

/* The loop sleeps when a sweep moved nothing; nobody would tell the worker then. */
static void the_end_of_a_liar_is_a_reason_to_sweep_again(void **state)
{
    struct stage_client liar;
    uint32_t greedy = greedy_plan(), plan = sched_rig_filled_plan();
    struct attnd_fault fault = {0};
    const int32_t pages[] = {0, 1};
    (void)state;
    sched_rig_submit(stage_run(greedy, 0, 1));
    stage_sweep(&stage);

    stage_connect(&stage, &liar, 8, 1);
    uint32_t its = stage_plan(&liar);
    CHECK_EQUAL(attnd_lease_give(client.daemon->attachments[0], pages, 2, &fault), 0);
    attnd_lease_take(liar.daemon->attachments[0], pages, 2);
    struct attnd_sqe sqe = stage_batch(&liar, its, 0, 4, 6, 0, 0);
    CHECK_EQUAL(stage_submit(&liar, &sqe), 0);
    stage_sweep(&stage);
    liar.daemon->plans[its - 1]->scratch_bytes = STAGE_SCRATCH_BYTES / 2 + 64;
    sqe = stage_run(its, 0, 2);
    CHECK_EQUAL(stage_submit(&liar, &sqe), 0);
    stage_sweep(&stage);
    sched_rig_submit(stage_run(plan, 1, 3));
    stage_sweep(&stage);

    struct attnd_submit_head *head = liar.daemon->submission.address;
    attnd_publish32(&head->sq_tail, 1000);
    CHECK(stage_sweep(&stage) > 0);
    CHECK_EQUAL(stage_sweep(&stage), 0);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_retire(&stage, sched_rig_must_command(), 0);
    stage_sweep(&stage);
}

/* ---- workers ---- */

static void a_worker_that_is_ready_twice_is_killed(void **state)
{
    struct attnd_supervisor *supervisor = stage.service.supervisor;
    const struct attnd_worker_message ready = {.kind = ATTND_WORKER_READY};
    uint32_t greedy = greedy_plan();
    int pair[2], status;
    (void)state;
    sched_rig_submit(stage_run(greedy, 0, 1));
    stage_sweep(&stage);
    const struct attnd_run *run = sched_rig_must_command();

    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        (void)pause();
        _exit(0);
    }
    supervisor->process.control = pair[0];
    supervisor->process.pid = pid;
    supervisor->state = ATTND_WORKER_UP;
    stage.service.queue->head->info = stage.service.queue->info;
    CHECK_EQUAL(attnd_fdpass_send(pair[1], &ready, sizeof(ready), NULL, 0), 0);
    CHECK_EQUAL(attnd_messages_receive(supervisor), 1);
    CHECK(supervisor->condemned);
    CHECK_EQUAL(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    stage_retire(&stage, run, 0); /* its scratch is what it was */
    stage_sweep(&stage);
    stage_expect(&client, 1, 0);
    supervisor->state = ATTND_WORKER_DOWN;
    supervisor->process.pid = 0;
    supervisor->process.control = -1;
    close(pair[0]);
    close(pair[1]);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, sched_rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(memory_that_a_queued_run_names_is_not_released),
        CASE(a_handle_that_comes_later_is_not_what_a_queued_run_meant),
        CASE(a_cancel_needs_no_room_for_a_completion),
        CASE(a_call_comes_after_all_that_was_submitted_before_it),
        CASE(a_full_completion_ring_does_not_hold_a_call_up),
        CASE(a_run_that_waits_for_a_mapping_holds_nobody_up),
        CASE(what_waits_behind_a_cancelled_run_goes_at_once),
        CASE(the_end_of_a_liar_is_a_reason_to_sweep_again),
        CASE(a_worker_that_is_ready_twice_is_killed),
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
