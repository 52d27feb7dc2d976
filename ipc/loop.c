/*
 * loop.c - when to spin, when to sleep, and how not to miss a message in between.
 *
 * A turn is: sweep the rings; if that moved something, or every few idle turns, look at the clock,
 * fire timers, and let the backend bring descriptor events. So a ring that never runs dry and a
 * loop that spins both leave descriptors and timers their share. Only sweeps that moved something
 * start a new spinning budget: a timer that ticks in an idle daemon costs its callback and no more.
 *
 * Going to sleep is the sleeper's half of the pair explained in wake.c, for many rings at once:
 *
 *   remember each doorbell word; need = 1; F1 full fence; sweep
 *   nothing moved? FUTEX_WAIT each word at the remembered value; block; need = 0
 *
 * The word is remembered before that sweep, so whatever it covers the sweep has seen; what is
 * published later changes the word, and the kernel refuses to sleep on it. A wait that is still
 * queued from an earlier sleep stays good whatever the word did since: its wake-up will find it.
 */
#include "ipc/loop.h"

#include "ipc/loop_impl.h"
#include "ipc/wake.h"
#include "schemas/atomics.h"
#include "schemas/timeslice.h"

#include <errno.h>
#include <stdlib.h>

#define IDLE_TURNS_PER_LOOK 8u
#define DRAIN_ROUNDS_MAX 100
#define DRAIN_ROUND_NS 10000000u
/* How long the loop works before it offers its processor to those that it has woken, if its slices
 * are brief: else it would lose one that is long. */
#define OFFER_NS 200000u

/* ---- lists ---- */

static void list_init(struct attnd_link *list)
{
    list->next = list->previous = list;
}

static void link_before(struct attnd_link *place, struct attnd_link *link)
{
    link->previous = place->previous;
    link->next = place;
    place->previous->next = link;
    place->previous = link;
}

static void move_to(struct attnd_link *list, struct attnd_watch *watch)
{
    watch->link.previous->next = watch->link.next;
    watch->link.next->previous = watch->link.previous;
    link_before(list, &watch->link);
}

static struct attnd_watch *first(struct attnd_link *list)
{
    return list->next == list ? NULL : (struct attnd_watch *)list->next;
}

/* ---- the life of a watch ---- */

static struct attnd_watch *watch_new(struct attnd_link *place, enum attnd_watch_kind kind,
                                     void *context)
{
    struct attnd_watch *watch = calloc(1, sizeof(*watch));
    if (!watch)
        return NULL;
    watch->kind = kind;
    watch->context = context;
    link_before(place, &watch->link);
    return watch;
}

struct attnd_watch *attnd_loop_watch_fd(struct attnd_loop *loop, int fd, uint32_t poll_events,
                                        attnd_loop_fd_fn *fn, void *context)
{
    struct attnd_watch *watch = watch_new(&loop->fds, ATTND_WATCH_FD, context);
    if (!watch)
        return NULL;
    watch->fd = fd;
    watch->poll_events = poll_events;
    watch->fd_fn = fn;
    if (loop->backend->arm(loop, watch) < 0) {
        move_to(&loop->dead, watch);
        return NULL;
    }
    return watch;
}

struct attnd_watch *attnd_loop_watch_word(struct attnd_loop *loop, uint32_t *word)
{
    if (!loop->backend->has_futex)
        return NULL;
    struct attnd_watch *watch = watch_new(&loop->words, ATTND_WATCH_WORD, NULL);
    if (!watch)
        return NULL;
    watch->word = word;
    /* No sweep has seen it: were it armed now, the wait would end at once. */
    watch->seen = attnd_peek32(word) - 1;
    return watch;
}

struct attnd_watch *attnd_loop_timer_new(struct attnd_loop *loop, attnd_loop_timer_fn *fn,
                                         void *context)
{
    if (attnd_timers_reserve(&loop->timers) < 0)
        return NULL;
    struct attnd_watch *watch = watch_new(&loop->ticks, ATTND_WATCH_TIMER, context);
    if (!watch) {
        loop->timers.reserved--;
        return NULL;
    }
    watch->timer_fn = fn;
    watch->lasts = 1;
    return watch;
}

