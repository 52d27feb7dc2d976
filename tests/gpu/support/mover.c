/* mover.c - PTX compiled by the driver: these programs are built without nvcc. */
#include "tests/gpu/support/mover.h"

#include "tests/support/harness/check.h"

#define THREADS 64

static const char text[] = ".version 6.4\n.target sm_70\n.address_size 64\n"
                           ".func (.reg .u64 %out) place(.reg .u64 %base, .reg .u64 %bytes,\n"
                           "    .reg .u64 %offsets, .reg .u64 %step)\n"
                           "{\n"
                           ".reg .pred %none;\n.reg .u64 %a;\n"
                           "mad.lo.u64 %out, %bytes, %step, %base;\n"
                           "setp.eq.u64 %none, %offsets, 0;\n"
                           "@%none bra done;\n"
                           "mad.lo.u64 %a, %step, 8, %offsets;\n"
                           "ld.global.u64 %a, [%a];\n"
                           "add.u64 %out, %out, %a;\n"
                           "done:\nret;\n}\n"
                           ".visible .entry move(.param .u64 to, .param .u64 to_bytes,\n"
                           "    .param .u64 to_offsets, .param .u64 from, .param .u64 from_bytes,\n"
                           "    .param .u64 from_offsets, .param .u32 words, .param .u64 step)\n"
                           "{\n"
                           ".reg .pred %end;\n.reg .u32 %i, %n, %word;\n"
                           ".reg .u64 %a, %b, %c, %s, %to, %from;\n"
                           "ld.param.u64 %a, [step];\nld.global.u32 %word, [%a];\n"
                           "cvt.u64.u32 %s, %word;\n"
                           "ld.param.u64 %a, [to];\nld.param.u64 %b, [to_bytes];\n"
                           "ld.param.u64 %c, [to_offsets];\n"
                           "call (%to), place, (%a, %b, %c, %s);\n"
                           "ld.param.u64 %a, [from];\nld.param.u64 %b, [from_bytes];\n"
                           "ld.param.u64 %c, [from_offsets];\n"
                           "call (%from), place, (%a, %b, %c, %s);\n"
                           "ld.param.u32 %n, [words];\nmov.u32 %i, %tid.x;\n"
                           "again:\nsetp.ge.u32 %end, %i, %n;\n@%end bra done;\n"
                           "mad.wide.u32 %a, %i, 4, %from;\nld.global.u32 %word, [%a];\n"
                           "mad.wide.u32 %b, %i, 4, %to;\nst.global.u32 [%b], %word;\n"
                           "add.u32 %i, %i, 64;\nbra again;\n"
                           "done:\nret;\n}\n"
                           ".visible .entry next(.param .u64 step)\n"
                           "{\n"
                           ".reg .u64 %a;\n.reg .u32 %word;\n"
                           "ld.param.u64 %a, [step];\nld.global.u32 %word, [%a];\n"
                           "add.u32 %word, %word, 1;\nst.global.u32 [%a], %word;\nret;\n}\n";

void mover_open(struct mover *mover)
{
    CUmodule module;

    CHECK_CUDA(cuModuleLoadData(&module, text));
    CHECK_CUDA(cuModuleGetFunction(&mover->move, module, "move"));
    CHECK_CUDA(cuModuleGetFunction(&mover->next, module, "next"));
    CHECK_CUDA(cuMemAlloc(&mover->step, sizeof(uint32_t)));
    CHECK_CUDA(cuMemsetD8(mover->step, 0, sizeof(uint32_t)));
    CHECK_CUDA(cuCtxSynchronize());
}

void mover_move(const struct mover *mover, CUstream stream, struct moving to, struct moving from,
                uint32_t words)
{
    CUdeviceptr step = mover->step;
    void *arguments[] = {&to.base,         &to.step_bytes, &to.offsets, &from.base,
                         &from.step_bytes, &from.offsets,  &words,      &step};

    CHECK_CUDA(cuLaunchKernel(mover->move, 1, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL));
}

void mover_next(const struct mover *mover, CUstream stream)
{
    CUdeviceptr step = mover->step;
    void *arguments[] = {&step};

    CHECK_CUDA(cuLaunchKernel(mover->next, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}
