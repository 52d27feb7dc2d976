/*
 * courier.c - a thread for each process whose wake-ups take long.
 *
 * The loop measures what it writes. Somebody whose knock walks thousands of waiters gets a line
 * here, and pays with the time of this thread. The lines of one process are served one after the
 * other, so nobody but that process waits. What waits is bounded, and a peer that does not read is
 * hung up on, as the loop does.
 */
#include "ipc/courier.h"

#include "ipc/fdpass.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define OWNERS_MAX 128u /* as many as connections there can be */
#define WAITING_BYTES_MAX (1u << 20)
#define WAITING_FDS_MAX (2 * ATTND_FDS_MAX) /* the process has only so many */

struct letter {
    struct letter *next;
    size_t bytes;
    int fds[ATTND_FDS_MAX], fds_count;
    uint8_t data[];
};

struct owner {
    uint32_t name;
    uint32_t lines;                           /* 0: free for another owner */
    int thread;                               /* 1: it has one */
    struct attnd_courier_line *first, **last; /* that something waits for */
    pthread_cond_t changed;
};

struct attnd_courier_line {
    struct attnd_courier_line *next;
    struct owner *owner;
    int fd;
    int waits; /* in the owner's list */
    int knocks, ends, hangs_up;
    size_t waiting_bytes;
    int waiting_fds;
    struct letter *first, **last;
};

static struct owner owners[OWNERS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void letter_free(struct letter *letter)
{
    for (int i = 0; i < letter->fds_count; i++)
        close(letter->fds[i]);
    free(letter);
}

/* Under the lock. */
static struct letter *take_letter(struct attnd_courier_line *line)
{
    struct letter *letter = line->first;

    if (!letter)
        return NULL;
    line->first = letter->next;
    if (!line->first)
        line->last = &line->first;
    line->waiting_bytes -= letter->bytes;
    line->waiting_fds -= letter->fds_count;
    return letter;
}

static void line_free(struct attnd_courier_line *line)
{
    if (line->hangs_up)
        shutdown(line->fd, SHUT_RDWR);
    for (struct letter *letter; (letter = take_letter(line));)
        letter_free(letter);
    close(line->fd);
    free(line);
}

static void deliver(const struct attnd_courier_line *line, struct letter *letter, int knocks)
{
    const uint64_t one = 1;

    if (letter && attnd_fdpass_send(line->fd, letter->data, letter->bytes, letter->fds,
                                    letter->fds_count) < 0)
        shutdown(line->fd, SHUT_RDWR);
    if (letter)
        letter_free(letter);
    if (knocks) {
        ssize_t written = write(line->fd, &one, sizeof(one)); /* full: it is readable already */
        (void)written;
    }
}

/* Under the lock: the line is in the list while something waits for it. */
static void enlist(struct attnd_courier_line *line)
{
    struct owner *owner = line->owner;

    if (line->waits)
        return;
    line->waits = 1;
    line->next = NULL;
    *owner->last = line;
    owner->last = &line->next;
    pthread_cond_signal(&owner->changed);
}

/* Under the lock. */
static void serve(struct attnd_courier_line *line)
{
    struct letter *letter = line->ends ? NULL : take_letter(line);
    const int knocks = line->ends ? 0 : line->knocks, ends = line->ends;

    line->knocks = 0;
    if (ends)
        line->owner->lines--;
    else if (line->first)
        enlist(line);
    pthread_mutex_unlock(&lock);
    if (ends)
        line_free(line);
    else
        deliver(line, letter, knocks);
    pthread_mutex_lock(&lock);
}

static void *work(void *context)
{
    struct owner *owner = context;

    pthread_mutex_lock(&lock);
    while (owner->lines) {
        struct attnd_courier_line *line = owner->first;
        if (!line) {
            pthread_cond_wait(&owner->changed, &lock);
            continue;
        }
        owner->first = line->next;
        if (!owner->first)
            owner->last = &owner->first;
        line->waits = 0;
        serve(line);
    }
    owner->thread = 0;
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Under the lock. NULL: all have somebody else's. */
static struct owner *find(uint32_t name)
{
    struct owner *vacant = NULL;

    for (uint32_t i = 0; i < OWNERS_MAX; i++) {
        struct owner *owner = &owners[i];
        const int used = owner->lines || owner->thread;
        if (used && owner->name == name)
            return owner;
        if (!used && !vacant)
            vacant = owner;
    }
    if (vacant) {
        *vacant = (struct owner){.name = name, .changed = PTHREAD_COND_INITIALIZER};
        vacant->last = &vacant->first;
    }
    return vacant;
}

/* Under the lock. */
static int join_owner(struct attnd_courier_line *line, uint32_t name)
{
    pthread_t thread;

    line->owner = find(name);
    if (!line->owner)
        return -ATTND_E_SYSTEM;
    line->owner->lines++;
    if (line->owner->thread)
        return 0;
    if (pthread_create(&thread, NULL, work, line->owner) != 0) {
        line->owner->lines--;
        return -ATTND_E_SYSTEM;
    }
    line->owner->thread = 1;
    pthread_detach(thread);
    return 0;
}

struct attnd_courier_line *attnd_courier_new(uint32_t owner, int fd)
{
    struct attnd_courier_line *line = calloc(1, sizeof(*line));

    if (!line)
        return NULL;
    line->last = &line->first;
    line->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    pthread_mutex_lock(&lock);
    int rc = line->fd < 0 ? -ATTND_E_SYSTEM : join_owner(line, owner);
    pthread_mutex_unlock(&lock);
    if (rc == 0)
        return line;
    if (line->fd >= 0)
        close(line->fd);
    free(line);
    return NULL;
}

void attnd_courier_knock(struct attnd_courier_line *line)
{
    pthread_mutex_lock(&lock);
    line->knocks = 1;
    enlist(line);
    pthread_mutex_unlock(&lock);
}

static struct letter *letter_new(const void *data, size_t bytes, const int *fds, int fds_count)
{
    struct letter *letter = malloc(sizeof(*letter) + bytes);

    if (!letter)
        return NULL;
    *letter = (struct letter){.bytes = bytes};
    memcpy(letter->data, data, bytes);
    for (int i = 0; i < fds_count; i++) {
        letter->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        if (letter->fds[i] < 0) {
            letter_free(letter);
            return NULL;
        }
        letter->fds_count++;
    }
    return letter;
}

int attnd_courier_send(struct attnd_courier_line *line, const void *data, size_t bytes,
                       const int *fds, int fds_count)
{
    struct letter *letter = letter_new(data, bytes, fds, fds_count);

    if (!letter)
        return -ATTND_E_SYSTEM;
    pthread_mutex_lock(&lock);
    const int fits = line->waiting_bytes + bytes <= WAITING_BYTES_MAX &&
                     line->waiting_fds + fds_count <= WAITING_FDS_MAX;
    if (fits) {
        *line->last = letter;
        line->last = &letter->next;
        line->waiting_bytes += bytes;
        line->waiting_fds += fds_count;
        enlist(line);
    }
    pthread_mutex_unlock(&lock);
    if (!fits)
        letter_free(letter);
    return fits ? 0 : -ATTND_E_FULL;
}

void attnd_courier_end(struct attnd_courier_line *line, int hang_up)
{
    if (!line)
        return;
    pthread_mutex_lock(&lock);
    line->ends = 1;
    line->hangs_up = hang_up;
    enlist(line);
    pthread_mutex_unlock(&lock);
}
