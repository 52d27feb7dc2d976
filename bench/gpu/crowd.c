/* crowd.c - a process whose kernels fill the GPU, one behind the other, each of eight waves of CTAs
 * that take an SM for 40 us; and beside it an engine that asks for next to nothing. Kernels of the
 * service that come when they are called wait for the end of a wave. Those that stay answer at
 * once, and what that costs the other process is in the notes. */
#include "bench/gpu/crowd.h"

#include "bench/gpu/engine.h"
#include "bench/support/private_service.h"
#include "schemas/atomics.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAVES 8u
#define CTA_NS 40000u
#define CTA_BYTES (200u << 10)
#define QUEUED 4u
#define ROUNDS 1000u
#define BEFORE_ROUNDS 200u /* kernels of the crowd, until their time is known */

static const char text[] = ".version 7.8\n.target sm_90\n.address_size 64\n"
                           ".visible .entry fill(.param .u64 ns)\n{\n"
                           ".reg .u64 %a, %b, %n;\n.reg .pred %p;\n"
                           "ld.param.u64 %n, [ns];\nmov.u64 %a, %globaltimer;\n"
                           "again:\nmov.u64 %b, %globaltimer;\nsub.u64 %b, %b, %a;\n"
                           "setp.lt.u64 %p, %b, %n;\n@%p bra again;\nret;\n}\n";

/* Shared with the process that fills the GPU. */
struct crowd {
    uint32_t stop, kernels; /* that have ended */
    uint32_t kernel_ns;     /* the median of the last */
    uint32_t failed;
};

struct filler {
    CUfunction fill;
    CUstream stream;
    CUevent ended[QUEUED];
    uint32_t ctas;
};

/* ---- the crowd ---- */

static bool open_filler(struct bench_suite *suite, struct filler *filler)
{
    CUmodule module;
    CUdevice device;
    int sms = 0;
    bool good =
        gpu_cuda(suite, "cuCtxGetDevice", cuCtxGetDevice(&device)) &&
        gpu_cuda(suite, "cuDeviceGetAttribute",
                 cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)) &&
        gpu_cuda(suite, "cuModuleLoadData", cuModuleLoadData(&module, text)) &&
        gpu_cuda(suite, "cuModuleGetFunction",
                 cuModuleGetFunction(&filler->fill, module, "fill")) &&
        gpu_cuda(suite, "cuFuncSetAttribute",
                 cuFuncSetAttribute(filler->fill, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                    CTA_BYTES)) &&
        gpu_cuda(suite, "cuStreamCreate", cuStreamCreate(&filler->stream, CU_STREAM_NON_BLOCKING));

    filler->ctas = WAVES * (uint32_t)sms;
    for (uint32_t i = 0; good && i < QUEUED; i++)
        good = gpu_cuda(suite, "cuEventCreate", cuEventCreate(&filler->ended[i], CU_EVENT_DEFAULT));
    return good;
}

/* A kernel behind those that are queued; of the one before the oldest of them the time it took. */
static bool fill_on(struct bench_suite *suite, const struct filler *filler, uint32_t number,
                    uint64_t *took_ns)
{
    CUevent oldest = filler->ended[number % QUEUED], next = filler->ended[(number + 1) % QUEUED];
    uint64_t cta_ns = CTA_NS;
    void *arguments[] = {&cta_ns};
    float ms = 0;

    *took_ns = 0;
    if (number >= QUEUED) {
        if (!gpu_cuda(suite, "cuEventSynchronize", cuEventSynchronize(next)) ||
            !gpu_cuda(suite, "cuEventElapsedTime", cuEventElapsedTime(&ms, oldest, next)))
            return false;
        *took_ns = (uint64_t)((double)ms * 1e6);
    }
    return gpu_cuda(suite, "cuLaunchKernel",
                    cuLaunchKernel(filler->fill, filler->ctas, 1, 1, 128, 1, 1, CTA_BYTES,
                                   filler->stream, arguments, NULL)) &&
           gpu_cuda(suite, "cuEventRecord", cuEventRecord(oldest, filler->stream));
}

