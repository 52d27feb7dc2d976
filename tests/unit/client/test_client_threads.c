/* test_client_threads.c - one thread submits, one waits, others call, against a daemon that echoes
 * every submission; then the daemon dies under them. What TSan is to look at. */
#include "client/attnd.h"
#include "schemas/atomics.h"
#include "tests/support/harness/check.h"
#include "tests/support/harness/fake_daemon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <sched.h>

#define MESSAGES 20000u
#define SECOND_NS UINT64_C(1000000000)

struct stage {
    struct fake_daemon fake;
    struct attnd_session *session;
    uint32_t stop;   /* the echo ends */
    uint32_t die_at; /* echoes until the daemon dies; 0: never */
    uint32_t seen;   /* by the waiter */
    uint32_t called; /* by the caller */
    int submit_code; /* how each thread ended */
    int wait_code;
    int call_code;
};

/* The daemon's data plane: every submission comes back. Sleeps as the daemon would. */
static void *echo(void *context)
{
    struct stage *stage = context;
    struct fake_daemon *fake = &stage->fake;
    uint32_t echoed = 0;
    struct attnd_sqe sqe;
    while (!attnd_observe32(&stage->stop)) {
        if (!fake_take(fake, &sqe)) {
            (void)attnd_wake_wait(&fake->submit->sq_tail, fake->sq.index, &fake->complete->sq_need,
                                  20000000);
            continue;
        }
        if (stage->die_at != 0 && echoed == stage->die_at)
            break;
        struct attnd_cqe cqe = {.user_data = sqe.user_data, .opcode = sqe.opcode};
        while (attnd_producer_space(&fake->cq) == 0 && !attnd_observe32(&stage->stop))
            sched_yield();
        fake_post(fake, &cqe);
        echoed++;
    }
    if (stage->die_at != 0)
        fake_die(fake);
    return NULL;
}

static void *submit(void *context)
{
    struct stage *stage = context;
    static const int32_t zeros[2];
    const struct attnd_level level = {1, zeros, zeros, NULL, NULL};
    const struct attnd_batch batch = {
        .size = sizeof(batch), .heads_q = 1, .dtype = ATTND_DTYPE_FP16, .level = &level};
    const struct attnd_run_args run = {.size = sizeof(run)};
    int rc = 0;
    for (uint64_t i = 0; i < MESSAGES && (rc == 0 || rc == -ATTND_E_FULL);) {
        /* Others shall call meanwhile: however late the caller's turn comes, it has one by now. */
        while (i == MESSAGES / 2 && !attnd_observe32(&stage->called))
            sched_yield();
        struct attnd_op op = {.user_data = i};
        rc = i % 8 == 0 ? attnd_plan_set(stage->session, 1, &batch, &op)
                        : attnd_run(stage->session, 1, &run, &op);
        if (rc == -ATTND_E_FULL)
            sched_yield();
        else
            i++;
    }
    stage->submit_code = rc;
    return NULL;
}

static void *wait_for_all(void *context)
{
    struct stage *stage = context;
    struct attnd_completion done[16];
    int got = 1;
    while (stage->seen < MESSAGES && got > 0) {
        got = attnd_wait(stage->session, done, 16, 10 * SECOND_NS);
        for (int i = 0; i < got; i++)
            CHECK_EQUAL(done[i].user_data, stage->seen++);
    }
    stage->wait_code = got > 0 ? 0 : got == 0 ? -ATTND_E_TIMEOUT : got;
    return NULL;
}

static void *call(void *context)
{
    struct stage *stage = context;
    int rc = 0;
    while (rc == 0 && !attnd_observe32(&stage->stop)) {
        uint32_t memory;
        void *address;
        rc = attnd_memory_create(stage->session, 4096, &memory, &address);
        if (rc == 0)
            CHECK(attnd_memory_address(stage->session, memory) == address);
        if (rc == 0)
            rc = attnd_memory_release(stage->session, memory);
        attnd_publish32(&stage->called, stage->called + 1);
    }
    stage->call_code = rc;
    return NULL;
}

static void stage_run(struct stage *stage)
{
    pthread_t echoer, submitter, waiter, caller;
    stage->fake.ring_entries = 64;
    stage->fake.arena_bytes = 16384;
    stage->session = fake_open(&stage->fake);
    CHECK_EQUAL(pthread_create(&echoer, NULL, echo, stage), 0);
    CHECK_EQUAL(pthread_create(&waiter, NULL, wait_for_all, stage), 0);
    CHECK_EQUAL(pthread_create(&caller, NULL, call, stage), 0);
    CHECK_EQUAL(pthread_create(&submitter, NULL, submit, stage), 0);
    pthread_join(submitter, NULL);
    pthread_join(waiter, NULL);
    if (stage->die_at != 0)
        pthread_join(caller, NULL); /* ends by itself */
    attnd_publish32(&stage->stop, 1);
    if (stage->die_at == 0)
        pthread_join(caller, NULL);
    pthread_join(echoer, NULL);
    attnd_close(stage->session);
    fake_stop(&stage->fake);
}

static void every_submission_comes_back_in_order_while_others_call(void **state)
{
    (void)state;
    struct stage stage = {0};
    stage_run(&stage);
    CHECK_EQUAL(stage.submit_code, 0);
    CHECK_EQUAL(stage.wait_code, 0);
    CHECK_EQUAL(stage.call_code, 0);
    CHECK_EQUAL(stage.seen, MESSAGES);
    CHECK(stage.called > 0);
}

static void a_daemon_that_dies_ends_every_thread(void **state)
{
    (void)state;
    struct stage stage = {.die_at = 5000};
    stage_run(&stage);
    CHECK_EQUAL(stage.submit_code, -ATTND_E_DISCONNECTED);
    CHECK_EQUAL(stage.wait_code, -ATTND_E_DISCONNECTED);
    CHECK_EQUAL(stage.call_code, -ATTND_E_DISCONNECTED);
    CHECK_EQUAL(stage.seen, stage.die_at);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_submission_comes_back_in_order_while_others_call),
        cmocka_unit_test(a_daemon_that_dies_ends_every_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
