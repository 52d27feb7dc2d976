/* cpu.c - attention on the CPU worker, through daemon and rings, over what the processor can do.
 *
 * cpu.decode_over_bandwidth: 8 requests of 4,096 tokens decode in bf16; eight layers in turn, 1 GiB
 * of K and V, so that nothing is found in a cache; bytes a second over the read bandwidth of as
 * many threads over the same memory. cpu.prefill_over_peak: one causal prompt of 2,048 tokens in
 * fp16; 4 x dim x heads x visible pairs over the multiply-add peak of the instruction set the
 * worker uses. Numerator and denominator are measured in turns, and of each the best counts: both
 * lose what the machine does besides. */
#include "bench/support/peak.h"
#include "bench/support/suite.h"
#include "bench/support/uniform.h"
#include "ipc/wake.h"

#include <stdio.h>

/* A batch of equal requests over a pool of its own. */
struct job {
    struct bench_uniform uniform;
    struct attnd_session *session;
    uint32_t memory, plan;
    uint64_t o_offset_bytes;
    void *pool_address;
    uint64_t pool_bytes;
};

static bool make_memory(struct bench_suite *suite, struct job *job)
{
    uint64_t q_bytes = bench_uniform_q_bytes(&job->uniform);
    void *address = NULL;

    job->o_offset_bytes = q_bytes;
    if (!bench_suite_call(suite, "attnd_memory_create",
                          attnd_memory_create(job->session, 2 * q_bytes, &job->memory, &address)))
        return false;
    /* o too: its pages must be there */
    bench_uniform_fill(address, 2 * q_bytes, job->uniform.dtype);
    return true;
}

static bool make_pool(struct bench_suite *suite, struct job *job, uint32_t *pool)
{
    struct attnd_pool_info info;

    if (!bench_uniform_pool(suite, job->session, &job->uniform, pool, &info))
        return false;
    job->pool_address = info.address;
    job->pool_bytes = info.memory_bytes;
    bench_uniform_fill(info.address, info.memory_bytes, job->uniform.dtype);
    return true;
}

static bool open_job(struct bench_suite *suite, struct job *job)
{
    struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = suite->socket_path, .name = "bench-cpu"};
    uint32_t pool;

    return bench_suite_call(suite, "attnd_open", attnd_open(&args, &job->session)) &&
           make_memory(suite, job) && make_pool(suite, job, &pool) &&
           bench_uniform_plan(suite, job->session, &job->uniform, pool, &job->plan);
}

/* All layers once. Return: seconds from the first submission to the last answer; 0 after a failure.
 */
static double run_layers(struct bench_suite *suite, const struct job *job)
{
    uint64_t begin_ns = attnd_clock_ns();

    for (uint32_t layer = 0; layer < job->uniform.layers; layer++) {
        struct attnd_run_args run = {.size = sizeof(run),
                                     .layer = layer,
                                     .q = {job->memory, 0},
                                     .o = {job->memory, job->o_offset_bytes}};
        struct attnd_op op = {0};

        if (!bench_suite_call(suite, "attnd_run", attnd_run(job->session, job->plan, &run, &op)))
            return 0;
    }
    if (!bench_wait_all(suite, job->session, job->uniform.layers, NULL))
        return 0;
    return (double)(attnd_clock_ns() - begin_ns) * 1e-9;
}

static void measure_decode(struct bench_suite *suite, uint32_t threads)
{
    struct job job = {.uniform = {.dtype = ATTND_DTYPE_BF16,
                                  .layers = 8,
                                  .requests = 8,
                                  .qo_len = 1,
                                  .kv_len = 4096,
                                  .page_size = 16,
                                  .heads_q = 32,
                                  .heads_kv = 8,
                                  .dim = 128}};
    double best = 0, peak = 0;
    char notes[160];

    if (open_job(suite, &job) && run_layers(suite, &job) > 0) /* once to warm up */
        for (uint64_t i = 0; i < suite->rounds && !suite->failed; i++) {
            double read = bench_peak_read(threads, job.pool_address, job.pool_bytes, 1);
            double seconds = run_layers(suite, &job);
            double rate = seconds > 0 ? (double)job.pool_bytes / seconds : 0;

            peak = read > peak ? read : peak;
            best = rate > best ? rate : best;
        }
    if (!suite->failed && peak > 0) {
        snprintf(notes, sizeof(notes), "%.2f of %.2f GB/s, %u threads, %s, best of %llu",
                 best * 1e-9, peak * 1e-9, threads, suite->isa, (unsigned long long)suite->rounds);
        bench_suite_figure(suite, "decode_over_bandwidth", best / peak, "ratio", "higher", 0.6,
                           notes);
    }
    attnd_close(job.session);
}

static void measure_prefill(struct bench_suite *suite, uint32_t threads)
{
    struct job job = {.uniform = {.dtype = ATTND_DTYPE_FP16,
                                  .layers = 1,
                                  .requests = 1,
                                  .qo_len = 2048,
                                  .kv_len = 2048,
                                  .page_size = 16,
                                  .heads_q = 32,
                                  .heads_kv = 8,
                                  .dim = 128}};
    double operations = bench_uniform_operations(&job.uniform), best = 0, peak = 0;
    char notes[160];

    if (open_job(suite, &job) && run_layers(suite, &job) > 0)
        for (uint64_t i = 0; i < suite->rounds && !suite->failed; i++) {
            double fma = bench_peak_fma(threads, suite->isa, 1);
            double seconds = run_layers(suite, &job);
            double rate = seconds > 0 ? operations / seconds : 0;

            peak = fma > peak ? fma : peak;
            best = rate > best ? rate : best;
        }
    if (!suite->failed && peak > 0) {
        snprintf(notes, sizeof(notes), "%.1f of %.1f GFLOP/s, %u threads, %s, best of %llu",
                 best * 1e-9, peak * 1e-9, threads, suite->isa, (unsigned long long)suite->rounds);
        bench_suite_figure(suite, "prefill_over_peak", best / peak, "ratio", "higher", 0.4, notes);
    }
    attnd_close(job.session);
}

int main(int argc, char **argv)
{
    static struct bench_suite suite = {
        .name = "cpu",
        .doc = "cpu - the CPU worker through the service, over the processor's peaks",
        .rounds = 5};
    uint32_t threads;
    pid_t worker;

    bench_suite_begin(&suite, argc, argv);
    if (bench_suite_worker(&suite, &worker, &threads)) {
        measure_decode(&suite, threads);
        if (!suite.failed)
            measure_prefill(&suite, threads);
    }
    return bench_suite_end(&suite);
}
