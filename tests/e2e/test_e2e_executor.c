/*
 * test_e2e_executor.c - who executes launched runs, and what an engine is given that does it
 * itself, through real processes: plans as its kernels read them, and the files of the kernels.
 *
 * The worker is one of processors, for which no engine can stand in. That is refused by name; what
 * the engine is given does not depend on it.
 */
#include "client/internal.h"
#include "schemas/engine.h"
#include "schemas/kernels.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/launched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define LANE 2u

static struct harness harness;
static char folder[64], worker[96], kernels[96];

/* ---- a service whose worker has files of kernels beside it ---- */

/* The worker program that a service runs by itself. */
static void find_worker(char *path, size_t path_bytes)
{
    char link[64];
    harness_start(&harness, NULL);
    snprintf(link, sizeof(link), "/proc/%d/exe", (int)harness_worker(&harness));
    ssize_t length = readlink(link, path, path_bytes - 1);
    CHECK(length > 0);
    path[length] = '\0';
    harness_stop(&harness);
}

static void write_kernel(const char *name)
{
    char path[200];
    snprintf(path, sizeof(path), "%s/%s.fatbin", kernels, name);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fprintf(file, "of %s", name) > 0 && fclose(file) == 0);
}

static int setup(void **state)
{
    char program[1024];
    (void)state;
    find_worker(program, sizeof(program));
    snprintf(folder, sizeof(folder), "/tmp/attnd-test-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    snprintf(worker, sizeof(worker), "%s/attnd-worker", folder);
    snprintf(kernels, sizeof(kernels), "%s/kernels", folder);
    CHECK_EQUAL(symlink(program, worker), 0);
    CHECK_EQUAL(mkdir(kernels, 0700), 0);
    write_kernel("engine");
    write_kernel("128_fp16_plain");
    write_kernel("128_fp16_varied");
    write_kernel("128_bf16_varied");
    write_kernel("576_fp16_varied");
    const char *const options[] = {"--worker", worker, NULL};
    harness_start(&harness, options);
    return 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"engine", "128_fp16_plain", "128_fp16_varied",
                                        "128_bf16_varied", "576_fp16_varied"};
    char path[200];
    (void)state;
    harness_stop(&harness);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s.fatbin", kernels, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(kernels);
    (void)unlink(worker);
    (void)rmdir(folder);
    return 0;
}

/* ---- who executes ---- */

static uint32_t executor_of(struct attnd_session *session)
{
    struct attnd_info info = {.size = sizeof(info)};
    CHECK_OK(attnd_info(session, &info));
    return info.executor;
}

static void a_session_that_does_not_say_is_told_that_the_worker_executes(void **state)
{
    static const char *const arguments[] = {"status", NULL};
    const struct random_batch batch = launched_batch();
    uint32_t prepared[LAUNCHED_LAYERS];
    struct engine engine;
    struct trial trial;
    char output[8192];
    (void)state;
    launched_open(&engine, &trial, harness.socket, "says nothing", &batch);
    CHECK_EQUAL(executor_of(engine.session), ATTND_EXECUTE_AUTO);
    launched_prepare_all(&trial, LANE, prepared);
    CHECK_EQUAL(executor_of(engine.session), ATTND_EXECUTE_SERVICE);
    Attnd__Status *status = harness_status(&harness);
    CHECK(strcmp(status->sessions[0]->executor, "service") == 0);
    CHECK(strcmp(status->sessions[0]->executor_why, "the worker is no GPU's") == 0);
    attnd__status__free_unpacked(status, NULL);
    CHECK_EQUAL(harness_attnctl(&harness, arguments, output, sizeof(output)), 0);
    CHECK(strstr(output, "service   the worker is no GPU's") != NULL);
    launched_close_all(&engine, &trial, prepared);
}

static void a_wish_for_the_engine_is_refused_by_name(void **state)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = harness.socket, .execute = ATTND_EXECUTE_ENGINE};
    struct random_batch batch = launched_batch();
    struct attnd_fault fault;
    struct engine engine;
    struct trial trial;
    uint32_t prepared, memory;
    (void)state;
    engine_open_with(&engine, &args, 0);
    launched_begin(&trial, &engine, &batch);
    CHECK_EQUAL(launched_prepare(&trial, 0, LANE, &prepared), -ATTND_E_UNSUPPORTED);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_EXECUTOR);
    CHECK_EQUAL(fault.value, ATTND_EXECUTE_ENGINE);
    CHECK_EQUAL(attnd_mailbox(engine.session, &memory), -ATTND_E_UNSUPPORTED);
    CHECK_EQUAL(executor_of(engine.session), ATTND_EXECUTE_AUTO);
    CHECK_OK(trial_submit_run(&trial, 0, 0, 0, 0)); /* what is submitted is another matter */
    trial_must(&trial, trial_await(&trial));
    trial_end(&trial);
    engine_close(&engine);
}

