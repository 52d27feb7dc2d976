/* test_client_wait.c - collecting completions, sleeping, being woken, and never hanging. */
#include "client/attnd.h"
#include "schemas/atomics.h"
#include "tests/support/harness/check.h"
#include "tests/support/harness/fake_daemon.h"
#include "tests/support/harness/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <poll.h>
#include <unistd.h>

#define MILLISECOND_NS UINT64_C(1000000)

static struct attnd_cqe cqe_of(uint64_t user_data)
{
    return (struct attnd_cqe){.user_data = user_data, .opcode = ATTND_OP_RUN};
}

static int readable(int fd, int timeout_ms)
{
    struct pollfd wanted = {.fd = fd, .events = POLLIN};
    return poll(&wanted, 1, timeout_ms) == 1;
}

/* Does something to the fake once the client has announced that it sleeps. */
struct later {
    struct fake_daemon *fake;
    void (*act)(struct fake_daemon *fake);
    uint64_t acted_ns;
    pthread_t thread;
};

static void *act_later(void *context)
{
    struct later *later = context;
    while (!attnd_peek32(&later->fake->submit->cq_need))
        usleep(100);
    harness_await_asleep(getpid()); /* in ppoll: the test waits in its first thread */
    later->acted_ns = attnd_clock_ns();
    later->act(later->fake);
    return NULL;
}

static void later_start(struct later *later)
{
    CHECK_EQUAL(pthread_create(&later->thread, NULL, act_later, later), 0);
}

static void post_five(struct fake_daemon *fake)
{
    struct attnd_cqe cqe = cqe_of(5);
    CHECK_EQUAL(fake_post(fake, &cqe), 1);
}

static void post_then_die(struct fake_daemon *fake)
{
    struct attnd_cqe cqe = cqe_of(6);
    CHECK_EQUAL(attnd_producer_push(&fake->cq, &cqe), 0); /* no wake-up: it was killed here */
    fake_die(fake);
}

static void completions_come_whole_and_in_order(void **state)
{
    (void)state;
    struct fake_daemon fake = {.ring_entries = 8};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_completion done[4];
    const struct attnd_cqe failed = {.user_data = 9,
                                     .code = -ATTND_E_RANGE,
                                     .opcode = ATTND_OP_PLAN_SET,
                                     .lane = 3,
                                     .field = ATTND_F_KV_INDICES,
                                     .index = 7,
                                     .value = -2,
                                     .limit = 4,
                                     .begin_ns = 100,
                                     .end_ns = 200};
    struct attnd_cqe cqe = cqe_of(8);
    fake_post(&fake, &cqe);
    fake_post(&fake, &failed);
    CHECK_EQUAL(attnd_wait(session, done, 4, ATTND_FOREVER), 2);
    CHECK_EQUAL(done[0].user_data, 8);
    CHECK_EQUAL(done[0].fault.code, 0);
    CHECK_EQUAL(done[0].operation, ATTND_RUN);
    CHECK_EQUAL(done[1].user_data, 9);
    CHECK_EQUAL(done[1].fault.code, -ATTND_E_RANGE);
    CHECK_EQUAL(done[1].fault.field, ATTND_F_KV_INDICES);
    CHECK_EQUAL(done[1].fault.index, 7);
    CHECK_EQUAL(done[1].fault.value, -2);
    CHECK_EQUAL(done[1].fault.limit, 4);
    CHECK_EQUAL(done[1].operation, ATTND_PLAN_SET);
    CHECK_EQUAL(done[1].lane, 3);
    CHECK_EQUAL(done[1].begin_ns, 100);
    CHECK_EQUAL(done[1].end_ns, 200);
    attnd_close(session);
    fake_stop(&fake);
}

/* It leaves submissions in the ring while there is no room for their completions. */
static void room_for_completions_wakes_a_daemon_that_left_submissions(void **state)
{
    (void)state;
    struct fake_daemon fake = {.ring_entries = 8, .eventfd_doorbell = 1};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_completion done[4];
    struct attnd_cqe cqe = cqe_of(1);
    struct attnd_sqe sqe;
    CHECK_EQUAL(attnd_cancel(session, 7), 0);
    attnd_poke32(&fake.complete->sq_need, 1); /* asleep, and the slot is still there */
    fake_post(&fake, &cqe);
    CHECK_EQUAL(attnd_wait(session, done, 4, 0), 1);
    CHECK(readable(fake.doorbell, 0));
    attnd_doorbell_drain(fake.doorbell);
    CHECK_EQUAL(fake_take(&fake, &sqe), 1);
    fake_post(&fake, &cqe);
    CHECK_EQUAL(attnd_wait(session, done, 4, 0), 1);
    CHECK(!readable(fake.doorbell, 0)); /* nothing to do for it */
    attnd_close(session);
    fake_stop(&fake);
}

