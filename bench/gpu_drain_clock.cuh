/*
 * gpu_drain_clock.cuh - how fast the SMs' clock ran while something else was timed.
 *
 * A time in us says little of a kernel on a card that lowers its clock at its power cap. One thread
 * beside the resident kernels notes the SM's clock and the card's timer some thousand times a
 * second; a run's clock is what passed of the one over what passed of the other.
 */
#ifndef ATTND_BENCH_GPU_DRAIN_CLOCK_CUH
#define ATTND_BENCH_GPU_DRAIN_CLOCK_CUH

#include <cstdint>
#include <cuda_runtime.h>

struct ClockSample {
    uint64_t clocks, ns;
};

constexpr uint32_t clock_samples = 1u << 16;

/* In pinned host memory. */
struct ClockWatch {
    volatile uint32_t stop, count;
    ClockSample sample[clock_samples];
};

static __global__ void watch_clock(ClockWatch *watch)
{
    for (uint32_t i = 0; i < clock_samples && !watch->stop; i++) {
        uint64_t ns;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
        watch->sample[i] = {uint64_t(clock64()), ns};
        __threadfence_system();
        watch->count = i + 1;
        for (int naps = 0; naps < 100; naps++)
            __nanosleep(1000);
    }
}

/* MHz between the first and the last sample from @begin_ns to @end_ns; 0 if that is less than two.
 */
inline double clock_mhz(const ClockWatch &watch, uint64_t begin_ns, uint64_t end_ns)
{
    const ClockSample *first = nullptr, *last = nullptr;
    for (uint32_t i = 0; i < watch.count; i++)
        if (watch.sample[i].ns >= begin_ns && watch.sample[i].ns <= end_ns) {
            last = &watch.sample[i];
            first = first ? first : last;
        }
    if (first == last)
        return 0;
    return double(last->clocks - first->clocks) * 1e3 / double(last->ns - first->ns);
}

#endif
