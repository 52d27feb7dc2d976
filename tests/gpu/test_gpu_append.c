/*
 * test_gpu_append.c - K and V that the service stored, read right behind by an engine's kernel.
 *
 * The kernel is there before: it reads the rows as they were, which brings them near to where it
 * runs, says so, and waits for a word of the host's. The host submits the append, waits for its
 * completion, and writes the word: nothing else lies between the worker's stores and the kernel's
 * loads, neither a launch nor a copy. Every row is new in every step. That the rows were not there
 * before is checked too: otherwise nothing would be.
 *
 * (The other way round, K and V of an engine's kernel read by a run that is rung right behind, is
 * in test_gpu_stream.c.)
 */
#include "schemas/atomics.h"
#include "tests/gpu/support/gpu.h"
#include "tests/gpu/support/load.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STEPS 500u
#define STEPS_ALONE 60u /* without MPS: the GPU changes hands twice in each */
#define REQUESTS 4u
#define HEADS_KV 2u
#define DIM 128u
#define PAGE_SIZE 16u
#define PAGES_EACH ((STEPS + PAGE_SIZE - 1) / PAGE_SIZE)
#define PAGES (REQUESTS * PAGES_EACH)
#define WORDS (HEADS_KV * DIM / 2) /* of a token's row of one plane */
#define ROWS (2 * REQUESTS)        /* of a step: K of all, then V of all; a CTA each */
#define STEP_BYTES (ROWS * WORDS * sizeof(uint32_t))
#define POISON 0xffu
#define CLIENT_MS 100000

/* One CTA a row, one thread a word. */
static const char text[] =
    ".version 6.4\n.target sm_70\n.address_size 64\n"
    ".visible .entry take(.param .u64 word, .param .u64 begun, .param .u32 number,\n"
    "    .param .u64 places, .param .u64 before, .param .u64 after)\n"
    "{\n"
    ".reg .pred %p, %first;\n.reg .u32 %row, %t, %i, %n, %v;\n.reg .u64 %from, %a, %b, %c, %d;\n"
    "mov.u32 %row, %ctaid.x;\nmov.u32 %t, %tid.x;\nsetp.eq.u32 %first, %t, 0;\n"
    "ld.param.u32 %n, [number];\n"
    "ld.param.u64 %a, [places];\nmad.wide.u32 %a, %row, 8, %a;\nld.global.u64 %from, [%a];\n"
    "mad.wide.u32 %from, %t, 4, %from;\n"
    "mov.u32 %v, %ntid.x;\nmad.lo.u32 %i, %row, %v, %t;\n"
    "ld.param.u64 %b, [before];\nmad.wide.u32 %b, %i, 4, %b;\n"
    "ld.param.u64 %c, [after];\nmad.wide.u32 %c, %i, 4, %c;\n"
    "ld.global.u32 %v, [%from];\nst.global.u32 [%b], %v;\n" /* as it was */
    "bar.sync 0;\n"
    "ld.param.u64 %a, [begun];\nmad.wide.u32 %a, %row, 4, %a;\n"
    "@%first st.release.sys.global.u32 [%a], %n;\n"
    "ld.param.u64 %a, [word];\n"
    "mov.u64 %b, %globaltimer;\n"
    "again:\n"
    "@!%first bra done;\n"
    "ld.acquire.sys.global.u32 %v, [%a];\nsetp.eq.u32 %p, %v, %n;\n@%p bra done;\n"
    "mov.u64 %d, %globaltimer;\nsub.u64 %d, %d, %b;\nsetp.lt.u64 %p, %d, 20000000000;\n"
    "@%p bra again;\n"
    "done:\n"
    "bar.sync 0;\n"
    "ld.global.u32 %v, [%from];\nst.global.u32 [%c], %v;\nret;\n}\n";

/* What the host and the kernel tell each other. */
struct words {
    uint32_t word, zero[15];
    uint32_t begun[ROWS];
};

struct reader {
    const struct harness *harness;
    uint32_t steps;
    struct attnd_session *session;
    uint32_t memory, pool, plan;
    CUdeviceptr rows, planes, places, before, after;
    struct attnd_pool_info info;
    struct words *words; /* registered */
    CUdeviceptr words_device;
    CUstream stream;
    CUfunction take;
};

/* Of step, row and word; never the poison. */
static uint32_t value(uint32_t step, uint32_t row, uint32_t word)
{
    return ((step * ROWS + row) * WORDS + word) * 2654435761u & 0x7fff7bffu;
}

static int32_t page_of(uint32_t request, uint32_t token)
{
    return (int32_t)((request * PAGES_EACH + token / PAGE_SIZE) * 7 % PAGES);
}

