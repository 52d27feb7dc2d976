/*
 * test_loop_wake.c - the loop asleep and woken by other processes, and which loop AUTO chooses.
 *
 * Clients, each a process with its own pair of rings, ask and wait for the echo; everybody sleeps
 * whenever there is nothing to do, after a random moment, so that publishing and falling asleep
 * meet in every order. A lost wake-up leaves a client waiting far beyond any scheduling delay: it
 * gives up with an exit status that the loop sees through the client's pidfd.
 */
#include "ipc/loop.h"
#include "ipc/ring.h"
#include "ipc/shm.h"
#include "ipc/wake.h"
#include "schemas/atomics.h"
#include "schemas/futex.h"
#include "tests/support/oracle/refuse.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MS 1000000u
#define ENTRIES 8u
#define CLIENTS_MAX 3
#define ROUNDS 7000
#define LOST_NS 20000000000u

struct direction {
    uint64_t slots[ENTRIES][8];
    _Alignas(64) uint32_t tail;
    _Alignas(64) uint32_t head;
    _Alignas(64) uint32_t need;
};

struct segment {
    struct direction ask, answer;
};

/* The daemon's side of one client. */
struct client {
    struct attnd_shm shm;
    struct segment *shared;
    pid_t pid;
    int pidfd, doorbell_fd, status;
    struct attnd_consumer asks;
    struct attnd_producer answers;
    struct attnd_doorbell doorbell;
    struct attnd_watch *word_watch, *doorbell_watch, *pidfd_watch;
};

static enum attnd_loop_kind kind;
static int futex_doorbells; /* doorbells are futex words, not eventfds */
static uint64_t seed;
static struct attnd_loop *loop;
static struct client clients[CLIENTS_MAX];
static int client_count, running;
static uint64_t sleeps, echoes, protocol_errors;

/* ---- a client process ---- */

static void waste_a_moment(struct prng *prng)
{
    for (uint32_t i = prng_below(prng, 1u << prng_below(prng, 10)); i > 0; i--)
        attnd_relax();
}

static void ask_and_wait(struct segment *shared, int doorbell_fd, struct prng prng)
{
    struct attnd_producer asks;
    struct attnd_consumer answers;
    struct direction *out = &shared->ask, *in = &shared->answer;
    const struct attnd_doorbell doorbell = {
        .word = &out->tail, .need = &out->need, .fd = doorbell_fd};
    attnd_producer_init(&asks, out->slots, &out->tail, &out->head, ENTRIES);
    attnd_consumer_init(&answers, in->slots, &in->tail, &in->head, ENTRIES);

    for (uint64_t round = 1; round <= ROUNDS; round++) {
        uint64_t slot[8] = {round};
        waste_a_moment(&prng);
        if (attnd_producer_push(&asks, slot) < 0)
            _exit(2);
        attnd_doorbell_ring(&doorbell);
        waste_a_moment(&prng);
        if (!attnd_wake_wait(&in->tail, answers.index, &in->need, LOST_NS))
            _exit(3);
        if (attnd_consumer_pop(&answers, slot) != 1 || slot[0] != round)
            _exit(4);
    }
    _exit(0);
}

/* ---- the daemon ---- */

static int sweep_echo(void *context)
{
    int moved = 0;
    (void)context;
    for (int i = 0; i < client_count; i++) {
        uint64_t slot[8];
        int rc;
        while ((rc = attnd_consumer_pop(&clients[i].asks, slot)) > 0) {
            protocol_errors += attnd_producer_push(&clients[i].answers, slot) < 0;
            attnd_doorbell_ring(&clients[i].doorbell);
            moved++;
        }
        protocol_errors += rc < 0;
    }
    echoes += (uint64_t)moved;
    return moved;
}

static void asleep_echo(void *context, int asleep)
{
    (void)context;
    for (int i = 0; i < client_count; i++)
        attnd_poke32(&clients[i].shared->ask.need, (uint32_t)asleep);
    sleeps += asleep != 0;
}

static void on_doorbell(void *context, uint32_t events)
{
    const struct client *client = context;
    assert_int_equal(events, POLLIN);
    attnd_doorbell_drain(client->doorbell_fd);
}

static void on_exit_of_client(void *context, uint32_t events)
{
    struct client *client = context;
    (void)events;
    attnd_loop_unwatch(loop, client->pidfd_watch, NULL, NULL);
    assert_int_equal(waitpid(client->pid, &client->status, 0), client->pid);
    if (--running == 0)
        attnd_loop_stop(loop);
}

