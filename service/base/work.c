/*
 * work.c - whose piece is next, and what it is charged.
 *
 * This is start-time fair queueing on two floors. What is served at once counts as what waited:
 * else a new session would begin far behind those that are served so, and go before them. Time is
 * charged by a mark that moves on: what lies between two changes of account belongs to the first,
 * so nothing is charged twice where a piece of one leads to a piece of another.
 */
#include "service/base/work.h"

#include "ipc/wake.h"

#include <assert.h>

/* ---- users ---- */

/* The place of a user that is known, else the next free one in turn: what is known of a user stays
 * for a while when all of its sessions have ended. Without a free one, the last is shared. */
static uint32_t place_of(struct attnd_works *works, uid_t uid)
{
    for (uint32_t i = 0; i < ATTND_WORK_USERS_MAX; i++)
        if (works->users[i].estate.user && works->users[i].uid == uid)
            return i;
    for (uint32_t i = 0; i < ATTND_WORK_USERS_MAX; i++) {
        const uint32_t place = works->next_user++ % ATTND_WORK_USERS_MAX;
        if (!works->users[place].sessions && works->users[place].account.waiting == 0)
            return place;
    }
    return ATTND_WORK_USERS_MAX - 1;
}

struct attnd_account *attnd_work_user(struct attnd_works *works, uid_t uid)
{
    const uint32_t place = place_of(works, uid);

    if (!works->users[place].sessions) {
        if (works->users[place].uid != uid && works->users[place].account.waiting == 0)
            works->users[place].account = (struct attnd_account){0};
        works->users[place].uid = uid;
        works->users[place].estate.user = &works->users[place].account;
    }
    works->users[place].sessions++;
    return &works->users[place].account;
}

void attnd_work_user_done(struct attnd_works *works, struct attnd_account *user)
{
    for (uint32_t i = 0; i < ATTND_WORK_USERS_MAX; i++)
        if (user == &works->users[i].account)
            works->users[i].sessions--;
}

struct attnd_account *attnd_work_estate(struct attnd_works *works, uid_t uid)
{
    for (uint32_t i = 0; i < ATTND_WORK_USERS_MAX; i++)
        if (works->users[i].estate.user && works->users[i].uid == uid)
            return &works->users[i].estate;
    return &works->orphans;
}

uint64_t attnd_work_user_spent_ns(const struct attnd_works *works, uid_t uid)
{
    for (uint32_t i = 0; i < ATTND_WORK_USERS_MAX; i++)
        if (works->users[i].uid == uid && works->users[i].account.spent_ns)
            return works->users[i].account.spent_ns;
    return 0;
}

/* ---- items that wait ---- */

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* One that has nothing waiting begins where others are. */
static void come(const struct attnd_works *works, struct attnd_account *account)
{
    struct attnd_account *user = account->user;

    if (user->waiting == 0)
        user->virtual_ns = later(user->virtual_ns, works->floor_ns);
    if (!account->link)
        account->virtual_ns = later(account->virtual_ns, user->floor_ns);
}

/* Where others are: at the one that is served, or at the one that has had the least, if it waits.
 * To be served at once is no turn: what one has had so is no debt of those that come. */
static void raise_floors(struct attnd_works *works, const struct attnd_account *account,
                         const struct attnd_account *before)
{
    struct attnd_account *user = account->user;
    uint64_t users_ns = user->virtual_ns, sessions_ns = account->virtual_ns;

    if (before && before->user) { /* it goes on behind this part of its piece */
        users_ns = earlier(users_ns, before->user->virtual_ns);
        if (before->user == user)
            sessions_ns = earlier(sessions_ns, before->virtual_ns);
    }
    for (const struct attnd_account *at = works->waiting; at; at = at->next) {
        users_ns = earlier(users_ns, at->user->virtual_ns);
        if (at->user == user)
            sessions_ns = earlier(sessions_ns, at->virtual_ns);
    }
    works->floor_ns = later(works->floor_ns, users_ns);
    user->floor_ns = later(user->floor_ns, sessions_ns);
}

static void account_wait(struct attnd_works *works, struct attnd_account *account)
{
    if (!account->user)
        account->user = &works->nobody;
    if (account != works->current) /* which has come already: it does not rest within a piece */
        come(works, account);
    account->user->waiting++;
    account->last = &account->first;
    account->next = works->waiting;
    account->link = &works->waiting;
    if (account->next)
        account->next->link = &account->next;
    works->waiting = account;
}

static void account_rest(struct attnd_account *account)
{
    account->user->waiting--;
    *account->link = account->next;
    if (account->next)
        account->next->link = account->link;
    account->link = NULL;
}

void attnd_work_queue(struct attnd_works *works, struct attnd_account *account,
                      struct attnd_work *work)
{
    if (work->link)
        return;
    if (!account->link)
        account_wait(works, account);
    work->account = account;
    work->next = NULL;
    work->link = account->last;
    *account->last = work;
    account->last = &work->next;
}

