/* doer.c - a client that does all that clients do. */
#include "tests/support/harness/doer.h"

#include "client/attnd.h"
#include "tests/support/harness/harness.h"

#include <string.h>
#include <unistd.h>

#define DIM 64
#define PAGES 8u
#define PAGE_TOKENS 16u
#define Q_OFFSET 0u
#define K_OFFSET 4096u
#define V_OFFSET 8192u
#define O_OFFSET 12288u
#define MEMORY_BYTES 16384u
#define WAIT_NS 20000000000u

struct doer {
    struct attnd_session *session;
    uint32_t memory, pool, plan;
    uint16_t *bytes;
    int32_t pages[2];
};

/* A worker that dies answers what it had with RESTARTED: it is done again. Everything else has to
 * succeed, and a service that is gone ends the client. */
static int again(int code)
{
    if (code == -ATTND_E_DISCONNECTED)
        _exit(DOER_DISCONNECTED);
    if (code != -ATTND_E_WORKER_RESTARTED)
        return 0;
    harness_sleep_ms(5);
    return 1;
}

static int must(int code)
{
    CHECK(again(code) || code >= 0);
    return code;
}

static int await(const struct doer *doer)
{
    struct attnd_completion done = {0};
    const int got = attnd_wait(doer->session, &done, 1, WAIT_NS);

    must(got);
    CHECK_EQUAL(got, 1);
    return done.fault.code;
}

static void open_all(struct doer *doer, const char *socket_path)
{
    const struct attnd_open_args args = {.size = sizeof(args), .socket_path = socket_path};
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = PAGES,
                                         .page_size = PAGE_TOKENS,
                                         .heads_kv = 1,
                                         .dim_qk = DIM,
                                         .dim_vo = DIM,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_SERVICE};
    struct attnd_plan_args plan = {
        .size = sizeof(plan), .requests = 1, .rows = 1, .pages = 1, .levels = 1, .heads_q = 1};
    void *address;

    if (attnd_open(&args, &doer->session) < 0)
        _exit(DOER_DISCONNECTED);
    while (again(must(attnd_memory_create(doer->session, MEMORY_BYTES, &doer->memory, &address))))
        ;
    doer->bytes = address;
    while (again(must(attnd_pool_create(doer->session, &desc, &doer->pool))))
        ;
    must(attnd_pages_alloc(doer->session, doer->pool, 2, doer->pages));
    plan.pool = doer->pool;
    must(attnd_plan_create(doer->session, &plan, &doer->plan));
}

/* One row, one key: softmax is 1, and o is v. */
static void set_batch(const struct doer *doer)
{
    static const int32_t qo_indptr[] = {0, 1}, kv_indptr[] = {0, 1}, last = 1;
    const struct attnd_level level = {1, qo_indptr, kv_indptr, doer->pages, &last};
    const struct attnd_batch batch = {.size = sizeof(batch), .levels = 1, .level = &level};

    do
        must(attnd_plan_set(doer->session, doer->plan, &batch, NULL));
    while (again(await(doer)));
}

static void append_and_run(const struct doer *doer)
{
    const struct attnd_append_args append = {
        .size = sizeof(append), .k = {doer->memory, K_OFFSET}, .v = {doer->memory, V_OFFSET}};
    const struct attnd_run_args run = {
        .size = sizeof(run), .q = {doer->memory, Q_OFFSET}, .o = {doer->memory, O_OFFSET}};
    uint16_t *q = doer->bytes + Q_OFFSET / 2, *k = doer->bytes + K_OFFSET / 2,
             *v = doer->bytes + V_OFFSET / 2, *o = doer->bytes + O_OFFSET / 2;

    for (int i = 0; i < DIM; i++) {
        q[i] = k[i] = 0x3c00; /* 1 */
        v[i] = (uint16_t)(0x3c00 + i);
        o[i] = 0xffff;
    }
    do
        must(attnd_append(doer->session, doer->plan, &append, NULL));
    while (again(await(doer)));
    do
        must(attnd_run(doer->session, doer->plan, &run, NULL));
    while (again(await(doer)));
    CHECK(memcmp(o, v, DIM * sizeof(*v)) == 0);
}

static void launch(const struct doer *doer)
{
    const struct attnd_prepare_args args = {
        .size = sizeof(args), .q = {doer->memory, Q_OFFSET}, .o = {doer->memory, O_OFFSET}};
    uint32_t prepared;
    int code;

    while (again(must(attnd_prepare(doer->session, doer->plan, &args, &prepared))))
        ;
    memset(doer->bytes + O_OFFSET / 2, 0xff, DIM * sizeof(*doer->bytes));
    do {
        code = attnd_launch(doer->session, 0, prepared);
        if (code == -ATTND_E_UNSUPPORTED) { /* its mailbox lies on a GPU */
            must(attnd_unprepare(doer->session, prepared));
            return;
        }
        must(code);
        code = attnd_launch_wait(doer->session, 0, WAIT_NS);
        must(code);
    } while (again(code));
    CHECK(memcmp(doer->bytes + O_OFFSET / 2, doer->bytes + V_OFFSET / 2,
                 DIM * sizeof(*doer->bytes)) == 0);
    must(attnd_unprepare(doer->session, prepared));
}

/* A ticket to itself, and a block for everybody. */
static void hand_over(const struct doer *doer)
{
    const struct attnd_prefix_desc desc = {.size = sizeof(desc), .block_pages = 1};
    const struct attnd_prefix_key key = {{1, 2}};
    struct attnd_prefix_args args = {.size = sizeof(args), .blocks = 1, .keys = &key};
    struct attnd_token ticket;
    int32_t page;
    uint32_t pool;

    must(attnd_pages_offer(doer->session, doer->pool, 1, &doer->pages[1], 60000, &ticket));
    must(attnd_pages_claim(doer->session, &ticket, &pool, &page, 1));
    must(attnd_prefix_open(doer->session, doer->pool, &desc, &args.prefix));
    must(attnd_prefix_claim(doer->session, &args, NULL));
    CHECK_EQUAL(await(doer), 0);
    must(attnd_prefix_publish(doer->session, &args, &page, NULL));
    CHECK_EQUAL(await(doer), 0);
}

/* Where nothing is due a client sleeps until its time is over. */
static void sleep_for_a_moment(const struct doer *doer)
{
    struct attnd_completion done;
    const int got = attnd_wait(doer->session, &done, 1, 1000000);

    must(got);
    CHECK_EQUAL(got, 0);
}

static void release_all(const struct doer *doer)
{
    must(attnd_plan_destroy(doer->session, doer->plan));
    must(attnd_memory_release(doer->session, doer->memory));
    attnd_close(doer->session);
}

int doer_do_all(const char *socket_path)
{
    struct doer doer = {0};

    open_all(&doer, socket_path);
    set_batch(&doer);
    append_and_run(&doer);
    launch(&doer);
    hand_over(&doer);
    sleep_for_a_moment(&doer);
    release_all(&doer);
    return 0;
}
