/*
 * traced.c - a batch of both classes, run layer after layer.
 */
#include "tests/support/harness/traced.h"

#include "tests/support/harness/check.h"
#include "tests/support/harness/e2e.h"

struct random_batch traced_batch(void)
{
    struct random_batch batch = e2e_batch();

    batch.level[0].requests = 3;
    batch.level[0].entry[0] = (struct random_entry){.qo_len = 200, .kv_len = {700}};
    batch.level[0].entry[1] = (struct random_entry){.qo_len = 1, .kv_len = {900}};
    batch.level[0].entry[2] = (struct random_entry){.qo_len = 1, .kv_len = {300}};
    return batch;
}

void traced_run(struct trial *trial, struct traced_times *times)
{
    for (uint32_t layer = 0; layer < 2; layer++) {
        const struct attnd_op op = {.user_data = layer};
        CHECK_OK(trial_submit_as(trial, layer, &op));
        CHECK_EQUAL(attnd_wait(trial->engine->session, &times->done[layer], 1, TRIAL_WAIT_NS), 1);
        CHECK_EQUAL(times->done[layer].fault.code, 0);
    }
}

uint32_t traced_session(struct attnd_session *session)
{
    struct attnd_info info = {.size = sizeof(info)};
    CHECK_OK(attnd_info(session, &info));
    return info.session;
}
