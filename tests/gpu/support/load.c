/* load.c - runs of one long batch, always so many in flight. */
#include "tests/gpu/support/load.h"

#include "schemas/atomics.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include <stdlib.h>
#include <unistd.h>

int load_reserves(void)
{
    return gpu_under_mps() && getenv("ATTND_TEST_RESERVE") != NULL;
}

uint32_t load_collect(struct engine *engine, struct load *load)
{
    struct attnd_completion completions[LOAD_IN_FLIGHT];
    int n = attnd_wait(engine->session, completions, LOAD_IN_FLIGHT, TRIAL_WAIT_NS);

    CHECK(n > 0);
    for (int i = 0; i < n; i++) {
        int code = completions[i].fault.code;
        CHECK(code == 0 || code == -ATTND_E_WORKER_RESTARTED);
        if (code == 0)
            harness_say(&load->answered, load->answered + 1);
        else
            load->restarted++;
    }
    return (uint32_t)n;
}

static void open_engine(struct engine *engine, const struct load *load)
{
    if (load->on_device) {
        gpu_open();
        gpu_engine_open(engine, load->harness->socket, "busy");
    } else {
        engine_open(engine, load->harness->socket, "busy");
    }
}

int load_keep_up(void *context)
{
    struct load *load = context;
    struct random_batch batch = e2e_long_batch();
    struct engine engine;
    struct trial trial;
    uint32_t in_flight = 0, number = 0; /* all lanes in turn: a lane is one run at a time */

    open_engine(&engine, load);
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    while (in_flight || !attnd_peek32(&load->stop)) {
        for (; in_flight < LOAD_IN_FLIGHT && !attnd_peek32(&load->stop); in_flight++) {
            const struct attnd_op op = {.lane = (uint16_t)(number++ % LOAD_IN_FLIGHT)};
            CHECK_OK(trial_submit_as(&trial, 0, &op));
        }
        in_flight -= load_collect(&engine, load);
        if (load->pause_us)
            usleep(load->pause_us);
        harness_say(&load->began, 1);
    }
    trial_end(&trial);
    engine_close(&engine);
    return 0;
}
