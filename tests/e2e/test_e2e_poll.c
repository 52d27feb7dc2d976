/*
 * test_e2e_poll.c - a session as one descriptor among others in the engine's own event loop.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include "client/internal.h"
#include "schemas/abi.h"
#include "schemas/atomics.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cmocka.h>

#define RUNS 500

/* The loop of an engine: a timer that submits, and the session. Nothing else wakes it. */
struct engine_loop {
    struct engine engine;
    struct trial trial;
    int timer;
    uint32_t submitted, completed, ticks;
};

static int tick_every_ms(void)
{
    const struct itimerspec period = {{0, 1000000}, {0, 1000000}};
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);

    CHECK(timer >= 0);
    CHECK_EQUAL(timerfd_settime(timer, 0, &period, NULL), 0);
    return timer;
}

static void on_tick(struct engine_loop *loop)
{
    uint64_t ticks;

    CHECK_EQUAL(read(loop->timer, &ticks, sizeof(ticks)), sizeof(ticks));
    loop->ticks++;
    for (int burst = 0; burst < 10 && loop->submitted < RUNS; burst++) {
        const struct attnd_op op = {.user_data = loop->submitted};
        int code = trial_submit_as(&loop->trial, 0, &op);
        if (code == -ATTND_E_FULL)
            break; /* the daemon has had no processor: at the next tick */
        CHECK_OK(code);
        loop->submitted++;
    }
}

static void on_completions(struct engine_loop *loop)
{
    struct attnd_completion completions[7];
    int count;

    while ((count = attnd_wait(loop->engine.session, completions, 7, 0)) > 0)
        for (int i = 0; i < count; i++) {
            CHECK_EQUAL(completions[i].fault.code, 0);
            CHECK_EQUAL(completions[i].user_data, loop->completed); /* one lane: in order */
            loop->completed++;
        }
    CHECK_EQUAL(count, 0);
}

static void a_session_lives_in_the_engines_own_loop(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine_loop loop = {.timer = tick_every_ms()};

    engine_open(&loop.engine, harness->socket, "poll");
    trial_begin(&loop.trial, &loop.engine, &batch, 0);
    CHECK_OK(trial_submit_set(&loop.trial, 0, ATTND_SKIP_SUCCESS));
    while (loop.completed < RUNS) {
        struct pollfd fds[2] = {
            {.fd = loop.timer, .events = loop.submitted < RUNS ? POLLIN : 0},
            {.fd = attnd_fd(loop.engine.session), .events = POLLIN},
        };
        const struct timespec patience = {20, 0};
        int there = attnd_arm(loop.engine.session);
        CHECK(there >= 0);
        if (!there)
            CHECK(ppoll(fds, 2, &patience, NULL) > 0); /* a lost wake-up ends here */
        if (fds[0].revents)
            on_tick(&loop);
        on_completions(&loop);
    }
    trial_must(&loop.trial, trial_verify_run(&loop.trial, 0, 0));
    trial_end(&loop.trial);
    engine_close(&loop.engine);
    close(loop.timer);
}

/* One completion a time and a sleep before each: every one of them is a wake-up through the fd. */
static void every_completion_wakes_an_armed_poll(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct attnd_completion completion;
    struct engine engine;
    struct trial trial;

    engine_open(&engine, harness->socket, "poll");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, ATTND_SKIP_SUCCESS));
    for (uint32_t i = 0; i < 200; i++) {
        struct pollfd fd = {.fd = attnd_fd(engine.session), .events = POLLIN};
        const struct attnd_op op = {.user_data = i};
        CHECK_OK(trial_submit_as(&trial, 0, &op));
        while (attnd_wait(engine.session, &completion, 1, 0) == 0) {
            int there = attnd_arm(engine.session);
            CHECK(there >= 0);
            if (!there)
                CHECK_EQUAL(poll(&fd, 1, 20000), 1);
        }
        CHECK_EQUAL(completion.user_data, i);
        while (i % 4 == 0 && !attnd_peek32(engine.session->doorbell.need)) /* until it sleeps */
            harness_sleep_ms(1);
    }
    trial_end(&trial);
    engine_close(&engine);
}

static void a_dead_daemon_makes_the_descriptor_readable(void **state)
{
    struct harness *harness = *state;
    struct attnd_completion completion;
    struct engine engine;

    engine_open(&engine, harness->socket, "poll");
    CHECK_EQUAL(attnd_arm(engine.session), 0);
    struct pollfd fd = {.fd = attnd_fd(engine.session), .events = POLLIN};
    CHECK_EQUAL(poll(&fd, 1, 0), 0);
    harness_kill_daemon(harness);
    CHECK_EQUAL(poll(&fd, 1, 5000), 1);
    CHECK_ERROR(attnd_wait(engine.session, &completion, 1, 0), ATTND_E_DISCONNECTED);
    engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_session_lives_in_the_engines_own_loop),
        E2E_TEST(every_completion_wakes_an_armed_poll),
        E2E_TEST(a_dead_daemon_makes_the_descriptor_readable),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
