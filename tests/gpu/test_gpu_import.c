/*
 * test_gpu_import.c - memory that engines allocated, of every kind, and everything that is wrong
 * with what stands for it.
 *
 * The service is started with --trust unless a test is about not being trusted.
 */
#include "schemas/atomics.h"
#include "tests/gpu/support/gpu.h"
#include "tests/gpu/support/one_key.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1u << 20)
#define CLIENT_MS 60000

static const uint32_t kinds[] = {ATTND_MEMORY_DEVICE, ATTND_MEMORY_POOL, ATTND_MEMORY_IPC};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* Runs @client in a process; the worker must be the same one afterwards. */
static void in_a_client(const struct harness *harness, int (*client)(void *context))
{
    pid_t before = harness_worker(harness);

    CHECK_EQUAL(harness_join(harness_fork(client, (void *)(uintptr_t)harness), CLIENT_MS), 0);
    CHECK_EQUAL(harness_worker(harness), before);
}

/* ---- good memory ---- */

/* Two tensors somewhere in an allocation: K and V in one, q and o in the other. */
static void use_in_the_middle(struct attnd_session *session, const struct allocation *allocation,
                              uint64_t planes_at, uint64_t rows_at, uint32_t salt)
{
    CUdeviceptr planes = allocation->address + planes_at, rows = allocation->address + rows_at;
    struct attnd_tensor planes_tensor, rows_tensor;
    struct attnd_memory_info info = {.size = sizeof(info)};
    struct attnd_fault fault;

    one_key_fill(planes, rows, salt);
    CHECK_OK(attnd_cuda_export(session, planes, ONE_KEY_PLANES_BYTES, &planes_tensor));
    CHECK_OK(attnd_cuda_export(session, rows, ONE_KEY_ROWS_BYTES, &rows_tensor));
    CHECK_EQUAL(planes_tensor.memory, rows_tensor.memory); /* one import */
    CHECK_EQUAL(planes_tensor.offset_bytes, planes_at);
    CHECK_EQUAL(rows_tensor.offset_bytes, rows_at);
    CHECK_OK(attnd_memory_info(session, planes_tensor.memory, &info));
    CHECK_EQUAL(info.memory_kind, allocation->memory_kind);
    CHECK(info.size_bytes >= allocation->bytes);
    uint32_t pool = one_key_pool(session, &planes_tensor);
    CHECK_EQUAL(one_key_run(session, pool, &rows_tensor, &fault), 0);
    CHECK(one_key_right(rows, salt));
    CHECK_OK(attnd_pool_release(session, pool));
    CHECK_OK(attnd_memory_release(session, planes_tensor.memory));
}

static int tensors_in_the_middle(void *context)
{
    struct attnd_session *session = e2e_open(context);

    gpu_open();
    for (uint32_t i = 0; i < KINDS; i++) {
        const struct allocation allocation = allocate(kinds[i], 8 * MIB);
        /* Not where a page of the GPU begins, and up to the last byte. */
        use_in_the_middle(session, &allocation, 3 * MIB + 4096 + 512, 8 * MIB - ONE_KEY_ROWS_BYTES,
                          i);
        /* Released and exported again: a new import of the same allocation. */
        use_in_the_middle(session, &allocation, 0, 5 * MIB + 16, i + 10);
        deallocate(&allocation);
    }
    attnd_close(session);
    return 0;
}

static void every_kind_is_imported_whole_and_used_from_the_middle(void **state)
{
    in_a_client(*state, tensors_in_the_middle);
}

/* The driver cuts small allocations out of a block of its own. */
static int small_ones(void *context)
{
    struct attnd_session *session = e2e_open(context);
    struct allocation small[6];

    gpu_open();
    for (uint32_t i = 0; i < 6; i++)
        small[i] = allocate(i % 2 ? ATTND_MEMORY_POOL : ATTND_MEMORY_IPC, 16384);
    for (uint32_t i = 0; i < 6; i++)
        use_in_the_middle(session, &small[i], 1024, 12288, i);
    for (uint32_t i = 0; i < 6; i++)
        deallocate(&small[i]);
    attnd_close(session);
    return 0;
}

static void small_allocations_of_one_block_are_not_mixed_up(void **state)
{
    in_a_client(*state, small_ones);
}

