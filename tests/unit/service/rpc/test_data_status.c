/* test_data_status.c - what of the worker's words is told to those who ask for the status. */
#include "service/rpc/data_status.h"
#include "service/sched/scheduler.h"
#include "service/supervise/supervise.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static uint32_t told(uint32_t residency, uint32_t mps, uint32_t switch_cost_us)
{
    static struct attnd_queue_head head;
    static struct attnd_scheduler scheduler;
    static struct attnd_supervisor supervisor;
    static struct attnd_service service;
    static struct attnd_queue queue;
    struct attnd_data_status status;

    queue.head = &head;
    queue.info.residency = residency;
    queue.info.mps = mps;
    queue.switch_cost_us = switch_cost_us;
    service.queue = &queue;
    service.scheduler = &scheduler;
    service.supervisor = &supervisor;
    attnd_data_status(&service, &status);
    return status.switch_cost_us;
}

static void a_switch_cost_is_told_where_processes_take_turns(void **state)
{
    (void)state;
    assert_int_equal(told(ATTND_RESIDENCY_ELASTIC, 0, 287), 287);
    assert_int_equal(told(ATTND_RESIDENCY_ELASTIC, 1, 287), 0); /* the worker before had no MPS */
    assert_int_equal(told(ATTND_RESIDENCY_NONE, 0, 287), 0);    /* no GPU */
}

static void a_switch_cost_that_is_not_known_is_not_told(void **state)
{
    (void)state;
    assert_int_equal(told(ATTND_RESIDENCY_SHARED, 0, 0), 0);
    assert_int_equal(told(ATTND_RESIDENCY_SHARED, 0, ATTND_SWITCH_COST_UNKNOWN), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_switch_cost_is_told_where_processes_take_turns),
        cmocka_unit_test(a_switch_cost_that_is_not_known_is_not_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
