/* kernel.c - see kernel.h. What a thread does is fixed, so the kernel takes longer where its CTAs
 * wait for room, and where others take turns with them. */
#include "bench/gpu/kernel.h"

#define THREADS 256u

static const char text[] =
    ".version 7.8\n.target sm_90\n.address_size 64\n"
    ".visible .entry multiply(.param .u64 words, .param .u32 loops)\n{\n"
    ".reg .u64 %a;\n.reg .u32 %n, %t, %w, %x, %y, %z;\n.reg .pred %p;\n"
    "ld.param.u32 %n, [loops];\nmov.u32 %t, %tid.x;\n"
    "mad.lo.u32 %w, %t, 3, 7;\nmad.lo.u32 %x, %t, 5, 11;\n"
    "mad.lo.u32 %y, %t, 9, 13;\nmad.lo.u32 %z, %t, 17, 19;\n"
    "again:\n"
    "mad.lo.u32 %w, %w, 1664525, %x;\nmad.lo.u32 %x, %x, 1664525, %y;\n"
    "mad.lo.u32 %y, %y, 1664525, %z;\nmad.lo.u32 %z, %z, 1664525, %w;\n"
    "sub.u32 %n, %n, 1;\nsetp.ne.u32 %p, %n, 0;\n@%p bra again;\n"
    "ld.param.u64 %a, [words];\ncvta.to.global.u64 %a, %a;\nmad.wide.u32 %a, %t, 4, %a;\n"
    "st.global.u32 [%a], %z;\nret;\n}\n";

bool gpu_kernel_open(struct bench_suite *suite, struct gpu_kernel *kernel, uint32_t shared_bytes)
{
    CUmodule module;

    kernel->shared_bytes = shared_bytes;
    return gpu_cuda(suite, "cuModuleLoadData", cuModuleLoadData(&module, text)) &&
           gpu_cuda(suite, "cuModuleGetFunction",
                    cuModuleGetFunction(&kernel->function, module, "multiply")) &&
           gpu_cuda(suite, "cuFuncSetAttribute",
                    cuFuncSetAttribute(kernel->function,
                                       CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                       (int)shared_bytes)) &&
           gpu_cuda(suite, "cuMemAlloc", cuMemAlloc(&kernel->words, THREADS * sizeof(uint32_t)));
}

bool gpu_kernel_queue(struct bench_suite *suite, const struct gpu_kernel *kernel, uint32_t ctas,
                      uint32_t loops, CUstream stream)
{
    CUdeviceptr words = kernel->words;
    void *arguments[] = {&words, &loops};

    return gpu_cuda(suite, "cuLaunchKernel",
                    cuLaunchKernel(kernel->function, ctas, 1, 1, THREADS, 1, 1,
                                   kernel->shared_bytes, stream, arguments, NULL));
}
