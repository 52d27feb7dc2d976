/*
 * test_e2e_page_leases.c - pages of a pool that the service owns: who holds them, and until when.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGES 50

struct lessee {
    struct attnd_session *session;
    uint32_t pool;
};

static void session_open(struct lessee *lessee, const struct harness *harness)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = harness->socket, .name = "lessee"};
    CHECK_OK(attnd_open(&args, &lessee->session));
}

/* One creates the pool, which another may attach. */
static void first_lessee(struct lessee *a, struct attnd_token *token, const struct harness *harness)
{
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = PAGES,
                                         .page_size = 16,
                                         .heads_kv = 1,
                                         .dim_qk = 64,
                                         .dim_vo = 64,
                                         .dtype = ATTND_FP16,
                                         .page_owner = ATTND_PAGES_OF_SERVICE};

    session_open(a, harness);
    CHECK_OK(attnd_pool_create(a->session, &desc, &a->pool));
    CHECK_OK(attnd_pool_share(a->session, a->pool, 1, token));
}

static void two_lessees(struct lessee *a, struct lessee *b, const struct harness *harness)
{
    struct attnd_token token;

    first_lessee(a, &token, harness);
    session_open(b, harness);
    CHECK_OK(attnd_pool_attach(b->session, &token, &b->pool));
}

static uint32_t leased(const struct harness *harness)
{
    Attnd__Status *status = harness_status(harness);
    CHECK_EQUAL(status->n_pools, 1);
    uint32_t pages = status->pools[0]->pages_leased;

    attnd__status__free_unpacked(status, NULL);
    return pages;
}

static void pages_go_out_once_and_come_back(void **state)
{
    struct lessee a, b;
    int32_t pages[PAGES], more[PAGES];
    uint8_t seen[PAGES] = {0};
    struct attnd_fault fault;

    two_lessees(&a, &b, *state);
    CHECK_OK(attnd_pages_alloc(a.session, a.pool, 30, pages));
    CHECK_OK(attnd_pages_alloc(b.session, b.pool, 20, pages + 30));
    for (int i = 0; i < PAGES; i++) {
        CHECK(pages[i] >= 0 && pages[i] < PAGES && !seen[pages[i]]);
        seen[pages[i]] = 1;
    }
    CHECK_ERROR(attnd_pages_alloc(b.session, b.pool, 1, more), ATTND_E_NO_SPACE);
    CHECK_OK(attnd_pages_free(a.session, a.pool, 5, pages));
    CHECK_ERROR(attnd_pages_alloc(b.session, b.pool, 6, more), ATTND_E_NO_SPACE);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.limit, 5); /* how many there are */
    CHECK_EQUAL(leased(*state), 45);
    CHECK_OK(attnd_pages_alloc(b.session, b.pool, 5, more));
    CHECK_EQUAL(leased(*state), PAGES);
    attnd_close(a.session);
    attnd_close(b.session);
}

static void what_is_not_held_cannot_be_given_away(void **state)
{
    struct lessee a, b;
    struct attnd_token ticket;
    struct attnd_fault fault;
    int32_t pages[4];

    two_lessees(&a, &b, *state);
    CHECK_OK(attnd_pages_alloc(a.session, a.pool, 4, pages));
    CHECK_ERROR(attnd_pages_free(b.session, b.pool, 1, pages), ATTND_E_NOT_LEASED);
    CHECK_ERROR(attnd_pages_share(b.session, b.pool, 1, pages), ATTND_E_NOT_LEASED);
    CHECK_ERROR(attnd_pages_offer(b.session, b.pool, 1, pages, 1000, &ticket), ATTND_E_NOT_LEASED);
    CHECK_ERROR(attnd_pages_free(a.session, a.pool, 1, (int32_t[]){PAGES}), ATTND_E_RANGE);
    CHECK_ERROR(attnd_pages_free(a.session, a.pool, 1, (int32_t[]){-1}), ATTND_E_RANGE);

    /* All or nothing: the third is not leased twice, so none is freed. */
    CHECK_ERROR(attnd_pages_free(a.session, a.pool, 3, (int32_t[]){pages[0], pages[1], pages[0]}),
                ATTND_E_NOT_LEASED);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.index, 2);
    CHECK_EQUAL(fault.value, pages[0]);
    CHECK_EQUAL(leased(*state), 4);
    CHECK_OK(attnd_pages_free(a.session, a.pool, 4, pages));
    CHECK_EQUAL(leased(*state), 0);
    attnd_close(a.session);
    attnd_close(b.session);
}

