/* test_gpu_peers.c - pages of another service's pool come into device memory, to the byte. */
#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/hand_over.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PAGES 40u
#define LONG_MS 20000u

static struct harness giver, claimer;

static const struct side_shape shape = {
    .layers = 4, .pages = 64, .page_size = 16, .heads_kv = 8, .dim = 128};

/* A pool in device memory, and a mirror of it in which elements are looked at. */
struct device_side {
    struct side side;
    CUdeviceptr device;
};

static void open_device(struct device_side *at, const struct harness *service)
{
    const struct attnd_open_args args = {.size = sizeof(args), .socket_path = service->socket};
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = shape.layers,
                                         .pages = shape.pages,
                                         .page_size = shape.page_size,
                                         .heads_kv = shape.heads_kv,
                                         .dim_qk = shape.dim,
                                         .dim_vo = shape.dim,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_SERVICE,
                                         .memory_kind = ATTND_MEMORY_DEVICE};

    at->side = (struct side){.service = service};
    CHECK_OK(attnd_open(&args, &at->side.session));
    CHECK_OK(attnd_pool_create(at->side.session, &desc, &at->side.pool));
    at->side.info.size = sizeof(at->side.info);
    CHECK_OK(attnd_pool_info(at->side.session, at->side.pool, &at->side.info));
    CHECK_OK(attnd_cuda_map(at->side.session, at->side.info.memory, &at->device));
    at->side.address = calloc(1, at->side.info.memory_bytes);
    CHECK(at->side.address != NULL);
}

static void close_device(struct device_side *at)
{
    CHECK_OK(attnd_cuda_unmap(at->device));
    free(at->side.address);
    side_close(&at->side);
}

static void offer(const struct side *side, CUdeviceptr device, uint64_t seed,
                  struct attnd_token *ticket)
{
    int32_t pages[PAGES];

    CHECK_OK(attnd_pages_alloc(side->session, side->pool, PAGES, pages));
    side_fill(side, pages, PAGES, seed);
    if (device)
        CHECK_CUDA(cuMemcpyHtoD(device, side->address, side->info.memory_bytes));
    CHECK_OK(attnd_pages_offer(side->session, side->pool, PAGES, pages, 60000, ticket));
}

static void claim(struct device_side *to, const struct attnd_token *ticket, uint64_t seed)
{
    int32_t pages[PAGES];

    side_claim(&to->side, ticket, PAGES, NULL);
    const struct attnd_completion completion = side_wait(&to->side, LONG_MS);
    side_take(&to->side, &completion, PAGES, pages);
    CHECK_CUDA(cuMemcpyDtoH(to->side.address, to->device, to->side.info.memory_bytes));
    CHECK_EQUAL(side_wrong(&to->side, pages, PAGES, seed), 0);
    CHECK_OK(attnd_pages_free(to->side.session, to->side.pool, PAGES, pages));
}

static void say_rate(void)
{
    Attnd__Status *status = harness_status(&claimer);

    for (size_t i = 0; i < status->n_peers; i++)
        printf("    the last one at %.2f GB/s, from granted to given\n",
               (double)status->peers[i]->bytes_per_s / 1e9);
    attnd__status__free_unpacked(status, NULL);
}

static int device_to_device(void *context)
{
    struct device_side from, to;
    struct attnd_token ticket;
    (void)context;

    gpu_open();
    open_device(&from, &giver);
    open_device(&to, &claimer);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        offer(&from.side, from.device, seed, &ticket);
        claim(&to, &ticket, seed);
    }
    say_rate();
    close_device(&from);
    close_device(&to);
    return 0;
}

static int host_to_device(void *context)
{
    static const enum side_layout layouts[] = {SIDE_OF_SERVICE, SIDE_BY_HEAD, SIDE_WITH_GAPS};
    struct device_side to;
    (void)context;

    gpu_open();
    open_device(&to, &claimer);
    for (uint32_t i = 0; i < 3; i++) {
        struct side from;
        struct attnd_token ticket;
        side_open(&from, &giver, &shape, layouts[i]);
        offer(&from, 0, 10 + i, &ticket);
        claim(&to, &ticket, 10 + i);
        side_close(&from);
    }
    close_device(&to);
    return 0;
}

static int host_to_host(void *context)
{
    struct side from, to;
    struct attnd_token ticket;
    int32_t pages[PAGES];
    (void)context;

    gpu_open();
    side_open(&from, &giver, &shape, SIDE_OF_SERVICE);
    side_open(&to, &claimer, &shape, SIDE_BY_HEAD);
    offer(&from, 0, 20, &ticket);
    side_claim(&to, &ticket, PAGES, NULL);
    const struct attnd_completion completion = side_wait(&to, LONG_MS);
    side_take(&to, &completion, PAGES, pages);
    CHECK_EQUAL(side_wrong(&to, pages, PAGES, 20), 0);
    side_close(&from);
    side_close(&to);
    return 0;
}

/* Nobody has asked for it; the ticket is as it was. */
static int device_to_host(void *context)
{
    struct device_side from, to;
    struct side host;
    struct attnd_token ticket;
    (void)context;

    gpu_open();
    open_device(&from, &giver);
    side_open(&host, &claimer, &shape, SIDE_OF_SERVICE);
    offer(&from.side, from.device, 30, &ticket);
    side_claim(&host, &ticket, PAGES, NULL);
    CHECK_EQUAL(side_wait(&host, LONG_MS).fault.code, -ATTND_E_UNSUPPORTED);
    open_device(&to, &claimer);
    claim(&to, &ticket, 30);
    close_device(&from);
    close_device(&to);
    side_close(&host);
    return 0;
}

/* CUDA does not survive a fork, so the engines are a process that the test forks. */
static void run(int (*client)(void *context))
{
    hand_over_start(&giver, &claimer, NULL);
    CHECK_EQUAL(harness_join(harness_fork(client, NULL), 3 * LONG_MS), 0);
    harness_stop(&claimer);
    harness_stop(&giver);
}

static void pages_of_device_memory_come_into_device_memory(void **state)
{
    (void)state;
    run(device_to_device);
}

static void pages_of_host_memory_come_into_device_memory(void **state)
{
    (void)state;
    run(host_to_device);
}

static void pages_of_host_memory_come_into_host_memory(void **state)
{
    (void)state;
    run(host_to_host);
}

static void device_memory_into_a_pool_of_the_host_is_refused(void **state)
{
    (void)state;
    run(device_to_host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(pages_of_device_memory_come_into_device_memory),
        E2E_OWN_TEST(pages_of_host_memory_come_into_device_memory),
        E2E_OWN_TEST(pages_of_host_memory_come_into_host_memory),
        E2E_OWN_TEST(device_memory_into_a_pool_of_the_host_is_refused),
    };

    harness_init();
    if (!gpu_there())
        return GPU_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
