/*
 * kernel_impl.h - the kernels, written once over a vec_*.h header. Included by kernel_<isa>.c only,
 * which defines KERNEL and KERNEL_NAME.
 *
 * One online softmax (soften) between two ways of multiplying. Decode has few rows and is bound by
 * memory: K and V are read once from where they lie, converted in registers, and every conversion
 * serves all rows of a micro-tile. Prefill has many rows and is bound by arithmetic: a block of K
 * (transposed) and V is unpacked to fp32 once and then serves every row through one
 * register-blocked product (multiply), which does both Q K^T and P V.
 *
 * Keys that a row may not see never reach it, even as 0 x NaN: scores outside of a row's span are
 * replaced, and P V runs over a row's own keys only. Rows of one query token share a span, so runs
 * of equal spans go together; an unmasked block is one run. What a variant does with scores is a
 * policy (policy.h), asked once a row and block, between the product and the softmax.
 */
#ifndef ATTND_PERSISTENT_CPU_KERNEL_IMPL_H
#define ATTND_PERSISTENT_CPU_KERNEL_IMPL_H

#include "persistent/cpu/fp8.h"
#include "persistent/cpu/kernel.h"
#include "persistent/cpu/unroll.h"

#define INLINE static inline __attribute__((always_inline))
#define KEYS ATTND_KEYS_BLOCK

_Static_assert(ATTND_ROWS_MAX % MICRO_ROWS == 0, "buffers hold whole micro-tiles");
_Static_assert(KEYS % (MICRO_COLS * VF_LANES) == 0, "a block is whole register tiles");
_Static_assert(64 % (DECODE_COLS * VF_LANES) == 0, "so is any head dim");
_Static_assert(DECODE_ROWS == 4, "decode counts rows in fours, twos and ones");

/* ---- conversion ------------------------------------------------------------------------------ */

/* Where @dtype is a constant, so are these. */
INLINE size_t bytes_of(uint32_t dtype)
{
    return dtype == ATTND_FP8_E4M3 || dtype == ATTND_FP8_E5M2 ? 1 : 2;
}

/* VF_LANES elements of a row, from element @at on. */
INLINE vf load_kv(const uint8_t *row, size_t at, uint32_t dtype)
{
    const void *in = row + at * bytes_of(dtype);
    switch (dtype) {
    case ATTND_FP16:
        return vf_load_fp16(in);
    case ATTND_BF16:
        return vf_load_bf16(in);
    case ATTND_FP8_E4M3:
        return vf_load_e4m3(in);
    default:
        return vf_load_e5m2(in);
    }
}

INLINE void widen_typed(float *out, const uint8_t *in, size_t count, uint32_t dtype, float scale)
{
    for (size_t i = 0; i < count; i += VF_LANES)
        vf_store(out + i, vf_mul(load_kv(in, i, dtype), vf_set(scale)));
}

static void widen(float *out, const void *in, uint32_t count, uint32_t dtype, float scale)
{
    if (dtype == ATTND_FP16)
        widen_typed(out, in, count, ATTND_FP16, scale);
    else if (dtype == ATTND_BF16)
        widen_typed(out, in, count, ATTND_BF16, scale);
    else if (dtype == ATTND_FP8_E4M3)
        widen_typed(out, in, count, ATTND_FP8_E4M3, scale);
    else
        widen_typed(out, in, count, ATTND_FP8_E5M2, scale);
}

static void narrow_fp8(uint8_t *out, const float *in, size_t count, uint32_t dtype, float scale)
{
    for (size_t i = 0; i < count; i++)
        out[i] = dtype == ATTND_FP8_E4M3 ? attnd_round_e4m3(in[i] * scale)
                                         : attnd_round_e5m2(in[i] * scale);
}

static void narrow(void *out, const float *in, uint32_t count, uint32_t dtype, float scale)
{
    uint16_t *to = out;
    if (bytes_of(dtype) == 1) {
        narrow_fp8(out, in, count, dtype, scale);
        return;
    }
    for (size_t i = 0; i < count; i += VF_LANES) {
        vf x = vf_mul(vf_load(in + i), vf_set(scale));
        if (dtype == ATTND_FP16)
            vf_store_fp16(to + i, x);
        else
            vf_store_bf16(to + i, x);
    }
}

