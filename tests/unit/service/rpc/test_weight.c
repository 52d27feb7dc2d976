/* test_weight.c - who may give a session which weight. */
#include "tests/support/rigs/pool_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

static int weigh(uid_t uid, uint32_t session, uint32_t weight)
{
    Attnd__SessionWeight request = ATTND__SESSION_WEIGHT__INIT;
    struct attnd_call *call = pool_rig_begin(0);
    pool_rig.clients[0]->uid = uid;
    request.session = session;
    request.weight = weight;
    pool_rig.request.call_case = ATTND__REQUEST__CALL_SESSION_WEIGHT;
    pool_rig.request.session_weight = &request;
    return attnd_call_session_weight(call);
}

static void the_operator_gives_a_session_its_weight(void **state)
{
    (void)state;
    assert_int_equal(pool_rig.clients[1]->weight, 0); /* that is 1 */
    assert_int_equal(weigh(geteuid(), pool_rig.clients[1]->id, 7), 0);
    assert_int_equal(pool_rig.clients[1]->weight, 7);
    assert_int_equal(weigh(0, pool_rig.clients[1]->id, 1000), 0);
    assert_int_equal(pool_rig.clients[1]->weight, 1000);
    assert_int_equal(pool_rig.clients[0]->weight, 0);
}

static void nobody_else_may(void **state)
{
    (void)state;
    assert_int_equal(weigh(geteuid() + 1, pool_rig.clients[1]->id, 7), -ATTND_E_PERMISSION);
    assert_int_equal(pool_rig.fault.field, ATTND_F_WEIGHT);
    assert_int_equal(pool_rig.clients[1]->weight, 0);
}

static void a_weight_has_limits_and_a_session_exists(void **state)
{
    (void)state;
    assert_int_equal(weigh(0, pool_rig.clients[1]->id, 0), -ATTND_E_RANGE);
    assert_int_equal(pool_rig.fault.limit, 1);
    assert_int_equal(weigh(0, pool_rig.clients[1]->id, 1001), -ATTND_E_RANGE);
    assert_int_equal(pool_rig.fault.field, ATTND_F_WEIGHT);
    assert_int_equal(pool_rig.fault.value, 1001);
    assert_int_equal(pool_rig.fault.limit, 1000);
    assert_int_equal(weigh(0, 99, 1), -ATTND_E_UNKNOWN);
    assert_int_equal(pool_rig.fault.field, ATTND_F_SESSION);
    assert_int_equal(pool_rig.fault.value, 99);
    assert_int_equal(pool_rig.clients[1]->weight, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, pool_rig_setup, pool_rig_teardown)
        TEST(the_operator_gives_a_session_its_weight),
        TEST(nobody_else_may),
        TEST(a_weight_has_limits_and_a_session_exists),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
