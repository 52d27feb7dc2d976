/*
 * copies.h - pages that the worker copies between pools and host memory, and from pools of other
 * services, as the daemon sees it.
 *
 * A few at a time in each way (enum attnd_copy_way): enough that the link has the next one when one
 * ends, and that a copy which somebody waits for does not stand behind many.
 */
#ifndef ATTND_SERVICE_SUPERVISE_COPIES_H
#define ATTND_SERVICE_SUPERVISE_COPIES_H

#include "schemas/abi.h"
#include "service/supervise/worker_abi.h"

#define ATTND_COPIES_WAY 2u                                   /* in flight, of one way */
#define ATTND_COPIES_MAX (ATTND_COPY_WAYS * ATTND_COPIES_WAY) /* numbers, by way */

struct attnd_supervisor;

struct attnd_copies {
    struct {
        void *context;                /* NULL: free */
        uint64_t offset_bytes, bytes; /* in the queue's heap */
    } flight[ATTND_COPIES_MAX];
};

/**
 * attnd_copies_send() - have the worker copy pages
 * @what:    copied
 * @pages:   [what->count], copied
 * @context: comes with the event `copied`, which always follows; not NULL
 * The pool, its pages and the host memory must not go before that event.
 * Return: 0; -ATTND_E_FULL: later, when one of the way has ended, the worker has said something, or
 * one is up; -ATTND_E_NO_SPACE: the queue's heap is full.
 */
int attnd_copies_send(struct attnd_supervisor *supervisor, const struct attnd_copy *what,
                      const struct attnd_copy_page *pages, void *context);

/** attnd_copies_bring() - the same of another service's pages; the event is `brought`. Neither pool
 * nor any of their memories must go before it. */
int attnd_copies_bring(struct attnd_supervisor *supervisor, const struct attnd_bring *what,
                       const struct attnd_bring_page *pages, void *context);

/** attnd_copies_fit() - 1: one more of a way can be sent now. */
int attnd_copies_fit(const struct attnd_supervisor *supervisor, enum attnd_copy_way way);

/** attnd_copies_answered() - the worker's word for number @index. Return: 0; -ATTND_E_PROTOCOL it
 * has none such. */
int attnd_copies_answered(struct attnd_supervisor *supervisor, uint32_t index, int code);

/** attnd_copies_lost() - the worker is gone: those in flight end with -ATTND_E_WORKER_RESTARTED. */
void attnd_copies_lost(struct attnd_supervisor *supervisor);

#endif
