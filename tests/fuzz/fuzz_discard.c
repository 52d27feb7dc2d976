/*
 * fuzz_discard.c - sockets in sockets, with every option that puts something beside descriptors in
 * a datagram: whatever somebody arranges, all that travels is closed.
 *
 * The bytes say what is put into which socket. At the end the only other end of a pipe is inside,
 * somewhere; when everything is discarded the pipe must hang up, and the process must have as many
 * descriptors as before.
 */
#include "ipc/discard.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/rigs/plan_case.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOCKETS_MAX 6u
#define SENT_MAX 24u
#define CARRIED_MAX 8u
#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif

struct pair {
    int near, far; /* what is sent through the first waits in the second */
};

static int descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    fuzz_require(folder != NULL, "descriptors can be counted");
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static struct pair make_pair(struct case_source *source)
{
    static const int types[] = {SOCK_SEQPACKET, SOCK_DGRAM, SOCK_STREAM};
    static const int options[] = {SO_PASSCRED, SO_PASSPIDFD, SO_PASSSEC, SO_TIMESTAMP};
    const int yes = 1, type = types[case_below(source, 3)];
    int ends[2];

    fuzz_require(socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0, "sockets");
    for (uint32_t i = 0; i < 4; i++)
        if (case_below(source, 2))
            (void)setsockopt(ends[1], SOL_SOCKET, options[i], &yes, sizeof(yes));
    return (struct pair){ends[0], ends[1]};
}

/* Some bytes with some descriptors. */
static void put(struct case_source *source, int socket, const int *fds, uint32_t count)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(CARRIED_MAX * sizeof(int))];
    } control = {0};
    char bytes[64] = {0};
    struct iovec part = {bytes, 1 + case_below(source, sizeof(bytes))};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    if (count) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, count * sizeof(int));
    }
    (void)sendmsg(socket, &message, MSG_NOSIGNAL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct case_source source = {.bytes = data, .bytes_left = bytes};
    struct pair pairs[SOCKETS_MAX];
    int ends[2], before = descriptors();

    if (!data || !bytes)
        return 0;
    fuzz_require(pipe2(ends, O_CLOEXEC) == 0, "a pipe");
    const uint32_t count = 1 + case_below(&source, SOCKETS_MAX);
    for (uint32_t i = 0; i < count; i++)
        pairs[i] = make_pair(&source);
    for (uint32_t i = 0; i < SENT_MAX && source.bytes_left; i++) {
        int fds[CARRIED_MAX];
        const uint32_t carried = case_below(&source, CARRIED_MAX + 1),
                       to = case_below(&source, count);
        /* Only into an earlier one: what is in a circle is nobody's to close but the kernel's. */
        for (uint32_t f = 0; f < carried; f++)
            fds[f] = to + 1 < count && case_below(&source, 2)
                         ? pairs[to + 1 + case_below(&source, count - to - 1)].far
                         : ends[1];
        put(&source, pairs[to].near, fds, carried);
    }
    close(ends[1]);
    for (uint32_t i = 0; i < count; i++)
        close(pairs[i].near);
    for (uint32_t i = count; i-- > 1;)
        close(pairs[i].far);
    attnd_discard(1, &pairs[0].far, 1);
    struct pollfd pipe_end = {.fd = ends[0]};
    int hung_up = 0;
    for (int i = 0; i < 10 && hung_up <= 0; i++) /* a fuzzer's alarm may interrupt it */
        hung_up = poll(&pipe_end, 1, 1000);
    fuzz_require(hung_up == 1, "the pipe hangs up: nobody has its other end");
    close(ends[0]);
    for (int i = 0; i < 10000 && descriptors() != before; i++)
        usleep(100);
    fuzz_require(descriptors() == before, "no descriptor is left");
    return 0;
}