static void blend(float *sum, const float *part, uint32_t count, float weight)
{
    for (size_t i = 0; i < count; i += VF_LANES)
        vf_store(sum + i, vf_fma(vf_load(part + i), vf_set(weight), vf_load(sum + i)));
}

/* ---- softmax --------------------------------------------------------------------------------- */

/* 2^x for x <= 0: relative error 1.7e-7, 1 at 0, 0 below 2^-126 (no subnormals: they are slow and
 * 2^-126 of the largest weight is nothing), NaN for NaN. */
INLINE vf exp2_down(vf x)
{
    vf n = vf_round(vf_max(vf_set(-126.0f), x));
    vf f = vf_sub(vf_max(vf_set(-126.0f), x), n);
    vf p = vf_set(0x1.5bba2ep-10f);
    p = vf_fma(p, f, vf_set(0x1.3cea92p-7f));
    p = vf_fma(p, f, vf_set(0x1.c6b752p-5f));
    p = vf_fma(p, f, vf_set(0x1.ebf9bcp-3f));
    p = vf_fma(p, f, vf_set(0x1.62e42ap-1f));
    p = vf_fma(p, f, vf_set(1.0f));
    return vf_zero_below(vf_ldexp(p, n), x, -126.0f);
}

INLINE float exp2_down1(float x)
{
    return vf_first(exp2_down(vf_set(x)));
}

/* Keys [first, limit) of the block. */
struct span {
    uint32_t first, limit;
};

INLINE struct span span_of(const struct attnd_rows *rows, uint32_t i, const struct attnd_keys *keys)
{
    const uint32_t begin = rows->begin[i], end = rows->end[i],
                   block_end = keys->begin + keys->count;
    if (end <= keys->begin || begin >= block_end || end <= begin)
        return (struct span){0, 0};
    return (struct span){begin > keys->begin ? begin - keys->begin : 0,
                         (end < block_end ? end : block_end) - keys->begin};
}

INLINE int same(struct span a, struct span b)
{
    return a.first == b.first && a.limit == b.limit;
}

/* Turns a row's scores of the keys that it sees into weights, and moves its running maximum and sum
 * along. Return: what the row's o is to be multiplied with. */
INLINE float soften(float s[KEYS], struct span seen, float *m, float *l)
{
    const float nothing = -__builtin_inff();
    if (seen.limit == 0)
        return 1.0f;
    size_t from = seen.first / VF_LANES * VF_LANES, limit = seen.limit;
    for (size_t t = from; t < seen.first; t++)
        s[t] = nothing;
    for (size_t t = limit; t % VF_LANES != 0; t++)
        s[t] = nothing;
    vf peak = vf_set(nothing);
    for (size_t t = from; t < limit; t += VF_LANES)
        peak = vf_max(vf_load(s + t), peak);
    const float before = *m, top = vf_peak(peak);
    const float now = top > before ? top : before;
    /* Nothing above -inf yet: any finite base will do, every weight is 0. */
    const float base = now == nothing ? 0.0f : now;
    vf sum = vf_set(0.0f);
    for (size_t t = from; t < limit; t += VF_LANES) {
        vf p = exp2_down(vf_sub(vf_load(s + t), vf_set(base)));
        sum = vf_add(sum, p);
        vf_store(s + t, p);
    }
    const float alpha = before == now ? 1.0f : exp2_down1(before - base);
    *m = now;
    *l = *l * alpha + vf_sum(sum);
    /* Keys were seen, all of them at -inf: not the empty state, but 0 / 0 if it stays so. */
    if (now == nothing)
        *l += 1.0f;
    return alpha;
}

#include "persistent/cpu/score_impl.h"

/* A row's scores as its policy wants them. Return: from the first key to the last that it sees. */
INLINE struct span judge(const struct attnd_rows *rows, size_t i, float s[KEYS], struct span seen,
                         const struct attnd_keys *keys)
{
    const struct attnd_cpu_policy *policy = rows->policy;
    struct span runs[RUNS_MAX];
    if (!policy || seen.limit == 0)
        return seen;
    score_policy(policy, i, s, keys->begin, seen.first, seen.limit);
    if (!policy->mask)
        return seen;
    const size_t count = mask_runs(policy, i, keys->begin, seen, runs);
    if (count == 0)
        return (struct span){0, 0};
    mask_scores(s, runs, count);
    return (struct span){runs[0].first, runs[count - 1].limit};
}

