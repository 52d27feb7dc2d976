/*
 * far.c - see far.h.
 */
#include "tests/support/harness/far.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define LONG_MS 20000u

static unsigned port;
static char address[64], key_path[96], listen_at[64], peer_at[96];

/* In a process of its own: the library leaves threads and memory behind. */
static int load_ucx(void *context)
{
    (void)context;
    return dlopen("libucp.so.0", RTLD_LAZY | RTLD_LOCAL) == NULL;
}

int far_missing(void)
{
    char path[600];

    harness_program_path("attnd-mover", path, sizeof(path));
    const int built = access(path, X_OK) == 0;
    if (built && harness_join(harness_fork(load_ucx, NULL), LONG_MS) == 0)
        return 0;
    fprintf(stderr, "skipped: %s is not here\n", built ? "libucp.so.0" : path);
    return 1;
}

static int network_is_own;

int far_network_is_own(void)
{
    return network_is_own;
}

void far_network(int up)
{
    struct ifreq request = {.ifr_name = "lo"};
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0 && network_is_own);
    CHECK_EQUAL(ioctl(fd, SIOCGIFFLAGS, &request), 0);
    request.ifr_flags = (short)(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
    CHECK_EQUAL(ioctl(fd, SIOCSIFFLAGS, &request), 0);
    close(fd);
}

/* A network in which loopback is all there is. Whoever may not have one shares the machine's. */
static void own_network(void)
{
    if (network_is_own || unshare(CLONE_NEWNET) < 0)
        return;
    network_is_own = 1;
    far_network(1);
}

/* A port that is free now. */
static unsigned free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(at);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0);
    CHECK_EQUAL(bind(fd, (const struct sockaddr *)&at, bytes), 0);
    CHECK_EQUAL(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    close(fd);
    return ntohs(at.sin_port);
}

const char *far_key(uint32_t seed, uint32_t bytes)
{
    static char paths[4][96];
    static uint32_t next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "/tmp/attnd-test-key-%d-%u-%u", (int)getpid(), seed, bytes);
    (void)unlink(path);
    const int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    for (uint32_t i = 0; i < bytes; i++)
        CHECK_EQUAL(write(fd, &(char){(char)('a' + (seed + i) % 26)}, 1), 1);
    close(fd);
    return path;
}

unsigned far_port(void)
{
    return port;
}

static uint32_t gather(const char **arguments, uint32_t count, const char *const *more)
{
    while (more && *more && count < 15)
        arguments[count++] = *more++;
    arguments[count] = NULL;
    return count;
}

void far_start_giver(struct harness *giver, const struct far_options *options)
{
    const char *arguments[16] = {"--peer-listen", listen_at, "--peer-key", key_path};

    own_network();
    port = free_port();
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    snprintf(listen_at, sizeof(listen_at), "%s", address);
    snprintf(peer_at, sizeof(peer_at), "giver=%s", address);
    snprintf(key_path, sizeof(key_path), "%s", far_key(1, 32));
    (void)gather(arguments, 4, options ? options->giver : NULL);
    harness_start(giver, arguments);
}

void far_start_claimer(struct harness *claimer, const struct far_options *options)
{
    const char *arguments[16] = {"--peer", peer_at, "--peer-key", key_path};

    (void)gather(arguments, 4, options ? options->claimer : NULL);
    harness_start(claimer, arguments);
}

void far_restart_giver(struct harness *giver)
{
    harness_restart(
        giver, (const char *const[]){"--peer-listen", listen_at, "--peer-key", key_path, NULL});
}

void far_restart_claimer(struct harness *claimer)
{
    harness_restart(claimer,
                    (const char *const[]){"--peer", peer_at, "--peer-key", key_path, NULL});
}

void far_start(struct harness *giver, struct harness *claimer, const struct far_options *options)
{
    far_start_giver(giver, options);
    far_start_claimer(claimer, options);
    side_await_linked(claimer);
}

pid_t far_mover(const struct harness *service)
{
    return harness_child(service->daemon, "attnd-mover", 0);
}