static void a_wish_that_there_is_not_is_refused_before_anybody_is_asked(void **state)
{
    struct attnd_open_args args = {.size = sizeof(args), .socket_path = harness.socket};
    struct attnd_session *session;
    struct attnd_fault fault;
    (void)state;
    args.execute = ATTND_EXECUTE_SERVICE + 1;
    CHECK_EQUAL(attnd_open(&args, &session), -ATTND_E_INVALID);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_EXECUTOR);
    CHECK_EQUAL(fault.limit, ATTND_EXECUTE_SERVICE);
    args.execute = ATTND_EXECUTE_AUTO;
    args.reserved0 = 1;
    CHECK_EQUAL(attnd_open(&args, &session), -ATTND_E_INVALID);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_RESERVED);
}

/* ---- what libattnd-cuda asks ---- */

static void an_engine_sees_its_plan_as_it_is_set_and_advanced(void **state)
{
    const struct random_batch batch = launched_batch();
    int32_t kv_len[3] = {1, 1, 1};
    struct engine engine;
    struct trial trial;
    uint64_t bytes, serial;
    uint32_t pool;
    int fd;
    (void)state;
    launched_open(&engine, &trial, harness.socket, "looks", &batch);
    CHECK_OK(attnd_plan_pool(engine.session, engine.plan, &pool, &serial));
    CHECK_EQUAL(pool, engine.pool);
    CHECK_OK(attnd_plan_image_open(engine.session, engine.plan, &fd, &bytes));
    CHECK(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    const struct attnd_plan_image *image = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(image != MAP_FAILED);
    close(fd);
    const struct attnd_plan_head *head = (const void *)((const char *)image + ATTND_IMAGE_PLAN_AT);
    CHECK_EQUAL(attnd_observe32(&image->code), 0);
    CHECK_EQUAL(image->sequence % 2, 0);
    CHECK(image->items > 0);
    CHECK_EQUAL(head->entries, batch.level[0].requests);
    const uint64_t version = image->set_version;
    launched_extend(&trial, 0);
    launched_advance(&trial, 0, kv_len);
    CHECK_EQUAL(attnd_observe32(&image->sequence) % 2, 0);
    CHECK_EQUAL(image->set_version, version);
    const int32_t *lengths =
        (const void *)((const char *)head + head->kv_len_offset_bytes +
                       (uint64_t)image->generation * head->entries_max * sizeof(int32_t));
    for (uint32_t i = 0; i < head->entries; i++)
        CHECK_EQUAL(lengths[i], 1);
    launched_set(&trial, 0);
    CHECK(attnd_observe64(&image->set_version) != version);
    CHECK_EQUAL(attnd_plan_image_open(engine.session, engine.plan + 1, &fd, &bytes),
                -ATTND_E_UNKNOWN);
    munmap((void *)(uintptr_t)image, bytes);
    launched_close(&engine, &trial);
}

#define FEW_FILES 256u

/* Images, as many as there can be. */
static int hoard(void *context)
{
    const struct rlimit few = {FEW_FILES, FEW_FILES};
    static struct harness own;
    struct attnd_fault fault;
    struct engine engine;
    uint32_t count = 0, plan = 0, last = 0;
    uint64_t bytes;
    int fd, rc = 0;
    (void)context;
    CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &few), 0);
    harness_start(&own, NULL);
    engine_open(&engine, own.socket, "hoards");
    const struct random_batch batch = launched_batch();
    engine_pool(&engine, &batch.shape);
    while (rc == 0 && count++ < FEW_FILES) {
        last = plan;
        plan = engine_plan(&engine, 1, 1, 1, 1, 0);
        rc = attnd_plan_image_open(engine.session, plan, &fd, &bytes);
        if (rc == 0)
            close(fd);
    }
    attnd_last_fault(&fault);
    CHECK_EQUAL(rc, -ATTND_E_NO_MEMORY);
    CHECK_EQUAL(fault.field, ATTND_F_MEMORY);
    CHECK(count > FEW_FILES / 4);
    trial_expect(&engine, &batch);                      /* it goes on */
    attnd_close(e2e_open(&own));                        /* and others come */
    CHECK_OK(attnd_plan_destroy(engine.session, last)); /* room for one */
    CHECK_OK(attnd_plan_image_open(engine.session, plan, &fd, &bytes));
    close(fd);
    engine_close(&engine);
    harness_stop(&own);
    return 0;
}

static void images_do_not_use_up_the_descriptors_that_others_need(void **state)
{
    (void)state;
    CHECK_EQUAL(harness_join(harness_fork(hoard, NULL), 30000), 0);
}

/* Of @dim, type and policy, or the module itself (@name "engine"); its text names the file. */
static void expect_file(struct attnd_session *session, uint32_t kernel, const char *name)
{
    char text[64] = {0}, expected[64];
    uint64_t bytes;
    int fd;
    CHECK_OK(attnd_kernel_file(session, kernel, &fd, &bytes));
    snprintf(expected, sizeof(expected), "of %s", name);
    CHECK_EQUAL(bytes, strlen(expected));
    CHECK_EQUAL(read(fd, text, sizeof(text)), (long)bytes);
    CHECK(strcmp(text, expected) == 0);
    CHECK(write(fd, text, 1) < 0);
    close(fd);
}