static void start_client(struct client *client, uint64_t number)
{
    struct attnd_fault fault = {0};
    *client = (struct client){.doorbell_fd = -1, .status = -1};
    assert_int_equal(attnd_shm_create("attnd-test", sizeof(struct segment), &client->shm, &fault),
                     0);
    client->shared = client->shm.address;
    struct direction *ask = &client->shared->ask, *answer = &client->shared->answer;
    attnd_consumer_init(&client->asks, ask->slots, &ask->tail, &ask->head, ENTRIES);
    attnd_producer_init(&client->answers, answer->slots, &answer->tail, &answer->head, ENTRIES);
    client->doorbell =
        (struct attnd_doorbell){.word = &answer->tail, .need = &answer->need, .fd = -1};
    if (!futex_doorbells)
        client->doorbell_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    client->pid = fork();
    assert_true(client->pid >= 0);
    if (client->pid == 0)
        ask_and_wait(client->shared, client->doorbell_fd, prng_fork(seed, number));
    client->pidfd = (int)syscall(SYS_pidfd_open, client->pid, 0);
    assert_true(client->pidfd >= 0);
}

static void watch_client(struct client *client)
{
    client->pidfd_watch =
        attnd_loop_watch_fd(loop, client->pidfd, POLLIN, on_exit_of_client, client);
    assert_non_null(client->pidfd_watch);
    if (futex_doorbells)
        client->word_watch = attnd_loop_watch_word(loop, &client->shared->ask.tail);
    else
        client->doorbell_watch =
            attnd_loop_watch_fd(loop, client->doorbell_fd, POLLIN, on_doorbell, client);
    assert_true(client->word_watch || client->doorbell_watch);
}

static void expect_every_echo(int count, uint64_t spin_ns, uint64_t stream)
{
    const struct attnd_loop_hooks hooks = {.sweep = sweep_echo, .asleep = asleep_echo};
    struct attnd_fault fault = {0};
    sleeps = echoes = protocol_errors = 0;
    client_count = running = count;
    alarm(50);
    for (int i = 0; i < count; i++)
        start_client(&clients[i], stream + (uint64_t)i);
    assert_int_equal(attnd_loop_new(kind, spin_ns, &hooks, &loop, &fault), 0);
    for (int i = 0; i < client_count; i++)
        watch_client(&clients[i]);
    assert_int_equal(attnd_loop_run(loop, &fault), 0);
    attnd_loop_free(loop);
    alarm(0);

    print_message("%llu echoes, asleep %llu times\n", (unsigned long long)echoes,
                  (unsigned long long)sleeps);
    for (int i = 0; i < client_count; i++) {
        assert_int_equal(clients[i].status, 0);
        close(clients[i].pidfd);
        if (clients[i].doorbell_fd >= 0)
            close(clients[i].doorbell_fd);
        attnd_shm_unmap(&clients[i].shm);
    }
    assert_int_equal(protocol_errors, 0);
    assert_int_equal(echoes, (uint64_t)count * ROUNDS);
    assert_true(sleeps > 0);
}

static void no_wake_up_is_lost_when_it_sleeps_at_once(void **state)
{
    (void)state;
    expect_every_echo(CLIENTS_MAX, 0, 10);
}

/* Alone, so that no other client's doorbell repairs what was lost. */
static void one_client_alone_loses_no_wake_up(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 3; i++)
        expect_every_echo(1, 0, 20 + i);
}

static void no_wake_up_is_lost_when_it_spins_a_little(void **state)
{
    (void)state;
    expect_every_echo(CLIENTS_MAX, 3000, 30);
}

/* ---- one word ---- */

static uint32_t word;
static uint64_t sweeps;

static int sweep_nothing(void *context)
{
    (void)context;
    sweeps++;
    return 0;
}

static void asleep_nothing(void *context, int asleep)
{
    (void)context;
    sleeps += asleep != 0;
}

static int open_loop(void **state)
{
    const struct attnd_loop_hooks hooks = {.sweep = sweep_nothing, .asleep = asleep_nothing};
    struct attnd_fault fault = {0};
    (void)state;
    word = 0;
    sweeps = sleeps = 0;
    alarm(30);
    return attnd_loop_new(kind, 0, &hooks, &loop, &fault);
}

static int close_loop(void **state)
{
    (void)state;
    attnd_loop_free(loop);
    alarm(0);
    return 0;
}

static void stop(void *context)
{
    (void)context;
    attnd_loop_stop(loop);
}

static void run_for_ms(uint64_t ms)
{
    struct attnd_fault fault = {0};
    assert_non_null(attnd_loop_watch_timer(loop, attnd_clock_ns() + ms * MS, stop, NULL));
    assert_int_equal(attnd_loop_run(loop, &fault), 0);
}

