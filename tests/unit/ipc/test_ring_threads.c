/*
 * test_ring_threads.c - both ends of two rings in one process and one mapping, so that TSan sees
 * every edge; and the lost wake-up, looked for by a deadline.
 *
 * One thread asks in bursts and sleeps for the answers, the other echoes and sleeps in between.
 * Both waste a random moment before each step, so that publishing and falling asleep meet in every
 * order. A wake-up that is lost leaves both asleep: the deadline is far beyond any scheduling
 * delay.
 */
#include "ipc/ring.h"
#include "ipc/wake.h"
#include "schemas/atomics.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#define ENTRIES 16u
#define LOST_NS 20000000000u
#define BURSTS 30000

/* One direction; every shared word in its own line, as in abi.h. */
struct direction {
    _Alignas(64) uint64_t slots[ENTRIES][8];
    _Alignas(64) uint32_t tail;
    _Alignas(64) uint32_t head;
    _Alignas(64) uint32_t need;
    _Alignas(64) struct attnd_producer producer;
    _Alignas(64) struct attnd_consumer consumer;
    struct attnd_doorbell doorbell;
};

struct end {
    struct direction *out, *in;
    struct prng prng;
    uint64_t sleeps, lost, wrong;
};

static uint64_t seed;
static struct direction ask, answer;

static void open_direction(struct direction *direction)
{
    memset(direction, 0, sizeof(*direction));
    attnd_producer_init(&direction->producer, direction->slots, &direction->tail, &direction->head,
                        ENTRIES);
    attnd_consumer_init(&direction->consumer, direction->slots, &direction->tail, &direction->head,
                        ENTRIES);
    direction->doorbell =
        (struct attnd_doorbell){.word = &direction->tail, .need = &direction->need, .fd = -1};
}

static void waste_a_moment(struct prng *prng)
{
    for (uint32_t i = prng_below(prng, 1u << prng_below(prng, 10)); i > 0; i--)
        attnd_relax();
}

static int sleep_in_poll(struct direction *in)
{
    struct pollfd knock = {.fd = in->doorbell.fd, .events = POLLIN};
    int rc = 1;
    attnd_wake_announce(&in->need);
    if (attnd_consumer_empty(&in->consumer))
        rc = poll(&knock, 1, (int)(LOST_NS / 1000000));
    attnd_wake_withdraw(&in->need);
    attnd_doorbell_drain(in->doorbell.fd);
    return rc > 0;
}

/* Returns 0 when the wake-up was lost. */
static int wait_for_slot(struct end *end)
{
    struct attnd_consumer *ring = &end->in->consumer;
    if (!attnd_consumer_empty(ring))
        return 1;
    if (prng_percent(&end->prng, 30) && attnd_wake_spin(ring->tail, ring->index, 2000))
        return 1;
    end->sleeps++;
    if (end->in->doorbell.fd >= 0) {
        while (attnd_consumer_empty(ring))
            if (!sleep_in_poll(end->in))
                return 0;
        return 1;
    }
    /* A side that slept through its wake-up sees the slot at the deadline, but late. */
    uint64_t begin_ns = attnd_clock_ns();
    return attnd_wake_wait(&end->in->tail, ring->index, &end->in->need, LOST_NS) &&
           attnd_clock_ns() - begin_ns < LOST_NS;
}

static int send(struct end *end, uint64_t number)
{
    uint64_t slot[8];
    for (int i = 0; i < 8; i++)
        slot[i] = number + (uint64_t)i;
    int rc = attnd_producer_push(&end->out->producer, slot);
    if (rc == 0)
        attnd_doorbell_ring(&end->out->doorbell);
    return rc;
}

/* Returns the number received, or UINT64_MAX for a lost wake-up or a torn slot. */
static uint64_t receive(struct end *end)
{
    uint64_t slot[8];
    if (!wait_for_slot(end)) {
        end->lost++;
        return UINT64_MAX;
    }
    if (attnd_consumer_pop(&end->in->consumer, slot) != 1)
        return UINT64_MAX;
    for (int i = 0; i < 8; i++)
        if (slot[i] != slot[0] + (uint64_t)i)
            return UINT64_MAX;
    return slot[0];
}