/* Several allocations of one pool, and one address used again by the next allocation. */
static int again(void *context)
{
    struct attnd_session *session = e2e_open(context);
    struct attnd_tensor first, second;
    CUdeviceptr a, b;
    CUmemoryPool pool;
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};

    gpu_open();
    CHECK_CUDA(cuMemPoolCreate(&pool, &props));
    CHECK_CUDA(cuMemAllocFromPoolAsync(&a, 4 * MIB, pool, NULL));
    CHECK_CUDA(cuMemAllocFromPoolAsync(&b, 4 * MIB, pool, NULL));
    CHECK_CUDA(cuStreamSynchronize(NULL));
    CHECK_OK(attnd_cuda_export(session, a, 4 * MIB, &first));
    CHECK_OK(attnd_cuda_export(session, b, 4 * MIB, &second));
    CHECK(first.memory != second.memory);
    CHECK_OK(attnd_memory_release(session, first.memory));
    CHECK_CUDA(cuMemFreeAsync(a, NULL));
    CHECK_CUDA(cuMemAllocFromPoolAsync(&a, 4 * MIB, pool, NULL));
    CHECK_CUDA(cuStreamSynchronize(NULL));
    const struct allocation allocation = {a, 4 * MIB, ATTND_MEMORY_POOL, pool};
    use_in_the_middle(session, &allocation, 4096, 8192, 3);
    attnd_close(session);
    return 0;
}

static void an_address_that_comes_back_is_another_allocation(void **state)
{
    in_a_client(*state, again);
}

/* A whole random batch, appends and lengths advanced, on planes in an engine's allocation. */

static struct allocation engine_allocation;
static uint32_t engine_kind;

static uint32_t make_engine_memory(struct attnd_session *session, uint64_t bytes)
{
    struct attnd_tensor tensor;

    engine_allocation = allocate(engine_kind, (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB));
    CHECK_OK(attnd_cuda_export(session, engine_allocation.address, bytes, &tensor));
    CHECK_EQUAL(tensor.offset_bytes, 0);
    return tensor.memory;
}

static uint64_t engine_memory_address(struct attnd_session *session, uint32_t memory)
{
    (void)session;
    (void)memory;
    return engine_allocation.address;
}

static int batches(void *context)
{
    const struct harness *harness = context;
    struct random_batch batch = e2e_batch();

    gpu_open();
    batch.append = 1;
    for (uint32_t i = 0; i < KINDS; i++) {
        struct engine engine;
        engine_kind = kinds[i];
        gpu_engine_open_own(&engine, harness->socket, "own", make_engine_memory,
                            engine_memory_address);
        trial_expect(&engine, &batch);
        engine_close(&engine);
        deallocate(&engine_allocation);
    }
    return 0;
}

static void pools_over_it_are_pools_like_others(void **state)
{
    in_a_client(*state, batches);
}

/* ---- what is wrong ---- */

/* Refused with @error; what the fault says is printed, for the driver has its own words. */
static void refuse(struct attnd_session *session, const struct attnd_memory_desc *desc, int error,
                   uint32_t field, const char *what)
{
    struct attnd_fault fault;
    uint32_t memory = 0;
    char text[200];

    int rc = attnd_memory_import(session, desc, &memory);
    attnd_last_fault(&fault);
    printf("%-28s %s\n", what, rc < 0 ? attnd_fault_string(&fault, text, sizeof(text)) : "taken");
    CHECK_EQUAL(rc, -error);
    CHECK_EQUAL(fault.field, field);
    CHECK_EQUAL(memory, 0);
}

/* For so much the driver may lack addresses before it looks at what there is. */
static void refuse_absurd(struct attnd_session *session, struct attnd_memory_desc *desc)
{
    uint32_t memory;

    desc->size_bytes = INT64_MAX;
    int rc = attnd_memory_import(session, desc, &memory);
    CHECK(rc == -ATTND_E_RANGE || rc == -ATTND_E_NO_MEMORY);
}

static int too_large(void *context)
{
    struct attnd_session *session = e2e_open(context);

    gpu_open();
    for (uint32_t i = 0; i < KINDS; i++) {
        const struct allocation allocation = allocate(kinds[i], 8 * MIB);
        struct attnd_tensor tensor;
        struct attnd_memory_desc desc = stand_for(&allocation);
        CHECK_ERROR(attnd_cuda_export(session, allocation.address + 16, 8 * MIB, &tensor),
                    ATTND_E_RANGE);
        desc.size_bytes = 64 * (uint64_t)MIB;
        refuse(session, &desc, ATTND_E_RANGE, ATTND_F_SIZE, "64 MiB of 8");
        desc.size_bytes = 8 * MIB + 1;
        refuse(session, &desc, ATTND_E_RANGE, ATTND_F_SIZE, "a byte too many");
        refuse_absurd(session, &desc);
        if (desc.fd >= 0)
            close(desc.fd);
        use_in_the_middle(session, &allocation, 0, MIB, i);
        deallocate(&allocation);
    }
    attnd_close(session);
    return 0;
}

