/* one_key.c - see one_key.h. */
#include "tests/gpu/support/one_key.h"

#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/check.h"
#include "tests/support/harness/one_page.h"

#include <string.h>

#define DIM 64
#define PAGE_SIZE 16
#define V_AT (PAGE_SIZE * DIM * 2)
#define O_AT (DIM * 2)

/* fp16 around 1, none of which rounds. */
static void value_of(uint32_t salt, uint16_t value[DIM])
{
    for (uint32_t d = 0; d < DIM; d++)
        value[d] = (uint16_t)(0x3800u + (salt * 77 + d * 13) % 0x7ff);
}

void one_key_fill(CUdeviceptr planes, CUdeviceptr rows, uint32_t salt)
{
    uint16_t page[2 * PAGE_SIZE * DIM], row[2 * DIM];

    memset(page, 0xff, sizeof(page)); /* NaN beyond the one key */
    for (uint32_t d = 0; d < DIM; d++)
        page[d] = row[d] = 0x3800; /* 0.5 */
    value_of(salt, page + PAGE_SIZE * DIM);
    memset(row + DIM, 0xff, DIM * sizeof(row[0]));
    CHECK_CUDA(cuMemcpyHtoD(planes, page, sizeof(page)));
    CHECK_CUDA(cuMemcpyHtoD(rows, row, sizeof(row)));
    CHECK_CUDA(cuCtxSynchronize());
}

static int make_pool(struct attnd_session *session, const struct attnd_tensor *planes,
                     uint32_t pages, int64_t stride_page, uint32_t *pool)
{
    const struct attnd_plane k = {.memory = planes->memory,
                                  .offset_bytes = planes->offset_bytes,
                                  .stride_page = stride_page,
                                  .stride_token = DIM,
                                  .stride_head = DIM};
    struct attnd_plane v = k;

    v.offset_bytes += V_AT;
    return planes_pool(session, &k, &v, pages, PAGE_SIZE, DIM, pool);
}

uint32_t one_key_pool(struct attnd_session *session, const struct attnd_tensor *planes)
{
    uint32_t pool = 0;

    CHECK_OK(make_pool(session, planes, 1, PAGE_SIZE * DIM, &pool));
    return pool;
}

int one_key_try_pool(struct attnd_session *session, const struct attnd_tensor *planes,
                     int64_t stride_page)
{
    uint32_t pool;
    int rc = make_pool(session, planes, 2, stride_page, &pool);

    if (rc == 0)
        CHECK_OK(attnd_pool_release(session, pool));
    return rc;
}

/* ---- runs ---- */

static uint32_t plan_on(struct attnd_session *session, uint32_t pool, int32_t page)
{
    static const int32_t rows[] = {0, 1}, pages[] = {0, 1}, last[] = {1};
    const struct attnd_level level = {1, rows, pages, &page, last};
    const struct attnd_batch batch = {.size = sizeof(batch), .level = &level};
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = pool,
                                         .requests = 1,
                                         .rows = 1,
                                         .pages = 1,
                                         .levels = 1,
                                         .heads_q = 1};
    const struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS}; /* comes first if it fails */
    uint32_t plan = 0;

    CHECK_OK(attnd_plan_create(session, &args, &plan));
    CHECK_OK(attnd_plan_set(session, plan, &batch, &quiet));
    return plan;
}

int one_key_run_on_page(struct attnd_session *session, uint32_t pool,
                        const struct attnd_tensor *rows, int32_t page, struct attnd_fault *fault)
{
    const struct attnd_run_args run = {
        .size = sizeof(run), .q = *rows, .o = {rows->memory, rows->offset_bytes + O_AT}};
    const struct attnd_op op = {.user_data = 1};
    uint32_t plan = plan_on(session, pool, page);
    struct attnd_completion first, done;

    CHECK_OK(attnd_run(session, plan, &run, &op));
    CHECK_EQUAL(attnd_wait(session, &first, 1, 20000000000u), 1);
    done = first;
    while (done.operation != ATTND_RUN)
        CHECK_EQUAL(attnd_wait(session, &done, 1, 20000000000u), 1);
    CHECK_OK(attnd_plan_destroy(session, plan));
    *fault = first.fault;
    return first.fault.code;
}

