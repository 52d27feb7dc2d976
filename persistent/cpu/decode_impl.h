/*
 * decode_impl.h - few rows against a block of keys, read as they lie. Part of kernel_impl.h.
 *
 * What bounds a decode is the memory, so the block after this one is asked for all the while: one
 * line for every line used, into the second-level cache, because rows of one head lie a whole token
 * apart and would throw each other out of the first. More requests at once would find no free fill
 * buffer and stall. The hardware's own prefetcher sees strides of a token and gives up.
 *
 * A pair of vectors holds 2 * VF_LANES neighbouring elements. Of bf16 it is cheaper to unpack them
 * into the even and the odd ones than in their order, so q and o are in that order, too, from
 * decode_begin() to decode_end(). A score is the sum of the same products, the even ones of a pair
 * first; this does not depend on what else a batch has.
 */
#ifndef ATTND_PERSISTENT_CPU_DECODE_IMPL_H
#define ATTND_PERSISTENT_CPU_DECODE_IMPL_H

#define LINE ((size_t)64) /* bytes of a cache line */
#define PAIR ((size_t)2 * VF_LANES)
/* Rows of V that go by together: of a head, with 32 heads of 128, more of them would not stay in
 * the sets of a first-level cache that their addresses share. */
#define GATHER_KEYS ((size_t)8)
#define SECOND_LEVEL 2 /* __builtin_prefetch: the cache to bring a line to */

_Static_assert(DECODE_COLS % 2 == 0, "o goes by in pairs");

INLINE void load_pair(vf out[2], const uint8_t *row, size_t at, uint32_t dtype)
{
    if (dtype == ATTND_BF16) {
        vf_load_pair_bf16(out, (const void *)(row + at * 2));
        return;
    }
    out[0] = load_kv(row, at, dtype);
    out[1] = load_kv(row, at + VF_LANES, dtype);
}

/* All pairs of the rows in @x, if elements of @dtype have an order of their own. */
INLINE void reorder(float *x, const struct attnd_rows *rows, uint32_t dtype, void (*pair)(vf *))
{
    for (size_t i = 0; dtype == ATTND_BF16 && i < (size_t)rows->count * rows->dim; i += PAIR) {
        vf elements[2] = {vf_load(x + i), vf_load(x + i + VF_LANES)};
        pair(elements);
        vf_store(x + i, elements[0]);
        vf_store(x + i + VF_LANES, elements[1]);
    }
}

static void decode_begin(const struct attnd_rows *rows, uint32_t dtype)
{
    reorder(rows->q, rows, dtype, vf_to_pair);
}

static void decode_end(const struct attnd_rows *rows, uint32_t dtype)
{
    reorder(rows->o, rows, dtype, vf_from_pair);
}

/* Lines that are asked for one after the other, in the order of memory: this is what the hardware
 * prefetches further, too. */
struct ask {
    const uint8_t *line, *end; /* of the run at hand */
    struct attnd_ahead left;
};

INLINE struct ask ask_begin(const struct attnd_ahead *ahead)
{
    const uint8_t *run = *ahead->key + ahead->head;
    return (struct ask){run + ahead->at, run + ahead->run_bytes, *ahead};
}

INLINE void ask_line(struct ask *ask)
{
    __builtin_prefetch(ask->line, 0, SECOND_LEVEL);
    ask->line += LINE;
    if (ask->line < ask->end || ask->left.count == 1)
        return;
    ask->left.count--;
    ask->line = *++ask->left.key + ask->left.head;
    ask->end = ask->line + ask->left.run_bytes;
}

/* Scores of R rows against VF_LANES / R keys at a time: VF_LANES dot products, folded together at
 * the end, where a single one would waste its horizontal sum. */
