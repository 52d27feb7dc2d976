/* test_work.c - whose piece is next, and on whose account it is. */
#include "ipc/wake.h"
#include "service/base/work.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define SESSIONS 8u

struct item {
    struct attnd_work work; /* first */
    uint64_t spin_ns;       /* of a piece */
    int left;               /* pieces; < 0: without end */
    int done;
    struct attnd_work *starts; /* in its first piece */
    struct attnd_account *of;
};

static struct attnd_works works;
static struct attnd_account account[SESSIONS];
static struct item item[SESSIONS];

static int go(struct attnd_work *work)
{
    struct item *it = (struct item *)(void *)work;

    if (it->starts)
        attnd_work_start(&works, it->of, it->starts);
    it->starts = NULL;
    const uint64_t begin_ns = attnd_clock_ns();
    while (attnd_clock_ns() - begin_ns < it->spin_ns)
        ;
    it->done++;
    it->left -= it->left > 0;
    return it->left != 0;
}

/* The first @first sessions are user 1's, the others user 2's. */
static void set_up(uint32_t first)
{
    memset(&works, 0, sizeof(works));
    memset(account, 0, sizeof(account));
    memset(item, 0, sizeof(item));
    for (uint32_t i = 0; i < SESSIONS; i++) {
        account[i].user = attnd_work_user(&works, i < first ? 1 : 2);
        item[i] = (struct item){.work = {.go = go}, .spin_ns = 50000, .left = -1};
    }
}

static void queue(uint32_t i)
{
    attnd_work_queue(&works, &account[i], &item[i].work);
}

static void turns(int count)
{
    while (count-- > 0) {
        attnd_work_begin(&works);
        (void)attnd_work_turn(&works);
    }
}

