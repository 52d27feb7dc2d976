/*
 * closer.c - letting go of our own on a thread of its own.
 *
 * To close a memfd of a gigabyte, or to unmap as much, takes the kernel tens of milliseconds. What
 * others sent goes another way (discard.c), because it may never end and has to be bounded. Our own
 * ends for sure, so the list has no bound, and what is on it is counted until it is over.
 */
#include "ipc/closer.h"

#include <pthread.h>
#include <stdlib.h>

/* Below this free() only puts it into a list. */
#define LARGE_BYTES (128u << 10)

static struct attnd_closing *first, **last = &first;
static struct attnd_closer_held held;
static int thread_runs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* @done: how many are over now, with @bytes. */
static struct attnd_closing *next_one(uint64_t done, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    struct attnd_closing *closing = first;
    held.count -= done;
    held.bytes -= bytes;
    if (closing) {
        first = closing->next;
        if (!first)
            last = &first;
    } else {
        thread_runs = 0;
    }
    pthread_mutex_unlock(&lock);
    return closing;
}

static void *close_all(void *context)
{
    struct attnd_closing *closing = next_one(0, 0);

    (void)context;
    while (closing) {
        const uint64_t bytes = closing->bytes;
        closing->close(closing);
        closing = next_one(1, bytes);
    }
    return NULL;
}

void attnd_closer_take(struct attnd_closing *closing)
{
    pthread_t thread;

    pthread_mutex_lock(&lock);
    closing->next = NULL;
    *last = closing;
    last = &closing->next;
    held.count++;
    held.bytes += closing->bytes;
    /* Without a thread they wait until the next time: better than to wait ourselves. */
    if (!thread_runs && pthread_create(&thread, NULL, close_all, NULL) == 0) {
        thread_runs = 1;
        pthread_detach(thread);
    }
    pthread_mutex_unlock(&lock);
}

static void free_it(struct attnd_closing *closing)
{
    free(closing);
}

void attnd_closer_free(void *memory, uint64_t bytes)
{
    struct attnd_closing *closing = memory;

    if (!memory || bytes < LARGE_BYTES) {
        free(memory);
        return;
    }
    *closing = (struct attnd_closing){.close = free_it, .bytes = bytes};
    attnd_closer_take(closing);
}

struct attnd_closer_held attnd_closer_held(void)
{
    pthread_mutex_lock(&lock);
    const struct attnd_closer_held now = held;
    pthread_mutex_unlock(&lock);
    return now;
}