static void more_than_there_is_is_refused_by_size(void **state)
{
    in_a_client(*state, too_large);
}

static int strange_descriptors(void *context)
{
    struct attnd_session *session = e2e_open(context);
    int pair[2], memfd = memfd_create("no", MFD_ALLOW_SEALING);
    struct attnd_memory_desc desc = {
        .size = sizeof(desc), .memory_kind = ATTND_MEMORY_DEVICE, .size_bytes = 2 * MIB};

    gpu_open();
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    CHECK(memfd >= 0 && ftruncate(memfd, 2 * MIB) == 0);
    const int fds[] = {memfd,
                       pair[0],
                       open("/dev/null", O_RDWR),
                       open("/dev/nvidiactl", O_RDWR),
                       open("/dev/nvidia0", O_RDWR),
                       open("/", O_RDONLY)};
    const char *const names[] = {"memfd",          "socket",       "/dev/null",
                                 "/dev/nvidiactl", "/dev/nvidia0", "/"};
    for (uint32_t kind = ATTND_MEMORY_DEVICE; kind <= ATTND_MEMORY_POOL; kind++)
        for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
            desc.memory_kind = kind;
            desc.fd = fds[i];
            int drivers = strstr(names[i], "nvidia") != NULL; /* so it is for the driver to say */
            if (desc.fd >= 0)
                refuse(session, &desc, drivers ? ATTND_E_DEVICE : ATTND_E_INVALID, ATTND_F_MEMORY,
                       names[i]);
        }
    attnd_close(session);
    return 0;
}

static void a_descriptor_of_something_else_is_refused(void **state)
{
    in_a_client(*state, strange_descriptors);
}

/* Each kind's descriptor and handle in the place of another's. */
static int mixed_up(void *context)
{
    struct attnd_session *session = e2e_open(context);

    gpu_open();
    const struct allocation vmm = allocate(ATTND_MEMORY_DEVICE, 2 * MIB);
    const struct allocation pooled = allocate(ATTND_MEMORY_POOL, 2 * MIB);
    const struct allocation plain = allocate(ATTND_MEMORY_IPC, 2 * MIB);
    const struct attnd_memory_desc a = stand_for(&vmm), b = stand_for(&pooled),
                                   c = stand_for(&plain);
    struct stat file;
    char link[64], target[256] = "";

    for (int i = 0; i < 2; i++) {
        int fd = i ? b.fd : a.fd;
        CHECK_EQUAL(fstat(fd, &file), 0);
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof(target) - 1);
        target[length > 0 ? length : 0] = '\0';
        printf("a descriptor of kind %d is %s, mode %o, device %u:%u\n", i ? 3 : 2, target,
               file.st_mode, major(file.st_rdev), minor(file.st_rdev));
    }
    struct attnd_memory_desc desc = b;
    desc.memory_kind = ATTND_MEMORY_DEVICE;
    refuse(session, &desc, ATTND_E_DEVICE, ATTND_F_MEMORY, "a pool as an allocation");
    desc = b;
    desc.fd = a.fd;
    refuse(session, &desc, ATTND_E_DEVICE, ATTND_F_MEMORY, "an allocation as a pool");
    desc = b;
    memset(desc.handle, 0, sizeof(desc.handle));
    refuse(session, &desc, ATTND_E_DEVICE, ATTND_F_MEMORY, "a pool, pointer of zeros");
    memset(desc.handle, 0xa5, sizeof(desc.handle));
    refuse(session, &desc, ATTND_E_DEVICE, ATTND_F_MEMORY, "a pool, pointer of rubbish");
    desc = c;
    memset(desc.handle, 0, sizeof(desc.handle));
    refuse(session, &desc, ATTND_E_DEVICE, ATTND_F_MEMORY, "an IPC handle of zeros");
    memset(desc.handle, 0xa5, sizeof(desc.handle));
    refuse(session, &desc, ATTND_E_DEVICE, ATTND_F_MEMORY, "an IPC handle of rubbish");
    memcpy(desc.handle, b.handle, sizeof(desc.handle));
    refuse(session, &desc, ATTND_E_DEVICE, ATTND_F_MEMORY, "a pool pointer as IPC");
    use_in_the_middle(session, &vmm, 0, MIB, 1);
    use_in_the_middle(session, &pooled, 0, MIB, 2);
    use_in_the_middle(session, &plain, 0, MIB, 3);
    attnd_close(session);
    return 0;
}