INLINE void score_rows(size_t R, float (*s)[KEYS], const float *q,
                       const struct attnd_kv_block *block, struct ask *ask, size_t dim,
                       uint32_t dtype)
{
    const struct attnd_keys *keys = block->keys;
    const size_t T = VF_LANES / R, line = LINE / bytes_of(dtype);
    for (size_t t = 0; t < keys->count; t += T) {
        const uint8_t *k[VF_LANES];
        vf sum[VF_LANES];
        UNROLL
        for (size_t j = 0; j < T; j++)
            k[j] = keys->k[t + j] + block->k_head;
        UNROLL
        for (size_t i = 0; i < VF_LANES; i++)
            sum[i] = vf_set(0.0f);
        for (size_t d = 0; d < dim; d += line) {
            if (ask) {
                UNROLL
                for (size_t j = 0; j < T; j++)
                    ask_line(ask);
            }
            UNROLL
            for (size_t u = 0; u < line; u += PAIR) {
                vf x[DECODE_ROWS][2], y[2];
                UNROLL
                for (size_t r = 0; r < R; r++) {
                    x[r][0] = vf_load(q + r * dim + d + u);
                    x[r][1] = vf_load(q + r * dim + d + u + VF_LANES);
                }
                UNROLL
                for (size_t j = 0; j < T; j++) {
                    load_pair(y, k[j], d + u, dtype);
                    UNROLL
                    for (size_t r = 0; r < R; r++) {
                        sum[r * T + j] = vf_fma(x[r][0], y[0], sum[r * T + j]);
                        sum[r * T + j] = vf_fma(x[r][1], y[1], sum[r * T + j]);
                    }
                }
            }
        }
        float folded[VF_LANES];
        vf_store(folded, vf_reduce(sum));
        UNROLL
        for (size_t r = 0; r < R; r++)
            __builtin_memcpy(&s[r][t], folded + r * T, T * sizeof(float));
    }
}

/* o of R rows += their weights times rows [first, limit) of V. */
INLINE void gather_keys(size_t R, float *o, const float (*p)[KEYS],
                        const struct attnd_kv_block *block, struct ask *ask, struct span seen,
                        size_t dim, uint32_t dtype)
{
    for (size_t d = 0; d < dim; d += DECODE_COLS * VF_LANES) {
        const size_t way = d * bytes_of(dtype);
        vf sum[DECODE_ROWS * DECODE_COLS];
        UNROLL
        for (size_t i = 0; i < R * DECODE_COLS; i++)
            sum[i] = vf_load(o + i / DECODE_COLS * dim + d + i % DECODE_COLS * VF_LANES);
        for (size_t t = seen.first; t < seen.limit; t++) {
            const uint8_t *row = block->keys->v[t] + block->v_head;
            if (ask && way % LINE == 0)
                ask_line(ask);
            vf y[DECODE_COLS];
            UNROLL
            for (size_t c = 0; c < DECODE_COLS; c += 2)
                load_pair(y + c, row, d + c * VF_LANES, dtype);
            UNROLL
            for (size_t r = 0; r < R; r++)
                UNROLL
            for (size_t c = 0; c < DECODE_COLS; c++)
                sum[r * DECODE_COLS + c] = vf_fma(vf_set(p[r][t]), y[c], sum[r * DECODE_COLS + c]);
        }
        UNROLL
        for (size_t i = 0; i < R * DECODE_COLS; i++)
            vf_store(o + i / DECODE_COLS * dim + d + i % DECODE_COLS * VF_LANES, sum[i]);
    }
}

INLINE void gather_rows(size_t R, float *o, const float (*p)[KEYS],
                        const struct attnd_kv_block *block, struct ask *ask, struct span seen,
                        size_t dim, uint32_t dtype)
{
    struct span part = seen;
    for (; part.first < seen.limit; part.first = part.limit) {
        part.limit = part.first + (uint32_t)GATHER_KEYS;
        part.limit = part.limit < seen.limit ? part.limit : seen.limit;
        gather_keys(R, o, p, block, ask, part, dim, dtype);
    }
}