int one_key_run(struct attnd_session *session, uint32_t pool, const struct attnd_tensor *rows,
                struct attnd_fault *fault)
{
    return one_key_run_on_page(session, pool, rows, 0, fault);
}

int one_key_right(CUdeviceptr rows, uint32_t salt)
{
    uint16_t o[DIM], value[DIM];

    value_of(salt, value);
    CHECK_CUDA(cuMemcpyDtoH(o, rows + O_AT, sizeof(o)));
    return memcmp(o, value, sizeof(o)) == 0;
}

/* ---- allocations ---- */

/* The GPU of the current context. */
static CUmemLocation here(void)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};

    CHECK_CUDA(cuCtxGetDevice(&location.id));
    return location;
}

static CUmemAllocationProp exportable(void)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = here()};
}

static void create(struct allocation *allocation)
{
    const CUmemAllocationProp prop = exportable();
    const CUmemAccessDesc access = {.location = prop.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;

    CHECK_CUDA(cuMemCreate(&handle, allocation->bytes, &prop, 0));
    CHECK_CUDA(cuMemAddressReserve(&allocation->address, allocation->bytes, 0, 0, 0));
    CHECK_CUDA(cuMemMap(allocation->address, allocation->bytes, 0, handle, 0));
    CHECK_CUDA(cuMemSetAccess(allocation->address, allocation->bytes, &access, 1));
    CHECK_CUDA(cuMemRelease(handle));
}

static void create_in_pool(struct allocation *allocation)
{
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                  .location = here()};

    CHECK_CUDA(cuMemPoolCreate(&allocation->pool, &props));
    CHECK_CUDA(
        cuMemAllocFromPoolAsync(&allocation->address, allocation->bytes, allocation->pool, NULL));
    CHECK_CUDA(cuStreamSynchronize(NULL));
}

struct allocation allocate(uint32_t memory_kind, uint64_t bytes)
{
    struct allocation allocation = {.bytes = bytes, .memory_kind = memory_kind};

    if (memory_kind == ATTND_MEMORY_DEVICE)
        create(&allocation);
    else if (memory_kind == ATTND_MEMORY_POOL)
        create_in_pool(&allocation);
    else
        CHECK_CUDA(cuMemAlloc(&allocation.address, bytes));
    CHECK_CUDA(cuMemsetD8(allocation.address, 0, bytes));
    CHECK_CUDA(cuCtxSynchronize());
    return allocation;
}

void deallocate(const struct allocation *allocation)
{
    if (allocation->memory_kind == ATTND_MEMORY_DEVICE) {
        CHECK_CUDA(cuMemUnmap(allocation->address, allocation->bytes));
        CHECK_CUDA(cuMemAddressFree(allocation->address, allocation->bytes));
    } else if (allocation->memory_kind == ATTND_MEMORY_POOL) {
        CHECK_CUDA(cuMemFreeAsync(allocation->address, NULL));
        CHECK_CUDA(cuStreamSynchronize(NULL));
        CHECK_CUDA(cuMemPoolDestroy(allocation->pool));
    } else {
        CHECK_CUDA(cuMemFree(allocation->address));
    }
}

struct attnd_memory_desc stand_for(const struct allocation *allocation)
{
    struct attnd_memory_desc desc = {.size = sizeof(desc),
                                     .memory_kind = allocation->memory_kind,
                                     .fd = -1,
                                     .size_bytes = allocation->bytes};
    CUmemGenericAllocationHandle handle;
    CUmemPoolPtrExportData data;
    CUipcMemHandle ipc;

    if (allocation->memory_kind == ATTND_MEMORY_DEVICE) {
        CHECK_CUDA(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)allocation->address));
        CHECK_CUDA(cuMemExportToShareableHandle(&desc.fd, handle,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        CHECK_CUDA(cuMemRelease(handle));
    } else if (allocation->memory_kind == ATTND_MEMORY_POOL) {
        CHECK_CUDA(cuMemPoolExportToShareableHandle(&desc.fd, allocation->pool,
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        CHECK_CUDA(cuMemPoolExportPointer(&data, allocation->address));
        memcpy(desc.handle, &data, sizeof(data));
    } else {
        CHECK_CUDA(cuIpcGetMemHandle(&ipc, allocation->address));
        memcpy(desc.handle, &ipc, sizeof(ipc));
    }
    return desc;
}
