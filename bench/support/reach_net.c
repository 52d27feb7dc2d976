/* reach_net.c - see reach_net.h. */
#include "bench/support/reach_net.h"

#include "bench/support/private_service.h"
#include "schemas/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define THERE "10.77.0.1"
#define THERE_AT "10.77.0.1:7200"
#define HERE "10.77.0.2"
#define PLAIN_PORT 7201
#define PIECES_AT_ONCE 256u

static bool fail(struct bench_suite *suite, const char *what)
{
    bench_suite_fail(suite, "%s: %s", what, strerror(errno));
    return false;
}

/* ---- namespaces ---- */

/* UCX finds interfaces in /sys, which shows those of the namespace that it was mounted in. */
static int new_namespace(void)
{
    if (unshare(CLONE_NEWNET | CLONE_NEWNS) < 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("sysfs", "/sys", "sysfs", 0, NULL) < 0)
        return -1;
    return 0;
}

/* The namespaces of a process, by its pidfd. The folder stays the same. */
static int enter(int process)
{
    char folder[4096];

    return getcwd(folder, sizeof(folder)) && setns(process, CLONE_NEWNET | CLONE_NEWNS) == 0 &&
                   chdir(folder) == 0
               ? 0
               : -1;
}

static int run(const char *command)
{
    return system(command) == 0 ? 0 : -1; /* fixed words, by root */
}

/* A process that stays in these namespaces, by which they are named. */
static pid_t stay(void)
{
    const pid_t pid = bench_private_fork();

    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            (void)pause();
    }
    return pid;
}

static bool connect_both(struct bench_suite *suite, const struct reach_net *net, pid_t there)
{
    char command[128];

    snprintf(command, sizeof(command), "ip link add attnd1 type veth peer name attnd0 netns %d",
             (int)there);
    if (run(command) < 0 || run("ip addr add " HERE "/24 dev attnd1 && ip link set attnd1 up && "
                                "ip link set lo up") < 0)
        return fail(suite, "ip(8) makes no pair of interfaces");
    if (enter(net->there) < 0 ||
        run("ip addr add " THERE "/24 dev attnd0 && ip link set attnd0 up && "
            "ip link set lo up") < 0)
        return fail(suite, "ip(8) makes no interface there");
    return true;
}

/* ---- services ---- */

static const char *write_key(void)
{
    static char path[64];
    int fd;

    snprintf(path, sizeof(path), "/tmp/attnd-bench-key-%d", (int)getpid());
    fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, "not a secret at all: a bench's key\n", 35) != 35)
        return NULL;
    close(fd);
    return path;
}

static bool start_services(struct bench_suite *suite, struct reach_net *net)
{
    const char *key = write_key();
    char why[512] = "no key can be written";
    const char *const giver[] = {"--quiet", "--threads",  "1", "--peer-listen",
                                 THERE_AT,  "--peer-key", key, NULL};
    const char *const claimer[] = {"--quiet",    "--threads", "1", "--peer", "giver=10.77.0.1:7200",
                                   "--peer-key", key,         NULL};

    net->giver = key ? bench_private_start(suite->attnd_path, giver, why, sizeof(why)) : NULL;
    if (net->giver && enter(net->here) < 0)
        return fail(suite, "the claimer's namespace");
    net->claimer =
        net->giver ? bench_private_start(suite->attnd_path, claimer, why, sizeof(why)) : NULL;
    if (!net->claimer)
        bench_suite_fail(suite, "%s", why);
    const bool linked = net->claimer && bench_private_linked(net->claimer, why, sizeof(why));
    if (net->claimer && !linked)
        bench_suite_fail(suite, "%s: was attnd-mover built?", why);
    if (key)
        (void)unlink(key);
    return linked;
}

bool reach_net_open(struct bench_suite *suite, struct reach_net *net)
{
    *net = (struct reach_net){.plain = -1};
    const pid_t there = new_namespace() == 0 ? stay() : -1;
    const pid_t here = there > 0 && new_namespace() == 0 ? stay() : -1;
    net->there = here > 0 ? (int)syscall(SYS_pidfd_open, there, 0) : -1;
    net->here = here > 0 ? (int)syscall(SYS_pidfd_open, here, 0) : -1;
    if (net->here < 0 || net->there < 0)
        return fail(suite, "two network namespaces (they want root)");
    return connect_both(suite, net, there) && start_services(suite, net);
}

/* ---- the plain socket ---- */

struct question {
    uint32_t count, piece_bytes; /* count numbers of pieces follow */
};

