/*
 * loop_impl.h - between loop.c and its two backends; nobody else includes it.
 *
 * loop.c owns what is subtle once: spinning, the announcement of sleep, timers, the life of a
 * watch. A backend only takes watches to the kernel and brings back what happened.
 *
 * A watch is in exactly one list: `fds`, `words` or `ticks` while it lives; `ended` after
 * unwatch() while the kernel still holds a request that names it; `dead` from then until the turn
 * is over. Its memory outlives the turn, so a batch of events may name a watch that an earlier
 * callback of the batch removed.
 */
#ifndef ATTND_IPC_LOOP_IMPL_H
#define ATTND_IPC_LOOP_IMPL_H

#include "ipc/loop.h"

struct attnd_link {
    struct attnd_link *next, *previous;
};

enum attnd_watch_kind { ATTND_WATCH_FD, ATTND_WATCH_WORD, ATTND_WATCH_TIMER };

struct attnd_watch {
    struct attnd_link link; /* first, so that a link is its watch */
    enum attnd_watch_kind kind;
    int armed;  /* the kernel holds a request that names this watch: it must not be freed */
    int ended;  /* no callback any more */
    int paused; /* no callback until attnd_loop_resume() */
    void *context;
    attnd_loop_timer_fn *done; /* given to unwatch() */
    void *done_context;

    int fd;
    uint32_t poll_events;
    attnd_loop_fd_fn *fd_fn;

    uint32_t *word;
    uint32_t seen; /* the word's value before the last sweep */

    uint64_t when_ns;
    uint64_t number; /* of those for one time, the lower fires first */
    uint32_t place;  /* 1 + place in the heap; 0: not set */
    int lasts;       /* it is not over when it has fired */
    attnd_loop_timer_fn *timer_fn;
};

struct attnd_timers {
    struct attnd_watch **heap;      /* [count], the earliest first */
    uint32_t count, reserved, room; /* set; there are; that fit */
    uint64_t numbers;
    uint64_t fired_ns; /* when it was last looked at */
};

struct attnd_loop_backend {
    const char *name;
    int has_futex;
    uint64_t
        collect_every_ns; /* how often a busy or spinning loop collects; 0: whenever it looks */

    /* Return: 0, or -errno with a sentence in loop->reason. */
    int (*open)(struct attnd_loop *loop);
    void (*close)(struct attnd_loop *loop);

    /* Takes a watch to the kernel: sets armed. A word is armed for as long as it is `seen`.
     * Return: 0 or -errno. */
    int (*arm)(struct attnd_loop *loop, struct attnd_watch *watch);
    /* Takes it back. armed is 0 afterwards, or becomes 0 in a later dispatch(), which then calls
     * attnd_watch_release(). */
    void (*disarm)(struct attnd_loop *loop, struct attnd_watch *watch);

    /* Lets the kernel's news in without calling anybody. Blocks until there is some or until
     * CLOCK_MONOTONIC @until_ns; 0: does not block, UINT64_MAX: for ever.
     * Return: 0 (also when interrupted) or -errno. */
    int (*collect)(struct attnd_loop *loop, uint64_t until_ns);
    /* Calls the callbacks of what was collected, each watch at most once. Return: 0 or -errno. */
    int (*dispatch)(struct attnd_loop *loop);
};

extern const struct attnd_loop_backend attnd_loop_uring;
extern const struct attnd_loop_backend attnd_loop_epoll;

struct attnd_loop {
    const struct attnd_loop_backend *backend;
    void *state; /* the backend's */
    struct attnd_loop_hooks hooks;
    uint64_t spin_ns, flight_ns;
    uint64_t collected_ns;
    int stopping;
    struct attnd_link fds, words, ticks, ended, dead;
    struct attnd_timers timers; /* of the ticks, those that are set */
    char reason[160];
};

/* ---- loop_timers.c ---- */

/** attnd_timers_reserve() - room for one timer more. Return: 0; -ATTND_E_NO_MEMORY. */
int attnd_timers_reserve(struct attnd_timers *timers);
/** attnd_timers_set() - to @when_ns, wherever it was set before; UINT64_MAX: it is not set. */
void attnd_timers_set(struct attnd_timers *timers, struct attnd_watch *watch, uint64_t when_ns);
/** attnd_timers_take() - it is not set any more. */
void attnd_timers_take(struct attnd_timers *timers, struct attnd_watch *watch);
/** attnd_timers_next() - the earliest; NULL: none is set. */
struct attnd_watch *attnd_timers_next(const struct attnd_timers *timers);
/** attnd_timers_fire() - call those that are due, for as long as a turn may take, and none that is
 * set meanwhile. */
void attnd_timers_fire(struct attnd_loop *loop, uint64_t now_ns);

/* ---- loop.c ---- */

/** attnd_watch_release() - the kernel holds nothing of an ended watch: call done, free it later. */
void attnd_watch_release(struct attnd_loop *loop, struct attnd_watch *watch);

#endif
