/* test_quota.c - what users leave each other of what the daemon has once. */
#include "service/objects/quota.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define USERS 4u
#define PROCESSES 4u /* of each */

static struct attnd_service service;
static struct attnd_client clients[USERS][PROCESSES];

static void admit(uint32_t users)
{
    memset(&service, 0, sizeof(service));
    memset(clients, 0, sizeof(clients));
    service.options.allow_uids_count = users;
    for (uint32_t user = 0; user < users; user++) {
        service.options.allow_uids[user] = 100 + user;
        for (uint32_t i = 0; i < PROCESSES; i++) {
            const uint32_t number = user * PROCESSES + i;
            clients[user][i] = (struct attnd_client){.service = &service,
                                                     .id = number + 1,
                                                     .uid = 100 + user,
                                                     .pid = (pid_t)number + 1000};
            service.clients[number] = &clients[user][i];
        }
    }
}

/* As many as all processes of a user can have. */
static uint32_t take_all(uint32_t user)
{
    uint32_t taken = 0;

    for (uint32_t i = 0; i < PROCESSES; i++)
        while (attnd_quota_take(&clients[user][i], ATTND_QUOTA_TICKETS, 1, NULL) == 0)
            taken++;
    return taken;
}

static void two_users_that_take_all_leave_a_third_its_part(void **state)
{
    (void)state;
    admit(3);
    assert_int_equal(take_all(0), ATTND_TICKETS_MAX / 2);
    assert_true(take_all(1) > ATTND_TICKETS_MAX / 6); /* what is left except for the part */
    assert_true(take_all(2) >= ATTND_TICKETS_MAX / 6);
    assert_int_equal(service.used[ATTND_QUOTA_TICKETS], ATTND_TICKETS_MAX);
}

static void what_is_left_and_what_can_be_taken_are_the_same(void **state)
{
    (void)state;
    admit(USERS);
    for (uint32_t user = 0; user < USERS; user++) {
        take_all(user);
        for (uint32_t i = 0; i < PROCESSES; i++)
            assert_int_equal(attnd_quota_left(&clients[user][i], ATTND_QUOTA_TICKETS), 0);
    }
    for (uint32_t user = 0; user < USERS; user++)
        assert_true(service.user_used[user][ATTND_QUOTA_TICKETS] >= ATTND_TICKETS_MAX / USERS / 2);
}

static void a_user_alone_may_have_all_and_one_of_two_half(void **state)
{
    (void)state;
    admit(1);
    assert_int_equal(take_all(0), ATTND_TICKETS_MAX);
    admit(2);
    assert_int_equal(take_all(0), ATTND_TICKETS_MAX / 2);
    assert_int_equal(take_all(1), ATTND_TICKETS_MAX / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_users_that_take_all_leave_a_third_its_part),
        cmocka_unit_test(what_is_left_and_what_can_be_taken_are_the_same),
        cmocka_unit_test(a_user_alone_may_have_all_and_one_of_two_half),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
