/*
 * test_e2e_activation.c - a socket of the service manager's: clients come before the service does.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/engine.h"

#include "client/attnd.h"
#include "schemas/errors.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[32] = "/tmp/attnd-test-XXXXXX", path[64];
static int manager = -1; /* the listening socket */

static int open_manager(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof(path), "%s/attnd.sock", folder);
    memcpy(address.sun_path, path, sizeof(path));
    manager = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return manager < 0 || bind(manager, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
                   listen(manager, 16) < 0
               ? -1
               : 0;
}

static int close_manager(void **state)
{
    (void)state;
    close(manager);
    (void)unlink(path);
    return rmdir(folder);
}

static int engine_process(void *context)
{
    const struct attnd_open_args args = {.size = sizeof(args), .socket_path = context};
    struct attnd_session *session;

    CHECK_OK(attnd_open(&args, &session));
    attnd_close(session);
    return 0;
}

/* Is a connection waiting for somebody to accept it? */
static int somebody_waits(void *context)
{
    const int *listening = context;
    fd_set set;
    struct timeval now = {0};

    FD_ZERO(&set);
    FD_SET(*listening, &set);
    return select(*listening + 1, &set, NULL, NULL, &now) == 1;
}

static pid_t engine_that_is_early(void)
{
    pid_t engine = harness_fork(engine_process, path);

    harness_eventually(somebody_waits, &manager, 5000, "an engine waits");
    return engine;
}

static void an_engine_that_is_there_before_the_service_is_served(void **state)
{
    static char text[8192];
    struct harness harness;
    struct stat file;

    (void)state;
    pid_t engine = engine_that_is_early();
    harness_start_activated(&harness, manager, NULL);
    CHECK_EQUAL(harness_join(engine, 10000), 0);
    snprintf(harness.socket, sizeof(harness.socket), "%s", path);
    CHECK_EQUAL(
        harness_attnctl(&harness, (const char *const[]){"status", NULL}, text, sizeof(text)), 0);
    CHECK(strstr(text, path) && strstr(text, "(service manager)"));
    harness_stop(&harness);

    /* The file and the queue outlive the daemon: the next one serves who came in between. */
    CHECK_EQUAL(stat(path, &file), 0);
    engine = engine_that_is_early();
    harness_start_activated(&harness, manager, NULL);
    CHECK_EQUAL(harness_join(engine, 10000), 0);
    harness_stop(&harness);
    CHECK_EQUAL(stat(path, &file), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(an_engine_that_is_there_before_the_service_is_served,
                                  harness_end_all),
    };
    harness_init();
    return cmocka_run_group_tests(tests, open_manager, close_manager);
}