static uint64_t apart(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

static void sessions_have_equal_time_whatever_their_pieces_take(void **state)
{
    (void)state;
    set_up(SESSIONS);
    item[1].spin_ns = 400000; /* it does not look at the clock */
    queue(0);
    queue(1);
    turns(200);
    assert_true(item[0].done > item[1].done);
    assert_true(apart(account[0].spent_ns, account[1].spent_ns) <= works.longest_ns);
    assert_true(account[1].over > 0 && works.over >= account[1].over);
}

static void users_have_equal_time_however_many_sessions_they_have(void **state)
{
    (void)state;
    set_up(SESSIONS - 1);
    for (uint32_t i = 0; i < SESSIONS; i++)
        queue(i);
    turns(200);
    assert_true(apart(account[0].user->spent_ns, account[SESSIONS - 1].user->spent_ns) <=
                works.longest_ns);
    assert_int_equal(account[SESSIONS - 1].user->spent_ns, account[SESSIONS - 1].spent_ns);
    assert_int_equal(attnd_work_user_spent_ns(&works, 2), account[SESSIONS - 1].spent_ns);
}

static void one_that_comes_after_a_rest_is_next_and_is_not_repaid(void **state)
{
    (void)state;
    set_up(SESSIONS);
    for (uint32_t i = 0; i < SESSIONS - 1; i++)
        queue(i);
    turns(50);
    item[SESSIONS - 1].left = 1;
    queue(SESSIONS - 1);
    turns(1);
    assert_int_equal(item[SESSIONS - 1].done, 1); /* in front of seven */
    item[SESSIONS - 1].left = -1;
    const uint64_t before_ns = account[0].spent_ns;
    const uint64_t late_ns = account[SESSIONS - 1].spent_ns;
    queue(SESSIONS - 1);
    turns(100);
    assert_true(apart(account[0].spent_ns - before_ns, account[SESSIONS - 1].spent_ns - late_ns) <=
                3 * works.longest_ns);
}

/* Account 0 is served at once, @times times. @turn_every so many a turn follows; 0: none. */
static void serve_at_once(int times, int turn_every)
{
    for (int i = 0; i < times; i++) {
        item[0].left = 1;
        attnd_work_begin(&works);
        attnd_work_start(&works, &account[0], &item[0].work);
        if (turn_every && i % turn_every == 0)
            (void)attnd_work_turn(&works);
    }
}

/* Sessions come and go: each new one would go before those that have been there for long. */
static void one_that_is_new_does_not_go_before_those_that_were_served_at_once(void **state)
{
    (void)state;
    do { /* others may have had this processor within a piece, and that is made up for */
        set_up(SESSIONS - 1);
        serve_at_once(100, 0);
    } while (works.longest_ns > 4 * item[0].spin_ns);
    assert_int_equal(item[0].done, 100);
    queue(1);            /* of its user */
    queue(SESSIONS - 1); /* and of another */
    turns(1);
    item[0].left = 1;
    queue(0);
    while (item[0].done == 100)
        turns(1);
    assert_true(item[1].done < 20); /* and does not make up for a hundred first */
}

/* Account 1 waits, and has a turn now and then: account 0 has had more than twice as much. */
static void serve_one_before_another(void)
{
    do { /* others may have had this processor within a turn of account 1 */
        set_up(SESSIONS);
        queue(1);
        serve_at_once(80, 16);
    } while (account[0].spent_ns < 2 * account[1].spent_ns);
}

static void one_that_waits_makes_up_for_what_another_had_at_once(void **state)
{
    (void)state;
    serve_one_before_another();
    const uint64_t had_ns = account[0].spent_ns;
    const int done = item[0].done;
    item[0].left = 1;
    queue(0);
    while (item[0].done == done)
        turns(1);
    assert_true(account[1].spent_ns + 2 * works.longest_ns >= had_ns);
}

static void one_that_comes_does_not_wait_for_what_another_had_at_once(void **state)
{
    (void)state;
    serve_one_before_another();
    item[2].left = 1;
    queue(2);
    turns(1);
    assert_int_equal(item[2].done, 1);
}

static void a_user_that_comes_does_not_wait_for_what_another_had_at_once(void **state)
{
    (void)state;
    set_up(1); /* account 0 is user 1's, all others are user 2's */
    queue(1);
    serve_at_once(80, 0);
    account[2].user = attnd_work_user(&works, 3);
    item[2].left = 1;
    queue(2);
    turns(1);
    assert_int_equal(item[2].done, 1);
}

/* The first one's piece leads to a part for another, which has had more. */
static void one_whose_piece_led_to_anothers_is_not_passed_for_it(void **state)
{
    (void)state;
    set_up(SESSIONS);
    item[1].left = 1;
    item[1].spin_ns = 2000000;
    attnd_work_begin(&works);
    attnd_work_start(&works, &account[1], &item[1].work);
    item[1].left = 1;
    item[1].spin_ns = 0;
    item[0].starts = &item[1].work;
    item[0].of = &account[1];
    queue(0);
    turns(1);
    assert_int_equal(item[1].done, 2);
    assert_true(account[0].user->floor_ns <= account[0].virtual_ns);
}

static int go_until_spent(struct attnd_work *work)
{
    struct item *it = (struct item *)(void *)work;

    while (!attnd_work_spent(&works))
        ;
    const uint64_t took_ns = attnd_clock_ns() - works.piece_ns;
    it->spin_ns = took_ns < it->spin_ns ? took_ns : it->spin_ns;
    return 1;
}

/* The shortest of the first one's: others have this processor now and then. */
static uint64_t piece_ns_where_so_many_wait(uint32_t count)
{
    set_up(SESSIONS);
    for (uint32_t i = 0; i < count; i++) {
        item[i].work.go = go_until_spent;
        item[i].spin_ns = UINT64_MAX;
        queue(i);
    }
    turns(50);
    return item[0].spin_ns;
}

static void pieces_are_shorter_where_many_wait(void **state)
{
    (void)state;
    assert_true(piece_ns_where_so_many_wait(1) >= ATTND_WORK_SPENT_NS);
    assert_true(piece_ns_where_so_many_wait(SESSIONS) < ATTND_WORK_SPENT_NS / 2);
}

static void a_turn_is_over_when_its_time_is(void **state)
{
    (void)state;
    set_up(SESSIONS);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        item[i].spin_ns = ATTND_WORK_BUDGET_NS + 1;
        queue(i);
    }
    attnd_work_begin(&works);
    assert_int_equal(attnd_work_turn(&works), 1);
    assert_non_null(works.waiting);
}

static void a_start_is_at_once_while_the_turn_has_time(void **state)
{
    (void)state;
    do { /* others may have had this processor meanwhile */
        set_up(SESSIONS);
        item[0].left = item[1].left = item[2].left = 1;
        item[1].spin_ns = ATTND_WORK_BUDGET_NS + 1;
        attnd_work_begin(&works);
        attnd_work_start(&works, &account[0], &item[0].work);
    } while (!attnd_work_has_time(&works));
    attnd_work_start(&works, &account[1], &item[1].work);
    attnd_work_start(&works, &account[2], &item[2].work);
    assert_true(item[0].done == 1 && item[1].done == 1 && item[2].done == 0);
    turns(1);
    assert_int_equal(item[2].done, 1);
}

static void what_one_starts_for_another_is_the_others(void **state)
{
    (void)state;
    set_up(1);
    item[0].left = item[1].left = 1;
    item[1].spin_ns = 1000000;
    item[0].starts = &item[1].work;
    item[0].of = &account[1];
    queue(0);
    turns(1);
    assert_int_equal(item[1].done, 1);
    assert_true(account[1].spent_ns >= item[1].spin_ns);
    assert_true(account[1].user->spent_ns >= item[1].spin_ns);
    assert_int_equal(works.pieces, 1); /* for all that nobody else had the thread meanwhile */
    assert_true(works.longest_ns >= item[0].spin_ns + item[1].spin_ns);
}