static void a_shared_page_needs_as_many_frees_as_leases(void **state)
{
    struct lessee a, b;
    int32_t page;

    two_lessees(&a, &b, *state);
    CHECK_OK(attnd_pages_alloc(a.session, a.pool, 1, &page));
    CHECK_OK(attnd_pages_share(a.session, a.pool, 1, &page));
    CHECK_OK(attnd_pages_free(a.session, a.pool, 1, &page));
    CHECK_EQUAL(leased(*state), 1);
    CHECK_OK(attnd_pages_free(a.session, a.pool, 1, &page));
    CHECK_EQUAL(leased(*state), 0);
    CHECK_ERROR(attnd_pages_free(a.session, a.pool, 1, &page), ATTND_E_NOT_LEASED);
    attnd_close(a.session);
    attnd_close(b.session);
}

static void an_offer_expires_and_its_pages_are_free(void **state)
{
    struct lessee a, b;
    struct attnd_token ticket, other;
    int32_t pages[10], claimed[10];
    uint32_t pool;

    two_lessees(&a, &b, *state);
    CHECK_OK(attnd_pages_alloc(a.session, a.pool, 10, pages));
    CHECK_ERROR(attnd_pages_offer(a.session, a.pool, 10, pages, 0, &ticket), ATTND_E_RANGE);
    CHECK_OK(attnd_pages_offer(a.session, a.pool, 4, pages, 600000, &other));
    CHECK_ERROR(attnd_pages_free(a.session, a.pool, 1, pages), ATTND_E_NOT_LEASED); /* given */
    CHECK_EQUAL(leased(*state), 10);
    CHECK_OK(attnd_pages_offer(a.session, a.pool, 6, pages + 4, 60, &ticket));
    for (int ms = 0; leased(*state) > 4 && ms < 20000; ms++)
        harness_sleep_ms(1);
    CHECK_EQUAL(leased(*state), 4);
    CHECK_ERROR(attnd_pages_claim(b.session, &ticket, &pool, claimed, 10), ATTND_E_EXPIRED);
    CHECK_EQUAL(attnd_pages_claim(b.session, &other, &pool, claimed, 10), 4); /* its time is not */
    attnd_close(a.session);
    attnd_close(b.session);
}

static void a_claim_brings_the_pages_in_their_order(void **state)
{
    struct lessee a, b;
    struct attnd_token ticket;
    int32_t pages[8], claimed[8];
    const int32_t order[5] = {7, 0, 3, 3, 1}; /* one of them twice */
    int32_t offered[5];
    uint32_t pool = 0;

    two_lessees(&a, &b, *state);
    CHECK_OK(attnd_pages_alloc(a.session, a.pool, 8, pages));
    CHECK_OK(attnd_pages_share(a.session, a.pool, 1, &pages[3]));
    for (int i = 0; i < 5; i++)
        offered[i] = pages[order[i]];
    CHECK_OK(attnd_pages_offer(a.session, a.pool, 5, offered, 10000, &ticket));
    attnd_close(a.session); /* frees what was not offered */
    CHECK_EQUAL(attnd_pages_claim(b.session, &ticket, &pool, claimed, 8), 5);
    CHECK_EQUAL(pool, b.pool);
    CHECK_EQUAL(memcmp(claimed, offered, sizeof(offered)), 0);
    CHECK_OK(attnd_pages_free(b.session, b.pool, 5, claimed));
    for (int ms = 0; leased(*state) > 0 && ms < 5000; ms++)
        harness_sleep_ms(1);
    CHECK_EQUAL(leased(*state), 0);
    attnd_close(b.session);
}

