/*
 * discard.c - closing what a stranger sent.
 *
 * The last close() of a file does what its maker arranged, in the process that happens to be last:
 * a TCP socket may linger over unsent data for hours, a FUSE file asks its server, a unix socket
 * takes along whatever descriptors still travel in it, and a memfd of many gigabytes gives them
 * back page by page. A process that serves others must not be the one who waits. So it is left to a
 * thread of its own, which ends when they are closed, or with the process.
 */
#include "ipc/discard.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct load {
    int count;
    int fds[];
};

static void *close_load(void *context)
{
    struct load *load = context;
    for (int i = 0; i < load->count; i++)
        close(load->fds[i]);
    free(load);
    return NULL;
}

void attnd_discard(const int *fds, int fd_count)
{
    pthread_t thread;
    struct load *load = malloc(sizeof(*load) + (size_t)fd_count * sizeof(int));
    if (!load)
        return; /* left open: better than to wait */
    load->count = fd_count;
    memcpy(load->fds, fds, (size_t)fd_count * sizeof(int));
    if (pthread_create(&thread, NULL, close_load, load) == 0)
        pthread_detach(thread);
    else
        free(load);
}