static void an_item_that_is_stopped_is_not_done(void **state)
{
    (void)state;
    set_up(SESSIONS);
    queue(0);
    queue(1);
    queue(0); /* which waits already */
    attnd_work_stop(&item[0].work);
    attnd_work_stop(&item[0].work);
    turns(1);
    assert_int_equal(item[0].done, 0);
    assert_true(item[1].done > 0);
    attnd_work_stop(&item[1].work);
    assert_null(works.waiting);
    assert_int_equal(account[0].user->waiting, 0);
}

static void spent_is_said_inside_of_a_piece_and_only_there(void **state)
{
    (void)state;
    set_up(SESSIONS);
    assert_false(attnd_work_spent(&works));
    struct attnd_account *before = attnd_work_enter(&works, &account[0]);
    const uint64_t begin_ns = attnd_clock_ns();
    while (!attnd_work_spent(&works))
        ;
    assert_true(attnd_clock_ns() - begin_ns + 1000 >= ATTND_WORK_SPENT_NS);
    (void)attnd_work_leave(&works, before);
    assert_false(attnd_work_spent(&works));
}

static void all_is_done_in_the_end(void **state)
{
    (void)state;
    set_up(SESSIONS);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        item[i].left = 20;
        item[i].spin_ns = 1000;
        queue(i);
    }
    attnd_work_finish(&works);
    for (uint32_t i = 0; i < SESSIONS; i++)
        assert_int_equal(item[i].done, 20);
    assert_null(works.waiting);
}

static void places_of_users_are_given_again(void **state)
{
    (void)state;
    set_up(SESSIONS);
    for (uid_t uid = 100; uid < 300; uid++) {
        struct attnd_account *user = attnd_work_user(&works, uid);
        assert_ptr_equal(attnd_work_user(&works, uid), user);
        assert_ptr_equal(attnd_work_estate(&works, uid)->user, user);
        attnd_work_user_done(&works, user);
        attnd_work_user_done(&works, user);
    }
    assert_ptr_equal(attnd_work_estate(&works, 999), &works.orphans);
    /* One that comes back finds what was known of it. */
    struct attnd_account *user = attnd_work_user(&works, 500);
    user->wakes.owed_ns = 1;
    attnd_work_user_done(&works, user);
    assert_true(attnd_work_user(&works, 501) != user);
    assert_ptr_equal(attnd_work_user(&works, 500), user);
    assert_int_equal(user->wakes.owed_ns, 1);
}

/* With every place taken, the last is shared, and what waits in it still counts. */
static void a_shared_place_keeps_what_waits(void **state)
{
    (void)state;
    memset(&works, 0, sizeof(works));
    struct attnd_account *last = &works.users[ATTND_WORK_USERS_MAX - 1].account;

    for (uid_t i = 0; i < ATTND_WORK_USERS_MAX; i++)
        attnd_work_user(&works, 1000 + i);
    last->waiting = 1;
    attnd_work_user_done(&works, last);
    assert_ptr_equal(attnd_work_user(&works, 2000), last);
    assert_int_equal(last->waiting, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_have_equal_time_whatever_their_pieces_take),
        cmocka_unit_test(users_have_equal_time_however_many_sessions_they_have),
        cmocka_unit_test(one_that_comes_after_a_rest_is_next_and_is_not_repaid),
        cmocka_unit_test(one_that_is_new_does_not_go_before_those_that_were_served_at_once),
        cmocka_unit_test(one_that_waits_makes_up_for_what_another_had_at_once),
        cmocka_unit_test(one_that_comes_does_not_wait_for_what_another_had_at_once),
        cmocka_unit_test(a_user_that_comes_does_not_wait_for_what_another_had_at_once),
        cmocka_unit_test(one_whose_piece_led_to_anothers_is_not_passed_for_it),
        cmocka_unit_test(pieces_are_shorter_where_many_wait),
        cmocka_unit_test(a_turn_is_over_when_its_time_is),
        cmocka_unit_test(a_start_is_at_once_while_the_turn_has_time),
        cmocka_unit_test(what_one_starts_for_another_is_the_others),
        cmocka_unit_test(an_item_that_is_stopped_is_not_done),
        cmocka_unit_test(spent_is_said_inside_of_a_piece_and_only_there),
        cmocka_unit_test(all_is_done_in_the_end),
        cmocka_unit_test(places_of_users_are_given_again),
        cmocka_unit_test(a_shared_place_keeps_what_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
