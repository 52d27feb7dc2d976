/*
 * test_e2e_bad_calls.c - calls that make no sense, and bytes on the socket that are none: each is
 * refused by name, or ends its connection, and nothing else is disturbed.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/liar.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

struct scene {
    struct engine engine;
    uint32_t pool, planes;
};

static void scene_open(struct scene *scene, const struct harness *harness)
{
    engine_open(&scene->engine, harness->socket, "liar");
    liar_pool(scene->engine.session, &scene->planes, &scene->pool);
}

static void expect_call(int64_t code, struct attnd_fault want, int line)
{
    struct attnd_fault got;
    char sentence[160];

    check_true(code < 0, "it is refused", __FILE__, line);
    attnd_last_fault(&got);
    if (!liar_same_fault(&got, &want))
        check_say(__FILE__, line, "got %s", attnd_fault_string(&got, sentence, sizeof(sentence)));
    check_true(liar_same_fault(&got, &want), "the fault is what it should be", __FILE__, line);
}

#define EXPECT_CALL(code, ...) expect_call((code), (struct attnd_fault)WANT(__VA_ARGS__), __LINE__)

static void pools_that_cannot_be_are_refused(void **state)
{
    const struct harness *harness = *state;
    const struct attnd_pool_desc good = {.size = sizeof(good),
                                         .layers = 1,
                                         .pages = 4,
                                         .page_size = 16,
                                         .heads_kv = 2,
                                         .dim_qk = 64,
                                         .dim_vo = 64,
                                         .dtype = ATTND_BF16,
                                         .page_owner = ATTND_PAGES_OF_SERVICE};
    struct attnd_pool_desc desc;
    struct attnd_plane k, v;
    struct scene scene = {0};
    uint32_t pool;

    scene_open(&scene, harness);
    struct attnd_session *session = scene.engine.session;
    desc = good;
    desc.layers = 0;
    EXPECT_CALL(attnd_pool_create(session, &desc, &pool), RANGE, LAYERS, 0, 0, 1);
    desc = good;
    desc.page_size = 0;
    EXPECT_CALL(attnd_pool_create(session, &desc, &pool), RANGE, PAGE_SIZE, 0, 0, 1);
    desc = good;
    desc.dim_qk = desc.dim_vo = 100;
    EXPECT_CALL(attnd_pool_create(session, &desc, &pool), UNSUPPORTED, HEAD_DIM, 0, 100, 256);
    desc = good;
    desc.dtype = 7;
    EXPECT_CALL(attnd_pool_create(session, &desc, &pool), UNSUPPORTED, DTYPE, 0, 7,
                ATTND_DTYPE_FP8_E5M2);
    desc = good; /* 2^24 pages x 2^20 tokens x 2^10 heads x 2^8 x 2 bytes, twice: 2^64 */
    desc.dim_qk = desc.dim_vo = 256;
    desc.pages = 1u << 24;
    desc.page_size = 1u << 20;
    desc.heads_kv = 1024;
    EXPECT_CALL(attnd_pool_create(session, &desc, &pool), RANGE, SIZE, 0, INT64_MAX, INT64_MAX);

    k = v = (struct attnd_plane){scene.planes, 0, 2048, 128, 64};
    desc = good;
    desc.page_owner = ATTND_PAGES_OF_ENGINE;
    desc.k = &k;
    desc.v = &v;
    v.offset_bytes = 2 * LIAR_PLANE_BYTES - 4 * 4096 + 2; /* one element too far */
    EXPECT_CALL(attnd_pool_create(session, &desc, &pool), RANGE, V, 0, 2 * LIAR_PLANE_BYTES + 2,
                2 * LIAR_PLANE_BYTES);
    v.offset_bytes = 0;
    k.stride_page = INT64_MAX;
    CHECK_ERROR(attnd_pool_create(session, &desc, &pool), ATTND_E_RANGE);
    k.stride_page = -2048;
    CHECK_ERROR(attnd_pool_create(session, &desc, &pool), ATTND_E_RANGE);
    k = v;
    k.memory = 55;
    EXPECT_CALL(attnd_pool_create(session, &desc, &pool), UNKNOWN, MEMORY, 0, 55, 0);
    k = v;
    CHECK_OK(attnd_pool_create(session, &desc, &pool));
    engine_close(&scene.engine);
}