static CUdeviceptr place(const struct reader *reader, uint32_t row, uint32_t step)
{
    const uint32_t request = row % REQUESTS;
    const struct attnd_plane *plane = row < REQUESTS ? reader->info.desc.k : reader->info.desc.v;
    const int64_t elements =
        page_of(request, step) * plane->stride_page + step % PAGE_SIZE * plane->stride_token;

    CHECK_EQUAL(plane->stride_head, DIM); /* so that a token's heads are one row */
    return reader->planes + plane->offset_bytes + 2 * (uint64_t)elements;
}

static CUdeviceptr allocate_filled(uint64_t bytes, uint8_t fill)
{
    CUdeviceptr address;

    CHECK_CUDA(cuMemAlloc(&address, bytes));
    CHECK_CUDA(cuMemsetD8(address, fill, bytes));
    return address;
}

/* All rows of all steps lie there from the beginning, and so do the addresses they go to. */
static void fill(struct reader *reader)
{
    static uint32_t rows[STEPS][ROWS][WORDS];
    static CUdeviceptr places[STEPS][ROWS];

    for (uint32_t step = 0; step < STEPS; step++)
        for (uint32_t row = 0; row < ROWS; row++) {
            places[step][row] = place(reader, row, step);
            for (uint32_t word = 0; word < WORDS; word++)
                rows[step][row][word] = value(step, row, word);
        }
    CHECK_CUDA(cuMemcpyHtoD(reader->rows, rows, sizeof(rows)));
    reader->places = allocate_filled(sizeof(places), 0);
    CHECK_CUDA(cuMemcpyHtoD(reader->places, places, sizeof(places)));
    CHECK_CUDA(cuMemsetD8(reader->planes, POISON, reader->info.memory_bytes));
    reader->before = allocate_filled(sizeof(rows), 0);
    reader->after = allocate_filled(sizeof(rows), 0);
    CHECK_CUDA(cuCtxSynchronize());
}

static void make_memory(struct reader *reader)
{
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = PAGES,
                                         .page_size = PAGE_SIZE,
                                         .heads_kv = HEADS_KV,
                                         .dim_qk = DIM,
                                         .dim_vo = DIM,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_ENGINE,
                                         .memory_kind = ATTND_MEMORY_DEVICE};

    CHECK_OK(attnd_pool_create(reader->session, &desc, &reader->pool));
    reader->info.size = sizeof(reader->info);
    CHECK_OK(attnd_pool_info(reader->session, reader->pool, &reader->info));
    CHECK_OK(attnd_cuda_map(reader->session, reader->info.memory, &reader->planes));
    CHECK_OK(attnd_memory_create_device(reader->session, STEPS * STEP_BYTES, &reader->memory));
    CHECK_OK(attnd_cuda_map(reader->session, reader->memory, &reader->rows));
}

static void make_kernel(struct reader *reader)
{
    CUmodule module;

    reader->words = harness_shared(sizeof(*reader->words)); /* pages of its own */
    CHECK_CUDA(
        cuMemHostRegister(reader->words, sizeof(*reader->words), CU_MEMHOSTREGISTER_DEVICEMAP));
    CHECK_CUDA(cuMemHostGetDevicePointer(&reader->words_device, reader->words, 0));
    CHECK_CUDA(cuModuleLoadData(&module, text));
    CHECK_CUDA(cuModuleGetFunction(&reader->take, module, "take"));
    CHECK_CUDA(cuStreamCreate(&reader->stream, CU_STREAM_NON_BLOCKING));
}

static void await_operations(const struct reader *reader, uint32_t count)
{
    struct attnd_completion done;

    for (uint32_t i = 0; i < count; i++) {
        CHECK_EQUAL(attnd_wait(reader->session, &done, 1, TRIAL_WAIT_NS), 1);
        CHECK_EQUAL(done.fault.code, 0);
    }
}

/* A token of each request; pages for the rest come with the advances. */
static void make_plan(struct reader *reader)
{
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = reader->pool,
                                         .requests = REQUESTS,
                                         .rows = REQUESTS,
                                         .pages = PAGES,
                                         .levels = 1,
                                         .heads_q = HEADS_KV};
    int32_t indptr[REQUESTS + 1], pages[REQUESTS], last[REQUESTS];
    const struct attnd_level level = {REQUESTS, indptr, indptr, pages, last};
    const struct attnd_batch batch = {.size = sizeof(batch),
                                      .levels = 1,
                                      .flags = ATTND_CAUSAL,
                                      .reserve_pages = PAGES_EACH - 1,
                                      .level = &level};

    for (uint32_t r = 0; r < REQUESTS; r++) {
        indptr[r] = (int32_t)r;
        pages[r] = page_of(r, 0);
        last[r] = 1;
    }
    indptr[REQUESTS] = (int32_t)REQUESTS;
    CHECK_OK(attnd_plan_create(reader->session, &args, &reader->plan));
    CHECK_OK(attnd_plan_set(reader->session, reader->plan, &batch, NULL));
    await_operations(reader, 1);
}

