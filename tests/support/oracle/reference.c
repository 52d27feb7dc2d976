/*
 * reference.c - read from top to bottom: gather, score, softmax, sum, compare.
 *
 * For every KV head the keys and values of every request are gathered from their pages as doubles,
 * and all arithmetic is in double. A query row then looks up, at each level, the one request that
 * owns it and asks of each of that request's keys whether it sees it. Those keys, in level order,
 * are one list with one softmax over it: cascade levels need no merge here.
 */
#include "tests/support/oracle/reference.h"

#include "schemas/abi.h"
#include "tests/support/oracle/bits16.h"
#include "tests/support/oracle/bits8.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Keys and values of one request for one KV head. */
struct span {
    double *keys, *values; /* [count][dim], [count][dim_vo] */
    int32_t count;
};

/* Kept between calls: fresh pages from the kernel would cost as much as the arithmetic. */
static double *workspace(size_t count)
{
    static double *words;
    static size_t words_max;

    if (count > words_max) {
        free(words);
        words = malloc(count * sizeof(*words));
        words_max = count;
        if (!words)
            abort(); /* a test without memory cannot say anything */
    }
    return words;
}

static uint32_t dim_vo_of(const struct reference_batch *batch)
{
    return batch->dim_vo ? batch->dim_vo : batch->dim;
}

/* ---- gather ---- */

/* @out: [kv_len][@dim] of request @request, KV head @head. */
static void gather(const struct reference_batch *batch, const struct reference_plane *plane,
                   const struct reference_level *level, uint32_t request, uint32_t head,
                   uint32_t dim, double *out)
{
    const uint32_t dtype = batch->kv_dtype ? batch->kv_dtype : batch->dtype;
    const int32_t *pages = level->kv_indices + level->kv_indptr[request];
    const int32_t page_size = (int32_t)batch->page_size;

    assert(level->kv_len[request] <=
           (level->kv_indptr[request + 1] - level->kv_indptr[request]) * page_size);
    for (int32_t j = 0; j < level->kv_len[request]; j++) {
        const int64_t token = pages[j / page_size] * plane->stride_page +
                              j % page_size * plane->stride_token + head * plane->stride_head;
        bits_of_kv_row(dtype, plane->bits, token, dim, out);
        out += dim;
    }
}

/* Fills spans[level][request] for one KV head, out of @words. */
static void gather_head(const struct reference_batch *batch, uint32_t head,
                        struct span spans[][REFERENCE_REQUESTS_MAX], double *words)
{
    for (uint32_t l = 0; l < batch->levels; l++) {
        const struct reference_level *level = &batch->level[l];
        for (uint32_t r = 0; r < level->requests; r++) {
            struct span *span = &spans[l][r];
            span->count = level->kv_len[r];
            span->keys = words;
            span->values = words + (size_t)span->count * batch->dim;
            words = span->values + (size_t)span->count * dim_vo_of(batch);
            gather(batch, &batch->k, level, r, head, batch->dim, span->keys);
            for (int32_t j = 0; !batch->variant.rope_keys_stored && j < span->count; j++)
                reference_rotate(&batch->variant, span->keys + (size_t)j * batch->dim, j);
            gather(batch, &batch->v, level, r, head, dim_vo_of(batch), span->values);
        }
    }
}

/* ---- what a query sees ---- */

/* One query head of one row, and the request of each level that it belongs to. */
struct query {
    uint32_t row, head;
    struct span request[REFERENCE_LEVELS_MAX]; /* all keys there are */
    int32_t place;                             /* among the keys of its last level's request */
    int32_t before[REFERENCE_LEVELS_MAX];      /* keys of its requests on earlier levels */
    uint32_t last;                             /* that request's number */
    uint32_t of_level[REFERENCE_LEVELS_MAX];   /* the same of all levels */
    int32_t index;                             /* the row's, among the request's */
};

static uint32_t request_of(const struct reference_level *level, uint32_t row)
{
    uint32_t request = 0;
    while (level->qo_indptr[request + 1] <= (int32_t)row)
        request++;
    return request;
}

/* Right-aligned: the last query stands at the last key. Negative before the first. */
static int32_t place_of(const struct reference_level *level, uint32_t request, uint32_t row)
{
    int32_t qo_len = level->qo_indptr[request + 1] - level->qo_indptr[request];

    return level->kv_len[request] - qo_len + ((int32_t)row - level->qo_indptr[request]);
}

/* The keys of a query are one list, in which those of a level follow those of the one before. */
static int32_t place_in_all(const struct reference_batch *batch, const struct query *query)
{
    return query->before[batch->levels - 1] + query->place;
}

