/*
 * retire_watch.c - the loop is woken by the worker's answers, through a word or an eventfd.
 */
#include "service/supervise/internal.h"

#include <poll.h>

static void on_retire_eventfd(void *context, uint32_t poll_events)
{
    const struct attnd_queue *queue = context;
    (void)poll_events;
    /* Only to make it unreadable again: the sweep that follows looks at the ring itself. */
    attnd_doorbell_drain(queue->retire_fd);
}

void attnd_supervisor_unwatch_retires(struct attnd_supervisor *supervisor)
{
    attnd_loop_unwatch(supervisor->service->loop, supervisor->retire_watch, NULL, NULL);
    supervisor->retire_watch = NULL;
}

int attnd_supervisor_watch_retires(struct attnd_supervisor *supervisor, struct attnd_fault *fault)
{
    struct attnd_loop *loop = supervisor->service->loop;
    struct attnd_queue *queue = supervisor->service->queue;
    /* A wait on the word of the worker before would sleep on that one's file. */
    attnd_supervisor_unwatch_retires(supervisor);
    supervisor->retire_watch =
        queue->retire_fd < 0
            ? attnd_loop_watch_word(loop, &queue->head->retire_tail)
            : attnd_loop_watch_fd(loop, queue->retire_fd, POLLIN, on_retire_eventfd, queue);
    return supervisor->retire_watch
               ? 0
               : attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
}