static void a_handle_of_something_else_is_refused(void **state)
{
    in_a_client(*state, mixed_up);
}

/* The daemon knows no address, only sizes: whatever a run or a pool names must lie inside. */
static int outside(void *context)
{
    struct attnd_session *session = e2e_open(context);
    struct attnd_fault fault;

    gpu_open();
    for (uint32_t i = 0; i < KINDS; i++) {
        const struct allocation allocation = allocate(kinds[i], 2 * MIB);
        struct attnd_tensor whole, rows;
        CHECK_OK(attnd_cuda_export(session, allocation.address, 2 * MIB, &whole));
        one_key_fill(allocation.address, allocation.address + MIB, i);
        rows = (struct attnd_tensor){whole.memory, MIB};
        uint32_t pool = one_key_pool(session, &whole);

        /* o would begin inside and end beyond; q would begin beyond. */
        struct attnd_tensor late = {whole.memory, 2 * MIB - ONE_KEY_ROWS_BYTES + 16};
        CHECK_EQUAL(one_key_run(session, pool, &late, &fault), -ATTND_E_RANGE);
        CHECK_EQUAL(fault.field, ATTND_F_O);
        late.offset_bytes = UINT64_MAX - 15;
        CHECK_EQUAL(one_key_run(session, pool, &late, &fault), -ATTND_E_RANGE);
        CHECK_EQUAL(fault.field, ATTND_F_Q);

        /* The pool has page 0. */
        CHECK_EQUAL(one_key_run_on_page(session, pool, &rows, 1, &fault), -ATTND_E_RANGE);
        CHECK_EQUAL(fault.field, ATTND_F_KV_INDICES);
        CHECK_EQUAL(fault.value, 1);
        CHECK_EQUAL(fault.limit, 0);
        CHECK_EQUAL(one_key_run_on_page(session, pool, &rows, INT32_MIN, &fault), -ATTND_E_RANGE);

        late.offset_bytes = 2 * MIB - ONE_KEY_PLANES_BYTES / 2 - 16;
        CHECK_EQUAL(one_key_try_pool(session, &late, 0), -ATTND_E_RANGE); /* V leaves */
        CHECK_EQUAL(one_key_try_pool(session, &whole, (int64_t)1 << 38), -ATTND_E_RANGE);

        CHECK_EQUAL(one_key_run(session, pool, &rows, &fault), 0);
        CHECK(one_key_right(allocation.address + MIB, i));
        CHECK_OK(attnd_pool_release(session, pool));
        CHECK_OK(attnd_memory_release(session, whole.memory));
        deallocate(&allocation);
    }
    attnd_close(session);
    return 0;
}

static void nothing_outside_the_allocation_can_be_named(void **state)
{
    in_a_client(*state, outside);
}

/* ---- coming and going beside runs ---- */

static double longest_run_ms(struct attnd_session *session, uint32_t pool,
                             const struct attnd_tensor *rows, const uint32_t *until)
{
    struct attnd_fault fault;
    uint64_t longest_ns = 0;

    while (!attnd_observe32(until)) {
        uint64_t begin_ns = harness_now_ns();
        CHECK_EQUAL(one_key_run(session, pool, rows, &fault), 0);
        uint64_t took_ns = harness_now_ns() - begin_ns;
        longest_ns = took_ns > longest_ns ? took_ns : longest_ns;
    }
    return (double)longest_ns / 1e6;
}

struct traffic {
    const struct harness *harness;
    uint32_t running, done[KINDS];
};

static int runner(void *context)
{
    struct traffic *traffic = context;
    struct attnd_session *session = e2e_open(traffic->harness);
    struct attnd_tensor rows, planes;

    gpu_open();
    const struct allocation allocation = allocate(ATTND_MEMORY_DEVICE, 2 * MIB);
    one_key_fill(allocation.address, allocation.address + MIB, 1);
    CHECK_OK(attnd_cuda_export(session, allocation.address, 1, &planes));
    rows = (struct attnd_tensor){planes.memory, MIB};
    uint32_t pool = one_key_pool(session, &planes);
    harness_say(&traffic->running, 1);
    for (uint32_t i = 0; i < KINDS; i++)
        printf("longest run while memory of kind %u came and went: %.1f ms\n", kinds[i],
               longest_run_ms(session, pool, &rows, &traffic->done[i]));
    CHECK(one_key_right(allocation.address + MIB, 1));
    attnd_close(session);
    return 0;
}

