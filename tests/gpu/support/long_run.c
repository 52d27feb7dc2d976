/* long_run.c - see long_run.h. */
#include "tests/gpu/support/long_run.h"

#include "schemas/abi.h"
#include "tests/support/harness/check.h"
#include "tests/support/harness/harness.h"
#include "tests/support/harness/one_page.h"

#define DIM 64u
#define HEADS_Q 8u
#define ROWS 65536u
#define PAGE_SIZE 4096u
#define PAGES 64u /* of the request, all the same one */

#define PLANE_BYTES (PAGE_SIZE * DIM * 2u)
#define ROWS_BYTES (ROWS * HEADS_Q * DIM * 2u)
#define ALL_BYTES (2u * PLANE_BYTES + 2u * ROWS_BYTES)

static const struct one_page_batch all = {
    .requests = 1, .rows = ROWS, .pages = PAGES, .page_size = PAGE_SIZE, .heads_q = HEADS_Q};

int long_prepare(const struct long_run *run, uint32_t lane, uint32_t *prepared)
{
    const struct attnd_prepare_args args = {.size = sizeof(args),
                                            .lane = lane,
                                            .q = {run->memory, 2u * PLANE_BYTES},
                                            .o = {run->memory, 2u * PLANE_BYTES + ROWS_BYTES}};
    return attnd_prepare(run->session, run->plan, &args, prepared);
}

void long_open(struct long_run *run, struct attnd_session *session, uint32_t lane)
{
    struct attnd_info info = {.size = sizeof(info)};
    uint32_t mailbox;

    *run = (struct long_run){.session = session, .lane = lane};
    CHECK_OK(attnd_memory_create_device(session, ALL_BYTES, &run->memory));
    CHECK_OK(attnd_cuda_map(session, run->memory, &run->address));
    CHECK_CUDA(cuMemsetD8(run->address, 0, ALL_BYTES));
    CHECK_CUDA(cuCtxSynchronize());
    run->pool = plain_planes_pool(session, run->memory, 0, PAGE_SIZE, DIM);
    run->plan = one_page_plan(session, run->pool, &all);
    CHECK_OK(long_prepare(run, lane, &run->prepared));
    CHECK_CUDA(cuStreamCreate(&run->stream, CU_STREAM_NON_BLOCKING));
    CHECK_OK(attnd_cuda_stream_open(session));
    CHECK_OK(attnd_info(session, &info));
    if (info.executor == ATTND_EXECUTE_ENGINE)
        return;
    CHECK_OK(attnd_mailbox(session, &mailbox));
    CHECK_OK(attnd_cuda_map(session, mailbox, &run->mailbox));
}

void long_close(struct long_run *run)
{
    CHECK_OK(attnd_unprepare(run->session, run->prepared));
    CHECK_OK(attnd_plan_destroy(run->session, run->plan));
    CHECK_OK(attnd_pool_release(run->session, run->pool));
    if (run->mailbox)
        CHECK_OK(attnd_cuda_unmap(run->mailbox));
    CHECK_OK(attnd_cuda_unmap(run->address));
    CHECK_OK(attnd_memory_release(run->session, run->memory));
}

void long_submit(const struct long_run *run, uint16_t lane)
{
    const struct attnd_run_args args = {.size = sizeof(args),
                                        .q = {run->memory, 2u * PLANE_BYTES},
                                        .o = {run->memory, 2u * PLANE_BYTES + ROWS_BYTES}};
    const struct attnd_op op = {.lane = lane};
    CHECK_OK(attnd_run(run->session, run->plan, &args, &op));
}

/* By a worker, or answered already. */
static int is_taken(void *context)
{
    const struct long_run *run = context;
    uint32_t word;

    CHECK_CUDA(cuMemcpyDtoH(&word, run->mailbox + run->lane * sizeof(word), sizeof(word)));
    return word == 0 || word >= ATTND_DOORBELL_TAKEN || !long_runs(run);
}

void long_ring(const struct long_run *run)
{
    CHECK_OK(attnd_cuda_run_on_stream(run->session, run->lane, run->prepared, run->stream));
}

void long_await_taken(struct long_run *run)
{
    harness_eventually(is_taken, run, 20000, "a worker takes the long run");
}

int long_runs(const struct long_run *run)
{
    CUresult result = cuStreamQuery(run->stream);

    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
    return result == CUDA_ERROR_NOT_READY;
}

int long_await(const struct long_run *run)
{
    CHECK_CUDA(cuStreamSynchronize(run->stream));
    return attnd_cuda_lane_error(run->session, run->lane);
}
