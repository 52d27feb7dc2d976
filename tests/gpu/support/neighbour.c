/*
 * neighbour.c - PTX written here and compiled by the driver: no nvcc, and the registers are chosen.
 *
 * 56 values that all depend on each other stay in registers through a loop; with 1024 threads the
 * compiler may give a thread 64, and a CTA of such threads takes all that an SM has.
 */
#include "tests/gpu/support/neighbour.h"

#include "tests/support/harness/check.h"
#include "tests/support/harness/harness.h"

#include <stdio.h>
#include <stdlib.h>

#define VALUES 56
#define THREADS 1024
#define TIMES_MAX 256

static char *write_ptx(void)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    CHECK(out != NULL);
    fprintf(out,
            ".version 8.0\n.target sm_90\n.address_size 64\n"
            ".extern .shared .align 16 .b8 room[];\n"
            ".visible .entry neighbour(.param .u64 words, .param .u32 loops)\n"
            ".maxntid 1024, 1, 1\n{\n"
            ".reg .u32 %%v<%d>;\n.reg .u32 %%n, %%t;\n.reg .u64 %%a;\n.reg .pred %%p;\n"
            "ld.param.u32 %%n, [loops];\nmov.u32 %%t, %%tid.x;\n",
            VALUES);
    for (int i = 0; i < VALUES; i++)
        fprintf(out, "mad.lo.u32 %%v%d, %%t, %d, %d;\n", i, 2 * i + 3, i + 7);
    fprintf(out, "again:\n");
    for (int i = 0; i < VALUES; i++)
        fprintf(out, "mad.lo.u32 %%v%d, %%v%d, 1664525, %%v%d;\n", i, i, (i + 1) % VALUES);
    fprintf(out, "sub.u32 %%n, %%n, 1;\nsetp.ne.u32 %%p, %%n, 0;\n@%%p bra again;\n");
    for (int i = 1; i < VALUES; i++)
        fprintf(out, "xor.b32 %%v0, %%v0, %%v%d;\n", i);
    fprintf(out, "ld.param.u64 %%a, [words];\ncvta.to.global.u64 %%a, %%a;\n"
                 "mad.wide.u32 %%a, %%t, 4, %%a;\nst.global.u32 [%%a], %%v0;\nret;\n}\n");
    fputs(".visible .entry crowd(.param .u64 words, .param .u32 ctas)\n{\n"
          ".reg .u32 %here, %all;\n.reg .u64 %a;\n.reg .pred %p;\n"
          "ld.param.u64 %a, [words];\ncvta.to.global.u64 %a, %a;\nld.param.u32 %all, [ctas];\n"
          "atom.global.add.u32 %here, [%a], 1;\n"
          "again:\nld.volatile.global.u32 %here, [%a];\n"
          "setp.lt.u32 %p, %here, %all;\n@%p bra again;\nret;\n}\n",
          out);
    CHECK_EQUAL(fclose(out), 0);
    return text;
}

void neighbour_open(struct neighbour *neighbour)
{
    CUmodule module;
    char *ptx = write_ptx();
    int registers;

    CHECK_CUDA(cuModuleLoadData(&module, ptx));
    free(ptx);
    CHECK_CUDA(cuModuleGetFunction(&neighbour->function, module, "neighbour"));
    CHECK_CUDA(cuModuleGetFunction(&neighbour->crowd, module, "crowd"));
    const CUfunction functions[] = {neighbour->function, neighbour->crowd};
    for (int i = 0; i < 2; i++)
        CHECK_CUDA(cuFuncSetAttribute(functions[i], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                      NEIGHBOUR_SHARED_BYTES));
    CHECK_CUDA(cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, neighbour->function));
    neighbour->registers = registers * THREADS;
    CHECK_CUDA(cuMemAlloc(&neighbour->words, THREADS * sizeof(uint32_t)));
    CHECK_CUDA(cuStreamCreate(&neighbour->stream, CU_STREAM_NON_BLOCKING));
    CHECK_CUDA(cuEventCreate(&neighbour->begin, CU_EVENT_DEFAULT));
    CHECK_CUDA(cuEventCreate(&neighbour->end, CU_EVENT_DEFAULT));
    neighbour_launch(neighbour, 1, 0, 1); /* loaded now, not in what is measured */
    CHECK_CUDA(cuStreamSynchronize(neighbour->stream));
}

void neighbour_launch(const struct neighbour *neighbour, uint32_t ctas, uint32_t shared_bytes,
                      uint32_t loops)
{
    CUdeviceptr words = neighbour->words;
    void *parameters[] = {&words, &loops};

    CHECK_CUDA(cuLaunchKernel(neighbour->function, ctas, 1, 1, THREADS, 1, 1, shared_bytes,
                              neighbour->stream, parameters, NULL));
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double neighbour_time_us(const struct neighbour *neighbour, uint32_t ctas, uint32_t shared_bytes,
                         uint32_t loops, uint32_t times)
{
    float ms[TIMES_MAX] = {0};

    CHECK(times > 0 && times <= TIMES_MAX);
    for (uint32_t i = 0; i < times; i++) {
        CHECK_CUDA(cuEventRecord(neighbour->begin, neighbour->stream));
        neighbour_launch(neighbour, ctas, shared_bytes, loops);
        CHECK_CUDA(cuEventRecord(neighbour->end, neighbour->stream));
        CHECK_CUDA(cuStreamSynchronize(neighbour->stream));
        CHECK_CUDA(cuEventElapsedTime(&ms[i], neighbour->begin, neighbour->end));
    }
    qsort(ms, times, sizeof(ms[0]), ascending);
    return 1e3 * (double)ms[times / 2];
}

static int is_over(void *context)
{
    const CUresult result = cuStreamQuery(*(CUstream *)context);

    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
    return result == CUDA_SUCCESS;
}

void neighbour_await_alone(const struct neighbour *neighbour)
{
    CUdevice device;
    int sms;

    CHECK_CUDA(cuCtxGetDevice(&device));
    CHECK_CUDA(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    CUdeviceptr words = neighbour->words;
    CUstream stream = neighbour->stream;
    void *parameters[] = {&words, &sms};
    CHECK_CUDA(cuMemsetD32Async(words, 0, 1, stream));
    CHECK_CUDA(cuLaunchKernel(neighbour->crowd, (unsigned)sms, 1, 1, 1, 1, 1,
                              NEIGHBOUR_SHARED_BYTES, stream, parameters, NULL));
    harness_eventually(is_over, &stream, 10000, "no other kernel is left");
}