INLINE int is_masked(const struct attnd_rows *rows)
{
    return rows->policy && rows->policy->mask;
}

#include "persistent/cpu/decode_impl.h"

/* ---- prefill --------------------------------------------------------------------------------- */

/* K of the block, transposed: VF_LANES keys x VF_LANES elements at a time. */
INLINE void unpack_k(float *out, const struct attnd_keys *keys, ptrdiff_t k_head, size_t dim,
                     uint32_t dtype)
{
    for (size_t t = 0; t < keys->count; t += VF_LANES)
        for (size_t d = 0; d < dim; d += VF_LANES) {
            vf square[VF_LANES];
            UNROLL
            for (size_t j = 0; j < VF_LANES; j++)
                square[j] = load_kv(keys->k[t + j] + k_head, d, dtype);
            vf_transpose(square);
            UNROLL
            for (size_t j = 0; j < VF_LANES; j++)
                vf_store(out + (d + j) * KEYS + t, square[j]);
        }
}

INLINE void unpack_v(float *out, const struct attnd_keys *keys, ptrdiff_t v_head, size_t dim,
                     uint32_t dtype)
{
    for (size_t t = 0; t < keys->count; t++)
        for (size_t d = 0; d < dim; d += VF_LANES)
            vf_store(out + t * dim + d, load_kv(keys->v[t] + v_head, d, dtype));
}

INLINE void unpack_typed(const struct attnd_panel *panel, const struct attnd_kv_block *block,
                         size_t dim, uint32_t dtype)
{
    unpack_k(panel->k, block->keys, block->k_head, dim, dtype);
    unpack_v(panel->v, block->keys, block->v_head, dim, dtype);
}

static void unpack(const struct attnd_panel *panel, const struct attnd_kv_block *block, size_t dim)
{
    switch (block->keys->dtype) {
    case ATTND_FP16:
        unpack_typed(panel, block, dim, ATTND_FP16);
        break;
    case ATTND_BF16:
        unpack_typed(panel, block, dim, ATTND_BF16);
        break;
    case ATTND_FP8_E4M3:
        unpack_typed(panel, block, dim, ATTND_FP8_E4M3);
        break;
    default:
        unpack_typed(panel, block, dim, ATTND_FP8_E5M2);
    }
}

/* One register tile: c[R][MICRO_COLS vectors] = alpha[r] * c + a[R][depth] x b[depth][cols]; with
 * alpha NULL, c is only written. */
INLINE void multiply_tile(size_t R, float *c, size_t c_stride, const float *a, size_t a_stride,
                          const float *b, size_t b_stride, size_t depth, const float *alpha)
{
    vf sum[MICRO_ROWS][MICRO_COLS];
    UNROLL
    for (size_t r = 0; r < R; r++)
        UNROLL
    for (size_t j = 0; j < MICRO_COLS; j++)
        sum[r][j] = alpha == NULL
                        ? vf_set(0.0f)
                        : vf_mul(vf_load(c + r * c_stride + j * VF_LANES), vf_set(alpha[r]));
    for (size_t k = 0; k < depth; k++, b += b_stride) {
        vf y[MICRO_COLS];
        UNROLL
        for (size_t j = 0; j < MICRO_COLS; j++)
            y[j] = vf_load(b + j * VF_LANES);
        UNROLL
        for (size_t r = 0; r < R; r++) {
            vf x = vf_set(a[r * a_stride + k]);
            UNROLL
            for (size_t j = 0; j < MICRO_COLS; j++)
                sum[r][j] = vf_fma(x, y[j], sum[r][j]);
        }
    }
    UNROLL
    for (size_t r = 0; r < R; r++)
        UNROLL
    for (size_t j = 0; j < MICRO_COLS; j++)
        vf_store(c + r * c_stride + j * VF_LANES, sum[r][j]);
}