static void an_engine_gets_the_files_of_its_kernels(void **state)
{
    struct attnd_fault fault;
    struct engine engine;
    uint64_t bytes;
    int fd;
    (void)state;
    engine_open(&engine, harness.socket, "loads");
    struct attnd_session *session = engine.session;
    const uint32_t plain = attnd_kernel_number(128, ATTND_FP16, ATTND_KERNEL_PLAIN);
    expect_file(session, ATTND_KERNELS, "engine");
    expect_file(session, plain, "128_fp16_plain");
    expect_file(session, plain + 1, "128_bf16_varied"); /* which executes plain runs, too */
    expect_file(session, attnd_kernel_number(576, ATTND_FP16, ATTND_KERNEL_PLAIN),
                "576_fp16_varied");
    expect_file(session, attnd_kernel_number(128, ATTND_FP16, ATTND_KERNEL_VARIED),
                "128_fp16_varied");
    const uint32_t absent = attnd_kernel_number(128, ATTND_FP16, ATTND_KERNEL_FP8);
    CHECK_EQUAL(attnd_kernel_file(session, absent, &fd, &bytes), -ATTND_E_UNSUPPORTED);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_BACKEND);
    CHECK_EQUAL(fault.value, absent);
    CHECK_EQUAL(attnd_kernel_file(session, ATTND_KERNELS + 1, &fd, &bytes), -ATTND_E_RANGE);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_KERNEL);
    engine_close(&engine);
}

/* ---- what libattnd-cuda hears ---- */

struct attnd_stream_launcher {
    struct attnd_session *session;
    uint32_t prepared, plan, ended; /* how often it was told */
    uint32_t last;                  /* of what */
};

/* What ends is still there, and no launch finds it any more. */
static void hear_prepared(struct attnd_stream_launcher *launcher, uint32_t prepared)
{
    struct attnd_prepare_args args;
    uint32_t plan;
    Attnd__Status *status = harness_status(&harness);
    CHECK_EQUAL(status->sessions[0]->prepared, 1);
    attnd__status__free_unpacked(status, NULL);
    CHECK_ERROR(attnd_prepared_args(launcher->session, prepared, &args, &plan), ATTND_E_UNKNOWN);
    launcher->prepared++;
    launcher->last = prepared;
}

static void hear_plan(struct attnd_stream_launcher *launcher, uint32_t plan)
{
    uint64_t serial;
    uint32_t pool;
    CHECK_ERROR(attnd_plan_pool(launcher->session, plan, &pool, &serial), ATTND_E_UNKNOWN);
    launcher->plan++;
    launcher->last = plan;
}

static void hear_end(struct attnd_stream_launcher *launcher)
{
    launcher->ended++;
}

static void what_ends_is_told_to_the_launcher_first(void **state)
{
    struct attnd_stream_launcher launcher = {0};
    const struct random_batch batch = launched_batch();
    struct attnd_prepare_args args;
    struct engine engine;
    struct trial trial;
    uint32_t prepared, plan;
    (void)state;
    launched_open(&engine, &trial, harness.socket, "hears", &batch);
    launcher.session = engine.session;
    engine.session->launcher = &launcher;
    engine.session->launcher_end = hear_end;
    engine.session->prepared_ends = hear_prepared;
    engine.session->plan_ends = hear_plan;
    CHECK_OK(launched_prepare(&trial, 3, LANE, &prepared));
    CHECK_OK(attnd_prepared_args(engine.session, prepared, &args, &plan));
    CHECK_EQUAL(plan, engine.plan);
    CHECK_EQUAL(args.layer, 3);
    CHECK_EQUAL(args.lane, LANE);
    CHECK_OK(attnd_unprepare(engine.session, prepared));
    CHECK_EQUAL(launcher.prepared, 1);
    CHECK_EQUAL(launcher.last, prepared);
    CHECK_EQUAL(attnd_prepared_args(engine.session, prepared, &args, &plan), -ATTND_E_UNKNOWN);
    plan = engine_plan(&engine, 1, 1, 1, 1, 0);
    CHECK_OK(attnd_plan_destroy(engine.session, plan));
    CHECK_EQUAL(launcher.plan, 1);
    CHECK_EQUAL(launcher.last, plan);
    launched_close(&engine, &trial);
    CHECK_EQUAL(launcher.ended, 1);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_session_that_does_not_say_is_told_that_the_worker_executes),
        CASE(a_wish_for_the_engine_is_refused_by_name),
        CASE(a_wish_that_there_is_not_is_refused_before_anybody_is_asked),
        CASE(an_engine_sees_its_plan_as_it_is_set_and_advanced),
        cmocka_unit_test(images_do_not_use_up_the_descriptors_that_others_need),
        CASE(an_engine_gets_the_files_of_its_kernels),
        CASE(what_ends_is_told_to_the_launcher_first),
    };

    harness_init();
    if (!launched_from_host())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
