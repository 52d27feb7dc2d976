/* test_gpu_host_cache.c - pages in device memory go to the host and come back, to the byte. */
#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/random/prng.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A page is 768 KiB: the pieces in which host memory is pinned end in the middle of one. */
#define LAYERS 6u
#define PAGES 96u
#define PROMPTS 16u
#define BLOCKS 12u /* of a prompt, a page each: twice what the pool has room for, in all */
#define PART 4u
#define PLANE_BYTES (16u * 16u * 128u * 2u) /* of a page */

struct side {
    const struct harness *harness;
    struct attnd_session *session;
    uint32_t pool, prefix;
    struct attnd_pool_info info;
    CUdeviceptr address;
    struct attnd_prefix_key key[PROMPTS][BLOCKS];
    uint8_t bytes[PLANE_BYTES], seen[PLANE_BYTES];
};

static void side_open(struct side *side)
{
    const struct attnd_open_args args = {.size = sizeof(args),
                                         .socket_path = side->harness->socket};
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = LAYERS,
                                         .pages = PAGES,
                                         .page_size = 16,
                                         .heads_kv = 16,
                                         .dim_qk = 128,
                                         .dim_vo = 128,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_SERVICE,
                                         .memory_kind = ATTND_MEMORY_DEVICE};
    const struct attnd_prefix_desc prefix = {.size = sizeof(prefix), .block_pages = 1};
    struct attnd_prefix_info info = {.size = sizeof(info)};

    side->info.size = sizeof(side->info);
    CHECK_OK(attnd_open(&args, &side->session));
    CHECK_OK(attnd_pool_create(side->session, &desc, &side->pool));
    CHECK_OK(attnd_pool_info(side->session, side->pool, &side->info));
    CHECK_OK(attnd_cuda_map(side->session, side->info.memory, &side->address));
    CHECK_OK(attnd_prefix_open(side->session, side->pool, &prefix, &side->prefix));
    CHECK_OK(attnd_prefix_info(side->session, side->prefix, &info));
    for (uint32_t prompt = 0; prompt < PROMPTS; prompt++)
        for (uint32_t i = 0; i < BLOCKS; i++) {
            uint32_t tokens[] = {prompt, i};
            attnd_prefix_key(info.salt, i ? &side->key[prompt][i - 1] : NULL, tokens,
                             sizeof(tokens), &side->key[prompt][i]);
        }
}

/* Where a page of plane @plane lies; its bytes come to stand in side->bytes. */
static CUdeviceptr make_bytes(struct side *side, uint32_t prompt, uint32_t block, uint32_t plane,
                              int32_t page)
{
    const struct attnd_pool_desc *desc = &side->info.desc;
    const struct attnd_plane *at = plane < LAYERS ? &desc->k[plane] : &desc->v[plane - LAYERS];
    struct prng prng = prng_fork(prompt * BLOCKS + block, plane);

    for (uint32_t i = 0; i < PLANE_BYTES; i += 8) {
        uint64_t word = prng_next(&prng);
        memcpy(side->bytes + i, &word, 8);
    }
    return side->address + at->offset_bytes + (uint64_t)page * (uint64_t)at->stride_page * 2;
}

static struct attnd_prefix_result answer(const struct side *side)
{
    struct attnd_prefix_result result = {.size = sizeof(result)};
    struct attnd_completion completion;

    CHECK_EQUAL(attnd_wait(side->session, &completion, 1, 20000000000u), 1);
    CHECK_EQUAL(completion.fault.code, 0);
    CHECK_OK(attnd_prefix_result(side->session, &completion, &result));
    return result;
}

static Attnd__HostCache *account(const struct side *side, Attnd__Status **status)
{
    *status = harness_status(side->harness);
    CHECK((*status)->host_cache != NULL);
    return (*status)->host_cache;
}

static int has_room(void *context)
{
    Attnd__Status *status = harness_status(((struct side *)context)->harness);
    int room = PAGES - status->pools[0]->pages_leased >= PAGES / 8;

    attnd__status__free_unpacked(status, NULL);
    return room;
}

