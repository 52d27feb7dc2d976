/*
 * work.h - what the loop's one thread does for clients: in pieces, by turns, and on whose account.
 *
 * An account is a session's, or that of a user above it. Work that may take long is an item with a
 * cursor: it does one operation after the other, asks attnd_work_spent() after each, and says
 * whether there is more. So nobody waits for more than a piece of somebody else's, however much
 * that one has asked for.
 *
 * The next piece is of the user that has had the least of the thread, and of its sessions
 * likewise. One that comes after a rest begins where the one is that waits and has had the least,
 * and is not repaid.
 *
 * One thread, the loop's.
 */
#ifndef ATTND_SERVICE_BASE_WORK_H
#define ATTND_SERVICE_BASE_WORK_H

#include "ipc/debt.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A piece ends at the first operation behind ATTND_WORK_SPENT_NS, so that it is over within the
 * budget. All pieces of a turn of the loop together take one budget, and the piece that ends it. */
#define ATTND_WORK_BUDGET_NS 200000u
#define ATTND_WORK_SPENT_NS 150000u
/* Where many wait, pieces are parts of that, so that a round of all takes no longer; at least: */
#define ATTND_WORK_PART_NS 25000u
#define ATTND_WORK_USERS_MAX 32u

struct attnd_work;

struct attnd_account {
    struct attnd_account *user;         /* of a session; NULL: it is a user's */
    struct attnd_work *first, **last;   /* items that wait, the oldest first */
    struct attnd_account *next, **link; /* among those with items; link NULL: it has none */
    uint32_t waiting;                   /* of a user: its sessions that have items */
    uint64_t virtual_ns;     /* what it has had, from where it began after its last rest */
    uint64_t floor_ns;       /* of a user: where its sessions begin that come after a rest */
    uint64_t spent_ns;       /* of the thread, in all */
    uint64_t over;           /* pieces that took longer than the budget */
    struct attnd_debt wakes; /* what its wake-ups took of the thread (objects/wakes.c) */
};

/* Embedded in what is to be worked off; zero-initialise, and set `go`. */
struct attnd_work {
    struct attnd_work *next, **link; /* link NULL: it does not wait */
    struct attnd_account *account;   /* while it waits */
    /* A piece of it. Return: 1 there is more; 0 it is over, and may be gone. */
    int (*go)(struct attnd_work *work);
};

struct attnd_works {
    struct attnd_account *waiting; /* accounts of sessions that have items */
    struct attnd_account *current; /* whose piece it is; NULL: nobody's */
    struct attnd_account nobody;   /* of what has no user */
    struct attnd_account orphans;  /* what users left behind of whom nothing else is known */
    uint64_t floor_ns;             /* where users begin that come after a rest */
    uint64_t mark_ns;              /* up to here time is charged */
    uint64_t part_ns;              /* of a piece, by how many wait; 0: all of it */
    uint64_t piece_ns;             /* when the piece began; 0: there is none */
    uint64_t begin_ns;             /* when the turn began */
    uint64_t at_once_ns;           /* since then, in pieces that nobody waited for */
    uint64_t pieces, over;         /* in all; of them, longer than the budget */
    uint64_t longest_ns;           /* of them */
    uint32_t next_user;            /* where a free place is looked for */
    struct {
        uid_t uid;
        uint32_t sessions; /* 0: free */
        struct attnd_account account;
        struct attnd_account estate; /* of what its sessions left behind */
    } users[ATTND_WORK_USERS_MAX];
};

/** attnd_work_user() - the account of a user, for one session more. Where there are too many users,
 * some share one. */
struct attnd_account *attnd_work_user(struct attnd_works *works, uid_t uid);
/** attnd_work_user_done() - for one session less. */
void attnd_work_user_done(struct attnd_works *works, struct attnd_account *user);
/** attnd_work_estate() - the account of what a user's sessions left behind. */
struct attnd_account *attnd_work_estate(struct attnd_works *works, uid_t uid);
/** attnd_work_user_spent_ns() - of the thread, by all sessions of a user; 0: none is known. */
uint64_t attnd_work_user_spent_ns(const struct attnd_works *works, uid_t uid);

/** attnd_work_queue() - @work is done by turns, on @account; nothing happens if it waits already.
 */
void attnd_work_queue(struct attnd_works *works, struct attnd_account *account,
                      struct attnd_work *work);
/** attnd_work_start() - the same, but its first piece is now, if this turn has time left. */
void attnd_work_start(struct attnd_works *works, struct attnd_account *account,
                      struct attnd_work *work);
/** attnd_work_stop() - it does not wait any more. */
void attnd_work_stop(struct attnd_work *work);
static inline int attnd_work_waits(const struct attnd_work *work)
{
    return work->link != NULL;
}
/** attnd_work_has_time() - may something begin outside of its turn? */
static inline int attnd_work_has_time(const struct attnd_works *works)
{
    return works->at_once_ns < ATTND_WORK_BUDGET_NS;
}

/** attnd_work_begin() - a turn of the loop begins. */
void attnd_work_begin(struct attnd_works *works);
/** attnd_work_turn_spent() - has the turn had its time? */
int attnd_work_turn_spent(const struct attnd_works *works);

/** attnd_work_enter() - from here on it is a piece of @account's. Return: whose it was until now,
 * for attnd_work_leave(). */
struct attnd_account *attnd_work_enter(struct attnd_works *works, struct attnd_account *account);
/** attnd_work_leave() - the piece is over, and charged. Return: CLOCK_MONOTONIC. */
uint64_t attnd_work_leave(struct attnd_works *works, struct attnd_account *before);

/** attnd_work_spent() - has the piece had its time? One reads the clock after each operation.
 * Return: 1, 0; 0 outside of a piece. */
int attnd_work_spent(const struct attnd_works *works);

/** attnd_work_turn() - pieces for one turn of the loop. Return: how many; another turn is due as
 * long as items wait. */
int attnd_work_turn(struct attnd_works *works);
/** attnd_work_finish() - all that waits, whatever it takes: the service ends. */
void attnd_work_finish(struct attnd_works *works);

#endif