/* A page that somebody else reads may not be written: full pages may be shared, and are. */
static void appending_to_a_shared_page_is_refused(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;
    struct trial trial;
    int32_t page;

    engine_open(&engine, harness->socket, "writer");
    batch.shape.service_pool = 1;
    batch.append = 1;
    batch.level[0].requests = 1;
    batch.level[0].entry[0] = (struct random_entry){.qo_len = 1, .kv_len = {40}};
    trial_begin(&trial, &engine, &batch, 0);
    page = trial.level[0].list[1]; /* full, and not to be written */
    CHECK_OK(attnd_pages_share(engine.session, engine.pool, 1, &page));
    trial_must(&trial, trial_submit(&trial) || trial_judge(&trial));

    page = trial.level[0].list[2]; /* where the new token goes */
    CHECK_OK(attnd_pages_share(engine.session, engine.pool, 1, &page));
    CHECK_OK(trial_submit_append(&trial, 0, 0, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 1);
    CHECK_EQUAL(trial.failure.fault.code, -ATTND_E_SHARED_PAGE);
    CHECK_EQUAL(trial.failure.fault.value, page);
    trial.failure.fault.code = 0;
    CHECK_OK(attnd_pages_free(engine.session, engine.pool, 1, &page));
    CHECK_OK(trial_submit_append(&trial, 0, 0, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    trial_end(&trial);
    engine_close(&engine);
}

static struct attnd_completion next_completion(const struct engine *engine)
{
    struct attnd_completion done = {0};
    CHECK_EQUAL(attnd_wait(engine->session, &done, 1, TRIAL_WAIT_NS), 1);
    return done;
}

/* Ids are looked up when a batch is copied, and the lease goes before the batch has its turn. */
static void a_lease_must_last_until_the_turn_of_the_set(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;
    struct trial trial;

    engine_open(&engine, harness->socket, "early");
    batch.shape.service_pool = 1;
    batch.level[0].requests = 1;
    batch.level[0].entry[0] = (struct random_entry){.qo_len = 1, .kv_len = {400}};
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    const int32_t page = trial.level[0].list[1];

    const pid_t worker = e2e_hold_worker(harness);
    const struct attnd_op op = {.user_data = 7};
    CHECK_OK(trial_submit_as(&trial, 0, &op));
    CHECK_OK(trial_submit_set(&trial, 0, 0)); /* waits behind the run */
    CHECK_OK(trial_submit_set(&trial, 2, 0)); /* refused, when the one before it is taken in */
    struct attnd_completion done = next_completion(&engine);
    CHECK_EQUAL(done.lane, 2);
    CHECK_EQUAL(done.fault.code, -ATTND_E_BUSY);
    CHECK_OK(attnd_pages_free(engine.session, engine.pool, 1, &page));
    e2e_let_go(worker);
    done = next_completion(&engine);
    CHECK_EQUAL(done.user_data, 7);
    CHECK_EQUAL(done.fault.code, 0);
    done = next_completion(&engine);
    CHECK_EQUAL(done.operation, ATTND_PLAN_SET);
    CHECK_EQUAL(done.fault.code, -ATTND_E_NOT_LEASED);
    CHECK_EQUAL(done.fault.index, 1);
    CHECK_EQUAL(done.fault.value, page);

    int32_t again;
    CHECK_OK(attnd_pages_alloc(engine.session, engine.pool, 1, &again));
    CHECK_EQUAL(again, page);
    trial.expected = 0; /* all were collected here */
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    trial_end(&trial);
    engine_close(&engine);
}

/* ---- a process that is about to end ---- */

struct exiting {
    const struct harness *harness;
    struct attnd_token token;
    uint32_t closed; /* its connection; the process is still there */
    uint32_t over;
};

/* What is left of the process, while its first thread has exited. */
static void *closes_before_it_ends(void *context)
{
    struct exiting *exiting = context;
    struct lessee lessee;
    int32_t pages[PAGES];
    char path[40], state = 0;

    session_open(&lessee, exiting->harness);
    CHECK_OK(attnd_pool_attach(lessee.session, &exiting->token, &lessee.pool));
    CHECK_OK(attnd_pages_alloc(lessee.session, lessee.pool, 30, pages));
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)getpid());
    while (state != 'Z') {
        FILE *file = fopen(path, "re");
        CHECK(file != NULL);
        CHECK_EQUAL(fscanf(file, "%*d %*s %c", &state), 1);
        (void)fclose(file);
    }
    attnd_close(lessee.session);
    harness_say(&exiting->closed, 1);
    harness_await(&exiting->over, 1);
    _exit(0);
}

static int exits(void *context)
{
    pthread_t thread;

    CHECK_EQUAL(pthread_create(&thread, NULL, closes_before_it_ends, context), 0);
    pthread_exit(NULL);
}

static int all_are_back(void *context)
{
    return leased(context) == 0;
}

/* As one whose contexts on the GPU are still there. */
static void pages_of_a_process_that_exits_come_back_when_it_has_ended(void **state)
{
    struct exiting *exiting = harness_shared(sizeof(*exiting));
    struct lessee a;
    int32_t pages[PAGES];

    exiting->harness = *state;
    first_lessee(&a, &exiting->token, *state);
    const pid_t pid = harness_fork(exits, exiting);
    harness_await(&exiting->closed, 1);
    for (int i = 0; i < 10; i++) /* the daemon has looked at what came before each of them */
        CHECK_EQUAL(leased(*state), 30);
    CHECK_ERROR(attnd_pages_alloc(a.session, a.pool, PAGES, pages), ATTND_E_NO_SPACE);
    harness_say(&exiting->over, 1);
    CHECK_EQUAL(harness_join(pid, 20000), 0);
    harness_eventually(all_are_back, *state, 20000, "the pages come back");
    CHECK_OK(attnd_pages_alloc(a.session, a.pool, PAGES, pages));
    attnd_close(a.session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(pages_go_out_once_and_come_back),
        E2E_TEST(what_is_not_held_cannot_be_given_away),
        E2E_TEST(a_shared_page_needs_as_many_frees_as_leases),
        E2E_TEST(an_offer_expires_and_its_pages_are_free),
        E2E_TEST(a_claim_brings_the_pages_in_their_order),
        E2E_TEST(appending_to_a_shared_page_is_refused),
        E2E_TEST(a_lease_must_last_until_the_turn_of_the_set),
        E2E_TEST(pages_of_a_process_that_exits_come_back_when_it_has_ended),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
