/*
 * test_e2e_users.c - several users of one service: what each may have, and SIGHUP in between.
 *
 * Clients are processes of two unprivileged users. Only root can start such: skipped elsewhere.
 */
#include "client/attnd.h"
#include "tests/support/harness/e2e.h"

#include <grp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define FIRST_UID 64001u
#define SECOND_UID 64002u
#define HEAP_BYTES (16 << 20)
#define TRIES 1100u
#define PAGES 64u
#define JOIN_MS 20000u

static struct harness service;
static char config[64];

/* In shared memory: what a client is to do and what came of it. */
struct tenant {
    uid_t uid;
    int offers;
    uint32_t hoarded, leave; /* flags */
    uint32_t plans;
    struct attnd_fault fault; /* of the plan that was refused */
    struct attnd_token pool, ticket;
    int opened; /* what attnd_open() answered */
    pid_t pid;
};

static void become(uid_t uid)
{
    const pid_t parent = getppid();

    CHECK_EQUAL(setgroups(0, NULL), 0);
    CHECK_EQUAL(setresgid(uid, uid, uid), 0);
    CHECK_EQUAL(setresuid(uid, uid, uid), 0);
    harness_die_with(parent); /* that is forgotten with the old user */
}

static int try_open(struct tenant *tenant, struct attnd_session **session)
{
    const struct attnd_open_args args = {.size = sizeof(args), .socket_path = service.socket};

    become(tenant->uid);
    tenant->opened = attnd_open(&args, session);
    return tenant->opened;
}

static uint32_t make_pool(struct attnd_session *session)
{
    uint32_t pool;

    CHECK_OK(attnd_pool_create_leased(session, 1, PAGES, 1, 1, 64, ATTND_DTYPE_FP16, &pool));
    return pool;
}

/* Plans until one is refused, and a page on offer. */
static int hoard(void *context)
{
    struct tenant *tenant = context;
    struct attnd_session *session;
    struct attnd_plan_args args = {.size = sizeof(args),
                                   .requests = 64,
                                   .rows = 64,
                                   .pages = 1u << 18,
                                   .levels = 1,
                                   .heads_q = 1};
    int32_t page;
    uint32_t plan;
    int code = 0;

    CHECK_OK(try_open(tenant, &session));
    args.pool = make_pool(session);
    if (tenant->offers) {
        CHECK_OK(attnd_pages_alloc(session, args.pool, 1, &page));
        CHECK_OK(attnd_pool_share(session, args.pool, 1, &tenant->pool));
        CHECK_OK(attnd_pages_offer(session, args.pool, 1, &page, 600000, &tenant->ticket));
    }
    while (tenant->plans < TRIES && (code = attnd_plan_create(session, &args, &plan)) == 0)
        tenant->plans++;
    CHECK_EQUAL(code, -ATTND_E_NO_MEMORY);
    attnd_last_fault(&tenant->fault);
    harness_say(&tenant->hoarded, 1);
    harness_await(&tenant->leave, 1);
    attnd_close(session);
    return 0;
}

static int knock(void *context)
{
    struct attnd_session *session;

    if (try_open(context, &session) == 0)
        attnd_close(session);
    return 0;
}

static int claim(void *context)
{
    struct tenant *tenant = context;
    struct attnd_session *session;
    uint32_t pool;
    int32_t page;

    CHECK_OK(try_open(tenant, &session));
    CHECK_OK(attnd_pool_attach(session, &tenant->pool, &pool));
    CHECK_EQUAL(attnd_pages_claim(session, &tenant->ticket, &pool, &page, 1), 1);
    attnd_close(session);
    return 0;
}

static struct tenant *tenant_of(uid_t uid)
{
    struct tenant *tenant = harness_shared(sizeof(*tenant));

    tenant->uid = uid;
    return tenant;
}

static struct tenant *start_hoarding(uid_t uid, int offers)
{
    struct tenant *tenant = tenant_of(uid);

    tenant->offers = offers;
    tenant->pid = harness_fork(hoard, tenant);
    harness_await(&tenant->hoarded, 1);
    return tenant;
}

static void leave(struct tenant *tenant)
{
    harness_say(&tenant->leave, 1);
    CHECK_EQUAL(harness_join(tenant->pid, JOIN_MS), 0);
}

static void write_config(uid_t one, uid_t other)
{
    FILE *file = fopen(config, "we");

    CHECK(file && fprintf(file, "heap = 16M\nallow-uid = 0\nallow-uid = %u\n", one) > 0);
    if (other)
        CHECK(fprintf(file, "allow-uid = %u\n", other) > 0);
    CHECK_EQUAL(fclose(file), 0);
}

static void start(void)
{
    const char *const options[] = {"--config", config, NULL};

    write_config(FIRST_UID, SECOND_UID);
    harness_start(&service, options);
    CHECK_EQUAL(chmod(service.directory, 0711), 0); /* others come to the socket */
}

/* How much of @quota the user has; 0 if the user has nothing at all. */
static uint64_t user_has(uid_t uid, const char *quota)
{
    Attnd__Status *status = harness_status(&service);
    uint64_t used = 0;

    for (size_t u = 0; u < status->n_users; u++)
        for (size_t q = 0; status->users[u]->uid == uid && q < status->n_quotas; q++)
            if (strcmp(status->quotas[q]->name, quota) == 0)
                used = status->users[u]->quota_used[q];
    attnd__status__free_unpacked(status, NULL);
    return used;
}