static void *echo(void *argument)
{
    struct end *end = argument;
    for (;;) {
        waste_a_moment(&end->prng);
        uint64_t number = receive(end);
        if (number == UINT64_MAX)
            end->wrong++;
        if (number == UINT64_MAX || number == 0)
            return NULL;
        if (send(end, number) < 0)
            end->wrong++;
    }
}

static void converse(uint64_t stream)
{
    struct end asker = {.out = &ask, .in = &answer, .prng = prng_fork(seed, stream)};
    struct end echoer = {.out = &answer, .in = &ask, .prng = prng_fork(seed, stream + 1)};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, echo, &echoer), 0);

    uint64_t sent = 0, received = 0;
    for (int burst = 0; burst < BURSTS && !asker.wrong; burst++) {
        for (uint32_t i = 1 + prng_below(&asker.prng, ENTRIES / 2); i > 0; i--) {
            asker.wrong += send(&asker, ++sent) != 0;
            waste_a_moment(&asker.prng);
        }
        while (received < sent && !asker.wrong)
            asker.wrong += receive(&asker) != ++received;
    }
    assert_int_equal(send(&asker, 0), 0); /* the end */
    pthread_join(thread, NULL);
    assert_int_equal(asker.lost + echoer.lost, 0);
    assert_int_equal(asker.wrong + echoer.wrong, 0);
    print_message("%llu slots each way, asleep %llu and %llu times\n", (unsigned long long)sent,
                  (unsigned long long)asker.sleeps, (unsigned long long)echoer.sleeps);
    assert_true(asker.sleeps > 0 && echoer.sleeps > 0);
}

static void no_slot_is_torn_and_no_wake_up_is_lost(void **state)
{
    (void)state;
    open_direction(&ask);
    open_direction(&answer);
    converse(1);
}

/* As a client sleeps: no futex compares the word for it, so all depends on F1 and F2. */
static void a_sleeper_in_poll_misses_no_wake_up(void **state)
{
    (void)state;
    open_direction(&ask);
    open_direction(&answer);
    ask.doorbell.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    answer.doorbell.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    converse(5);
    close(ask.doorbell.fd);
    close(answer.doorbell.fd);
}

static void *collect(void *argument)
{
    struct end *end = argument;
    uint64_t expected = 1, number;
    while ((number = receive(end)) != 0) {
        if (number == UINT64_MAX || number != expected++) {
            end->wrong++;
            return NULL;
        }
    }
    return NULL;
}

/* One way only: nothing but the ring's head tells the producer that a slot may be written again. */
static void a_slot_is_not_reused_before_it_was_copied(void **state)
{
    (void)state;
    open_direction(&ask);
    struct end producer = {.out = &ask, .prng = prng_fork(seed, 3)};
    struct end consumer = {.in = &ask, .prng = prng_fork(seed, 4)};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, collect, &consumer), 0);

    uint64_t full = 0;
    const uint64_t total = 10 * (uint64_t)BURSTS;
    uint64_t deadline_ns = attnd_clock_ns() + LOST_NS;
    for (uint64_t number = 1; number <= total + 1;) {
        int rc = send(&producer, number <= total ? number : 0);
        if (rc == 0) {
            number++;
            continue;
        }
        assert_int_equal(rc, -ATTND_E_FULL);
        assert_true(attnd_clock_ns() < deadline_ns);
        full++;
        sched_yield();
    }
    pthread_join(thread, NULL);
    assert_int_equal(consumer.wrong, 0);
    assert_true(full > 0);
}

static void no_system_call_is_made_for_a_peer_that_is_awake(void **state)
{
    (void)state;
    open_direction(&ask);
    assert_int_equal(attnd_doorbell_ring(&ask.doorbell), 0);
    attnd_wake_announce(&ask.need);
    assert_int_equal(attnd_doorbell_ring(&ask.doorbell), 1);
    attnd_wake_withdraw(&ask.need);
    assert_int_equal(attnd_doorbell_ring(&ask.doorbell), 0);
}

