/*
 * test_e2e_far_hostile.c - hosts without the key, and such as say nothing or noise, at the port
 * where services of other hosts may claim.
 */
#include "tests/support/harness/claim_trial.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/far.h"

#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct harness giver, claimer;

/* A connection to the giver's mover, as soon as it listens. */
static int connect_there(void)
{
    const uint64_t end_ns = harness_now_ns() + TRIAL_LONG_MS * UINT64_C(1000000);
    const struct sockaddr_in at = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)far_port()),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0);
    while (connect(fd, (const struct sockaddr *)&at, sizeof(at)) < 0) {
        CHECK(errno == ECONNREFUSED && harness_now_ns() < end_ns);
        harness_sleep_ms(1);
    }
    return fd;
}

/* Bytes that come until the other side hangs up. */
static size_t hear_all(int fd)
{
    size_t total = 0;
    char bytes[256];
    ssize_t got;

    while ((got = recv(fd, bytes, sizeof(bytes), 0)) > 0)
        total += (size_t)got;
    close(fd);
    return total;
}

static int has_trouble(void *context)
{
    Attnd__Status *status = harness_status(&claimer);
    int found = 0;

    for (size_t i = 0; i < status->n_peers; i++)
        found |= !status->peers[i]->claims && status->peers[i]->last_end &&
                 strstr(status->peers[i]->last_end, context) != NULL;
    attnd__status__free_unpacked(status, NULL);
    return found;
}

static void whoever_lacks_the_key_gets_no_link(void **state)
{
    const struct far_options wrong = {.claimer = {"--peer-key", far_key(7, 32), NULL}};
    char same_key[] = "same key";
    (void)state;

    far_start_giver(&giver, NULL);
    far_start_claimer(&claimer, &wrong);
    harness_eventually(has_trouble, same_key, TRIAL_LONG_MS, "the claimer is told");
    CHECK_EQUAL(side_linked(&claimer), 0);
    harness_kill_daemon(&claimer); /* and again, with the right one */
    far_restart_claimer(&claimer);
    claim_trial_once_more(&giver, &claimer);
    harness_stop(&claimer);
    harness_stop(&giver);
}

static void a_key_that_others_may_read_is_not_used(void **state)
{
    const char *path = far_key(3, 32);
    const struct far_options open_key = {.claimer = {"--peer-key", path, NULL}};
    char not_up[] = "attnd-mover";
    (void)state;

    CHECK_EQUAL(chmod(path, 0644), 0);
    far_start_giver(&giver, NULL);
    far_start_claimer(&claimer, &open_key);
    harness_eventually(has_trouble, not_up, TRIAL_LONG_MS, "there is no mover");
    CHECK_EQUAL(side_linked(&claimer), 0);
    harness_stop(&claimer);
    harness_stop(&giver);
}

/* A stranger that says noise is hung up on, and has heard no more than a nonce. */
static void noise_gets_a_nonce_at_most(void **state)
{
    uint8_t bytes[512];
    (void)state;

    far_start(&giver, &claimer, NULL);
    for (int i = 0; i < 64; i++) {
        const int fd = connect_there();
        for (size_t k = 0; k < sizeof(bytes); k++)
            bytes[k] = (uint8_t)(rand_r(&(unsigned){(unsigned)(i * 512) + (unsigned)k}) >> 7);
        if (i % 2) /* a hello of the right length */
            memcpy(bytes,
                   (const uint8_t[]){45, 0, 0, 0, 1, 'a', 't', 't', 'n', 'd', 'm', 'v', 'r', 1, 0,
                                     0, 0},
                   17);
        (void)send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL);
        CHECK(hear_all(fd) <= 128);
    }
    claim_trial_once_more(&giver, &claimer);
    harness_stop(&claimer);
    harness_stop(&giver);
}

#define SILENT 24

static void strangers_that_say_nothing_keep_nobody_out(void **state)
{
    int fds[SILENT];
    (void)state;

    far_start_giver(&giver, NULL);
    for (int i = 0; i < SILENT; i++) /* more than are let in at once: the rest waits */
        fds[i] = connect_there();
    far_start_claimer(&claimer, NULL);
    claim_trial_once_more(&giver, &claimer);
    for (int i = 0; i < SILENT; i++)
        close(fds[i]);
    harness_stop(&claimer);
    harness_stop(&giver);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(whoever_lacks_the_key_gets_no_link),
        E2E_OWN_TEST(a_key_that_others_may_read_is_not_used),
        E2E_OWN_TEST(noise_gets_a_nonce_at_most),
        E2E_OWN_TEST(strangers_that_say_nothing_keep_nobody_out),
    };

    harness_init();
    if (far_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