void attnd_loop_timer_set(struct attnd_loop *loop, struct attnd_watch *timer, uint64_t when_ns)
{
    attnd_timers_set(&loop->timers, timer, when_ns);
}

struct attnd_watch *attnd_loop_watch_timer(struct attnd_loop *loop, uint64_t when_ns,
                                           attnd_loop_timer_fn *fn, void *context)
{
    struct attnd_watch *watch = attnd_loop_timer_new(loop, fn, context);
    if (!watch)
        return NULL;
    watch->lasts = 0;
    attnd_timers_set(&loop->timers, watch, when_ns);
    return watch;
}

void attnd_loop_pause(struct attnd_loop *loop, struct attnd_watch *watch)
{
    watch->paused = 1;
    if (watch->armed)
        loop->backend->disarm(loop, watch);
}

int attnd_loop_resume(struct attnd_loop *loop, struct attnd_watch *watch)
{
    if (!watch->armed && loop->backend->arm(loop, watch) < 0)
        return -ATTND_E_SYSTEM;
    watch->paused = 0;
    return 0;
}

void attnd_watch_release(struct attnd_loop *loop, struct attnd_watch *watch)
{
    move_to(&loop->dead, watch);
    if (watch->done)
        watch->done(watch->done_context);
}

void attnd_loop_unwatch(struct attnd_loop *loop, struct attnd_watch *watch,
                        attnd_loop_timer_fn *done, void *context)
{
    if (!watch || watch->ended)
        return;
    watch->ended = 1;
    if (watch->kind == ATTND_WATCH_TIMER) {
        attnd_timers_take(&loop->timers, watch);
        loop->timers.reserved--;
    }
    watch->done = done;
    watch->done_context = context;
    move_to(&loop->ended, watch);
    if (watch->armed)
        loop->backend->disarm(loop, watch);
    if (!watch->armed)
        attnd_watch_release(loop, watch);
}

static void free_dead(struct attnd_loop *loop)
{
    struct attnd_link *link = loop->dead.next;
    list_init(&loop->dead);
    while (link != &loop->dead) {
        struct attnd_link *dead = link;
        link = link->next;
        free((struct attnd_watch *)dead);
    }
}

/* ---- the loop ---- */

static int serve(struct attnd_loop *loop, uint64_t now_ns)
{
    attnd_timers_fire(loop, now_ns);
    if (now_ns - loop->collected_ns < loop->backend->collect_every_ns)
        return 0;
    loop->collected_ns = now_ns;
    int rc = loop->backend->collect(loop, 0);
    return rc < 0 ? rc : loop->backend->dispatch(loop);
}