static void advance(const struct reader *reader, uint32_t step)
{
    int32_t kv_len[REQUESTS], indptr[REQUESTS + 1] = {0}, pages[REQUESTS];
    struct attnd_advance args = {.size = sizeof(args),
                                 .entries = REQUESTS,
                                 .kv_len = kv_len,
                                 .page_indptr = indptr,
                                 .page_indices = pages};

    for (uint32_t r = 0; r < REQUESTS; r++) {
        kv_len[r] = (int32_t)step + 1;
        pages[r] = page_of(r, step);
        indptr[r + 1] = (int32_t)r + 1;
    }
    if (step % PAGE_SIZE != 0)
        args.page_indptr = args.page_indices = NULL;
    CHECK_OK(attnd_plan_advance(reader->session, reader->plan, &args, NULL));
}

/* The step's rows are in the pages. Lengths and append are of one lane, so one waits for both. */
static void append(const struct reader *reader, uint32_t step)
{
    const uint64_t k_bytes = step * STEP_BYTES;
    const struct attnd_append_args args = {.size = sizeof(args),
                                           .k = {reader->memory, k_bytes},
                                           .v = {reader->memory, k_bytes + STEP_BYTES / 2}};

    if (step > 0)
        advance(reader, step);
    CHECK_OK(attnd_append(reader->session, reader->plan, &args, NULL));
    await_operations(reader, step > 0 ? 2 : 1);
}

/* Numbers of steps begin with 1: the words are 0 before. */
static void launch(const struct reader *reader, uint32_t step)
{
    CUdeviceptr word = reader->words_device;
    CUdeviceptr begun = reader->words_device + offsetof(struct words, begun);
    CUdeviceptr places = reader->places + step * ROWS * sizeof(CUdeviceptr);
    CUdeviceptr before = reader->before + step * STEP_BYTES;
    CUdeviceptr after = reader->after + step * STEP_BYTES;
    uint32_t number = step + 1;
    void *arguments[] = {&word, &begun, &number, &places, &before, &after};

    CHECK_CUDA(
        cuLaunchKernel(reader->take, ROWS, 1, 1, WORDS, 1, 1, 0, reader->stream, arguments, NULL));
}

static void judge(const struct reader *reader, uint32_t waits)
{
    static uint32_t before[STEPS][ROWS][WORDS], after[STEPS][ROWS][WORDS];

    CHECK_CUDA(cuMemcpyDtoH(before, reader->before, sizeof(before)));
    CHECK_CUDA(cuMemcpyDtoH(after, reader->after, sizeof(after)));
    for (uint32_t step = 0; step < reader->steps; step++)
        for (uint32_t row = 0; row < ROWS; row++)
            for (uint32_t word = 0; word < WORDS; word++) {
                if (after[step][row][word] != value(step, row, word)) {
                    printf("step %u, %s of request %u, word %u: %08x\n", step,
                           row < REQUESTS ? "K" : "V", row % REQUESTS, word,
                           after[step][row][word]);
                    CHECK_FAIL("a row is not what was appended");
                }
                if (waits)
                    CHECK_EQUAL(before[step][row][word], 0x01010101u * POISON);
            }
}

static void open_reader(struct reader *reader)
{
    gpu_open();
    reader->session = e2e_open(reader->harness);
    reader->steps = gpu_under_mps() ? STEPS : STEPS_ALONE;
    make_memory(reader);
    fill(reader);
    make_kernel(reader);
    make_plan(reader);
}

static void close_reader(struct reader *reader, uint32_t waits)
{
    CHECK_CUDA(cuStreamSynchronize(reader->stream));
    judge(reader, waits);
    printf("%u rows of %u steps right\n", reader->steps * ROWS, reader->steps);
    attnd_close(reader->session);
}

static int wait_in_the_stream(void *context)
{
    struct reader reader = {.harness = context};

    open_reader(&reader);
    for (uint32_t step = 0; step < reader.steps; step++) {
        launch(&reader, step);
        for (uint32_t row = 0; row < ROWS; row++)
            harness_await(&reader.words->begun[row], step + 1);
        append(&reader, step);
        attnd_publish32(&reader.words->word, step + 1);
    }
    close_reader(&reader, 1);
    return 0;
}

static int launch_behind(void *context)
{
    struct reader reader = {.harness = context};

    open_reader(&reader);
    for (uint32_t step = 0; step < reader.steps; step++) {
        append(&reader, step);
        attnd_publish32(&reader.words->word, step + 1);
        launch(&reader, step);
        CHECK_CUDA(cuStreamSynchronize(reader.stream)); /* the word is of one step */
    }
    close_reader(&reader, 0);
    return 0;
}

static void a_kernel_that_waits_sees_what_was_appended(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(wait_in_the_stream, *state), CLIENT_MS), 0);
}

static void a_kernel_launched_behind_sees_what_was_appended(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(launch_behind, *state), CLIENT_MS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_kernel_that_waits_sees_what_was_appended),
        E2E_TEST(a_kernel_launched_behind_sees_what_was_appended),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