static bool all(int fd, void *bytes, size_t count, ssize_t (*call)(int, struct msghdr *))
{
    struct iovec part = {bytes, count};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    while (part.iov_len) {
        const ssize_t done = call(fd, &message);
        if (done <= 0)
            return false;
        part.iov_base = (uint8_t *)part.iov_base + done;
        part.iov_len -= (size_t)done;
    }
    return true;
}

static ssize_t put(int fd, struct msghdr *message)
{
    return sendmsg(fd, message, MSG_NOSIGNAL);
}

static ssize_t get(int fd, struct msghdr *message)
{
    return recvmsg(fd, message, 0);
}

/* All of @pieces, PIECES_AT_ONCE in one call. */
static bool move(int fd, uint8_t *memory, const uint32_t *pieces, uint32_t count,
                 uint32_t piece_bytes, ssize_t (*call)(int, struct msghdr *))
{
    struct iovec parts[PIECES_AT_ONCE];

    for (uint32_t begin = 0; begin < count; begin += PIECES_AT_ONCE) {
        const uint32_t some = count - begin < PIECES_AT_ONCE ? count - begin : PIECES_AT_ONCE;
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = some};
        for (uint32_t i = 0; i < some; i++)
            parts[i] =
                (struct iovec){memory + (uint64_t)pieces[begin + i] * piece_bytes, piece_bytes};
        for (uint64_t left = (uint64_t)some * piece_bytes; left;) {
            ssize_t done = call(fd, &message);
            if (done <= 0)
                return false;
            left -= (uint64_t)done;
            for (; done && (size_t)done >= message.msg_iov->iov_len; message.msg_iovlen--)
                done -= (ssize_t)(message.msg_iov++)->iov_len;
            if (done) {
                message.msg_iov->iov_base = (uint8_t *)message.msg_iov->iov_base + done;
                message.msg_iov->iov_len -= (size_t)done;
            }
        }
    }
    return true;
}

static void serve(int fd, uint8_t *memory)
{
    struct question question;
    uint32_t *pieces = NULL;
    bool good = true;

    while (good && all(fd, &question, sizeof(question), get)) {
        uint32_t *more = realloc(pieces, question.count * sizeof(*pieces));
        good = more != NULL;
        pieces = good ? more : pieces;
        good = good && all(fd, pieces, question.count * sizeof(*pieces), get) &&
               move(fd, memory, pieces, question.count, question.piece_bytes, put);
    }
    free(pieces);
}

static struct sockaddr_in address(const char *host)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PLAIN_PORT)};

    (void)inet_pton(AF_INET, host, &at.sin_addr);
    return at;
}

static _Noreturn void serve_there(int listener, uint8_t *memory)
{
    const int fd = accept(listener, NULL, NULL);

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (fd >= 0)
        serve(fd, memory);
    _exit(0);
}

bool reach_net_plain(struct bench_suite *suite, struct reach_net *net, uint64_t bytes)
{
    const struct sockaddr_in at = address(THERE);
    const int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, yes = 1;
    uint8_t *from = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    uint8_t *to = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);

    if (from == MAP_FAILED || to == MAP_FAILED || enter(net->there) < 0)
        return fail(suite, "memory for a plain socket");
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(listener, (const struct sockaddr *)&at, sizeof(at)) < 0 || listen(listener, 1) < 0)
        return fail(suite, "a plain socket there");
    if (bench_private_fork() == 0)
        serve_there(listener, from);
    close(listener);
    if (enter(net->here) < 0)
        return fail(suite, "the claimer's namespace");
    net->plain = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(net->plain, (const struct sockaddr *)&at, sizeof(at)) < 0)
        return fail(suite, "a plain socket");
    net->from = from;
    net->to = to;
    net->bytes = bytes;
    return true;
}

bool reach_net_pull(struct bench_suite *suite, struct reach_net *net, const uint32_t *from,
                    const uint32_t *to, uint32_t count, uint32_t piece_bytes, uint64_t *ns)
{
    struct question question = {count, piece_bytes};
    const uint64_t begin_ns = attnd_clock_ns();

    if (!all(net->plain, &question, sizeof(question), put) ||
        !all(net->plain, (void *)(uintptr_t)from, count * sizeof(*from), put) ||
        !move(net->plain, net->to, to, count, piece_bytes, get))
        return fail(suite, "the plain socket");
    *ns = attnd_clock_ns() - begin_ns;
    return true;
}

void reach_net_plain_end(struct reach_net *net)
{
    close(net->plain);
    (void)munmap(net->from, net->bytes);
    (void)munmap(net->to, net->bytes);
    net->plain = -1;
}