static int arm_words(struct attnd_loop *loop)
{
    for (struct attnd_link *link = loop->words.next; link != &loop->words; link = link->next) {
        struct attnd_watch *watch = (struct attnd_watch *)link;
        int rc = watch->armed ? 0 : loop->backend->arm(loop, watch);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int sleep_until_news(struct attnd_loop *loop)
{
    for (struct attnd_link *link = loop->words.next; link != &loop->words; link = link->next) {
        struct attnd_watch *watch = (struct attnd_watch *)link;
        watch->seen = attnd_observe32(watch->word);
    }
    loop->hooks.asleep(loop->hooks.context, 1);
    attnd_fence_full(); /* F1 */
    int rc = 0;
    if (loop->hooks.sweep(loop->hooks.context) == 0 && !loop->stopping) {
        const struct attnd_watch *next = attnd_timers_next(&loop->timers);
        rc = arm_words(loop);
        if (rc == 0)
            rc = loop->backend->collect(loop, next ? next->when_ns : UINT64_MAX);
    }
    /* Before any callback: producers need not ring while we are busy with them. */
    loop->hooks.asleep(loop->hooks.context, 0);
    return rc < 0 ? rc : loop->backend->dispatch(loop);
}

/* How long to spin after the last sweep that moved something. */
static uint64_t patience_ns(const struct attnd_loop *loop)
{
    const struct attnd_loop_hooks *hooks = &loop->hooks;
    return hooks->expecting && hooks->expecting(hooks->context) ? loop->flight_ns : loop->spin_ns;
}

int attnd_loop_run(struct attnd_loop *loop, struct attnd_fault *fault)
{
    const int offers = attnd_timeslice_is_brief();
    uint64_t moved_ns = 0, offered_ns = 0;
    unsigned idle_turns = 0;
    int rc = 0;

    loop->stopping = 0;
    while (rc == 0 && !loop->stopping) {
        free_dead(loop);
        int moved = loop->hooks.sweep(loop->hooks.context);
        if (!moved && ++idle_turns % IDLE_TURNS_PER_LOOK != 0) {
            attnd_relax();
            continue;
        }
        uint64_t now_ns = attnd_clock_ns();
        if (moved)
            moved_ns = now_ns;
        rc = serve(loop, now_ns);
        if (offers && moved && now_ns - offered_ns >= OFFER_NS) {
            attnd_timeslice_offer();
            offered_ns = now_ns;
        }
        if (rc == 0 && !loop->stopping && !moved && now_ns - moved_ns >= patience_ns(loop))
            rc = sleep_until_news(loop);
    }
    return rc < 0 ? attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_NONE, 0, -rc, 0) : 0;
}

void attnd_loop_stop(struct attnd_loop *loop)
{
    loop->stopping = 1;
}

/* ---- making and freeing ---- */

int attnd_loop_new(enum attnd_loop_kind kind, uint64_t spin_ns,
                   const struct attnd_loop_hooks *hooks, struct attnd_loop **out,
                   struct attnd_fault *fault)
{
    struct attnd_loop *loop = calloc(1, sizeof(*loop));
    if (!loop)
        return attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_NONE, 0, ENOMEM, 0);
    loop->hooks = *hooks;
    loop->spin_ns = spin_ns;
    loop->flight_ns = attnd_spin_flight_ns();
    list_init(&loop->fds);
    list_init(&loop->words);
    list_init(&loop->ticks);
    list_init(&loop->ended);
    list_init(&loop->dead);

    loop->backend = kind == ATTND_LOOP_EPOLL ? &attnd_loop_epoll : &attnd_loop_uring;
    int rc = loop->backend->open(loop);
    if (rc < 0 && kind == ATTND_LOOP_AUTO) {
        loop->backend = &attnd_loop_epoll;
        rc = loop->backend->open(loop);
    }
    if (rc < 0) {
        free(loop);
        int code = kind == ATTND_LOOP_IO_URING ? -ATTND_E_UNSUPPORTED : -ATTND_E_SYSTEM;
        return attnd_fault_set(fault, code, ATTND_F_NONE, 0, -rc, 0);
    }
    *out = loop;
    return 0;
}

static void unwatch_all(struct attnd_loop *loop, struct attnd_link *list)
{
    for (struct attnd_watch *watch; (watch = first(list));)
        attnd_loop_unwatch(loop, watch, NULL, NULL);
}

void attnd_loop_free(struct attnd_loop *loop)
{
    if (!loop)
        return;
    unwatch_all(loop, &loop->fds);
    unwatch_all(loop, &loop->words);
    unwatch_all(loop, &loop->ticks);
    /* Cancellations come back at once; the bound is for a kernel that has gone mad. */
    for (int i = 0; i < DRAIN_ROUNDS_MAX && first(&loop->ended); i++) {
        if (loop->backend->collect(loop, attnd_clock_ns() + DRAIN_ROUND_NS) < 0 ||
            loop->backend->dispatch(loop) < 0)
            break;
    }
    loop->backend->close(loop);
    for (struct attnd_watch *watch; (watch = first(&loop->ended));)
        attnd_watch_release(loop, watch);
    free_dead(loop);
    free(loop->timers.heap);
    free(loop);
}

const char *attnd_loop_name(const struct attnd_loop *loop)
{
    return loop->backend->name;
}

const char *attnd_loop_reason(const struct attnd_loop *loop)
{
    return loop->reason;
}

int attnd_loop_has_futex(const struct attnd_loop *loop)
{
    return loop->backend->has_futex;
}
