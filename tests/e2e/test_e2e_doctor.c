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

static const json_t *finding(const json_t *report, const char *subject)
{
    return json_find(json_object_get(report, "findings"), "subject", subject);
}

/* Return: what it says, borrowed until the next time. */
static const json_t *examine(const struct harness *harness)
{
    static const char *const arguments[] = {"doctor", "--json", NULL};
    int code = harness_attnctl(harness, arguments, text, sizeof(text));

    const json_t *report = json_document(text);
    for (size_t i = 0; i < sizeof(subjects) / sizeof(subjects[0]); i++) {
        const json_t *found = finding(report, subjects[i]);
        CHECK(found != NULL);
        CHECK(json_is(found, "health", "OK") || json_is(found, "health", "WARN") ||
              json_is(found, "health", "FAIL"));
    }
    CHECK_EQUAL(code, json_is(report, "worst", "FAIL") ? 5 : 0);
    return report;
}

static void where_the_service_works_nothing_of_the_host_fails(void **state)
{
    static const char *const arguments[] = {"doctor", NULL};
    const struct harness *harness = *state;

    const json_t *report = examine(harness);
    for (size_t i = 0; i < 6; i++)
        CHECK(!json_is(finding(report, subjects[i]), "health", "FAIL"));
    CHECK(strstr(json_text(finding(report, "socket"), "what"), "a service listens"));
    if (e2e_on_gpu()) {
        CHECK(json_is(report, "worst", "OK") || json_is(report, "worst", "WARN"));
        CHECK(json_is(finding(report, "driver"), "health", "OK"));
        CHECK(json_is(finding(report, "gpu"), "health", "OK"));
        Attnd__Status *status = harness_status(harness);
        CHECK_EQUAL(json_is(finding(report, "mps"), "health", "OK"), status->mps);
        CHECK(!status->has_switch_cost_us || /* the service tells it */
              strstr(json_text(finding(report, "mps"), "what"), " us as measured here"));
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
    const json_t *report = examine(harness);
    return strstr(json_text(finding(report, "socket"), "what"), "is free") != NULL;
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