/* o of n rows (n <= MICRO_ROWS) = alpha * o + p v over the keys that they see. */
static void add_values(size_t n, float *o, const float (*weights)[KEYS], const float *values,
                       struct span seen, size_t dim, const float *alpha)
{
    const size_t count = seen.limit - seen.first;
    const float *v = values + seen.first * dim, *p = weights[0] + seen.first;
    for (size_t d = 0; d < dim; d += MICRO_COLS * VF_LANES) {
        size_t r = 0;
        if (n == MICRO_ROWS) {
            multiply_tile(MICRO_ROWS, o + d, dim, p, KEYS, v + d, dim, count, alpha);
            continue;
        }
        for (; r + 2 <= n; r += 2)
            multiply_tile(2, o + r * dim + d, dim, p + r * KEYS, KEYS, v + d, dim, count,
                          alpha + r);
        if (r < n)
            multiply_tile(1, o + r * dim + d, dim, p + r * KEYS, KEYS, v + d, dim, count,
                          alpha + r);
    }
}

/* One micro-tile of rows, from @r on, against the unpacked block. */
static void prefill_rows(const struct attnd_rows *rows, size_t r, const struct attnd_keys *keys,
                         const struct attnd_panel *panel)
{
    const size_t dim = rows->dim;
    const size_t n = rows->count - r < MICRO_ROWS ? rows->count - r : MICRO_ROWS;
    struct span seen[MICRO_ROWS];
    uint32_t least = KEYS, most = 0;
    for (size_t i = 0; i < n; i++) {
        seen[i] = span_of(rows, (uint32_t)(r + i), keys);
        most = seen[i].limit > most ? seen[i].limit : most;
        least = seen[i].limit && seen[i].first < least ? seen[i].first : least;
    }
    if (most == 0)
        return;

    float s[MICRO_ROWS][KEYS] __attribute__((aligned(64)));
    const size_t step = MICRO_COLS * VF_LANES;
    for (size_t t = least / step * step; t < most; t += step)
        multiply_tile(MICRO_ROWS, &s[0][t], KEYS, rows->q + r * dim, dim, panel->k + t, KEYS, dim,
                      NULL);
    float alpha[MICRO_ROWS];
    for (size_t i = 0; i < n; i++) {
        seen[i] = judge(rows, r + i, s[i], seen[i], keys);
        alpha[i] = soften(s[i], seen[i], &rows->m[r + i], &rows->l[r + i]);
    }

    for (size_t i = 0; is_masked(rows) && i < n; i++) {
        struct span runs[RUNS_MAX];
        const size_t last = mask_runs(rows->policy, r + i, keys->begin, seen[i], runs);
        for (size_t j = 0; j < last; j++, alpha[i] = 1.0f)
            add_values(1, rows->o + (r + i) * dim, (const float(*)[KEYS])(s + i), panel->v, runs[j],
                       dim, alpha + i);
    }
    for (size_t i = 0, run; !is_masked(rows) && i < n; i += run) {
        for (run = 1; i + run < n && same(seen[i + run], seen[i]); run++)
            ;
        if (seen[i].limit > 0)
            add_values(run, rows->o + (r + i) * dim, (const float(*)[KEYS])(s + i), panel->v,
                       seen[i], dim, alpha + i);
    }
}

/* Asks for keys [begin, end) of a block, into the second-level cache: the first is the panels'. */
static void fetch_keys(const struct attnd_kv_block *next, size_t begin, size_t end, size_t dim)
{
    const size_t bytes = dim * bytes_of(next->keys->dtype);
    for (size_t t = begin; t < end && t < KEYS; t++)
        for (size_t d = 0; d < bytes; d += LINE) {
            __builtin_prefetch(next->keys->k[t] + next->k_head + d, 0, 2);
            __builtin_prefetch(next->keys->v[t] + next->v_head + d, 0, 2);
        }
}

static void prefill(const struct attnd_rows *rows, const struct attnd_kv_block *block,
                    const struct attnd_kv_block *next, const struct attnd_panel *panel)
{
    const struct attnd_keys *keys = block->keys;
    unpack(panel, block, rows->dim);
    if (rows->policy && rows->policy->pairs)
        rotate_keys(rows->policy, panel->k, keys->count);
    const size_t count = rows->count;
    for (size_t r = 0; r < count; r += MICRO_ROWS) {
        fetch_keys(next, KEYS * r / count, KEYS * (r + MICRO_ROWS) / count, rows->dim);
        prefill_rows(rows, r, keys, panel);
    }
}

const struct attnd_kernel KERNEL = {
    .name = KERNEL_NAME,
    .widen = widen,
    .narrow = narrow,
    .blend = blend,
    .decode_begin = decode_begin,
    .decode = decode,
    .decode_end = decode_end,
    .prefill = prefill,
};

#endif