/* All rows' scores; the first pass asks for K. */
INLINE void score(const struct attnd_rows *rows, const struct attnd_kv_block *block,
                  struct ask *ask, float (*s)[KEYS], uint32_t dtype)
{
    const size_t dim = rows->dim, count = rows->count;
    size_t r = 0;
    for (; r + 4 <= count; r += 4, ask = NULL)
        score_rows(4, s + r, rows->q + r * dim, block, ask, dim, dtype);
    for (; r + 2 <= count; r += 2, ask = NULL)
        score_rows(2, s + r, rows->q + r * dim, block, ask, dim, dtype);
    if (r < count)
        score_rows(1, s + r, rows->q + r * dim, block, ask, dim, dtype);
}

/* Rows [r, r + n) of one span; n <= DECODE_ROWS. Return: how many were done. */
INLINE size_t gather(const struct attnd_rows *rows, size_t r, size_t n,
                     const struct attnd_kv_block *block, struct ask *ask, const float (*p)[KEYS],
                     struct span seen, uint32_t dtype)
{
    const size_t dim = rows->dim;
    float *o = rows->o + r * dim;
    if (n == 4)
        gather_rows(4, o, p, block, ask, seen, dim, dtype);
    else if (n >= 2)
        gather_rows(2, o, p, block, ask, seen, dim, dtype);
    else
        gather_rows(1, o, p, block, ask, seen, dim, dtype);
    return n == 3 ? 2 : n;
}

INLINE void decode_typed(const struct attnd_rows *rows, const struct attnd_kv_block *block,
                         const struct attnd_ahead ahead[2], uint32_t dtype)
{
    float s[ATTND_DECODE_ROWS][KEYS] __attribute__((aligned(64)));
    struct span seen[ATTND_DECODE_ROWS];
    struct ask k = ask_begin(&ahead[0]), v = ask_begin(&ahead[1]), *ask = &v;
    const size_t dim = rows->dim, count = rows->count;
    score(rows, block, &k, s, dtype);
    for (uint32_t r = 0; r < count; r++) {
        seen[r] = judge(rows, r, s[r], span_of(rows, r, block->keys), block->keys);
        float alpha = soften(s[r], seen[r], &rows->m[r], &rows->l[r]);
        if (alpha != 1.0f)
            for (size_t d = 0; d < dim; d += VF_LANES)
                vf_store(rows->o + r * dim + d,
                         vf_mul(vf_load(rows->o + r * dim + d), vf_set(alpha)));
    }
    if (is_masked(rows)) {
        for (size_t i = 0; i < block->keys->count * dim * bytes_of(dtype); i += LINE)
            ask_line(ask);
        for (size_t r = 0; r < count; r++) {
            struct span runs[RUNS_MAX];
            const size_t last = mask_runs(rows->policy, r, block->keys->begin, seen[r], runs);
            for (size_t i = 0; i < last; i++)
                (void)gather(rows, r, 1, block, NULL, (const float(*)[KEYS])(s + r), runs[i],
                             dtype);
        }
        return;
    }
    for (size_t r = 0, n; r < count; r += n) {
        for (n = 1; n < DECODE_ROWS && r + n < count && same(seen[r + n], seen[r]); n++)
            ;
        n = gather(rows, r, n, block, ask, (const float(*)[KEYS])(s + r), seen[r], dtype);
        ask = seen[r].limit > 0 ? NULL : ask;
    }
}

static void decode(const struct attnd_rows *rows, const struct attnd_kv_block *block,
                   const struct attnd_ahead ahead[2])
{
    switch (block->keys->dtype) {
    case ATTND_FP16:
        decode_typed(rows, block, ahead, ATTND_FP16);
        break;
    case ATTND_BF16:
        decode_typed(rows, block, ahead, ATTND_BF16);
        break;
    case ATTND_FP8_E4M3:
        decode_typed(rows, block, ahead, ATTND_FP8_E4M3);
        break;
    default:
        decode_typed(rows, block, ahead, ATTND_FP8_E5M2);
    }
}

#endif
