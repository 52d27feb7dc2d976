/* test_gpu_memory.c - whose bytes they are, and how long they live. */
#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/e2e.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BYTES (5u << 20)
#define PAGE_BYTES (2u << 20)

static struct attnd_session *open_session(const struct harness *harness)
{
    const struct attnd_open_args args = {.size = sizeof(args), .socket_path = harness->socket};
    struct attnd_session *session = NULL;

    CHECK_OK(attnd_open(&args, &session));
    return session;
}

static uint64_t size_of(struct attnd_session *session, uint32_t memory)
{
    struct attnd_memory_info info = {.size = sizeof(info)};

    CHECK_OK(attnd_memory_info(session, memory, &info));
    CHECK_EQUAL(info.memory_kind, ATTND_MEMORY_DEVICE);
    return info.size_bytes;
}

/* A word a page says which byte it is of which memory. */
static void fill(CUdeviceptr address, uint64_t bytes, uint32_t salt)
{
    uint32_t *words = malloc(bytes);

    CHECK(words != NULL);
    for (uint64_t i = 0; i < bytes / 4; i++)
        words[i] = (uint32_t)i * 2654435761u + salt;
    CHECK_CUDA(cuMemcpyHtoD(address, words, bytes));
    free(words);
}

static uint64_t count_wrong(CUdeviceptr address, uint64_t bytes, uint32_t salt)
{
    uint32_t *words = malloc(bytes);
    uint64_t wrong = 0;

    CHECK(words != NULL);
    CHECK_CUDA(cuMemcpyDtoH(words, address, bytes));
    for (uint64_t i = 0; i < bytes / 4; i++)
        wrong += words[i] != (uint32_t)i * 2654435761u + salt;
    free(words);
    return wrong;
}

static int mappings(void *context)
{
    struct attnd_session *session = open_session(context);
    uint32_t memory;
    CUdeviceptr first, second;

    gpu_open();
    CHECK_OK(attnd_memory_create_device(session, BYTES, &memory));
    uint64_t bytes = size_of(session, memory);
    CHECK_EQUAL(bytes, 3 * PAGE_BYTES);
    CHECK_OK(attnd_cuda_map(session, memory, &first));
    CHECK_OK(attnd_cuda_map(session, memory, &second));
    CHECK(first != second);
    fill(first, bytes, 1);
    CHECK_EQUAL(count_wrong(second, bytes, 1), 0);
    CHECK_OK(attnd_cuda_unmap(first));
    CHECK_OK(attnd_memory_release(session, memory));
    CHECK_ERROR(attnd_cuda_map(session, memory, &first), ATTND_E_UNKNOWN);
    CHECK_EQUAL(count_wrong(second, bytes, 1), 0); /* the mapping keeps it */
    attnd_close(session);
    CHECK_EQUAL(count_wrong(second, bytes, 1), 0);
    CHECK_OK(attnd_cuda_unmap(second));
    return 0;
}

static void two_mappings_are_of_the_same_bytes_and_keep_them(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(mappings, *state), 30000), 0);
}

static int host_memory(void *context)
{
    struct attnd_session *session = open_session(context);
    uint32_t memory;
    CUdeviceptr address;

    gpu_open();
    CHECK_OK(attnd_memory_create(session, BYTES, &memory, NULL));
    CHECK_ERROR(attnd_cuda_map(session, memory, &address), ATTND_E_UNSUPPORTED);
    attnd_close(session);
    return 0;
}

static void host_memory_is_not_for_mapping_there(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(host_memory, *state), 30000), 0);
}

/* Comes and goes faster than the worker maps it; in the end all of it is free again. */
static int churn(void *context)
{
    struct attnd_session *session = open_session(context);
    uint32_t memory[8];

    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 8; i++)
            CHECK_OK(
                attnd_memory_create_device(session, (uint64_t)(i + 1) * PAGE_BYTES, &memory[i]));
        for (int i = 0; i < 8; i++)
            CHECK_OK(attnd_memory_release(session, memory[(i * 3) % 8]));
    }
    attnd_close(session);
    return 0;
}

static void memory_may_come_and_go_beside_the_resident_kernel(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(churn, *state), 30000), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(two_mappings_are_of_the_same_bytes_and_keep_them),
        E2E_TEST(host_memory_is_not_for_mapping_there),
        E2E_TEST(memory_may_come_and_go_beside_the_resident_kernel),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
