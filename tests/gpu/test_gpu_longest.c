/*
 * test_gpu_longest.c - items that cost as much as an item may (ATTND_ITEM_COST_MAX): each of the
 * three loops ends one, with keys in device memory and in host memory, and the worker stays.
 *
 * Health ends a worker that does not get on for 5 s. The longest item of a loop with tensor cores
 * takes far less. One of the plain loop, or of a GPU whose workers all read host memory, may take
 * longer: that counts as getting on, because loops say how far they are. The last test has every
 * worker in the middle of such an item at once.
 *
 * A plan with a fixed split that is longer than an item may be has one item of that length. K is
 * zero and V is one, so the result is one.
 */
#include "schemas/atomics.h"
#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/one_page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define CLIENT_MS 110000
#define WAIT_NS 100000000000u
#define DIM 128u
#define ONE 0x3c00u /* fp16 */
#define PAGE_SIZE 32768u
#define POOL_PAGES 16u /* more bytes than the caches hold */
#define PLANE_BYTES ((uint64_t)POOL_PAGES * PAGE_SIZE * DIM * 2u)
#define Q_AT (2 * PLANE_BYTES)
#define ROWS_BYTES (1u << 20)
#define O_AT (Q_AT + ROWS_BYTES)
#define ALL_BYTES (O_AT + ROWS_BYTES)
#define HEALTH_S 5.0 /* tile_deadline_ns of health.cu */
#define UNBOUNDED (1u << 30)

struct shape {
    const char *name; /* of the loop that computes it */
    uint32_t requests, rows, pages, q_stride;
    uint32_t fixed_split;
};

/* Keys as plan.h says: 7,456,256 for one row, 493,376 for 128; here in whole pages. */
static const struct shape decode = {"decode", 1, 1, 227, DIM, UNBOUNDED};
static const struct shape prefill = {"prefill", 1, 128, 15, DIM, UNBOUNDED};
/* Rows of q that are not aligned to 16 bytes are for no other loop. */
static const struct shape naive = {"plain", 1, 1, 227, DIM + 4, UNBOUNDED};
/* So many that each SM has one, and begins no other. */
static const struct shape crowd = {"decode of all workers", 132, 1, 227, DIM, UNBOUNDED};

struct scene {
    const struct harness *harness;
    const struct shape *shape;
    int on_host;
    double seconds_max; /* 0: any */
};

struct client {
    struct attnd_session *session;
    uint32_t memory, pool, plan;
    CUdeviceptr address; /* or 0: */
    uint16_t *host;
};

static void memory_make(struct client *client, int on_host)
{
    void *address;

    if (on_host) {
        CHECK_OK(attnd_memory_create(client->session, ALL_BYTES, &client->memory, &address));
        client->host = address;
        for (uint64_t i = 0; i < PLANE_BYTES / 2; i++)
            client->host[PLANE_BYTES / 2 + i] = ONE;
        return;
    }
    gpu_open();
    CHECK_OK(attnd_memory_create_device(client->session, ALL_BYTES, &client->memory));
    CHECK_OK(attnd_cuda_map(client->session, client->memory, &client->address));
    CHECK_CUDA(cuMemsetD8(client->address, 0, ALL_BYTES));
    CHECK_CUDA(
        cuMemsetD32Async(client->address + PLANE_BYTES, ONE << 16 | ONE, PLANE_BYTES / 4, NULL));
    CHECK_CUDA(cuCtxSynchronize());
}

/* The requests read different pages at a time. */
static void plan_make(struct client *client, const struct shape *shape)
{
    const uint32_t pages = shape->requests * shape->pages;
    struct attnd_variant variant = ATTND_VARIANT_INIT;
    int32_t *qo = calloc(shape->requests + 1, sizeof(*qo));
    int32_t *kv = calloc(shape->requests + 1, sizeof(*kv));
    int32_t *last = calloc(shape->requests, sizeof(*last));
    int32_t *page = calloc(pages, sizeof(*page));
    const struct attnd_level level = {shape->requests, qo, kv, page, last};
    const struct attnd_batch batch = {
        .size = sizeof(batch), .level = &level, .q = {shape->q_stride, DIM}, .variant = &variant};
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = client->pool,
                                         .requests = shape->requests,
                                         .rows = shape->requests * shape->rows,
                                         .pages = pages,
                                         .levels = 1,
                                         .heads_q = 1,
                                         .fixed_split = shape->fixed_split};
    const struct attnd_op op = {.user_data = 1};
    struct attnd_completion done;

    CHECK(qo && kv && last && page);
    variant.fixed_split = shape->fixed_split;
    for (uint32_t r = 0; r < shape->requests; r++) {
        qo[r + 1] = (int32_t)((r + 1) * shape->rows);
        kv[r + 1] = (int32_t)((r + 1) * shape->pages);
        last[r] = PAGE_SIZE;
        for (uint32_t p = 0; p < shape->pages; p++)
            page[r * shape->pages + p] = (int32_t)((r + p) % POOL_PAGES);
    }
    CHECK_OK(attnd_plan_create(client->session, &args, &client->plan));
    CHECK_OK(attnd_plan_set(client->session, client->plan, &batch, &op));
    CHECK_EQUAL(attnd_wait(client->session, &done, 1, WAIT_NS), 1);
    CHECK_EQUAL(done.fault.code, 0);
    free(qo);
    free(kv);
    free(last);
    free(page);
}

