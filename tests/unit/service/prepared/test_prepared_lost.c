/* test_prepared_lost.c - prepared runs and a worker that is lost: what the next one cannot map, and
 * answers to nothing. */
#include "service/prepared/internal.h"
#include "service/rpc/calls.h"
#include "service/sched/lane.h"
#include "service/sched/retire.h"
#include "tests/support/harness/check.h"
#include "tests/support/rigs/prepared_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define LANE 3u

static struct attnd_fault fault;

/* As when its engine has sealed it since: the next worker cannot map the memory of the tensors. */
static void lose_the_tensors(const struct attnd_fault *why)
{
    static uint32_t freed[ATTND_MEMORIES_MAX];
    struct attnd_maps *maps = &stage.service.supervisor->maps;
    const uint32_t tensors = client.daemon->memories[STAGE_TENSORS - 1]->index;
    uint32_t index;

    stage_lose_worker(&stage);
    attnd_worker_port_init(&stage.worker, stage.service.queue->head, -1);
    CHECK_EQUAL(attnd_maps_lost(maps, freed), 0);
    CHECK_EQUAL(attnd_sched_resume(stage.service.scheduler, STAGE_SCRATCH_BYTES), 0);
    while (attnd_maps_due(maps, &index)) {
        static const struct attnd_fault none;
        const struct attnd_fault *is = index == tensors ? why : &none;
        attnd_maps_sent(maps);
        CHECK_EQUAL(attnd_maps_mapped(maps, index, is->code), 1);
        attnd_memory_mapped(&stage.service, index, is);
    }
    attnd_lane_retry(stage.service.scheduler);
}

static void a_run_whose_memory_the_new_worker_cannot_map_is_not_prepared(void **state)
{
    const struct attnd_fault sealed = {.code = -ATTND_E_PERMISSION, .field = ATTND_F_SEALS};
    struct attnd_command command;
    (void)state;
    prepared_rig_open_mailbox();
    uint32_t plan = prepared_rig_filled_plan();
    const struct attnd_sqe_run wish = prepared_rig_wish(0);
    lose_the_tensors(&sealed);
    command = prepared_rig_expect(ATTND_COMMAND_MAILBOX);
    prepared_rig_retire(&command, 0);
    CHECK_EQUAL(attnd_prepared_add(client.daemon, 2, plan, LANE, &wish, &fault), 1);
    command = prepared_rig_expect(ATTND_COMMAND_PREPARED);
    CHECK_EQUAL(command.body.code, ATTND_E_PERMISSION); /* its launches would be answered so */
    prepared_rig_retire(&command, 0);
    prepared_rig_expect_answer(-ATTND_E_PERMISSION); /* and the call is */
    command = prepared_rig_expect(ATTND_COMMAND_PREPARED);
    CHECK_EQUAL(command.body.kind, 0);
    prepared_rig_retire(&command, 0);
    CHECK_EQUAL(client.daemon->plans[0]->prepared, 0);
}

static void an_answer_to_nothing_ends_the_worker(void **state)
{
    struct attnd_command made_up = {.kind = ATTND_COMMAND_HOLD, .tag = 7};
    (void)state;
    const struct attnd_retire retire = {.kind = made_up.kind, .tag = made_up.tag};
    stage.worker.port.retire(stage.worker.port.context, &retire);
    (void)attnd_retire_sweep(stage.service.scheduler);
    CHECK_EQUAL(stage.service.queue->broken, 1);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, prepared_rig_setup, prepared_rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_run_whose_memory_the_new_worker_cannot_map_is_not_prepared),
        CASE(an_answer_to_nothing_ends_the_worker),
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
