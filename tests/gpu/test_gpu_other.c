/*
 * test_gpu_other.c - two GPUs: the service has one of them, and says so to an engine that comes
 * with the other.
 *
 * Numbers of GPUs are each process's own: CUDA_VISIBLE_DEVICES orders and hides them. So a fault
 * names both in the numbers of the process that found out: the engine's where libattnd-cuda did,
 * the service's where the worker did.
 */
#include "tests/gpu/support/gpu.h"
#include "tests/gpu/support/one_key.h"
#include "tests/support/harness/e2e.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1u << 20)
#define CLIENT_MS 60000
#define NOBODY 12345u /* prepared run */
#define UUID_BYTES 41 /* of text: "GPU-", and 36 */

/* What the test program asks a child, because it must not initialise CUDA itself. */
struct gpus {
    int count;
    int peers; /* 1: each can map the other's memory */
    char uuid[2][UUID_BYTES];
};

struct scene {
    struct gpus gpus;
    char visible[2 * UUID_BYTES]; /* to the client; "": all */
    int same, other;              /* the service's GPU and the other one, as the client counts */
    int told_same, told_other;    /* the same as the service counts; -1: it does not see it */
};

static struct scene *scene; /* shared */
static struct harness harness;

/* As CUDA_VISIBLE_DEVICES takes it. */
static void write_uuid(const void *bytes, char *to)
{
    const unsigned char *b = bytes;
    int length = snprintf(to, UUID_BYTES, "GPU-");

    for (int i = 0; i < 16; i++)
        length += snprintf(to + length, UUID_BYTES - (size_t)length, "%s%02x",
                           i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", b[i]);
}

static int ask(void *context)
{
    struct gpus *gpus = context;
    CUuuid uuid;

    CHECK_CUDA(cuInit(0));
    CHECK_CUDA(cuDeviceGetCount(&gpus->count));
    for (int i = 0; i < 2 && i < gpus->count; i++) {
        CHECK_CUDA(cuDeviceGetUuid_v2(&uuid, i));
        write_uuid(uuid.bytes, gpus->uuid[i]);
    }
    if (gpus->count > 1)
        CHECK_CUDA(cuDeviceCanAccessPeer(&gpus->peers, 0, 1));
    return 0;
}

static void show(const char *visible)
{
    if (visible[0])
        CHECK_EQUAL(setenv("CUDA_VISIBLE_DEVICES", visible, 1), 0);
    else
        CHECK_EQUAL(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
}

/* A service that sees @visible, and is told @options; the client sees all and has its GPU @same. */
static void start(const char *visible, const char *const *options, int same)
{
    const int hides = visible[0] && !strchr(visible, ',');

    show(visible);
    harness_start(&harness, options);
    show("");
    scene->visible[0] = '\0';
    scene->same = same;
    scene->other = 1 - same;
    scene->told_same = hides ? 0 : same;
    scene->told_other = hides ? -1 : 1 - same;
}

static void in_a_client(int (*client)(void *context))
{
    pid_t before = harness_worker(&harness);

    CHECK_EQUAL(harness_join(harness_fork(client, scene), CLIENT_MS), 0);
    CHECK_EQUAL(harness_worker(&harness), before);
}

static struct attnd_session *open_on(int number)
{
    show(scene->visible);
    gpu_open_on(number);
    return e2e_open(&harness);
}

static void refused(int rc, int error, uint32_t field, int value, int limit, const char *what)
{
    struct attnd_fault fault;
    char text[200];

    attnd_last_fault(&fault);
    printf("%-36s %s\n", what, rc < 0 ? attnd_fault_string(&fault, text, sizeof(text)) : "taken");
    CHECK_EQUAL(rc, -error);
    CHECK_EQUAL(fault.field, field);
    CHECK_EQUAL(fault.value, value);
    CHECK_EQUAL(fault.limit, limit);
}

/* In its stream a lane is rung and answered. Where the engine itself executes, the call knows that
 * there is no such run. */
static void rings(struct attnd_session *session)
{
    struct attnd_info info = {.size = sizeof(info)};
    CUstream stream;

    CHECK_OK(attnd_cuda_stream_open(session));
    CHECK_OK(attnd_info(session, &info));
    CHECK_CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (info.executor == ATTND_EXECUTE_ENGINE) {
        CHECK_ERROR(attnd_cuda_run_on_stream(session, 0, NOBODY, stream), ATTND_E_UNKNOWN);
        return;
    }
    CHECK_OK(attnd_cuda_run_on_stream(session, 0, NOBODY, stream));
    CHECK_CUDA(cuStreamSynchronize(stream));
    CHECK_ERROR(attnd_cuda_lane_error(session, 0), ATTND_E_UNKNOWN);
}

/* Memory of the current context's GPU is taken, and what is computed in it is right. */
static void computes(struct attnd_session *session, uint32_t memory_kind, uint32_t salt)
{
    const struct allocation allocation = allocate(memory_kind, 2 * MIB);
    struct attnd_tensor planes, rows;
    struct attnd_fault fault;

    one_key_fill(allocation.address, allocation.address + MIB, salt);
    CHECK_OK(attnd_cuda_export(session, allocation.address, 2 * MIB, &planes));
    rows = (struct attnd_tensor){planes.memory, MIB};
    uint32_t pool = one_key_pool(session, &planes);
    CHECK_EQUAL(one_key_run(session, pool, &rows, &fault), 0);
    CHECK(one_key_right(allocation.address + MIB, salt));
    CHECK_OK(attnd_pool_release(session, pool));
    CHECK_OK(attnd_memory_release(session, planes.memory));
    deallocate(&allocation);
}

/* ---- engines ---- */

static int from_the_other(void *context)
{
    struct attnd_session *session = open_on(scene->other);
    (void)context;

    for (int time = 0; time < 2; time++) {
        int rc = attnd_cuda_stream_open(session);
        refused(rc, ATTND_E_UNSUPPORTED, ATTND_F_DEVICE, scene->other, scene->same,
                "a context of the other GPU");
    }
    gpu_open_on(scene->same); /* the session is as good as before */
    rings(session);
    attnd_close(session);
    return 0;
}

static const char *const exclusive[] = {"--residency", "exclusive", "--trust", NULL};
static const char *const second[] = {"--residency", "exclusive", "--trust", "--device", "1", NULL};

static void an_engine_on_another_gpu_is_refused_by_number(void **state)
{
    (void)state;
    start("", exclusive, 0);
    in_a_client(from_the_other);
}

static void numbers_are_the_engines_own(void **state)
{
    (void)state;
    start("", exclusive, 0);
    scene->same = 1;
    scene->other = 0;
    snprintf(scene->visible, sizeof(scene->visible), "1,0");
    in_a_client(from_the_other);
    snprintf(scene->visible, sizeof(scene->visible), "%s,%s", scene->gpus.uuid[1],
             scene->gpus.uuid[0]);
    in_a_client(from_the_other);
}

static int blind(void *context)
{
    struct attnd_session *session = open_on(0);
    (void)context;

    refused(attnd_cuda_stream_open(session), ATTND_E_UNSUPPORTED, ATTND_F_DEVICE, 0, -1,
            "the service's GPU is hidden");
    attnd_close(session);
    return 0;
}

static void an_engine_that_does_not_see_the_services_gpu_is_refused(void **state)
{
    (void)state;
    start("", exclusive, 0);
    snprintf(scene->visible, sizeof(scene->visible), "1");
    in_a_client(blind);
    snprintf(scene->visible, sizeof(scene->visible), "%s", scene->gpus.uuid[1]);
    in_a_client(blind);
}

/* ---- memory ---- */

static const uint32_t kinds[] = {ATTND_MEMORY_DEVICE, ATTND_MEMORY_POOL, ATTND_MEMORY_IPC};
static const char *const kind_names[] = {"created on the other GPU", "in a pool of the other GPU",
                                         "by IPC handle, of the other GPU"};

/* What was not asked about: the worker finds out, if it sees the other GPU. If it does not, and of
 * an IPC handle always, the driver maps the memory and says that it lies on ours: it is slow, and
 * no harm. */
static void import_unasked(struct attnd_session *session, const struct allocation *allocation,
                           const char *what)
{
    struct attnd_memory_desc desc = stand_for(allocation);
    const int by_number = scene->told_other >= 0 && desc.memory_kind != ATTND_MEMORY_IPC &&
                          (scene->gpus.peers || desc.memory_kind == ATTND_MEMORY_DEVICE);
    uint32_t memory = 0;
    char text[200];
    struct attnd_fault fault;

    int rc = attnd_memory_import(session, &desc, &memory);
    if (by_number) {
        refused(rc, ATTND_E_UNSUPPORTED, ATTND_F_DEVICE, scene->told_other, scene->told_same, what);
    } else {
        attnd_last_fault(&fault);
        printf("%-36s %s\n", what,
               rc < 0 ? attnd_fault_string(&fault, text, sizeof(text)) : "taken unseen");
    }
    if (rc == 0)
        CHECK_OK(attnd_memory_release(session, memory));
    if (desc.fd >= 0)
        close(desc.fd);
}

static void refuse_memory(struct attnd_session *session, uint32_t kind)
{
    const struct allocation allocation = allocate(kinds[kind], 2 * MIB);
    struct attnd_tensor tensor = {0, 0};

    refused(attnd_cuda_export(session, allocation.address, 2 * MIB, &tensor), ATTND_E_UNSUPPORTED,
            ATTND_F_DEVICE, scene->other, scene->same, kind_names[kind]);
    CHECK_EQUAL(tensor.memory, 0);
    import_unasked(session, &allocation, kind_names[kind]);
    deallocate(&allocation);
}

static int memory_of_both(void *context)
{
    struct attnd_session *session = open_on(scene->other);
    (void)context;

    for (uint32_t kind = 0; kind < 3; kind++) {
        gpu_open_on(scene->other);
        refuse_memory(session, kind);
        gpu_open_on(scene->same);
        computes(session, kinds[kind], kind);
    }
    attnd_close(session);
    return 0;
}

static void memory_of_another_gpu_is_refused_and_others_go_on(void **state)
{
    (void)state;
    start("", exclusive, 0);
    in_a_client(memory_of_both);
}

static void memory_of_a_gpu_that_the_service_does_not_see_is_refused_by_the_library(void **state)
{
    (void)state;
    start(scene->gpus.uuid[0], exclusive, 0);
    in_a_client(memory_of_both);
}

/* ---- which one it takes ---- */

static void check_number(uint32_t number)
{
    Attnd__Status *status = harness_status(&harness);

    CHECK(status->has_device);
    CHECK_EQUAL(status->device, number);
    attnd__status__free_unpacked(status, NULL);
}

static void the_service_takes_the_one_it_is_told(void **state)
{
    (void)state;
    start("", second, 1);
    check_number(1);
    in_a_client(from_the_other);
    in_a_client(memory_of_both);
}

static void the_service_numbers_what_it_sees(void **state)
{
    (void)state;
    start("1", exclusive, 1);
    check_number(0);
    in_a_client(from_the_other);
    harness_stop(&harness);
    start("1,0", second, 0);
    check_number(1);
    in_a_client(from_the_other);
}

/* ---- also where there is one GPU ---- */

static int compare_uuid(void *context)
{
    struct attnd_session *session = e2e_open(&harness);
    struct attnd_info info = {.size = sizeof(info)};
    char uuid[UUID_BYTES];
    (void)context;

    CHECK_OK(attnd_info(session, &info));
    write_uuid(info.gpu_uuid, uuid);
    printf("the service has %s\n", uuid);
    CHECK(strcmp(uuid, scene->gpus.uuid[0]) == 0);
    attnd_close(session);
    return 0;
}

static void a_session_knows_which_gpu_it_is(void **state)
{
    (void)state;
    start("", NULL, 0);
    in_a_client(compare_uuid);
}

static void a_number_that_is_not_there_ends_the_start(void **state)
{
    static const char *const argv[] = {"attnd",           "--backend", "cuda", "--socket",
                                       "/tmp/attnd-none", "--device",  "63",   NULL};
    char output[4096];
    (void)state;

    CHECK_EQUAL(harness_program(&harness, argv, output, sizeof(output)), 3);
}

static int stop(void **state)
{
    (void)state;
    harness_stop(&harness);
    return 0;
}

#define OTHER_TEST(name) cmocka_unit_test_teardown(name, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_that_is_not_there_ends_the_start),
        OTHER_TEST(a_session_knows_which_gpu_it_is),
        OTHER_TEST(an_engine_on_another_gpu_is_refused_by_number),
        OTHER_TEST(numbers_are_the_engines_own),
        OTHER_TEST(an_engine_that_does_not_see_the_services_gpu_is_refused),
        OTHER_TEST(memory_of_another_gpu_is_refused_and_others_go_on),
        OTHER_TEST(memory_of_a_gpu_that_the_service_does_not_see_is_refused_by_the_library),
        OTHER_TEST(the_service_takes_the_one_it_is_told),
        OTHER_TEST(the_service_numbers_what_it_sees),
    };
    const struct CMUnitTest alone[] = {tests[0], tests[1]};

    harness_init();
    scene = harness_shared(sizeof(*scene));
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    CHECK_EQUAL(harness_join(harness_fork(ask, &scene->gpus), CLIENT_MS), 0);
    if (scene->gpus.count > 1)
        return cmocka_run_group_tests(tests, NULL, NULL);
    puts("SKIP of what needs two GPUs: there is one");
    return cmocka_run_group_tests(alone, NULL, NULL);
}
