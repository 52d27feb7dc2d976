/*
 * peak.c - a streaming sum and chains of multiply-adds, run by all threads at once.
 *
 * A round's time is from the moment all threads stand at the line to the end of the last one. The
 * loops depend on their results, so the compiler must keep them; enough independent chains run
 * that neither latency of the adder nor of memory is what is measured.
 */
#include "bench/support/peak.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "persistent/cpu/unroll.h"
#include "schemas/clock.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#define THREADS_MAX 256u
#define FMA_STEPS 4000000u
#define CHAINS 12u /* of 16 registers; 8 would hide the latency */

struct peak_thread {
    pthread_t thread;
    pthread_barrier_t *line;
    const char *begin, *end;            /* read */
    double (*arithmetic)(float, float); /* or compute; returns the operations done */
    uint32_t rounds;
    double operations;
    uint64_t ended_ns;
    volatile uint64_t sink;
};

typedef uint64_t words_t __attribute__((vector_size(16)));

static uint64_t sum(const char *begin, const char *end)
{
    words_t part[8] = {{0}};
    for (const char *at = begin; at + 128 <= end; at += 128) {
        __builtin_prefetch(at + 2048);
        __builtin_prefetch(at + 2112);
        UNROLL
        for (int i = 0; i < 8; i++)
            part[i] += ((const words_t *)at)[i];
    }
    for (int i = 1; i < 8; i++)
        part[0] += part[i];
    return part[0][0] + part[0][1];
}

/* CHAINS registers of x = x * a + b: no step waits for another chain, and none leaves a register.
 * Each returns its number of operations; the comparison only keeps the sums alive. */
typedef float floats_t __attribute__((vector_size(16)));

static double fma_baseline(float x, float y)
{
    floats_t chain[CHAINS], a = {x, x, x, x}, b = {y, y, y, y};
    UNROLL
    for (uint32_t i = 0; i < CHAINS; i++)
        chain[i] = a * (float)i;
    for (uint32_t step = 0; step < FMA_STEPS; step++) {
        UNROLL
        for (uint32_t i = 0; i < CHAINS; i++)
            chain[i] = chain[i] * a + b;
    }
    for (uint32_t i = 1; i < CHAINS; i++)
        chain[0] += chain[i];
    return chain[0][0] == 0.5f ? 0 : 2.0 * 4 * CHAINS * FMA_STEPS;
}

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static double fma_avx2(float x, float y)
{
    __m256 chain[CHAINS], a = _mm256_set1_ps(x), b = _mm256_set1_ps(y);
    UNROLL
    for (uint32_t i = 0; i < CHAINS; i++)
        chain[i] = _mm256_set1_ps((float)i);
    for (uint32_t step = 0; step < FMA_STEPS; step++) {
        UNROLL
        for (uint32_t i = 0; i < CHAINS; i++)
            chain[i] = _mm256_fmadd_ps(chain[i], a, b);
    }
    for (uint32_t i = 1; i < CHAINS; i++)
        chain[0] = _mm256_add_ps(chain[0], chain[i]);
    return _mm256_cvtss_f32(chain[0]) == 0.5f ? 0 : 2.0 * 8 * CHAINS * FMA_STEPS;
}

__attribute__((target("avx512f"))) static double fma_avx512(float x, float y)
{
    __m512 chain[CHAINS], a = _mm512_set1_ps(x), b = _mm512_set1_ps(y);
    UNROLL
    for (uint32_t i = 0; i < CHAINS; i++)
        chain[i] = _mm512_set1_ps((float)i);
    for (uint32_t step = 0; step < FMA_STEPS; step++) {
        UNROLL
        for (uint32_t i = 0; i < CHAINS; i++)
            chain[i] = _mm512_fmadd_ps(chain[i], a, b);
    }
    for (uint32_t i = 1; i < CHAINS; i++)
        chain[0] = _mm512_add_ps(chain[0], chain[i]);
    return _mm512_cvtss_f32(chain[0]) == 0.5f ? 0 : 2.0 * 16 * CHAINS * FMA_STEPS;
}
#endif

static double (*arithmetic_of(const char *isa))(float, float)
{
#ifdef __x86_64__
    if (strcmp(isa, "avx512") == 0)
        return fma_avx512;
    if (strcmp(isa, "avx2") == 0)
        return fma_avx2;
#else
    (void)isa;
#endif
    return fma_baseline;
}

static void *peak_main(void *argument)
{
    struct peak_thread *self = argument;
    for (uint32_t round = 0; round < self->rounds; round++) {
        (void)pthread_barrier_wait(self->line);
        if (self->arithmetic != NULL)
            self->operations = self->arithmetic(0.5f, 1.0f);
        else
            self->sink = sum(self->begin, self->end);
        self->ended_ns = attnd_clock_ns();
        (void)pthread_barrier_wait(self->line);
    }
    return NULL;
}

/* Runs all rounds. Return: the shortest of them in seconds; 0 on failure. */
static double race(struct peak_thread *threads, uint32_t count, uint32_t rounds)
{
    pthread_barrier_t line;
    double best = 0;
    if (pthread_barrier_init(&line, NULL, count + 1) != 0)
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        threads[i].line = &line;
        threads[i].rounds = rounds;
        /* Too few at the line would wait for ever: nothing sensible is left to do. */
        if (pthread_create(&threads[i].thread, NULL, peak_main, &threads[i]) != 0)
            return 0;
    }
    for (uint32_t round = 0; round < rounds; round++) {
        uint64_t begin_ns = attnd_clock_ns(), end_ns = begin_ns;
        (void)pthread_barrier_wait(&line);
        (void)pthread_barrier_wait(&line);
        for (uint32_t i = 0; i < count; i++)
            end_ns = threads[i].ended_ns > end_ns ? threads[i].ended_ns : end_ns;
        double took = (double)(end_ns - begin_ns) * 1e-9;
        best = best == 0 || took < best ? took : best;
    }
    for (uint32_t i = 0; i < count; i++)
        (void)pthread_join(threads[i].thread, NULL);
    (void)pthread_barrier_destroy(&line);
    return best;
}

double bench_peak_read(uint32_t threads, const void *memory, uint64_t size_bytes, uint32_t rounds)
{
    static struct peak_thread thread[THREADS_MAX];
    uint32_t count = threads < THREADS_MAX ? threads : THREADS_MAX;
    uint64_t share = size_bytes / count / 128 * 128;
    for (uint32_t i = 0; i < count; i++) {
        const char *begin = (const char *)memory + i * share;
        thread[i] = (struct peak_thread){.begin = begin, .end = begin + share};
    }
    double seconds = race(thread, count, rounds);
    return seconds > 0 ? (double)(share * count) / seconds : 0;
}

double bench_peak_fma(uint32_t threads, const char *isa, uint32_t rounds)
{
    static struct peak_thread thread[THREADS_MAX];
    uint32_t count = threads < THREADS_MAX ? threads : THREADS_MAX;
    for (uint32_t i = 0; i < count; i++)
        thread[i] = (struct peak_thread){.arithmetic = arithmetic_of(isa)};
    double seconds = race(thread, count, rounds), operations = 0;
    for (uint32_t i = 0; i < count; i++)
        operations += thread[i].operations;
    return seconds > 0 ? operations / seconds : 0;
}

double bench_peak_fma_operations(const char *isa)
{
    const uint32_t lanes = strcmp(isa, "avx512") == 0 ? 16 : strcmp(isa, "avx2") == 0 ? 8 : 4;
    return 2.0 * lanes * CHAINS * FMA_STEPS;
}
