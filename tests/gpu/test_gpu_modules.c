/*
 * test_gpu_modules.c - a worker that was built without a kernel refuses plans that need it, and
 * executes them once the kernel's file has come, without a restart.
 *
 * The folder `modules` beside this program has such a worker, and the file of 64_fp16_plain, which
 * it lacks. persistent/cuda/gpu.mk makes both where there is an nvcc.
 */
#include "client/attnd.h"
#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/e2e.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define DIM 64u
#define KEYS 8
#define ONE 0x3c00u /* 1 in fp16 */
#define WAIT_NS 10000000000
#define COMES_S 30
#define PATH_BYTES 600

static char directory[64];
static char made[PATH_BYTES]; /* the folder beside this program */

struct scene {
    struct attnd_session *session;
    uint32_t pool, plan, memory;
    int32_t page;
    uint16_t *rows; /* q, then o */
};

static void scene_open(struct scene *scene, const struct harness *harness)
{
    struct attnd_pool_info info = {.size = sizeof(info)};
    void *address;

    scene->session = e2e_open(harness);
    CHECK_OK(
        attnd_pool_create_leased(scene->session, 1, 1, 16, 1, DIM, ATTND_DTYPE_FP16, &scene->pool));
    CHECK_OK(attnd_pool_info(scene->session, scene->pool, &info));
    for (uint64_t i = 0; i < info.memory_bytes / 2; i++)
        ((uint16_t *)info.address)[i] = ONE;
    CHECK_OK(attnd_pages_alloc(scene->session, scene->pool, 1, &scene->page));
    CHECK_OK(attnd_memory_create(scene->session, 4096, &scene->memory, &address));
    scene->rows = address;
    memset(scene->rows, 0, 4096);
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = scene->pool,
                                         .requests = 1,
                                         .rows = 1,
                                         .pages = 1,
                                         .levels = 1,
                                         .heads_q = 1};
    CHECK_OK(attnd_plan_create(scene->session, &args, &scene->plan));
}

/* Return: the fault of a set of one row that sees all keys; code 0: it is set. */
static struct attnd_fault set(struct scene *scene)
{
    const int32_t indptr[] = {0, 1}, last = KEYS;
    const struct attnd_level level = {1, indptr, indptr, &scene->page, &last};
    const struct attnd_batch batch = {.size = sizeof(batch), .level = &level};
    struct attnd_completion done;

    CHECK_OK(attnd_plan_set(scene->session, scene->plan, &batch, NULL));
    CHECK_EQUAL(attnd_wait(scene->session, &done, 1, WAIT_NS), 1);
    return done.fault;
}

static void run(struct scene *scene)
{
    const struct attnd_run_args args = {
        .size = sizeof(args), .q = {scene->memory, 0}, .o = {scene->memory, 2 * DIM}};

    CHECK_OK(attnd_run_sync(scene->session, scene->plan, &args));
    for (uint32_t d = 0; d < DIM; d++) /* of values that are all 1 */
        CHECK_EQUAL(scene->rows[DIM + d], ONE);
}

/* Whole or not at all. */
static void bring_module(void)
{
    char command[PATH_BYTES + 200];

    snprintf(command, sizeof(command),
             "cd %s && for f in '%s'/64_fp16_plain.*.cubin; do cp \"$f\" .new && chmod 644 .new && "
             "mv .new \"$(basename \"$f\")\"; done",
             directory, made);
    CHECK_EQUAL(system(command), 0);
}

static void a_kernel_that_is_missing_is_named_and_comes_without_a_restart(void **state)
{
    const time_t end = time(NULL) + COMES_S;
    const struct timespec step = {0, 20000000};
    const pid_t worker = harness_worker(*state);
    struct scene scene;
    char text[200];

    scene_open(&scene, *state);
    struct attnd_fault fault = set(&scene);
    CHECK_EQUAL(fault.code, -ATTND_E_UNSUPPORTED);
    CHECK_EQUAL(fault.field, ATTND_F_KERNEL);
    CHECK(strstr(attnd_fault_string(&fault, text, sizeof(text)), "attnd-variant 64_fp16_plain"));
    bring_module();
    while ((fault = set(&scene)).code && time(NULL) < end)
        nanosleep(&step, NULL);
    CHECK_EQUAL(fault.code, 0);
    run(&scene);
    CHECK_EQUAL(harness_worker(*state), worker);
    attnd_close(scene.session);
}

static int setup(void **state)
{
    static struct harness harness;
    static char worker[PATH_BYTES + 16];
    const char *const options[] = {"--worker", worker, "--modules", directory, NULL};

    snprintf(worker, sizeof(worker), "%s/attnd-worker", made);
    snprintf(directory, sizeof(directory), "/tmp/attnd-modules.XXXXXX");
    if (!mkdtemp(directory))
        return -1;
    harness_start(&harness, options);
    *state = &harness;
    return 0;
}

static int teardown(void **state)
{
    char command[128];

    harness_stop(*state);
    snprintf(command, sizeof(command), "rm -rf %s", directory);
    return system(command);
}

/* Return: whether the folder is there. */
static int find_made(void)
{
    const ssize_t length = readlink("/proc/self/exe", made, sizeof(made) - 16);

    CHECK(length > 0);
    made[length] = 0;
    char *slash = strrchr(made, '/');
    CHECK(slash != NULL);
    snprintf(slash, (size_t)(made + sizeof(made) - slash), "/modules");
    return access(made, F_OK) == 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(
        a_kernel_that_is_missing_is_named_and_comes_without_a_restart, setup, teardown)};

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    if (!find_made()) {
        puts("no modules beside this program: it was built without nvcc");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
