/* contract.c - ratios of a run with an option over the same run without it, or over what the card
 * can do. Kernels of the plain contract are measured before a service has met an option: one that
 * executes options executes plain runs too, from then on. */
#include "bench/gpu/contract.h"

#include "bench/gpu/engine.h"
#include "bench/gpu/peers.h"
#include "bench/support/private_service.h"

#include <stdio.h>

#define MLA_TFLOPS 600.0 /* what products of latents are put over */

/* Return: the time of a call in a stream, microseconds; 0 after a failure. */
static double time_us(struct bench_suite *suite, const struct bench_uniform *uniform,
                      uint64_t rounds)
{
    struct gpu_times times = {0};
    const uint64_t count = rounds * suite->rounds / 100;

    bench_suite_go_on(suite);
    return gpu_measure(suite, uniform, count ? count : 1, &times) ? times.stream_us : 0;
}

static struct bench_uniform decode_of(uint32_t requests, uint32_t kv_len)
{
    return (struct bench_uniform){.dtype = ATTND_DTYPE_FP16,
                                  .layers = requests * kv_len > 65536 ? 2 : 10,
                                  .requests = requests,
                                  .qo_len = 1,
                                  .kv_len = kv_len,
                                  .page_size = 16,
                                  .heads_q = 32,
                                  .heads_kv = 8,
                                  .dim = 128,
                                  .memory_kind = ATTND_MEMORY_DEVICE,
                                  .variant = ATTND_VARIANT_INIT};
}

static struct bench_uniform prefill_8192(void)
{
    struct bench_uniform uniform = decode_of(1, 8192);

    uniform.layers = 4;
    uniform.qo_len = 8192;
    return uniform;
}

static void put_ratio(struct bench_suite *suite, const char *figure, double us, double over_us,
                      double reach, const char *what)
{
    char notes[160];

    if (!(us > 0) || !(over_us > 0))
        return;
    snprintf(notes, sizeof(notes), "%s: %.1f us over %.1f us", what, us, over_us);
    bench_suite_figure(suite, figure, us / over_us, "ratio", "lower", reach, notes);
}

/* The worst of a grid of decodes: every request is cut by itself, whatever else is in the batch. */
static void measure_fixed_split(struct bench_suite *suite)
{
    static const uint32_t grid[][2] = {{1, 8192}, {8, 4096}, {32, 4096}, {64, 8192}};
    double worst = 0, worst_us = 0, worst_over_us = 0;
    char notes[160];
    size_t at = 0;

    for (size_t i = 0; i < sizeof(grid) / sizeof(grid[0]); i++) {
        struct bench_uniform uniform = decode_of(grid[i][0], grid[i][1]);
        const double free_us = time_us(suite, &uniform, 50);

        uniform.variant.fixed_split = 512;
        const double us = time_us(suite, &uniform, 50);
        if (!(us > 0) || !(free_us > 0))
            return;
        if (us / free_us > worst) {
            worst = us / free_us;
            worst_us = us;
            worst_over_us = free_us;
            at = i;
        }
    }
    snprintf(notes, sizeof(notes),
             "splits of 512 keys, 4 batches; the worst is %ux%u: %.1f us over %.1f us", grid[at][0],
             grid[at][1], worst_us, worst_over_us);
    bench_suite_figure(suite, "fixed_split_over_free", worst, "ratio", "lower", 1.1, notes);
}

/* Each over the same without it. */
static void measure_variants(struct bench_suite *suite)
{
    struct bench_uniform decode = decode_of(64, 4096), prefill = prefill_8192();
    const double short_us = time_us(suite, &decode, 50), plain_us = time_us(suite, &prefill, 30);

    decode.kv_len = 32768;
    decode.variant.window_left = 4095;
    put_ratio(suite, "window_over_short", time_us(suite, &decode, 50), short_us, 1.1,
              "64 decodes of 32768 keys, a window of 4096, over 4096 keys");
    prefill.variant.logits_soft_cap = 50;
    put_ratio(suite, "softcap_over_plain", time_us(suite, &prefill, 30), plain_us, 1.1,
              "prefill of 8192, a cap of 50");
    prefill.variant.logits_soft_cap = 0;
    prefill.variant.position_encoding = ATTND_POSITION_ALIBI;
    put_ratio(suite, "alibi_over_plain", time_us(suite, &prefill, 30), plain_us, 1.1,
              "prefill of 8192");
}

/* Half of the bytes: what is left of the time. */
static void measure_fp8(struct bench_suite *suite, double decode_us)
{
    struct bench_uniform decode = decode_of(64, 8192);

    decode.kv_dtype = ATTND_DTYPE_FP8_E4M3;
    put_ratio(suite, "fp8_over_fp16_decode", time_us(suite, &decode, 50), decode_us, 0.56,
              "64x8192, e4m3");
}

/* Over bandwidth or products, whichever binds: the time that the better of them would take, over
 * ours. */
static void measure_latents(struct bench_suite *suite)
{
    const struct bench_uniform latents = {.dtype = ATTND_DTYPE_BF16,
                                          .layers = 2,
                                          .requests = 64,
                                          .qo_len = 1,
                                          .kv_len = 8192,
                                          .page_size = 64,
                                          .heads_q = 128,
                                          .heads_kv = 1,
                                          .dim = 576,
                                          .dim_vo = 512,
                                          .memory_kind = ATTND_MEMORY_DEVICE};
    const double read_gbps = gpu_peer("read_gbps"), us = time_us(suite, &latents, 30);
    const double bytes = (double)bench_uniform_kv_bytes(&latents);
    const double products_us = bench_uniform_operations(&latents) * 1e-6 / MLA_TFLOPS;
    char notes[160];

    if (!(us > 0) || !(read_gbps > 0)) {
        printf("gpu: the rate of memory is not known: no figure of latents\n");
        return;
    }
    const double bytes_us = bytes * 1e-3 / read_gbps;
    snprintf(notes, sizeof(notes),
             "64x8192, 128 heads: %.1f us, %.0f GB/s, %.0f TFLOP/s; %s bind at %.1f us", us,
             bytes * 1e-3 / us, bench_uniform_operations(&latents) * 1e-6 / us,
             products_us > bytes_us ? "products" : "bytes",
             products_us > bytes_us ? products_us : bytes_us);
    bench_suite_figure(suite, "mla_decode_gbps_over_peak",
                       (products_us > bytes_us ? products_us : bytes_us) / us, "ratio", "higher",
                       0.75, notes);
}

void gpu_measure_contract(struct bench_suite *suite, const char *const *service, double decode_us)
{
    if (bench_suite_restart(suite, service)) {
        measure_fixed_split(suite);
        measure_variants(suite);
    }
    bench_suite_go_on(suite);
    if (bench_suite_restart(suite, service))
        measure_fp8(suite, decode_us);
    bench_suite_go_on(suite);
    if (bench_suite_restart(suite, service))
        measure_latents(suite);
}
