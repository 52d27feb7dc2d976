/*
 * test_e2e_metrics.c - attnd --metrics: over a unix socket and over loopback, to scrapers that
 * behave and to others.
 */
#include "tests/support/harness/e2e.h"

#include "ipc/fdpass.h"

#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define SCRAPERS_MAX 16

static char text[262144], path[128];
static struct harness harness;

static void start(const char *where)
{
    const char *const options[] = {"--metrics", where, NULL};
    harness_start(&harness, options);
}

/* A path of which only this test knows; the harness' directory does not exist yet. */
static void start_unix(void)
{
    snprintf(path, sizeof(path), "/tmp/attnd-metrics-%d.sock", (int)getpid());
    start(path);
}

static int dial(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(address.sun_path, path, strlen(path) + 1);
    CHECK(fd >= 0);
    CHECK_EQUAL(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static void ask(int fd, const char *request)
{
    CHECK_EQUAL(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
}

/* Reads until the end. Return: bytes. */
static size_t answer_of(int fd)
{
    size_t length = 0;
    ssize_t got;

    while ((got = recv(fd, text + length, sizeof(text) - 1 - length, 0)) > 0)
        length += (size_t)got;
    text[length] = 0;
    close(fd);
    return length;
}

static void check_answer(size_t bytes)
{
    size_t told = 0;
    const char *length = strstr(text, "Content-Length: "), *body = strstr(text, "\r\n\r\n");

    CHECK(!strncmp(text, "HTTP/1.0 200 OK\r\n", 17) && length && body);
    CHECK(sscanf(length, "Content-Length: %zu", &told) == 1 && told > 1000);
    CHECK_EQUAL((size_t)(body + 4 - text) + told, bytes);
    CHECK(strstr(body, "\nattnd_runs_total 0\n") && strstr(body, "\nattnd_sessions 0\n"));
}

static void a_scraper_of_the_unix_socket_gets_metrics_and_nothing_else_does(void **state)
{
    (void)state;
    start_unix();
    int fd = dial();
    ask(fd, "GET /metr"); /* in pieces */
    ask(fd, "ics HTTP/1.1\r\nHost: x\r\n");
    ask(fd, "\r\n");
    check_answer(answer_of(fd));
    fd = dial();
    ask(fd, "POST / HTTP/1.1\r\n\r\n");
    (void)answer_of(fd);
    CHECK(!strncmp(text, "HTTP/1.0 405 ", 13));
    harness_stop(&harness);
    CHECK(access(path, F_OK) != 0); /* its name went with it */
}

static void loopback_is_served_on_a_free_port_that_the_log_names(void **state)
{
    unsigned port = 0;
    (void)state;
    start("127.0.0.1:0");
    FILE *log = fopen(harness.log, "re");
    CHECK(log != NULL);
    while (!port && fgets(text, sizeof(text), log)) {
        const char *at = strstr(text, "http://127.0.0.1:");
        if (at)
            CHECK_EQUAL(sscanf(at, "http://127.0.0.1:%u/metrics", &port), 1);
    }
    (void)fclose(log);
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons((uint16_t)port),
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQUAL(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    ask(fd, "GET /metrics HTTP/1.1\r\n\r\n");
    check_answer(answer_of(fd));
    harness_stop(&harness);
}

static int connect_often(void *context)
{
    (void)context;
    for (int i = 0; i < 8 * SCRAPERS_MAX; i++)
        (void)dial(); /* stays open until the process ends */
    return 0;
}

static void a_process_that_keeps_connecting_takes_the_places_of_its_own(void **state)
{
    (void)state;
    start_unix();
    int fd = dial();
    ask(fd, "GET / HTTP/1.1\r\n");
    CHECK_EQUAL(harness_join(harness_fork(connect_often, NULL), 10000), 0);
    ask(fd, "\r\n");
    check_answer(answer_of(fd));
    harness_stop(&harness);
}

static void scrapers_that_say_nothing_lose_their_place_to_new_ones(void **state)
{
    int silent[SCRAPERS_MAX + 1];
    (void)state;
    start_unix();
    for (int i = 0; i < SCRAPERS_MAX + 1; i++)
        silent[i] = dial();
    int fd = dial();
    ask(fd, "GET / HTTP/1.1\r\n\r\n");
    check_answer(answer_of(fd));
    struct pollfd first = {.fd = silent[0], .events = POLLIN};
    CHECK_EQUAL(poll(&first, 1, 5000), 1); /* its end */
    CHECK(recv(silent[0], text, 1, 0) <= 0);
    for (int i = 0; i < SCRAPERS_MAX + 1; i++)
        close(silent[i]);
    harness_stop(&harness);
}

static void a_request_without_end_and_one_with_descriptors_are_dropped(void **state)
{
    static char long_request[16384];
    const int fds[] = {STDERR_FILENO};
    (void)state;
    start_unix();
    memset(long_request, 'a', sizeof(long_request) - 1);
    int fd = dial();
    (void)send(fd, long_request, sizeof(long_request), MSG_NOSIGNAL);
    CHECK_EQUAL(answer_of(fd), 0);
    fd = dial();
    if (attnd_fdpass_send(fd, "GET / HTTP/1.1\r\n\r\n", 18, fds, 1) == 0)
        CHECK_EQUAL(answer_of(fd), 0);
    else
        close(fd); /* this kernel refuses them at once */
    Attnd__Status *status = harness_status(&harness);
    attnd__status__free_unpacked(status, NULL);
    harness_stop(&harness);
}

static void a_place_that_is_none_is_refused(void **state)
{
    static const char *const wrong[] = {"0.0.0.0:9000", "127.0.0.1:", "127.0.0.1:65536",
                                        "127.0.0.1:80x", "metrics"};
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const char *const argv[] = {"attnd", "--metrics", wrong[i], NULL};
        CHECK_EQUAL(harness_program(&harness, argv, text, sizeof(text)), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(a_scraper_of_the_unix_socket_gets_metrics_and_nothing_else_does),
        E2E_OWN_TEST(loopback_is_served_on_a_free_port_that_the_log_names),
        E2E_OWN_TEST(scrapers_that_say_nothing_lose_their_place_to_new_ones),
        E2E_OWN_TEST(a_process_that_keeps_connecting_takes_the_places_of_its_own),
        E2E_OWN_TEST(a_request_without_end_and_one_with_descriptors_are_dropped),
        E2E_OWN_TEST(a_place_that_is_none_is_refused),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