static void a_doorbell_with_an_eventfd_writes_it(void **state)
{
    (void)state;
    open_direction(&ask);
    ask.doorbell.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    uint64_t rings = 0;
    assert_int_equal(attnd_doorbell_ring(&ask.doorbell), 0);
    assert_int_equal(read(ask.doorbell.fd, &rings, sizeof(rings)), -1);
    attnd_wake_announce(&ask.need);
    assert_int_equal(attnd_doorbell_ring(&ask.doorbell), 1);
    assert_int_equal(attnd_doorbell_ring(&ask.doorbell), 1);
    assert_int_equal(read(ask.doorbell.fd, &rings, sizeof(rings)), sizeof(rings));
    assert_int_equal(rings, 2);
    /* at its limit it neither blocks nor fails */
    rings = UINT64_MAX - 1;
    assert_int_equal(write(ask.doorbell.fd, &rings, sizeof(rings)), sizeof(rings));
    assert_int_equal(attnd_doorbell_ring(&ask.doorbell), 1);
    close(ask.doorbell.fd);
}

/* The peer holds the same eventfd, takes the knocks, and makes it blocking. */
static void draining_never_blocks(void **state)
{
    (void)state;
    int pipes[2];
    assert_int_equal(pipe2(pipes, O_NONBLOCK | O_CLOEXEC), 0);
    const int sleepers[] = {eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), pipes[0]};
    const int ringers[] = {sleepers[0], pipes[1]};
    alarm(10);
    for (int i = 0; i < 2; i++) {
        open_direction(&ask);
        ask.doorbell.fd = ringers[i];
        assert_int_equal(fcntl(sleepers[i], F_SETFL, 0), 0);
        attnd_wake_announce(&ask.need);
        for (int knocks = 0; knocks < 5; knocks++)
            assert_int_equal(attnd_doorbell_ring(&ask.doorbell), 1);
        struct pollfd pending = {.fd = sleepers[i], .events = POLLIN};
        assert_int_equal(poll(&pending, 1, 0), 1);
        attnd_doorbell_drain(sleepers[i]);
        assert_int_equal(poll(&pending, 1, 0), 0);
        attnd_doorbell_drain(sleepers[i]);
    }
    alarm(0);
    close(sleepers[0]);
    close(pipes[0]);
    close(pipes[1]);
}

/* A pipe's read end cannot make its write end blocking. */
static void a_full_pipe_is_rung_without_blocking(void **state)
{
    (void)state;
    int pipes[2];
    assert_int_equal(pipe2(pipes, O_NONBLOCK | O_CLOEXEC), 0);
    open_direction(&ask);
    ask.doorbell.fd = pipes[1];
    assert_int_equal(fcntl(pipes[0], F_SETFL, 0), 0);
    attnd_wake_announce(&ask.need);
    alarm(10);
    for (int knocks = 0; knocks < 20000; knocks++)
        assert_int_equal(attnd_doorbell_ring(&ask.doorbell), 1);
    alarm(0);
    close(pipes[0]);
    close(pipes[1]);
}

static void a_wait_ends_at_its_deadline_and_not_before(void **state)
{
    (void)state;
    uint32_t word = 7, need = 0;
    assert_int_equal(attnd_wake_wait(&word, 7, &need, 0), 0);
    assert_int_equal(attnd_wake_wait(&word, 6, &need, 0), 1);
    assert_int_equal(attnd_wake_wait(&word, 6, &need, UINT64_MAX), 1);
    uint64_t begin_ns = attnd_clock_ns();
    assert_int_equal(attnd_wake_wait(&word, 7, &need, 20000000), 0);
    uint64_t waited_ns = attnd_clock_ns() - begin_ns;
    assert_true(waited_ns >= 20000000);
    assert_int_equal(need, 0);
    begin_ns = attnd_clock_ns();
    assert_int_equal(attnd_wake_spin(&word, 7, 1000000), 0);
    assert_true(attnd_clock_ns() - begin_ns >= 1000000);
    assert_int_equal(attnd_wake_spin(&word, 6, 0), 1);
    assert_int_equal(attnd_wake_spin(&word, 7, 0), 0);
}

int main(void)
{
    seed = test_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_slot_is_torn_and_no_wake_up_is_lost),
        cmocka_unit_test(a_sleeper_in_poll_misses_no_wake_up),
        cmocka_unit_test(a_slot_is_not_reused_before_it_was_copied),
        cmocka_unit_test(no_system_call_is_made_for_a_peer_that_is_awake),
        cmocka_unit_test(a_doorbell_with_an_eventfd_writes_it),
        cmocka_unit_test(draining_never_blocks),
        cmocka_unit_test(a_full_pipe_is_rung_without_blocking),
        cmocka_unit_test(a_wait_ends_at_its_deadline_and_not_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