static int comer_and_goer(void *context)
{
    struct traffic *traffic = context;
    struct attnd_session *session = e2e_open(traffic->harness);

    gpu_open();
    harness_await(&traffic->running, 1);
    for (uint32_t i = 0; i < KINDS; i++) {
        const struct allocation allocation = allocate(kinds[i], 2 * MIB);
        for (uint32_t round = 0; round < 20; round++) {
            struct attnd_tensor tensor;
            CHECK_OK(attnd_cuda_export(session, allocation.address, 1, &tensor));
            CHECK_OK(attnd_memory_release(session, tensor.memory));
        }
        harness_say(&traffic->done[i], 1);
        deallocate(&allocation);
    }
    attnd_close(session);
    return 0;
}

static void memory_comes_and_goes_beside_the_runs_of_others(void **state)
{
    struct traffic *traffic = harness_shared(sizeof(*traffic));

    traffic->harness = *state;
    pid_t a = harness_fork(runner, traffic), b = harness_fork(comer_and_goer, traffic);
    CHECK_EQUAL(harness_join(b, CLIENT_MS), 0);
    CHECK_EQUAL(harness_join(a, CLIENT_MS), 0);
}

static int untrusted(void *context)
{
    struct attnd_session *session = e2e_open(context);

    gpu_open();
    for (uint32_t i = 0; i < KINDS; i++) {
        const struct allocation allocation = allocate(kinds[i], 2 * MIB);
        struct attnd_tensor tensor;
        struct attnd_fault fault;
        if (kinds[i] == ATTND_MEMORY_DEVICE) {
            use_in_the_middle(session, &allocation, 0, MIB, 1);
            continue;
        }
        CHECK_ERROR(attnd_cuda_export(session, allocation.address, 64, &tensor),
                    ATTND_E_PERMISSION);
        attnd_last_fault(&fault);
        CHECK_EQUAL(fault.field, ATTND_F_MEMORY_KIND);
        CHECK_EQUAL(fault.value, kinds[i]);
    }
    attnd_close(session);
    return 0;
}

static void without_trust_only_what_a_descriptor_holds_is_taken(void **state)
{
    in_a_client(*state, untrusted);
}

static int not_exportable(void *context)
{
    struct attnd_session *session = e2e_open(context);
    struct attnd_tensor tensor;
    CUdeviceptr address;
    int on_the_stack = 0;

    gpu_open();
    CHECK_ERROR(attnd_cuda_export(session, (CUdeviceptr)(uintptr_t)&on_the_stack, 4, &tensor),
                ATTND_E_INVALID);
    CHECK_ERROR(attnd_cuda_export(session, 0, 4, &tensor), ATTND_E_INVALID);
    CHECK_CUDA(cuMemAllocAsync(&address, 2 * MIB, NULL)); /* of the driver's own pool */
    CHECK_CUDA(cuStreamSynchronize(NULL));
    CHECK_ERROR(attnd_cuda_export(session, address, 4, &tensor), ATTND_E_UNSUPPORTED);
    attnd_close(session);
    return 0;
}

static void what_cannot_be_exported_is_refused_here(void **state)
{
    in_a_client(*state, not_exportable);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TRUST_TEST(every_kind_is_imported_whole_and_used_from_the_middle),
        E2E_TRUST_TEST(small_allocations_of_one_block_are_not_mixed_up),
        E2E_TRUST_TEST(an_address_that_comes_back_is_another_allocation),
        E2E_TRUST_TEST(pools_over_it_are_pools_like_others),
        E2E_TRUST_TEST(more_than_there_is_is_refused_by_size),
        E2E_TRUST_TEST(a_descriptor_of_something_else_is_refused),
        E2E_TRUST_TEST(a_handle_of_something_else_is_refused),
        E2E_TRUST_TEST(nothing_outside_the_allocation_can_be_named),
        E2E_TRUST_TEST(memory_comes_and_goes_beside_the_runs_of_others),
        E2E_TEST(without_trust_only_what_a_descriptor_holds_is_taken),
        E2E_TRUST_TEST(what_cannot_be_exported_is_refused_here),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
