/* test_e2e_harness.c - a test that fails in the middle is no reason for the next one to fail. */
#include "tests/support/harness/e2e.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int wait_for_ever(void *context)
{
    harness_say(context, 1);
    for (;;)
        pause();
    return 0;
}

static void what_a_failed_test_left_is_ended_before_the_next(void **state)
{
    static struct harness harness;
    uint32_t *began = harness_shared(sizeof(*began));

    harness_start(&harness, NULL);
    (void)harness_fork(wait_for_ever, began);
    harness_await(began, 1);
    char directory[sizeof(harness.directory)];
    memcpy(directory, harness.directory, sizeof(directory));
    /* Here a check would have failed. */
    assert_int_equal(harness_end_all(state), 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    assert_int_not_equal(access(directory, F_OK), 0);

    harness_start(&harness, NULL);
    harness_stop(&harness); /* fails if a process is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(what_a_failed_test_left_is_ended_before_the_next),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
