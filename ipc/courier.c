/*
 * courier.c - a thread for each process whose wake-ups take long.
 *
 * The loop measures what it writes. Somebody whose knock walks thousands of waiters gets a line
 * here, and pays with the time of this thread. The lines of one process are served one after the
 * other, so nobody but that process waits. What waits is bounded, and a peer that does not read is
 * hung up on, as the loop does.
 *
 * While the kernel walks the waiters, nobody else has that processor. So the thread measures, too:
 * when what it did took long, it rests, and knocks that come meanwhile are one. Only ends do not
 * wait.
 */
#include "ipc/courier.h"

#include "ipc/debt.h"
#include "ipc/fdpass.h"
#include "ipc/wake.h"
#include "schemas/timeslice.h"

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
#define LONG_NS 1000000u                    /* of a processor: from here on it is owed */
#define OWES_MAX_NS 5000000u                /* one that owes more rests */
#define FORGIVEN_RATE 1000u                 /* of one processor */

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
    struct attnd_debt debt;                   /* of the thread's; rested off */
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
    struct owner *owner = line->owner;
    struct letter *letter = line->ends ? NULL : take_letter(line);
    const int knocks = line->ends ? 0 : line->knocks, ends = line->ends;

    line->knocks = 0;
    if (ends)
        owner->lines--;
    else if (line->first)
        enlist(line);
    pthread_mutex_unlock(&lock);
    const uint64_t begin_ns = attnd_thread_clock_ns();
    if (ends)
        line_free(line);
    else
        deliver(line, letter, knocks);
    const uint64_t took_ns = attnd_thread_clock_ns() - begin_ns;
    if (took_ns >= LONG_NS)
        attnd_debt_add(&owner->debt, attnd_clock_ns(), FORGIVEN_RATE, took_ns);
    pthread_mutex_lock(&lock);
}

/* Until when the thread does nothing but end lines; 0: it works. */
static uint64_t rests_until_ns(const struct owner *owner)
{
    const uint64_t now_ns = attnd_clock_ns();
    const uint64_t owed_ns = attnd_debt_owed_ns(&owner->debt, now_ns, FORGIVEN_RATE);

    return owed_ns > OWES_MAX_NS ? now_ns + (owed_ns - OWES_MAX_NS) * FORGIVEN_RATE : 0;
}

/* Under the lock. The next line out of the list. NULL: nothing is to be done, or not yet. */
static struct attnd_courier_line *pick(struct owner *owner, int rests)
{
    struct attnd_courier_line **at = &owner->first;

    while (*at && rests && !(*at)->ends)
        at = &(*at)->next;
    struct attnd_courier_line *line = *at;
    if (!line)
        return NULL;
    *at = line->next;
    if (!line->next)
        owner->last = at;
    line->waits = 0;
    return line;
}

/* Under the lock. */
static void wait_for_change(struct owner *owner, uint64_t until_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                   .tv_nsec = (long)(until_ns % 1000000000u)};

    if (until_ns && owner->first)
        (void)pthread_cond_clockwait(&owner->changed, &lock, CLOCK_MONOTONIC, &until);
    else
        (void)pthread_cond_wait(&owner->changed, &lock);
}

static void *work(void *context)
{
    struct owner *owner = context;

    (void)attnd_timeslice_ask(ATTND_TIMESLICE_BRIEF_NS, 0); /* somebody waits for what it brings */
    pthread_mutex_lock(&lock);
    while (owner->lines) {
        const uint64_t until_ns = rests_until_ns(owner);
        struct attnd_courier_line *line = pick(owner, until_ns != 0);
        if (line)
            serve(line);
        else
            wait_for_change(owner, until_ns);
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
    pthread_cond_signal(&line->owner->changed); /* it may rest, and the line may wait already */
    pthread_mutex_unlock(&lock);
}