static void take_out(struct attnd_work *work)
{
    struct attnd_account *account = work->account;

    *work->link = work->next;
    if (work->next)
        work->next->link = work->link;
    else
        account->last = work->link;
    work->link = NULL;
    if (!account->first)
        account_rest(account);
}

void attnd_work_stop(struct attnd_work *work)
{
    if (work->link)
        take_out(work);
}

/* ---- pieces ---- */

static void charge(struct attnd_works *works, uint64_t now_ns)
{
    struct attnd_account *account = works->current;
    const uint64_t spent_ns = now_ns - works->mark_ns;

    works->mark_ns = now_ns;
    if (!account)
        return;
    account->spent_ns += spent_ns;
    account->virtual_ns += spent_ns;
    if (account->user) {
        account->user->spent_ns += spent_ns;
        account->user->virtual_ns += spent_ns;
    }
}

struct attnd_account *attnd_work_enter(struct attnd_works *works, struct attnd_account *account)
{
    struct attnd_account *before = works->current;
    const uint64_t now_ns = attnd_clock_ns();

    charge(works, now_ns);
    works->current = account;
    if (account->user) {
        come(works, account);
        raise_floors(works, account, before);
    }
    if (!before)
        works->piece_ns = now_ns;
    return before;
}

uint64_t attnd_work_leave(struct attnd_works *works, struct attnd_account *before)
{
    struct attnd_account *account = works->current;
    const uint64_t now_ns = attnd_clock_ns();

    charge(works, now_ns);
    works->current = before;
    if (before)
        return now_ns; /* the piece goes on: this was a part of it for another */
    const uint64_t took_ns = now_ns - works->piece_ns;
    works->piece_ns = 0;
    works->pieces++;
    works->longest_ns = later(works->longest_ns, took_ns);
    if (took_ns > ATTND_WORK_BUDGET_NS) {
        works->over++;
        account->over++;
    }
    return now_ns;
}

int attnd_work_spent(const struct attnd_works *works)
{
    const uint64_t part_ns = works->part_ns ? works->part_ns : ATTND_WORK_SPENT_NS;

    return works->piece_ns && attnd_clock_ns() - works->piece_ns >= part_ns;
}

/* An item that waits does so until it is its account's turn: one that comes there does not come
 * from a rest. Return: CLOCK_MONOTONIC behind it. */
static uint64_t do_piece(struct attnd_works *works, struct attnd_account *account,
                         struct attnd_work *work)
{
    struct attnd_account *before = attnd_work_enter(works, account);

    attnd_work_stop(work);
    if (work->go(work))
        attnd_work_queue(works, account, work);
    return attnd_work_leave(works, before);
}

void attnd_work_start(struct attnd_works *works, struct attnd_account *account,
                      struct attnd_work *work)
{
    if (work->link)
        return;
    if (!attnd_work_has_time(works)) {
        attnd_work_queue(works, account, work);
        return;
    }
    const uint64_t begin_ns = attnd_clock_ns();
    works->at_once_ns += do_piece(works, account, work) - begin_ns;
}

/* ---- turns ---- */

static int goes_before(const struct attnd_account *a, const struct attnd_account *b)
{
    if (a->user->virtual_ns != b->user->virtual_ns)
        return a->user->virtual_ns < b->user->virtual_ns;
    return a->virtual_ns < b->virtual_ns;
}

static struct attnd_account *pick(struct attnd_works *works)
{
    struct attnd_account *best = works->waiting;
    uint64_t waiting = 0;

    for (struct attnd_account *at = best; at; at = at->next, waiting++)
        if (goes_before(at, best))
            best = at;
    works->part_ns = waiting > 1 ? later(ATTND_WORK_SPENT_NS / waiting, ATTND_WORK_PART_NS) : 0;
    return best;
}

/* Return: CLOCK_MONOTONIC behind the piece; 0: nothing waits. */
static uint64_t next_piece(struct attnd_works *works)
{
    struct attnd_account *account = pick(works);

    return account ? do_piece(works, account, account->first) : 0;
}

void attnd_work_begin(struct attnd_works *works)
{
    works->at_once_ns = 0;
    works->begin_ns = attnd_clock_ns();
}

int attnd_work_turn_spent(const struct attnd_works *works)
{
    return attnd_clock_ns() - works->begin_ns >= ATTND_WORK_BUDGET_NS;
}

int attnd_work_turn(struct attnd_works *works)
{
    uint64_t now_ns;
    int pieces = 0;

    do {
        now_ns = next_piece(works);
        pieces += now_ns != 0;
    } while (now_ns && now_ns - works->begin_ns < ATTND_WORK_BUDGET_NS);
    return pieces;
}

void attnd_work_finish(struct attnd_works *works)
{
    while (next_piece(works))
        ;
}