static void what_does_not_fit_waits_for_the_next_call(void **state)
{
    (void)state;
    struct fake_daemon fake = {.ring_entries = 8};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_completion done[5];
    uint64_t expected = 0;
    for (uint64_t posted = 0; posted < 40; posted += 8) {
        for (uint64_t i = 0; i < 8; i++) {
            struct attnd_cqe cqe = cqe_of(posted + i);
            fake_post(&fake, &cqe);
        }
        int got = 0;
        for (int left = 8; left > 0; left -= got) {
            got = attnd_wait(session, done, 5, 0);
            CHECK_EQUAL(got, left > 5 ? 5 : left);
            for (int i = 0; i < got; i++)
                CHECK_EQUAL(done[i].user_data, expected++);
        }
    }
    CHECK_EQUAL(attnd_wait(session, done, 5, 0), 0);
    attnd_close(session);
    fake_stop(&fake);
}

static void a_wait_ends_when_its_time_is_over_and_not_before(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_completion done;
    static const uint64_t timeouts_ns[] = {0, 1, 5000, 100000, 30 * MILLISECOND_NS};
    for (size_t i = 0; i < sizeof(timeouts_ns) / sizeof(timeouts_ns[0]); i++) {
        uint64_t begin_ns = attnd_clock_ns();
        CHECK_EQUAL(attnd_wait(session, &done, 1, timeouts_ns[i]), 0);
        uint64_t took_ns = attnd_clock_ns() - begin_ns;
        CHECK(took_ns >= timeouts_ns[i]);
        CHECK(took_ns < timeouts_ns[i] + 500 * MILLISECOND_NS);
        CHECK_EQUAL(attnd_peek32(&fake.submit->cq_need), 0); /* awake: the daemon need not write */
    }
    attnd_close(session);
    fake_stop(&fake);
}

static void nothing_to_put_completions_in_is_refused(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_completion done;
    CHECK_ERROR(attnd_wait(session, &done, 0, 0), ATTND_E_INVALID);
    CHECK_ERROR(attnd_wait(session, NULL, 1, 0), ATTND_E_INVALID);
    struct attnd_fault fault;
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_COMPLETIONS);
    CHECK_EQUAL(fault.limit, 0); /* which reads "is missing" */
    attnd_close(session);
    fake_stop(&fake);
}

static void a_sleeping_wait_is_woken_by_a_completion(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_completion done;
    for (int round = 0; round < 20; round++) {
        struct later later = {.fake = &fake, .act = post_five};
        later_start(&later);
        CHECK_EQUAL(attnd_wait(session, &done, 1, ATTND_FOREVER), 1);
        pthread_join(later.thread, NULL);
        CHECK_EQUAL(done.user_data, 5);
        CHECK(attnd_clock_ns() - later.acted_ns < 500 * MILLISECOND_NS);
    }
    attnd_close(session);
    fake_stop(&fake);
}

static void a_daemon_that_dies_ends_a_sleeping_wait_within_100_ms(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    struct later later = {.fake = &fake, .act = fake_die};
    struct attnd_completion done;
    later_start(&later);
    CHECK_ERROR(attnd_wait(session, &done, 1, ATTND_FOREVER), ATTND_E_DISCONNECTED);
    uint64_t now_ns = attnd_clock_ns();
    pthread_join(later.thread, NULL);
    CHECK(now_ns - later.acted_ns < 100 * MILLISECOND_NS);
    CHECK_ERROR(attnd_wait(session, &done, 1, ATTND_FOREVER), ATTND_E_DISCONNECTED);
    CHECK_ERROR(attnd_cancel(session, 1), ATTND_E_DISCONNECTED);
    attnd_close(session);
    fake_stop(&fake);
}

