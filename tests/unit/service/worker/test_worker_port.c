/* test_worker_port.c - commands wake the worker, kicks are never lost, retires wake the daemon. */
#include "schemas/atomics.h"
#include "service/supervise/queue.h"
#include "service/worker/port.h"
#include "tests/support/harness/check.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#define LONG_NS 20000000000u
#define KICKS 20000u

static struct attnd_queue *queue;
static struct attnd_worker_port worker;

static int setup(void **state)
{
    struct attnd_fault fault = {0};
    (void)state;
    CHECK_EQUAL(attnd_queue_new(65536, 0, &queue, &fault), 0);
    CHECK_EQUAL(attnd_worker_port_check(queue->head, queue->segment.size_bytes), 0);
    attnd_worker_port_init(&worker, queue->head, -1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    attnd_queue_free(queue);
    return 0;
}

static void wait_long(void)
{
    worker.port.wait(worker.port.context, LONG_NS);
}

static uint64_t waited_ns(uint64_t timeout_ns)
{
    uint64_t begin_ns = attnd_clock_ns();
    worker.port.wait(worker.port.context, timeout_ns);
    return attnd_clock_ns() - begin_ns;
}

static void a_wait_ends_by_its_timeout(void **state)
{
    (void)state;
    CHECK(waited_ns(2000000) >= 1900000);
}

static void a_kick_without_a_wait_ends_the_next_one_and_no_other(void **state)
{
    (void)state;
    worker.port.kick(worker.port.context);
    CHECK(waited_ns(LONG_NS) < LONG_NS / 2);
    CHECK(waited_ns(2000000) >= 1900000);
}

static void a_change_of_the_park_word_ends_one_wait(void **state)
{
    (void)state;
    attnd_publish32(&queue->head->park, 1);
    CHECK(waited_ns(LONG_NS) < LONG_NS / 2);
    CHECK(waited_ns(2000000) >= 1900000);
    attnd_publish32(&queue->head->park, 0);
    CHECK(waited_ns(LONG_NS) < LONG_NS / 2);
}

static uint32_t rounds;

static void *kick_for_each_round(void *argument)
{
    (void)argument;
    for (uint32_t i = 1; i <= KICKS; i++) {
        /* Or later: the wake-up of the last kick may end a wait that has its own still to come. */
        while (attnd_observe32(&rounds) < i)
            attnd_relax();
        worker.port.kick(worker.port.context);
    }
    return NULL;
}

static void no_kick_is_lost_between_the_look_and_the_sleep(void **state)
{
    pthread_t kicker;
    (void)state;
    worker.spin_ns = 0; /* to the kernel at once */
    attnd_publish32(&rounds, 0);
    assert_int_equal(pthread_create(&kicker, NULL, kick_for_each_round, NULL), 0);
    uint64_t begin_ns = attnd_clock_ns();
    for (uint32_t i = 1; i <= KICKS; i++) {
        attnd_publish32(&rounds, i);
        wait_long();
    }
    assert_int_equal(pthread_join(kicker, NULL), 0);
    CHECK(attnd_clock_ns() - begin_ns < LONG_NS);
}

static void *command_for_each_retire(void *argument)
{
    struct attnd_retire retire;
    (void)argument;
    for (uint32_t i = 0; i < KICKS; i++) {
        const struct attnd_command command = {.kind = ATTND_COMMAND_RUN, .run = i};
        CHECK_EQUAL(attnd_producer_push(&queue->commands, &command), 0);
        attnd_queue_ring(queue);
        while (attnd_consumer_pop(&queue->retires, &retire) == 0)
            (void)attnd_wake_wait(&queue->head->retire_tail, queue->retires.index,
                                  &queue->head->retire_need, LONG_NS);
        CHECK_EQUAL(retire.run, i);
    }
    return NULL;
}

static void commands_and_retires_wake_either_side(void **state)
{
    pthread_t daemon;
    struct attnd_command command;
    (void)state;
    worker.spin_ns = 0;
    assert_int_equal(pthread_create(&daemon, NULL, command_for_each_retire, NULL), 0);
    uint64_t begin_ns = attnd_clock_ns();
    for (uint32_t i = 0; i < KICKS; i++) {
        while (!worker.port.next(worker.port.context, &command))
            wait_long();
        const struct attnd_retire retire = {.run = command.run};
        worker.port.retire(worker.port.context, &retire);
        worker.port.knock(worker.port.context);
    }
    assert_int_equal(pthread_join(daemon, NULL), 0);
    CHECK(attnd_clock_ns() - begin_ns < LONG_NS);
}

static void a_segment_of_another_make_is_refused(void **state)
{
    struct attnd_queue_head head = *queue->head;
    uint64_t bytes = queue->segment.size_bytes;
    (void)state;
    head.version++;
    CHECK_EQUAL(attnd_worker_port_check(&head, bytes), -ATTND_E_VERSION);
    head = *queue->head;
    head.ring_entries = 6;
    CHECK_EQUAL(attnd_worker_port_check(&head, bytes), -ATTND_E_RANGE);
    head = *queue->head;
    head.runs_offset_bytes = UINT64_MAX - 64;
    CHECK_EQUAL(attnd_worker_port_check(&head, bytes), -ATTND_E_RANGE);
    head = *queue->head;
    head.runs = head.runs_transient - 1;
    CHECK_EQUAL(attnd_worker_port_check(&head, bytes), -ATTND_E_RANGE);
    head = *queue->head;
    head.runs_transient = head.ring_entries + 1;
    CHECK_EQUAL(attnd_worker_port_check(&head, bytes), -ATTND_E_RANGE);
    head = *queue->head;
    head.heap_bytes++;
    CHECK_EQUAL(attnd_worker_port_check(&head, bytes), -ATTND_E_RANGE);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_wait_ends_by_its_timeout),
        CASE(a_kick_without_a_wait_ends_the_next_one_and_no_other),
        CASE(a_change_of_the_park_word_ends_one_wait),
        CASE(no_kick_is_lost_between_the_look_and_the_sleep),
        CASE(commands_and_retires_wake_either_side),
        CASE(a_segment_of_another_make_is_refused),
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
