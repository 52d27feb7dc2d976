/*
 * discard.c - closing what somebody else sent.
 *
 * The last close() of a file does what its maker arranged, in the process that happens to be last:
 * a TCP socket may linger over unsent data for hours, a FUSE file asks its server, a unix socket
 * takes along whatever descriptors still travel in it, and a memfd of many gigabytes gives them
 * back page by page. A process that serves others must not be the one that waits.
 *
 * So each owner has a queue and, while something is in it, one thread. Threads are bounded by the
 * owners, descriptors by the queues. An owner whose file never finishes closing fills its own
 * queue; then nothing more is received from it. Lingering is switched off first, also of sockets
 * that travel in sockets, because that is the wait that costs its owner nothing to arrange.
 */
#include "ipc/discard.h"

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define OWNERS_MAX 32u
#define CARRIED_MAX 253u   /* SCM_MAX_FD of the kernel */
#define FOUND_MAX 254      /* with that of the sender's process */
#define OTHERS_BYTES 4096u /* for what else comes with a datagram */
#define NESTED_MAX 6
#ifndef SCM_PIDFD
#define SCM_PIDFD 4
#endif
#define QUEUE_MAX (ATTND_DISCARD_WAITING_MAX + CARRIED_MAX)

struct owner {
    uint32_t name;
    uint32_t waiting; /* 0, and no thread: free for another owner */
    uint32_t head;
    int thread; /* 1: it has one */
    int fds[QUEUE_MAX];
};

static struct owner owners[OWNERS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The next one to close, or -1: the thread is over. */
static int take(struct owner *owner)
{
    int fd = -1;
    pthread_mutex_lock(&lock);
    if (owner->waiting) {
        fd = owner->fds[owner->head];
        owner->head = (owner->head + 1) % QUEUE_MAX;
        owner->waiting--;
    } else {
        owner->thread = 0;
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

/* Words of one control message into @fds, [FOUND_MAX], behind what there is. Return: how many there
 * are then. */
static int add(const struct cmsghdr *header, int *fds, int count)
{
    const size_t bytes = header->cmsg_len - CMSG_LEN(0), room = (size_t)(FOUND_MAX - count);
    const size_t found = bytes / sizeof(int) < room ? bytes / sizeof(int) : room;

    memcpy(fds + count, CMSG_DATA(header), found * sizeof(int));
    return count + (int)found;
}

/* The descriptors of one datagram that waits in @socket. Whoever sent it says what comes with it,
 * and in which order: names of the sender (SO_PASSCRED), a label, the time, a descriptor of the
 * sender's process (SO_PASSPIDFD). Return: how many; -1 there is none. */
static int unpack(int socket, int *fds)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(CARRIED_MAX * sizeof(int)) + OTHERS_BYTES];
    } control;
    int count = 0;
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    if (recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0)
        return -1;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header;
         header = CMSG_NXTHDR(&message, header))
        if (header->cmsg_level == SOL_SOCKET &&
            (header->cmsg_type == SCM_RIGHTS || header->cmsg_type == SCM_PIDFD))
            count = add(header, fds, count);
    return count;
}

/* The kernel nests no deeper than this, and neither do we. */
static void close_gently(int fd, int depth)
{
    const struct linger none = {0, 0};
    int fds[FOUND_MAX], domain = 0, count;
    socklen_t bytes = sizeof(domain);

    if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none)) == 0 && depth < NESTED_MAX &&
        getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX)
        while ((count = unpack(fd, fds)) >= 0)
            for (int i = 0; i < count; i++)
                close_gently(fds[i], depth + 1);
    close(fd);
}

static void *close_all(void *context)
{
    struct owner *owner = context;
    for (int fd = take(owner); fd >= 0; fd = take(owner))
        close_gently(fd, 0);
    return NULL;
}

/* Under the lock. NULL: all have somebody else's. */
static struct owner *find(uint32_t name, int make)
{
    struct owner *vacant = NULL;
    for (uint32_t i = 0; i < OWNERS_MAX; i++) {
        struct owner *owner = &owners[i];
        const int used = owner->waiting || owner->thread;
        if (used && owner->name == name)
            return owner;
        if (!used && !vacant)
            vacant = owner;
    }
    if (!make || !vacant)
        return NULL;
    vacant->name = name;
    vacant->head = 0;
    return vacant;
}

/* Under the lock. Return: 1; 0 @name has no room. */
static int put(uint32_t name, int fd)
{
    pthread_t thread;
    struct owner *owner = find(name, 1);

    if (!owner || owner->waiting >= QUEUE_MAX)
        return 0;
    owner->fds[(owner->head + owner->waiting++) % QUEUE_MAX] = fd;
    /* Without a thread they stay open, until the next time: better than to wait. */
    if (!owner->thread && pthread_create(&thread, NULL, close_all, owner) == 0) {
        owner->thread = 1;
        pthread_detach(thread);
    }
    return 1;
}

/* What an owner has no room for is closed with what strangers sent; where theirs is full, too, no
 * connection is accepted that could bring more. */
void attnd_discard(uint32_t owner_name, const int *fds, int fd_count)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < fd_count; i++)
        if (!put(owner_name, fds[i]))
            (void)put(ATTND_DISCARD_STRANGERS, fds[i]);
    pthread_mutex_unlock(&lock);
}

int attnd_discard_full(uint32_t owner_name)
{
    pthread_mutex_lock(&lock);
    const struct owner *owner = find(owner_name, 0);
    const int full = owner && owner->waiting >= ATTND_DISCARD_WAITING_MAX;
    pthread_mutex_unlock(&lock);
    return full;
}