static void change_the_word(void *context)
{
    (void)context;
    attnd_publish32(&word, word + 1);
    attnd_futex_wake(&word, 1);
}

/* Backpressure: sweep saw the submission and left it where it is. */
static void a_value_that_sweep_leaves_lets_the_loop_sleep(void **state)
{
    (void)state;
    if (!attnd_loop_has_futex(loop)) {
        assert_null(attnd_loop_watch_word(loop, &word));
        return;
    }
    assert_non_null(attnd_loop_watch_word(loop, &word));
    word = 5;
    attnd_loop_watch_timer(loop, attnd_clock_ns() + 10 * MS, change_the_word, NULL);
    attnd_loop_watch_timer(loop, attnd_clock_ns() + 20 * MS, change_the_word, NULL);
    run_for_ms(50);
    assert_true(sleeps < 20); /* each ended by a change or a timer */
    assert_true(sweeps < 200);
}

static void control_done(void *context)
{
    *(int *)context += 1;
    attnd_loop_stop(loop);
}

static void a_word_may_be_unmapped_when_done_is_called(void **state)
{
    (void)state;
    struct attnd_shm shm;
    struct attnd_fault fault = {0};
    int done = 0;
    if (!attnd_loop_has_futex(loop))
        return;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(attnd_shm_create("attnd-test", 4096, &shm, &fault), 0);
        struct attnd_watch *watch = attnd_loop_watch_word(loop, shm.address);
        run_for_ms(i % 2 == 1); /* armed or not */
        attnd_loop_unwatch(loop, watch, control_done, &done);
        while (done == i)
            assert_int_equal(attnd_loop_run(loop, &fault), 0);
        assert_int_equal(done, i + 1);
        attnd_shm_unmap(&shm);
    }
}

/* ---- the choice ---- */

static int choice_where_it_is_refused(void)
{
    const struct attnd_loop_hooks hooks = {.sweep = sweep_nothing, .asleep = asleep_nothing};
    struct attnd_fault fault = {0};
    if (!refuse_io_uring())
        return 2;
    if (attnd_loop_new(ATTND_LOOP_IO_URING, 0, &hooks, &loop, &fault) != -ATTND_E_UNSUPPORTED ||
        fault.value != 1)
        return 3;
    if (attnd_loop_new(ATTND_LOOP_AUTO, 0, &hooks, &loop, &fault) != 0)
        return 4;
    if (strcmp(attnd_loop_name(loop), "epoll") != 0 || attnd_loop_has_futex(loop))
        return 5;
    if (!strstr(attnd_loop_reason(loop), "Operation not permitted"))
        return 6;
    attnd_loop_watch_timer(loop, attnd_clock_ns() + MS, stop, NULL);
    if (attnd_loop_run(loop, &fault) != 0)
        return 7;
    attnd_loop_free(loop);
    return 0;
}

static void auto_falls_back_where_io_uring_is_refused(void **state)
{
    int status;
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(choice_where_it_is_refused());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void a_loop_asked_for_by_name_gives_no_reason(void **state)
{
    (void)state;
    assert_string_equal(attnd_loop_name(loop), kind == ATTND_LOOP_EPOLL ? "epoll" : "io_uring");
    assert_string_equal(attnd_loop_reason(loop), "");
}

#define CLAIM(name) cmocka_unit_test_setup_teardown(name, open_loop, close_loop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_wake_up_is_lost_when_it_sleeps_at_once),
        cmocka_unit_test(one_client_alone_loses_no_wake_up),
        cmocka_unit_test(no_wake_up_is_lost_when_it_spins_a_little),
        CLAIM(a_value_that_sweep_leaves_lets_the_loop_sleep),
        CLAIM(a_word_may_be_unmapped_when_done_is_called),
        CLAIM(a_loop_asked_for_by_name_gives_no_reason),
    };
    const struct CMUnitTest choice[] = {
        cmocka_unit_test(auto_falls_back_where_io_uring_is_refused),
    };
    seed = test_seed();
    int failed = cmocka_run_group_tests(choice, NULL, NULL);
    kind = ATTND_LOOP_EPOLL;
    failed += cmocka_run_group_tests_name("epoll", tests, NULL, NULL);
    kind = ATTND_LOOP_IO_URING;
    if (open_loop(NULL) < 0) {
        printf("io_uring is refused here: only epoll was tested\n");
        return failed;
    }
    close_loop(NULL);
    failed += cmocka_run_group_tests_name("io_uring, eventfd doorbells", tests, NULL, NULL);
    futex_doorbells = 1;
    return failed + cmocka_run_group_tests_name("io_uring, futex doorbells", tests, NULL, NULL);
}