static void client_open(struct client *client, const struct scene *scene)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = scene->harness->socket, .arena_bytes = 4u << 20};
    struct attnd_plane k = {
        .stride_page = PAGE_SIZE * DIM, .stride_token = DIM, .stride_head = DIM};
    struct attnd_plane v;

    CHECK_OK(attnd_open(&args, &client->session));
    memory_make(client, scene->on_host);
    k.memory = client->memory;
    v = k;
    v.offset_bytes = PLANE_BYTES;
    CHECK_OK(planes_pool(client->session, &k, &v, POOL_PAGES, PAGE_SIZE, DIM, &client->pool));
    plan_make(client, scene->shape);
}

static void expect_ones(const struct client *client, uint32_t elements)
{
    for (uint32_t i = 0; i < elements; i++) {
        uint16_t value = client->host ? client->host[O_AT / 2 + i] : 0;
        if (!client->host)
            CHECK_CUDA(cuMemcpyDtoH(&value, client->address + O_AT + 2 * i, sizeof(value)));
        CHECK_EQUAL(value, ONE);
    }
}

static int computing(void *context)
{
    const struct scene *scene = context;
    struct client client = {0};
    struct attnd_completion done;

    client_open(&client, scene);
    const struct attnd_run_args run = {
        .size = sizeof(run), .q = {client.memory, Q_AT}, .o = {client.memory, O_AT}};
    const struct attnd_op op = {.user_data = 2};
    CHECK_OK(attnd_run(client.session, client.plan, &run, &op));
    CHECK_EQUAL(attnd_wait(client.session, &done, 1, WAIT_NS), 1);
    CHECK_EQUAL(done.fault.code, 0);
    const double seconds = (double)(done.end_ns - done.begin_ns) / 1e9;
    printf("%s, %u keys of %u rows, %s memory: %.3f s\n", scene->shape->name,
           scene->shape->pages * PAGE_SIZE, scene->shape->rows, scene->on_host ? "host" : "device",
           seconds);
    expect_ones(&client, DIM);
    CHECK(scene->seconds_max <= 0 || seconds <= scene->seconds_max);
    attnd_close(client.session);
    return 0;
}

/* Small runs of another session for as long as *@over is 0. What they wait for is a figure, and not
 * promised: workers that have no item left wait for the one that has. */
struct beside {
    const struct harness *harness;
    uint32_t *over;
};

static int small_runs(void *context)
{
    const struct beside *beside = context;
    const struct attnd_open_args args = {.size = sizeof(args),
                                         .socket_path = beside->harness->socket};
    const struct one_page_batch batch = {
        .requests = 1, .rows = 1, .pages = 1, .page_size = 16, .heads_q = 1};
    const struct attnd_op op = {.user_data = 3};
    struct attnd_session *session;
    struct attnd_completion done;
    struct one_page small;
    uint64_t worst_ns = 0;

    CHECK_OK(attnd_open(&args, &session));
    CHECK_OK(one_page_make(session, 16, 1, 1, 8192, &small));
    const uint32_t plan = one_page_plan(session, small.pool, &batch);
    const struct attnd_run_args run = {
        .size = sizeof(run), .q = {small.memory, 0}, .o = {small.memory, 4096}};
    while (!attnd_peek32(beside->over)) {
        const uint64_t begin_ns = harness_now_ns();
        CHECK_OK(attnd_run(session, plan, &run, &op));
        CHECK_EQUAL(attnd_wait(session, &done, 1, WAIT_NS), 1);
        CHECK_EQUAL(done.fault.code, 0);
        const uint64_t took_ns = harness_now_ns() - begin_ns;
        worst_ns = took_ns > worst_ns ? took_ns : worst_ns;
    }
    printf("small runs beside it: %.3f s at worst\n", (double)worst_ns / 1e9);
    attnd_close(session);
    return 0;
}

static void expect_the_worker_stays(const struct harness *harness, const struct shape *shape,
                                    int on_host, double seconds_max)
{
    struct scene scene = {harness, shape, on_host, seconds_max};
    const pid_t worker = harness_worker(harness);

    CHECK_EQUAL(harness_join(harness_fork(computing, &scene), CLIENT_MS), 0);
    CHECK_EQUAL(harness_worker(harness), worker);
}

static void the_longest_item_in_device_memory_takes_far_less_than_health_waits(void **state)
{
    expect_the_worker_stays(*state, &decode, 0, HEALTH_S / 5);
    expect_the_worker_stays(*state, &prefill, 0, HEALTH_S / 5);
}

static void the_longest_item_in_host_memory_takes_far_less_than_health_waits(void **state)
{
    expect_the_worker_stays(*state, &decode, 1, HEALTH_S / 5);
    expect_the_worker_stays(*state, &prefill, 1, HEALTH_S / 5);
}

static void the_longest_item_of_the_plain_loop_ends_no_worker(void **state)
{
    struct beside beside = {*state, harness_shared(sizeof(uint32_t))};
    const pid_t other = harness_fork(small_runs, &beside);

    expect_the_worker_stays(*state, &naive, 0, 0);
    expect_the_worker_stays(*state, &naive, 1, 0);
    attnd_poke32(beside.over, 1);
    CHECK_EQUAL(harness_join(other, CLIENT_MS), 0);
}

static void workers_that_all_read_host_memory_for_long_are_not_ended(void **state)
{
    expect_the_worker_stays(*state, &crowd, 1, 0);
}

static int start(void **state)
{
    static const char *const options[] = {"--cascade", "off", NULL};
    static struct harness harness;

    *state = &harness;
    harness_start(&harness, options);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, e2e_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_longest_item_in_device_memory_takes_far_less_than_health_waits),
        TEST(the_longest_item_in_host_memory_takes_far_less_than_health_waits),
        TEST(the_longest_item_of_the_plain_loop_ends_no_worker),
        TEST(workers_that_all_read_host_memory_for_long_are_not_ended),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
