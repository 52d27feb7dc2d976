/* idle_tax.c - what a service costs others that does nothing.
 *
 * A kernel that wants most of the shared memory of each SM takes twice as long if one SM has a CTA
 * of the service. It is timed in a window alone, in one beside the service, alone again, and so on,
 * so that clocks that drift do so on both sides. Each window is a process of its own. A service
 * that has just begun computes something first: it has launched its kernels, and is idle then.
 *
 * A product of cuBLAS fits beside such a CTA and tells what else there is: clocks, bandwidth,
 * turns. It is timed before all other measurements, beside the service, and behind it. */
#include "bench/gpu/idle_tax.h"

#include "bench/gpu/kernel.h"
#include "bench/gpu/peers.h"
#include "bench/support/private_service.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#define CTA_BYTES (200u << 10)
#define LOOPS 10000u /* about 100 us */
#define WARM_UP 500u
#define TIMES 200u
#define WINDOWS 5u /* beside the service; one more alone */
#define WINDOW_S 30u

struct tax {
    double beside_us, alone_us;
    uint32_t sms;
};

/* ---- the kernel ---- */

struct window {
    struct gpu_kernel kernel;
    CUstream stream;
    CUevent events[2];
    int sms;
};

static bool open_window(struct bench_suite *suite, struct window *window)
{
    CUdevice device;

    return gpu_kernel_open(suite, &window->kernel, CTA_BYTES) &&
           gpu_cuda(suite, "cuCtxGetDevice", cuCtxGetDevice(&device)) &&
           gpu_cuda(suite, "cuDeviceGetAttribute",
                    cuDeviceGetAttribute(&window->sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                         device)) &&
           gpu_cuda(suite, "cuStreamCreate",
                    cuStreamCreate(&window->stream, CU_STREAM_NON_BLOCKING)) &&
           gpu_cuda(suite, "cuEventCreate", cuEventCreate(&window->events[0], CU_EVENT_DEFAULT)) &&
           gpu_cuda(suite, "cuEventCreate", cuEventCreate(&window->events[1], CU_EVENT_DEFAULT));
}

static bool time_once(struct bench_suite *suite, const struct window *window, uint64_t *took_ns)
{
    float ms = 0;
    bool good =
        gpu_cuda(suite, "cuEventRecord", cuEventRecord(window->events[0], window->stream)) &&
        gpu_kernel_queue(suite, &window->kernel, (uint32_t)window->sms, LOOPS, window->stream) &&
        gpu_cuda(suite, "cuEventRecord", cuEventRecord(window->events[1], window->stream)) &&
        gpu_cuda(suite, "cuStreamSynchronize", cuStreamSynchronize(window->stream)) &&
        gpu_cuda(suite, "cuEventElapsedTime",
                 cuEventElapsedTime(&ms, window->events[0], window->events[1]));

    *took_ns = (uint64_t)((double)ms * 1e6);
    return good;
}

/* In a child, which ends if the kernel does not. */
static bool time_window(struct bench_suite *suite, void *context, struct gpu_times *times)
{
    struct window window = {0};
    uint64_t took_ns[TIMES];

    (void)context;
    (void)alarm(WINDOW_S);
    bool good = open_window(suite, &window);
    for (uint32_t i = 0; good && i < WARM_UP + TIMES; i++)
        good = time_once(suite, &window, &took_ns[i < WARM_UP ? 0 : i - WARM_UP]);
    if (good) {
        times->value[0] = (double)bench_p50(took_ns, TIMES);
        times->value[1] = window.sms;
    }
    return good;
}

static bool measure_window(struct bench_suite *suite, struct tax *tax, uint64_t *median_ns)
{
    struct gpu_times times = {0};

    if (!gpu_child(suite, time_window, NULL, &times))
        return false;
    *median_ns = (uint64_t)times.value[0];
    tax->sms = (uint32_t)times.value[1];
    return true;
}

static bool begin_service(struct bench_suite *suite, const char *const *service)
{
    struct gpu_times times;

    return bench_suite_restart(suite, service) && gpu_measure(suite, &gpu_small, 20, &times);
}

/* Return: whether there are both times. The service has ended. */
static bool measure_kernel(struct bench_suite *suite, const char *const *service, struct tax *tax)
{
    uint64_t beside_ns[WINDOWS], alone_ns[WINDOWS + 1];

    bench_private_stop();
    bool good = measure_window(suite, tax, &alone_ns[0]);
    for (uint32_t i = 0; good && i < WINDOWS; i++) {
        good = begin_service(suite, service) && measure_window(suite, tax, &beside_ns[i]);
        bench_private_stop();
        good = good && measure_window(suite, tax, &alone_ns[i + 1]);
    }
    if (good) {
        tax->beside_us = (double)bench_p50(beside_ns, WINDOWS) * 1e-3;
        tax->alone_us = (double)bench_p50(alone_ns, WINDOWS + 1) * 1e-3;
    }
    return good;
}

/* ---- both ---- */

static void report(struct bench_suite *suite, const struct tax *kernel, double beside_us,
                   double before_us, double after_us)
{
    const double of_kernel = kernel->beside_us / kernel->alone_us;
    const double of_product = 2 * beside_us / (before_us + after_us);
    char notes[250];

    snprintf(notes, sizeof(notes),
             "one CTA of %u KB on each of %" PRIu32
             " SMs: %.1f us beside the idle service, %.1f alone; medians of %u and %u windows in "
             "turns",
             CTA_BYTES >> 10, kernel->sms, kernel->beside_us, kernel->alone_us, WINDOWS,
             WINDOWS + 1);
    bench_suite_figure(suite, "idle_service_tax_kernel", of_kernel, "ratio", "lower", NAN, notes);
    if (!(before_us > 0 && beside_us > 0 && after_us > 0)) {
        printf("gpu: idle_service_tax: not measured without a product\n");
        return;
    }
    snprintf(notes, sizeof(notes),
             "the worse of two: a kernel of one CTA of %u KB on each SM %.3f (%.1f us, %.1f "
             "alone); 4096^3 fp16 by cuBLAS %.3f (%.1f us beside the idle service, %.1f alone "
             "before, %.1f after)",
             CTA_BYTES >> 10, of_kernel, kernel->beside_us, kernel->alone_us, of_product, beside_us,
             before_us, after_us);
    bench_suite_figure(suite, "idle_service_tax", fmax(of_kernel, of_product), "ratio", "lower",
                       1.01, notes);
}

/* Microseconds; 0: it was not measured this time. */
static double ask_product(void)
{
    gpu_peer_forget("gemm_4096_us");
    gpu_peers_ask("peers.py gemm");
    return gpu_peer("gemm_4096_us");
}

void gpu_measure_idle_tax(struct bench_suite *suite, const char *const *service)
{
    const double before_us = gpu_peer("gemm_4096_us");
    double beside_us = 0, after_us = 0;
    struct tax kernel = {0};

    if (before_us > 0) {
        beside_us = ask_product();
        bench_private_stop();
        after_us = ask_product();
    }
    if (measure_kernel(suite, service, &kernel))
        report(suite, &kernel, beside_us, before_us, after_us);
}
