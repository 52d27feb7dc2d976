/* test_kernels.c - a plan that needs a kernel which the worker was built without. */
#include "schemas/atomics.h"
#include "schemas/kernels.h"
#include "tests/support/rigs/sched_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static int setup(void **state)
{
    (void)state;
    return sched_rig_begin(32);
}

static struct attnd_cqe set(uint32_t plan, int code)
{
    struct attnd_sqe sqe = stage_batch(&client, plan, 0, 1, 4, 0, 0);

    sqe.user_data = 5;
    sched_rig_submit(sqe);
    stage_sweep(&stage);
    return stage_expect(&client, 5, code);
}

static void a_plan_is_refused_with_the_name_of_the_kernel_until_that_is_there(void **state)
{
    const uint32_t kernel = attnd_kernel_of(STAGE_DIM, STAGE_DIM, ATTND_FP16, ATTND_FP16, 0);
    uint32_t plan = stage_plan(&client), *missing = &stage.service.queue->head->missing;

    (void)state;
    attnd_poke32(missing, 1u << kernel);
    const struct attnd_cqe cqe = set(plan, -ATTND_E_UNSUPPORTED);
    CHECK_EQUAL(cqe.field, ATTND_F_KERNEL);
    CHECK_EQUAL(cqe.value, kernel);
    attnd_poke32(missing, 0);
    set(plan, 0);
}

static void kernels_of_other_plans_may_be_missing(void **state)
{
    const uint32_t kernel = attnd_kernel_of(STAGE_DIM, STAGE_DIM, ATTND_FP16, ATTND_FP16, 0);

    (void)state;
    attnd_poke32(&stage.service.queue->head->missing, ~(1u << kernel));
    set(stage_plan(&client), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, sched_rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_plan_is_refused_with_the_name_of_the_kernel_until_that_is_there),
        TEST(kernels_of_other_plans_may_be_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