/* Causality and masks are of the last level: what comes before it is all past. */
static int sees(const struct reference_batch *batch, const struct query *query, uint32_t l,
                int32_t j)
{
    if (!reference_sees(&batch->variant, place_in_all(batch, query), query->before[l] + j))
        return 0;
    if (l + 1 < batch->levels)
        return 1;
    if (batch->causal && j > query->place)
        return 0;
    return reference_unmasked(&batch->variant, query->last, query->index, query->request[l].count,
                              j);
}

/* ---- the sum ---- */

/* Four chains of additions, for speed: fp64 does not mind the order. */
static double dot(const double *a, const double *b, uint32_t dim)
{
    double sum[4] = {0, 0, 0, 0};

    for (uint32_t d = 0; d < dim; d += 4)
        for (uint32_t i = 0; i < 4; i++)
            sum[i] += a[d + i] * b[d + i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* o += weight * value, by fours like dot(). */
static void accumulate(double weight, const double *restrict value, double *restrict o,
                       uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d += 4)
        for (uint32_t i = 0; i < 4; i++)
            o[d + i] += weight * value[d + i];
}

/* The keys that one query sees, with room for all there are. */
struct seen {
    double *scores, *errors; /* errors: how far a score may be off, if that is asked for */
    const double **values;
    size_t count;
};

/* @length: of q and of k, multiplied and scaled as @scaled is; @score: what came of that. A cap
 * makes the error as much smaller as it is flat, at the nearest that the scaled score may be to 0.
 */
static double score_error(const struct reference_batch *batch, double length, double scaled,
                          double score)
{
    const double cap = batch->variant.soft_cap;
    double error = REFERENCE_SCORE_ERROR * length;

    if (cap > 0) {
        const double flat = tanh(fmax(0, fabs(scaled) - error) / cap);
        error *= 1 - flat * flat;
    }
    return error + REFERENCE_SCORE_ERROR * fabs(score);
}

/* @scale: of the head. */
static void score_keys(const struct reference_batch *batch,
                       double q[REFERENCE_LEVELS_MAX][ATTND_HEAD_DIM_MAX],
                       const struct query *query, double scale, struct seen *seen)
{
    const uint32_t dim = batch->dim;

    seen->count = 0;
    for (uint32_t l = 0; l < batch->levels; l++) {
        const struct span *span = &query->request[l];
        for (int32_t j = 0; j < span->count; j++) {
            const double *key = span->keys + (size_t)j * dim;
            if (!sees(batch, query, l, j))
                continue;
            const double scaled = scale * dot(q[l], key, dim);
            const double score =
                reference_score(&batch->variant, scaled, query->head, batch->heads_q,
                                place_in_all(batch, query), query->before[l] + j);
            if (batch->o_error)
                seen->errors[seen->count] = score_error(
                    batch, scale * sqrt(dot(q[l], q[l], dim) * dot(key, key, dim)), scaled, score);
            seen->values[seen->count] = span->values + (size_t)j * dim_vo_of(batch);
            seen->scores[seen->count++] = score;
        }
    }
}

/* Scores become weights exp(score - largest), the sink's score among them. @sum: receives theirs
 * and the sink's. Return: the largest. */
static double weigh_keys(const struct reference_batch *batch, const struct query *query,
                         struct seen *seen, double *sum)
{
    const float *sinks = batch->variant.sinks;
    double max = -INFINITY;

    for (size_t n = 0; n < seen->count; n++)
        if (seen->scores[n] > max)
            max = seen->scores[n];
    if (sinks && (double)sinks[query->head] > max)
        max = (double)sinks[query->head];
    *sum = 0;
    for (size_t n = 0; n < seen->count; n++) {
        seen->scores[n] = exp(seen->scores[n] - max);
        *sum += seen->scores[n];
    }
    if (sinks)
        *sum += exp((double)sinks[query->head] - max);
    return max;
}

/* An error of a score from which on any key may have all the weight. */
#define ERROR_MAX 300.0

/* With weights w off by factors exp(e), o is off by the sum of w (exp(e) - 1) (v - o) over the sum
 * of w exp(-e), and lse by the logarithm of what the latter grows. Both sums are of what is not
 * negative: a difference may round to 0 or below. @o is final, @o_error all 0. */
static void bound_errors(const struct reference_batch *batch, const struct seen *seen, double sum,
                         double v_scale, const double *o, double *o_error, double *lse_error)
{
    double most = 0, least_sum = 0, weights = 0;
    int unbounded = 0;

    for (size_t n = 0; n < seen->count; n++) {
        const double weight = seen->scores[n], grows = weight * expm1(seen->errors[n]);
        unbounded |= seen->errors[n] > ERROR_MAX;
        weights += weight;
        least_sum += weight * exp(-seen->errors[n]);
        if (weight == 0 || !isfinite(grows))
            continue;
        most += grows;
        for (uint32_t d = 0; d < dim_vo_of(batch); d++)
            o_error[d] += grows * fabs(v_scale * seen->values[n][d] - o[d]);
    }
    least_sum += fmax(0, sum - weights); /* the sink */
    unbounded |= least_sum == 0;
    for (uint32_t d = 0; d < dim_vo_of(batch); d++)
        o_error[d] = unbounded ? INFINITY : o_error[d] / least_sum;
    *lse_error = unbounded ? INFINITY : most / least_sum / (batch->lse_ln ? 1 : log(2));
}

/* One query against the keys that it sees; @index: row * heads_q + head. */
static void attend_query(const struct reference_batch *batch,
                         double q[REFERENCE_LEVELS_MAX][ATTND_HEAD_DIM_MAX],
                         const struct query *query, struct seen *seen, size_t index, double *o,
                         double *lse)
{
    const struct reference_variant *variant = &batch->variant;
    const uint32_t kv_head = query->head / (batch->heads_q / batch->heads_kv);
    const float *kv_scales = variant->kv_scales;
    const double scale = (batch->sm_scale != 0 ? batch->sm_scale : 1 / sqrt(batch->dim)) *
                         (variant->qk_scale != 0 ? variant->qk_scale : 1) *
                         (kv_scales ? (double)kv_scales[kv_head] : 1);
    const double v_scale = (variant->v_scale != 0 ? variant->v_scale : 1) *
                           (kv_scales ? (double)kv_scales[batch->heads_kv + kv_head] : 1);
    const uint32_t dim_vo = dim_vo_of(batch);
    double *o_error = batch->o_error ? batch->o_error + index * dim_vo : NULL;
    double sum;

    for (uint32_t d = 0; d < dim_vo; d++)
        o[d] = 0;
    *lse = -INFINITY;
    if (o_error) {
        memset(o_error, 0, dim_vo * sizeof(*o_error));
        batch->lse_error[index] = 0;
    }
    score_keys(batch, q, query, scale, seen);
    if (seen->count == 0) { /* the denominator is the sink's alone */
        if (variant->sinks)
            *lse = (double)variant->sinks[query->head] / (batch->lse_ln ? 1 : log(2));
        return;
    }

    const double max = weigh_keys(batch, query, seen, &sum);
    for (size_t n = 0; n < seen->count; n++)
        accumulate(seen->scores[n], seen->values[n], o, dim_vo);
    for (uint32_t d = 0; d < dim_vo; d++)
        o[d] *= v_scale / sum;
    *lse = (max + log(sum)) / (batch->lse_ln ? 1 : log(2));
    if (o_error)
        bound_errors(batch, seen, sum, v_scale, o, o_error, &batch->lse_error[index]);
}

static void attend_head(const struct reference_batch *batch, uint32_t head,
                        struct span gathered[][REFERENCE_REQUESTS_MAX], struct seen *seen,
                        double *o, double *lse)
{
    const float *value_of = bits16_table(batch->dtype);
    const uint32_t group = batch->heads_q / batch->heads_kv;
    struct query query = {.place = 0};
    double q[REFERENCE_LEVELS_MAX][ATTND_HEAD_DIM_MAX];

    for (uint32_t row = 0; row < batch->rows; row++) {
        for (uint32_t l = 0; l < batch->levels; l++) {
            uint32_t request = request_of(&batch->level[l], row);
            query.request[l] = gathered[l][request];
            query.place = place_of(&batch->level[l], request, row);
            query.last = request;
            query.index = (int32_t)row - batch->level[l].qo_indptr[request];
            query.before[l] =
                l ? query.before[l - 1] + batch->level[l - 1].kv_len[query.of_level[l - 1]] : 0;
            query.of_level[l] = request;
        }
        query.row = row;
        for (uint32_t h = head * group; h < (head + 1) * group; h++) {
            const uint16_t *bits =
                batch->q.bits + row * batch->q.stride_row + h * batch->q.stride_head;
            for (uint32_t l = 0; l < batch->levels; l++) {
                /* Keys that were stored rotated stand in the whole list, others in their level. */
                const int32_t from = batch->variant.rope_keys_stored ? 0 : query.before[l];
                for (uint32_t d = 0; d < batch->dim; d++)
                    q[l][d] = (double)value_of[bits[d]];
                reference_rotate(&batch->variant, q[l], place_in_all(batch, &query) - from);
            }
            size_t index = (size_t)row * batch->heads_q + h;
            query.head = h;
            attend_query(batch, q, &query, seen, index, o + index * dim_vo_of(batch), lse + index);
        }
    }
}

void reference_attend(const struct reference_batch *batch, double *o, double *lse)
{
    static struct span gathered[REFERENCE_LEVELS_MAX][REFERENCE_REQUESTS_MAX];
    size_t keys = 0;

    assert(batch->dim % 4 == 0 && batch->dim <= ATTND_HEAD_DIM_MAX);
    assert(batch->levels <= REFERENCE_LEVELS_MAX);
    for (uint32_t l = 0; l < batch->levels; l++) {
        assert(batch->level[l].requests <= REFERENCE_REQUESTS_MAX);
        for (uint32_t r = 0; r < batch->level[l].requests; r++)
            keys += (size_t)batch->level[l].kv_len[r];
    }
    double *words = workspace(keys * ((size_t)batch->dim + dim_vo_of(batch) + 3) + 1);
    struct seen seen = {.scores = words,
                        .errors = words + keys,
                        .values = (const double **)(void *)(words + 2 * keys)};
    _Static_assert(sizeof(*seen.values) <= sizeof(*words), "a word each");

    for (uint32_t head = 0; head < batch->heads_kv; head++) {
        gather_head(batch, head, gathered, words + 3 * keys);
        attend_head(batch, head, gathered, &seen, o, lse);
    }
}

/* ---- compare ---- */

enum number_class { FINITE, NOT_A_NUMBER, PLUS_INFINITY, MINUS_INFINITY };

static enum number_class class_of(double x)
{
    if (isnan(x))
        return NOT_A_NUMBER;
    if (isinf(x))
        return x > 0 ? PLUS_INFINITY : MINUS_INFINITY;
    return FINITE;
}

/* @tolerance 0: the first pass, classes only. Otherwise the second, numbers only; @error: what is
 * allowed beside the tolerance, or NULL. */
static int agrees(double got, double want, double tolerance, const double *error)
{
    if (tolerance == 0)
        return class_of(got) == class_of(want);
    return class_of(got) != FINITE || class_of(want) != FINITE ||
           fabs(got - want) <= tolerance + tolerance * fabs(want) + (error ? *error : 0);
}

static void note(struct reference_mismatch *mismatch, const char *tensor, uint32_t row,
                 uint32_t head, uint32_t dim, double got, double want)
{
    if (mismatch->count++ > 0)
        return;
    mismatch->tensor = tensor;
    mismatch->row = row;
    mismatch->head = head;
    mismatch->dim = dim;
    mismatch->got = got;
    mismatch->want = want;
}

static void compare_o(const struct reference_batch *batch, const double *want,
                      const struct reference_rows *o, double tolerance,
                      struct reference_mismatch *mismatch)
{
    const float *value_of = bits16_table(batch->dtype);
    const double *error = batch->o_error;

    for (uint32_t row = 0; row < batch->rows; row++)
        for (uint32_t head = 0; head < batch->heads_q; head++) {
            const uint16_t *got = o->bits + row * o->stride_row + head * o->stride_head;
            for (uint32_t d = 0; d < dim_vo_of(batch); d++, want++, error += error != NULL)
                if (!agrees((double)value_of[got[d]], *want, tolerance, error))
                    note(mismatch, "o", row, head, d, (double)value_of[got[d]], *want);
        }
}

static void compare_lse(const struct reference_batch *batch, const double *want, const float *lse,
                        int64_t stride_row, int64_t stride_head, double tolerance,
                        struct reference_mismatch *mismatch)
{
    const double *error = batch->lse_error;

    for (uint32_t row = 0; row < batch->rows; row++)
        for (uint32_t head = 0; head < batch->heads_q; head++, want++, error += error != NULL) {
            double got = (double)lse[row * stride_row + head * stride_head];
            if (!agrees(got, *want, tolerance, error))
                note(mismatch, "lse", row, head, 0, got, *want);
        }
}

int reference_compare(const struct reference_batch *batch, const double *o_want,
                      const double *lse_want, const struct reference_rows *o, const float *lse,
                      int64_t lse_stride_row, int64_t lse_stride_head,
                      struct reference_mismatch *mismatch)
{
    const double tolerance_o = batch->dtype == ATTND_BF16 ? 1e-2 : 1e-3;
    const double tolerance_lse = 1e-3;

    *mismatch = (struct reference_mismatch){0};
    for (int pass = 0; pass < 2; pass++) {
        compare_o(batch, o_want, o, pass ? tolerance_o : 0, mismatch);
        if (lse)
            compare_lse(batch, lse_want, lse, lse_stride_row, lse_stride_head,
                        pass ? tolerance_lse : 0, mismatch);
    }
    return mismatch->count == 0;
}