static void publish(struct side *side, uint32_t prompt, uint32_t begin)
{
    const struct attnd_prefix_args args = {.size = sizeof(args),
                                           .prefix = side->prefix,
                                           .blocks = PART,
                                           .keys = &side->key[prompt][begin],
                                           .parent = begin ? &side->key[prompt][begin - 1] : NULL};
    int32_t pages[PART];

    harness_eventually(has_room, side, 20000, "a part of the pool is free");
    CHECK_OK(attnd_pages_alloc(side->session, side->pool, PART, pages));
    for (uint32_t i = 0; i < PART; i++)
        for (uint32_t plane = 0; plane < 2 * LAYERS; plane++) {
            CUdeviceptr at = make_bytes(side, prompt, begin + i, plane, pages[i]);
            CHECK_CUDA(cuMemcpyHtoD(at, side->bytes, PLANE_BYTES));
        }
    CHECK_CUDA(cuCtxSynchronize());
    CHECK_OK(attnd_prefix_publish(side->session, &args, pages, NULL));
    CHECK_EQUAL(answer(side).taken, PART);
    CHECK_OK(attnd_pages_free(side->session, side->pool, PART, pages));
}

static void match(struct side *side, uint32_t prompt)
{
    const struct attnd_prefix_args args = {
        .size = sizeof(args), .prefix = side->prefix, .blocks = BLOCKS, .keys = side->key[prompt]};
    int32_t pages[BLOCKS];

    harness_eventually(has_room, side, 20000, "a part of the pool is free");
    CHECK_OK(attnd_prefix_match(side->session, &args, NULL));
    struct attnd_prefix_result found = answer(side);
    CHECK_EQUAL(found.blocks, BLOCKS);
    memcpy(pages, found.pages, sizeof(pages));
    for (uint32_t i = 0; i < BLOCKS; i++)
        for (uint32_t plane = 0; plane < 2 * LAYERS; plane++) {
            CUdeviceptr at = make_bytes(side, prompt, i, plane, pages[i]);
            CHECK_CUDA(cuMemcpyDtoH(side->seen, at, PLANE_BYTES));
            CHECK(memcmp(side->seen, side->bytes, PLANE_BYTES) == 0);
        }
    CHECK_OK(attnd_pages_free(side->session, side->pool, BLOCKS, pages));
}

/* @kills: the worker is killed now and then. */
static void rounds(struct side *side, int kills)
{
    Attnd__Status *status;

    for (uint32_t prompt = 0; prompt < PROMPTS; prompt++)
        for (uint32_t begin = 0; begin < BLOCKS; begin += PART)
            publish(side, prompt, begin);
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t prompt = 0; prompt < PROMPTS; prompt++) {
            if (kills && prompt % 8 == 3)
                (void)kill(harness_worker(side->harness), SIGKILL);
            match(side, prompt);
        }
    const Attnd__HostCache *cache = account(side, &status);
    CHECK(cache->in_blocks >= PROMPTS * BLOCKS);
    CHECK_EQUAL(cache->lost_blocks, 0);
    attnd__status__free_unpacked(status, NULL);
}

static int engine(void *context)
{
    static struct side side;

    side.harness = context;
    gpu_open();
    side_open(&side);
    rounds(&side, 0);
    attnd_close(side.session);
    return 0;
}

static int engine_of_workers_that_die(void *context)
{
    static struct side side;

    side.harness = context;
    gpu_open();
    side_open(&side);
    rounds(&side, 1);
    attnd_close(side.session);
    return 0;
}

static struct harness own;

static void run(int (*client)(void *context))
{
    static const char *const options[] = {"--host-cache", "512M", NULL};

    memset(&own, 0, sizeof(own));
    harness_start(&own, options);
    CHECK_EQUAL(harness_join(harness_fork(client, &own), 60000), 0);
    harness_stop(&own);
}

static void pages_of_the_gpu_come_back_as_they_were(void **state)
{
    (void)state;
    run(engine);
}

/* Under MPS a worker's death ends the contexts of all: there an engine could not look. */
static void a_worker_that_is_killed_in_the_middle_changes_no_byte(void **state)
{
    (void)state;
    if (gpu_under_mps())
        skip();
    run(engine_of_workers_that_die);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(pages_of_the_gpu_come_back_as_they_were),
        E2E_OWN_TEST(a_worker_that_is_killed_in_the_middle_changes_no_byte),
    };

    harness_init();
    if (!gpu_there())
        return GPU_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
