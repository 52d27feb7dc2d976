/* meeting.c - rounds in turns: a word says which round was written, another which was read. */
#include "tests/support/trial/meeting.h"

#include "tests/support/harness/e2e.h"

struct meeting *meeting_new(const struct harness *harness, int writable)
{
    struct meeting *meeting = harness_shared(sizeof(*meeting));

    meeting->harness = harness;
    meeting->batch = e2e_batch();
    meeting->writable = writable;
    return meeting;
}

void meeting_share(struct meeting *meeting, struct engine *engine)
{
    CHECK_OK(attnd_pool_share(engine->session, engine->pool, meeting->writable, &meeting->token));
    harness_say(&meeting->token_ready, 1);
}

void meeting_attach(struct meeting *meeting, struct engine *engine)
{
    harness_await(&meeting->token_ready, 1);
    engine_attach(engine, &meeting->batch.shape, &meeting->token);
}

void meeting_write(struct meeting *meeting, struct engine *engine, uint32_t rounds)
{
    struct trial trial;

    engine_pool(engine, &meeting->batch.shape);
    meeting_share(meeting, engine);
    for (uint32_t round = 1; round <= rounds; round++) {
        meeting->batch.seed = round;
        trial_begin(&trial, engine, &meeting->batch, 0);
        harness_say(&meeting->written, round);
        trial_must(&trial, trial_submit(&trial) || trial_judge(&trial));
        harness_await(&meeting->read, round);
        trial_end(&trial);
    }
}

void meeting_read(struct meeting *meeting, struct engine *engine, uint32_t rounds)
{
    struct trial trial;

    meeting_attach(meeting, engine);
    for (uint32_t round = 1; round <= rounds; round++) {
        harness_await(&meeting->written, round);
        trial_begin(&trial, engine, &meeting->batch, 0);
        trial_must(&trial, trial_submit(&trial) || trial_judge(&trial));
        trial_end(&trial);
        harness_say(&meeting->read, round);
    }
}
