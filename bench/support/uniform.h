/*
 * uniform.h - a batch of equal requests over a pool of its own: what figures of attention are
 * measured on, whichever worker computes them.
 */
#ifndef ATTND_BENCH_SUPPORT_UNIFORM_H
#define ATTND_BENCH_SUPPORT_UNIFORM_H

#include "bench/support/suite.h"

struct bench_uniform {
    uint32_t dtype, layers, requests, qo_len, kv_len;
    uint32_t page_size, heads_q, heads_kv, dim; /* kv_len: whole pages */
    uint32_t memory_kind;                       /* of the pool; 0: host */
    uint32_t kv_dtype;                          /* of the pool; 0: dtype */
    uint32_t dim_vo; /* 0: dim; else V lies in K's rows, in @planes of an engine's own */
    uint32_t planes; /* memory of bench_uniform_kv_bytes() a layer */
    struct attnd_variant variant; /* size 0: none */
};

/** bench_uniform_q_bytes() - of q, and room for o, of one layer. */
uint64_t bench_uniform_q_bytes(const struct bench_uniform *uniform);
/** bench_uniform_kv_bytes() - K and V that one run reads. */
uint64_t bench_uniform_kv_bytes(const struct bench_uniform *uniform);
/** bench_uniform_operations() - multiplications and additions of one causal run: 4 x dim x heads x
 * visible pairs; where V is shorter, 2 x (dim + dim_vo). */
double bench_uniform_operations(const struct bench_uniform *uniform);

/** bench_uniform_fill() - values near 1 of either sign: neither time nor power may depend on zeros.
 */
void bench_uniform_fill(void *memory, uint64_t size_bytes, uint32_t dtype);

/** bench_uniform_pool() - made by the service, not filled. Return: false after bench_suite_fail().
 */
bool bench_uniform_pool(struct bench_suite *suite, struct attnd_session *session,
                        const struct bench_uniform *uniform, uint32_t *pool,
                        struct attnd_pool_info *info);
/** bench_uniform_plan() - a plan, set; causal, pages shuffled. Return: as above. */
bool bench_uniform_plan(struct bench_suite *suite, struct attnd_session *session,
                        const struct bench_uniform *uniform, uint32_t pool, uint32_t *plan);

#endif
