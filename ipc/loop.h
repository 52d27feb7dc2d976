/*
 * loop.h - the daemon's one event loop: descriptors, futex words, timers; io_uring, or epoll where
 * the kernel refuses it, chosen at run time.
 *
 * Rings are swept by the daemon's own `sweep` callback: the loop spins on it for the budget, then
 * announces sleep (the daemon sets its `need` words), fences, sweeps once more, and blocks. A
 * doorbell is what ends that block: a futex word (io_uring's FUTEX_WAIT) or an eventfd (epoll). All
 * callbacks run on the thread that calls attnd_loop_run().
 */
#ifndef ATTND_IPC_LOOP_H
#define ATTND_IPC_LOOP_H

#include "schemas/errors.h"

#include <stdint.h>

enum attnd_loop_kind { ATTND_LOOP_AUTO, ATTND_LOOP_IO_URING, ATTND_LOOP_EPOLL };

struct attnd_loop;
struct attnd_watch; /* one watched thing; handle for attnd_loop_unwatch() */

struct attnd_loop_hooks {
    void *context;
    /* Serves every ring. Return: number of slots moved. */
    int (*sweep)(void *context);
    /* asleep 1: set every `need` word (relaxed); the loop fences and sweeps after it. 0: clear. */
    void (*asleep)(void *context, int asleep);
    /* Is an answer on its way to a ring? Then the loop spins longer, attnd_spin_flight_ns() after
     * the last sweep that moved something. NULL: never. */
    int (*expecting)(void *context);
};

/**
 * attnd_loop_new()
 * @kind:    AUTO tries io_uring with SINGLE_ISSUER|DEFER_TASKRUN|TASKRUN_FLAG|SUBMIT_ALL and futex
 *           operations, then epoll
 * @spin_ns: how long to spin after the last sweep that moved something; attnd_spin_budget_ns()
 * @hooks:   copied; sweep and asleep are required
 *
 * Threads: the one that will run the loop; not before a fork that changes which process that is.
 * Return: 0; -ATTND_E_UNSUPPORTED if the kind asked for is refused (errno in @fault->value);
 * -ATTND_E_SYSTEM.
 */
int attnd_loop_new(enum attnd_loop_kind kind, uint64_t spin_ns,
                   const struct attnd_loop_hooks *hooks, struct attnd_loop **out,
                   struct attnd_fault *fault);
/** attnd_loop_free() - ends what is still watched and calls every `done` still owed; NULL is fine.
 */
void attnd_loop_free(struct attnd_loop *loop);

/** attnd_loop_name() - "io_uring" or "epoll". */
const char *attnd_loop_name(const struct attnd_loop *loop);
/** attnd_loop_reason() - why AUTO fell back ("" if it did not): a sentence for log and status. */
const char *attnd_loop_reason(const struct attnd_loop *loop);
/** attnd_loop_has_futex() - 1: doorbells are futex words; 0: doorbells are eventfds. */
int attnd_loop_has_futex(const struct attnd_loop *loop);

typedef void attnd_loop_fd_fn(void *context, uint32_t poll_events);
typedef void attnd_loop_timer_fn(void *context);

/**
 * attnd_loop_watch_fd() - call @fn with POLL* bits while they are pending (level-triggered)
 * @poll_events: POLLIN and the like; POLLHUP, POLLERR and POLLRDHUP are always reported
 * At most one watch an fd. @fn may unwatch anything, this watch included.
 * Return: a watch; NULL for lack of memory or an fd that cannot be polled. The fd stays the
 * caller's and must outlive the watch.
 */
struct attnd_watch *attnd_loop_watch_fd(struct attnd_loop *loop, int fd, uint32_t poll_events,
                                        attnd_loop_fd_fn *fn, void *context);

/**
 * attnd_loop_watch_word() - end the loop's sleep when @word changes and its futex is woken
 *
 * The word is read before the last sweep, and the loop sleeps only while it still has that value.
 * A value that sweep has seen and left (no room for its answers) does not keep the loop awake.
 * Only with attnd_loop_has_futex(), NULL otherwise. The word must stay mapped until `done`.
 */
struct attnd_watch *attnd_loop_watch_word(struct attnd_loop *loop, uint32_t *word);

/**
 * attnd_loop_watch_timer() - call @fn once at CLOCK_MONOTONIC @when_ns
 * The watch ends by itself when @fn returns; the handle is dead then.
 * Return: a watch; NULL for lack of memory.
 */
struct attnd_watch *attnd_loop_watch_timer(struct attnd_loop *loop, uint64_t when_ns,
                                           attnd_loop_timer_fn *fn, void *context);

/**
 * attnd_loop_timer_new() - one that may fire many times, each time that it is set
 * It is not set yet. It lasts until attnd_loop_unwatch(). Return: a watch; NULL for lack of memory.
 */
struct attnd_watch *attnd_loop_timer_new(struct attnd_loop *loop, attnd_loop_timer_fn *fn,
                                         void *context);
/** attnd_loop_timer_set() - to CLOCK_MONOTONIC @when_ns, whatever it was set to; UINT64_MAX: not
 * set. Needs no memory, and never fails. */
void attnd_loop_timer_set(struct attnd_loop *loop, struct attnd_watch *timer, uint64_t when_ns);

/**
 * attnd_loop_pause() - no callback of a descriptor until attnd_loop_resume()
 * From the watch's own callback only. Needs no memory, and never fails.
 */
void attnd_loop_pause(struct attnd_loop *loop, struct attnd_watch *watch);
/** attnd_loop_resume() - Return: 0; -ATTND_E_SYSTEM: it is paused still. */
int attnd_loop_resume(struct attnd_loop *loop, struct attnd_watch *watch);

/**
 * attnd_loop_unwatch() - no callback after this returns; NULL is fine
 * @done: called (may be NULL) when the kernel holds nothing of it any more: only then may the fd be
 *        closed or the word unmapped. With epoll that is before this returns.
 */
void attnd_loop_unwatch(struct attnd_loop *loop, struct attnd_watch *watch,
                        attnd_loop_timer_fn *done, void *context);

/** attnd_loop_run() - serve until attnd_loop_stop(). Return: 0 or -ATTND_E_SYSTEM. */
int attnd_loop_run(struct attnd_loop *loop, struct attnd_fault *fault);
/** attnd_loop_stop() - makes run() return; from a callback only. */
void attnd_loop_stop(struct attnd_loop *loop);

#endif