static void what_a_daemon_posted_before_it_died_is_returned_first(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    struct later later = {.fake = &fake, .act = post_then_die};
    struct attnd_completion done;
    later_start(&later);
    CHECK_EQUAL(attnd_wait(session, &done, 1, ATTND_FOREVER), 1);
    CHECK_EQUAL(done.user_data, 6);
    pthread_join(later.thread, NULL);
    CHECK_ERROR(attnd_wait(session, &done, 1, ATTND_FOREVER), ATTND_E_DISCONNECTED);
    attnd_close(session);
    fake_stop(&fake);
}

static void an_engine_that_only_polls_learns_of_the_death_too(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_completion done;
    CHECK_EQUAL(attnd_wait(session, &done, 1, 0), 0);
    fake_die(&fake);
    uint64_t begin_ns = attnd_clock_ns();
    int rc = 0;
    while (rc == 0 && attnd_clock_ns() - begin_ns < 1000 * MILLISECOND_NS)
        rc = attnd_wait(session, &done, 1, 0);
    CHECK_EQUAL(rc, -ATTND_E_DISCONNECTED);
    CHECK(attnd_clock_ns() - begin_ns < 100 * MILLISECOND_NS);
    attnd_close(session);
    fake_stop(&fake);
}

static void the_fd_is_readable_once_armed_and_posted(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_completion done;
    int fd = attnd_fd(session);
    CHECK(fd >= 0);
    for (uint64_t round = 0; round < 3; round++) {
        struct attnd_cqe cqe = cqe_of(round);
        CHECK_EQUAL(attnd_arm(session), 0);
        CHECK(!readable(fd, 0));
        CHECK_EQUAL(fake_post(&fake, &cqe), 1);
        CHECK(readable(fd, 1000));
        CHECK_EQUAL(attnd_arm(session), 1); /* there already: do not sleep */
        CHECK_EQUAL(attnd_wait(session, &done, 1, 0), 1);
        CHECK_EQUAL(done.user_data, round);
        CHECK(!readable(fd, 0));                /* drained: a loop on the fd does not spin */
        CHECK_EQUAL(fake_post(&fake, &cqe), 0); /* disarmed: no system call for the daemon */
        CHECK_EQUAL(attnd_wait(session, &done, 1, 0), 1);
    }
    attnd_close(session);
    fake_stop(&fake);
}

static void the_fd_is_readable_when_the_daemon_is_gone(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_completion done;
    CHECK_EQUAL(attnd_arm(session), 0);
    fake_die(&fake);
    CHECK(readable(attnd_fd(session), 1000));
    CHECK_ERROR(attnd_wait(session, &done, 1, 0), ATTND_E_DISCONNECTED);
    CHECK_ERROR(attnd_arm(session), ATTND_E_DISCONNECTED);
    attnd_close(session);
    fake_stop(&fake);
}

static void a_completion_tail_that_cannot_be_is_a_protocol_error(void **state)
{
    (void)state;
    struct fake_daemon fake = {.ring_entries = 8};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_completion done;
    attnd_publish32(&fake.complete->cq_tail, 9);
    CHECK_ERROR(attnd_wait(session, &done, 1, ATTND_FOREVER), ATTND_E_PROTOCOL);
    attnd_close(session);
    fake_stop(&fake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completions_come_whole_and_in_order),
        cmocka_unit_test(room_for_completions_wakes_a_daemon_that_left_submissions),
        cmocka_unit_test(what_does_not_fit_waits_for_the_next_call),
        cmocka_unit_test(a_wait_ends_when_its_time_is_over_and_not_before),
        cmocka_unit_test(nothing_to_put_completions_in_is_refused),
        cmocka_unit_test(a_sleeping_wait_is_woken_by_a_completion),
        cmocka_unit_test(a_daemon_that_dies_ends_a_sleeping_wait_within_100_ms),
        cmocka_unit_test(what_a_daemon_posted_before_it_died_is_returned_first),
        cmocka_unit_test(an_engine_that_only_polls_learns_of_the_death_too),
        cmocka_unit_test(the_fd_is_readable_once_armed_and_posted),
        cmocka_unit_test(the_fd_is_readable_when_the_daemon_is_gone),
        cmocka_unit_test(a_completion_tail_that_cannot_be_is_a_protocol_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
