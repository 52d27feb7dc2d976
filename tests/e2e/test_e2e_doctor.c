/*
 * test_e2e_doctor.c - attnctl doctor on the machine that the tests run on, with a service and
 * without: it always has a verdict, and where the service works nothing FAILs.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char text[65536];

static const char *const subjects[] = {"socket", "io_uring", "memfd", "pidfd", "memlock",
                                       "files",  "driver",   "gpu",   "mps"};

static const char *finding(const char *report, const char *subject)
{
    const char *findings = json_member(report, "findings");
    for (unsigned i = 0; json_element(findings, i); i++)
        if (json_is(json_element(findings, i), "subject", subject))
            return json_element(findings, i);
    return NULL;
}

/* Return: its exit status. */
static int examine(const struct harness *harness)
{
    static const char *const arguments[] = {"doctor", "--json", NULL};
    int code = harness_attnctl(harness, arguments, text, sizeof(text));

    CHECK(json_valid(text));
    for (size_t i = 0; i < sizeof(subjects) / sizeof(subjects[0]); i++) {
        const char *found = finding(text, subjects[i]);
        CHECK(found != NULL);
        CHECK(json_is(found, "health", "OK") || json_is(found, "health", "WARN") ||
              json_is(found, "health", "FAIL"));
    }
    CHECK_EQUAL(code, json_is(text, "worst", "FAIL") ? 5 : 0);
    return code;
}

static void where_the_service_works_nothing_of_the_host_fails(void **state)
{
    static const char *const arguments[] = {"doctor", NULL};
    const struct harness *harness = *state;

    examine(harness);
    for (size_t i = 0; i < 6; i++)
        CHECK(!json_is(finding(text, subjects[i]), "health", "FAIL"));
    CHECK(strstr(json_member(finding(text, "socket"), "what"), "a service listens"));
    if (e2e_on_gpu()) {
        CHECK(json_is(text, "worst", "OK") || json_is(text, "worst", "WARN"));
        CHECK(json_is(finding(text, "driver"), "health", "OK"));
        CHECK(json_is(finding(text, "gpu"), "health", "OK"));
        Attnd__Status *status = harness_status(harness);
        CHECK_EQUAL(json_is(finding(text, "mps"), "health", "OK"), status->mps);
        attnd__status__free_unpacked(status, NULL);
    }
    (void)harness_attnctl(harness, arguments, text, sizeof(text));
    printf("%s", text);
    for (size_t i = 0; i < sizeof(subjects) / sizeof(subjects[0]); i++)
        CHECK(strstr(text, subjects[i]) != NULL);
}

/* The kernel may keep the socket of a dead daemon for a moment yet. */
static int place_is_free(void *harness)
{
    examine(harness);
    return strstr(json_member(finding(text, "socket"), "what"), "is free") != NULL;
}

static void it_needs_no_service(void **state)
{
    harness_kill_daemon(*state);
    harness_eventually(place_is_free, *state, 5000, "the doctor sees a free place");
}

static void a_place_that_cannot_be_is_a_failure(void **state)
{
    static const char *const argv[] = {"attnctl", "doctor", "--socket", "/nonexistent/attnd.sock",
                                       NULL};
    CHECK_EQUAL(harness_program(*state, argv, text, sizeof(text)), 5);
    CHECK(strstr(text, "FAIL  socket") != NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(where_the_service_works_nothing_of_the_host_fails),
        E2E_TEST(it_needs_no_service),
        E2E_TEST(a_place_that_cannot_be_is_a_failure),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
