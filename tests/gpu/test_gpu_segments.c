/*
 * test_gpu_segments.c - frameworks map allocation behind allocation in one range of addresses, and
 * other allocations where old ones were: which one a pointer lies in is not a matter of addresses.
 */
#include "tests/gpu/support/gpu.h"
#include "tests/gpu/support/one_key.h"
#include "tests/support/harness/e2e.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define MIB (1u << 20)
#define CLIENT_MS 60000

static struct attnd_session *open_session(const struct harness *harness)
{
    const struct attnd_open_args args = {.size = sizeof(args), .socket_path = harness->socket};
    struct attnd_session *session = NULL;

    CHECK_OK(attnd_open(&args, &session));
    return session;
}

static void map_new(CUdeviceptr address, uint64_t bytes)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes =
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    const CUmemAccessDesc access = {.location = prop.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;

    CHECK_CUDA(cuMemCreate(&handle, bytes, &prop, 0));
    CHECK_CUDA(cuMemMap(address, bytes, 0, handle, 0));
    CHECK_CUDA(cuMemRelease(handle));
    CHECK_CUDA(cuMemSetAccess(address, bytes, &access, 1));
}

/* Planes a MiB into the allocation at @base, rows at its begin. */
static struct attnd_tensor export_one(struct attnd_session *session, CUdeviceptr base,
                                      uint32_t salt)
{
    struct attnd_tensor planes;

    one_key_fill(base + MIB, base, salt);
    CHECK_OK(attnd_cuda_export(session, base + MIB, ONE_KEY_PLANES_BYTES, &planes));
    CHECK_EQUAL(planes.offset_bytes, MIB);
    return planes;
}

static uint32_t run_on(struct attnd_session *session, const struct attnd_tensor *planes)
{
    const struct attnd_tensor rows = {planes->memory, 0};
    struct attnd_fault fault;
    uint32_t pool = one_key_pool(session, planes);

    CHECK_EQUAL(one_key_run(session, pool, &rows, &fault), 0);
    return pool;
}

static int growing(void *context)
{
    struct attnd_session *session = open_session(context);
    struct attnd_tensor spanning;
    struct attnd_fault fault;
    CUdeviceptr base;

    gpu_open();
    CHECK_CUDA(cuMemAddressReserve(&base, 12 * MIB, 0, 0, 0));
    map_new(base, 4 * MIB);
    map_new(base + 4 * MIB, 2 * MIB);
    const struct attnd_tensor second = export_one(session, base + 4 * MIB, 21);
    const struct attnd_tensor first = export_one(session, base, 20);
    CHECK(first.memory != second.memory);
    CHECK_ERROR(attnd_cuda_export(session, base + 3 * MIB, 2 * MIB, &spanning), ATTND_E_RANGE);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_SIZE);
    CHECK_EQUAL(fault.limit, MIB);
    (void)run_on(session, &second);
    (void)run_on(session, &first);
    CHECK(one_key_right(base + 4 * MIB, 21));
    CHECK(one_key_right(base, 20));

    /* One of several goes and another comes in its place. */
    CHECK_CUDA(cuMemUnmap(base + 4 * MIB, 2 * MIB));
    map_new(base + 4 * MIB, 2 * MIB);
    const struct attnd_tensor third = export_one(session, base + 4 * MIB, 22);
    CHECK(third.memory != second.memory);
    (void)run_on(session, &third);
    CHECK(one_key_right(base + 4 * MIB, 22));
    attnd_close(session);
    return 0;
}

static void a_segment_is_found_behind_another_and_none_is_spanned(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(growing, *state), CLIENT_MS), 0);
}

static int coming_back(void *context)
{
    struct attnd_session *session = open_session(context);
    struct attnd_fault fault;
    CUdeviceptr base;

    gpu_open();
    CHECK_CUDA(cuMemAddressReserve(&base, 2 * MIB, 0, 0, 0));
    map_new(base, 2 * MIB);
    const struct attnd_tensor before = export_one(session, base, 1);
    uint32_t pool = run_on(session, &before);
    CHECK(one_key_right(base, 1));
    CHECK_CUDA(cuMemUnmap(base, 2 * MIB)); /* the service still has it */
    map_new(base, 2 * MIB);
    const struct attnd_tensor after = export_one(session, base, 2);
    CHECK(after.memory != before.memory);
    (void)run_on(session, &after);
    CHECK(one_key_right(base, 2));
    const struct attnd_tensor rows = {before.memory, 0};
    CHECK_EQUAL(one_key_run(session, pool, &rows, &fault), 0); /* where nobody looks any more */
    CHECK(one_key_right(base, 2));
    attnd_close(session);
    return 0;
}

static void an_address_that_comes_back_is_told_from_what_was_there(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(coming_back, *state), CLIENT_MS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_segment_is_found_behind_another_and_none_is_spanned),
        E2E_TEST(an_address_that_comes_back_is_told_from_what_was_there),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