static void other_calls_that_make_no_sense_are_refused(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = e2e_batch();
    struct attnd_plan_args args = {
        .size = sizeof(args), .requests = 4, .rows = 64, .pages = 32, .levels = 1, .heads_q = 4};
    struct scene scene = {0};
    uint32_t handle;
    int32_t page = 0;
    int fd;

    scene_open(&scene, harness);
    struct attnd_session *session = scene.engine.session;
    args.pool = 99;
    EXPECT_CALL(attnd_plan_create(session, &args, &handle), UNKNOWN, POOL, 0, 99, 0);
    args.pool = scene.pool;
    args.heads_q = 5;
    EXPECT_CALL(attnd_plan_create(session, &args, &handle), INVALID, HEADS_Q, 0, 5, 4);
    args.heads_q = 4;
    args.levels = 9;
    EXPECT_CALL(attnd_plan_create(session, &args, &handle), RANGE, LEVELS, 0, 9, 8);
    args.levels = 1;
    args.pages = 1u << 22; /* 16 MiB of page ids, and the arena has 8 */
    const int64_t wanted = (4 * 5 + (1 << 22)) * 4 + 5 * 64 + 1024;
    EXPECT_CALL(attnd_plan_create(session, &args, &handle), NO_SPACE, ARENA, 0, wanted, 8 << 20);
    EXPECT_CALL(attnd_plan_destroy(session, 99), UNKNOWN, PLAN, 0, 99, 0);
    EXPECT_CALL(attnd_pool_release(session, 99), UNKNOWN, POOL, 0, 99, 0);
    EXPECT_CALL(attnd_memory_release(session, 99), UNKNOWN, MEMORY, 0, 99, 0);
    EXPECT_CALL(attnd_memory_release(session, scene.planes), BUSY, MEMORY, 0, scene.planes, 0);
    CHECK_ERROR(attnd_pages_alloc(session, scene.pool, 1, &page), ATTND_E_INVALID);
    CHECK_ERROR(attnd_memory_create(session, 1ull << 62, &handle, NULL), ATTND_E_NO_MEMORY);
    CHECK_ERROR(attnd_memory_create(session, 0, &handle, NULL), ATTND_E_RANGE);

    fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQUAL(ftruncate(fd, 8192), 0);
    CHECK_ERROR(attnd_memory_register(session, fd, 8192, &handle), ATTND_E_PERMISSION);
    CHECK_EQUAL(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    CHECK_ERROR(attnd_memory_register(session, fd, 16384, &handle), ATTND_E_RANGE);
    CHECK_OK(attnd_memory_register(session, fd, 8192, &handle));
    close(fd);
    trial_expect(&scene.engine, &batch);
    engine_close(&scene.engine);
}

/* ---- no client of ours ---- */

static void noise_on_the_socket_ends_that_connection_only(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = e2e_batch();
    struct prng prng = prng_fork(1, 1);
    uint8_t noise[512];
    struct engine engine;

    engine_open(&engine, harness->socket, "neighbour");
    for (int i = 0; i < 200; i++) {
        int fd = harness_connect(harness);
        for (int datagram = 0; datagram < 3; datagram++) {
            size_t bytes = 1 + prng_below(&prng, sizeof(noise));
            for (size_t b = 0; b < bytes; b++)
                noise[b] = (uint8_t)prng_next(&prng);
            if (send(fd, noise, bytes, MSG_NOSIGNAL) < 0)
                break;
        }
        close(fd);
        if (i % 20 == 0)
            trial_expect(&engine, &batch);
    }
    trial_expect(&engine, &batch);
    engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(pools_that_cannot_be_are_refused),
        E2E_TEST(other_calls_that_make_no_sense_are_refused),
        E2E_TEST(noise_on_the_socket_ends_that_connection_only),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