static int nothing_is_used(void *context)
{
    Attnd__Status *status = harness_status(&service);
    uint64_t used = 0;

    (void)context;
    for (size_t i = 0; i < status->n_quotas; i++)
        used += status->quotas[i]->used;
    used += status->n_users;
    attnd__status__free_unpacked(status, NULL);
    return used == 0;
}

static void a_user_with_many_processes_has_half_of_the_heap(void **state)
{
    (void)state;
    start();
    struct tenant *one = start_hoarding(FIRST_UID, 0), *two = start_hoarding(FIRST_UID, 0),
                  *three = start_hoarding(FIRST_UID, 0), *other = start_hoarding(SECOND_UID, 0);

    CHECK_EQUAL(one->fault.field, ATTND_F_HEAP);
    CHECK(one->fault.limit <= HEAP_BYTES / 4); /* a session's */
    CHECK(three->fault.limit <= HEAP_BYTES / 2 && three->fault.limit > HEAP_BYTES / 4);
    CHECK(one->plans >= 1 && three->plans < one->plans);
    CHECK_EQUAL(other->plans, one->plans);
    CHECK(user_has(FIRST_UID, "heap") <= HEAP_BYTES / 2);
    CHECK(user_has(FIRST_UID, "heap") > user_has(SECOND_UID, "heap"));
    CHECK_EQUAL(user_has(FIRST_UID, "sessions"), 3);
    leave(one);
    leave(two);
    leave(three);
    leave(other);
    harness_eventually(nothing_is_used, NULL, 5000, "all of it came back");
    harness_stop(&service);
}

struct count {
    uid_t uid;
    uint64_t sessions;
};

static int has_sessions(void *context)
{
    const struct count *count = context;
    return user_has(count->uid, "sessions") == count->sessions;
}

static void expect_opened(uid_t uid, int code)
{
    struct tenant *tenant = tenant_of(uid);

    CHECK_EQUAL(harness_join(harness_fork(knock, tenant), JOIN_MS), 0);
    CHECK_EQUAL(tenant->opened, code);
}

/* Sessions and plans go with the admission. A ticket stays, and stays its user's. */
static void what_a_user_has_is_counted_across_sighups(void **state)
{
    struct count gone = {FIRST_UID, 0};

    (void)state;
    start();
    struct tenant *first = start_hoarding(FIRST_UID, 1), *second = start_hoarding(SECOND_UID, 0);
    CHECK_EQUAL(user_has(FIRST_UID, "tickets"), 1);
    const uint64_t heap = user_has(FIRST_UID, "heap");

    write_config(SECOND_UID, 0);
    CHECK_EQUAL(kill(service.daemon, SIGHUP), 0);
    harness_eventually(has_sessions, &gone, 5000, "a user that is not admitted has no session");
    CHECK_EQUAL(user_has(FIRST_UID, "tickets"), 1);
    CHECK(user_has(FIRST_UID, "heap") < heap / 2); /* the pool of the ticket */
    CHECK_EQUAL(user_has(SECOND_UID, "sessions"), 1);
    expect_opened(FIRST_UID, -ATTND_E_PERMISSION);
    leave(first);

    write_config(FIRST_UID, 0);
    CHECK_EQUAL(kill(service.daemon, SIGHUP), 0);
    gone.uid = SECOND_UID;
    harness_eventually(has_sessions, &gone, 5000, "the other one has none now");
    expect_opened(SECOND_UID, -ATTND_E_PERMISSION);
    leave(second);
    CHECK_EQUAL(user_has(FIRST_UID, "tickets"), 1);
    CHECK_EQUAL(harness_join(harness_fork(claim, first), JOIN_MS), 0);
    harness_eventually(nothing_is_used, NULL, 5000, "all of it came back");
    harness_stop(&service);
}

#define CROWDS 4u
#define CONNECTIONS 20 /* of a process; a user may have 16 of them, and a process 8 */

/* Connections that say nothing. */
static int crowd(void *context)
{
    struct tenant *tenant = context;

    become(tenant->uid);
    for (int i = 0; i < CONNECTIONS; i++)
        (void)harness_connect(&service);
    harness_say(&tenant->hoarded, 1);
    pause();
    return 0;
}

static void many_users_that_say_nothing_keep_nobody_out(void **state)
{
    static const char *const options[] = {"--allow-uid", "0",     "--allow-uid", "64011",
                                          "--allow-uid", "64012", "--allow-uid", "64013",
                                          "--allow-uid", "64014", NULL};
    struct tenant *tenants[2 * CROWDS];

    (void)state;
    harness_start(&service, options);
    CHECK_EQUAL(chmod(service.directory, 0711), 0);
    for (uint32_t i = 0; i < 2 * CROWDS; i++) {
        tenants[i] = tenant_of(64011 + i / 2);
        tenants[i]->pid = harness_fork(crowd, tenants[i]);
        harness_await(&tenants[i]->hoarded, 1);
    }
    for (int i = 0; i < 40; i++)
        attnd__status__free_unpacked(harness_status(&service), NULL);
    for (uint32_t i = 0; i < 2 * CROWDS; i++)
        harness_kill(tenants[i]->pid);
    harness_stop(&service);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(a_user_with_many_processes_has_half_of_the_heap),
        E2E_OWN_TEST(what_a_user_has_is_counted_across_sighups),
        E2E_OWN_TEST(many_users_that_say_nothing_keep_nobody_out),
    };

    if (geteuid() != 0) {
        fprintf(stderr, "only root can be two users: quotas of users are NOT tested here\n");
        return 77;
    }
    harness_init();
    snprintf(config, sizeof(config), "/tmp/attnd-users-%d.conf", (int)getpid());
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(config);
    return failed;
}