static bool fill_gpu(struct bench_suite *suite, struct crowd *crowd)
{
    struct filler filler = {0};
    uint64_t took_ns[32];
    const uint32_t samples = sizeof(took_ns) / sizeof(took_ns[0]);
    bool good = open_filler(suite, &filler);

    for (uint32_t number = 0; good && !attnd_peek32(&crowd->stop); number++) {
        good = fill_on(suite, &filler, number, &took_ns[number % samples]);
        if (number >= QUEUED && number % samples == samples - 1)
            attnd_poke32(&crowd->kernel_ns, (uint32_t)bench_p50(took_ns, samples));
        attnd_publish32(&crowd->kernels, number);
    }
    return good && gpu_cuda(suite, "cuStreamSynchronize", cuStreamSynchronize(filler.stream));
}

static pid_t start_crowd(struct bench_suite *suite, struct crowd *crowd)
{
    pid_t parent = getpid(), pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        bench_private_leave();
        bool good = !prctl(PR_SET_PDEATHSIG, SIGKILL) && getppid() == parent && gpu_open(suite) &&
                    fill_gpu(suite, crowd);
        attnd_publish32(&crowd->failed, !good);
        fflush(NULL);
        _exit(good ? 0 : 1);
    }
    if (pid > 0)
        bench_private_child(pid);
    return pid;
}

static bool await_kernels(const struct crowd *crowd, uint32_t count)
{
    const struct timespec step = {0, 1000000};

    for (uint32_t i = 0; i < 20000 && !attnd_observe32(&crowd->failed); i++) {
        if (attnd_observe32(&crowd->kernels) >= count)
            return true;
        (void)nanosleep(&step, NULL);
    }
    return false;
}

static void end_crowd(struct bench_suite *suite, struct crowd *crowd, pid_t pid)
{
    int status = -1;

    attnd_publish32(&crowd->stop, 1);
    if (waitpid(pid, &status, 0) < 0 || status)
        bench_suite_fail(suite, "the process that fills the GPU failed");
    bench_private_gone(pid);
}

/* ---- what is measured ---- */

static void report(struct bench_suite *suite, const char *suffix, const struct gpu_times *times,
                   double before_us, double beside_us)
{
    char figure[64], notes[280];

    snprintf(figure, sizeof(figure), "answer_in_crowd%s_us", suffix);
    snprintf(notes, sizeof(notes),
             "p50 in a stream, p99 %.1f; by rings %.1f, p99 %.1f; the crowd's kernel of %u waves "
             "of %u us: %.0f us beside the idle service, %.0f beside these runs",
             times->stream_p99_us, times->ring_us, times->ring_p99_us, WAVES, CTA_NS / 1000,
             before_us, beside_us);
    bench_suite_figure(suite, figure, times->stream_us, "us", "lower", NAN, notes);
}

void gpu_measure_crowd(struct bench_suite *suite, const char *suffix)
{
    Attnd__Reply *reply = bench_suite_status(suite);
    const bool mps = reply && reply->status->mps;
    struct gpu_times times = {0};

    attnd__reply__free_unpacked(reply, NULL);
    if (!mps) {
        printf("gpu: answer_in_crowd%s_us: not measured without MPS\n", suffix);
        return;
    }
    struct crowd *crowd =
        mmap(NULL, sizeof(*crowd), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = crowd == MAP_FAILED ? -1 : start_crowd(suite, crowd);
    if (pid < 0) {
        bench_suite_fail(suite, "out of memory");
        return;
    }
    bool good = await_kernels(crowd, BEFORE_ROUNDS);
    const double before_us = attnd_peek32(&crowd->kernel_ns) * 1e-3;
    good = good && gpu_measure_sparse(suite, &gpu_small, ROUNDS * suite->rounds / 100 + 1, &times);
    const double beside_us = attnd_peek32(&crowd->kernel_ns) * 1e-3;
    end_crowd(suite, crowd, pid);
    if (good && !suite->failed)
        report(suite, suffix, &times, before_us, beside_us);
    munmap(crowd, sizeof(*crowd));
}
