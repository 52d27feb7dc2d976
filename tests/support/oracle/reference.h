/*
 * reference.h - attention by its definition, in fp64, to judge every other implementation.
 *
 * Shares no code with what it judges. Notation as in client/attnd.h: request r of a level owns
 * query rows qo_indptr[r]..qo_indptr[r+1] and pages kv_indices[kv_indptr[r]..kv_indptr[r+1]].
 */
#ifndef ATTND_TESTS_SUPPORT_ORACLE_REFERENCE_H
#define ATTND_TESTS_SUPPORT_ORACLE_REFERENCE_H

#include "tests/support/oracle/reference_variant.h"

#include <stdint.h>

#define REFERENCE_LEVELS_MAX 8
#define REFERENCE_REQUESTS_MAX 1024 /* a level */

/* Element [row, head, d] lies at bits[row * stride_row + head * stride_head + d]. */
struct reference_rows {
    const uint16_t *bits;
    int64_t stride_row, stride_head;
};

/* Element [page, token, head, d] is number
 * page * stride_page + token * stride_token + head * stride_head + d of those at bits. */
struct reference_plane {
    const void *bits;
    int64_t stride_page, stride_token, stride_head;
};

struct reference_level {
    uint32_t requests;
    const int32_t *qo_indptr;  /* [requests + 1] */
    const int32_t *kv_indptr;  /* [requests + 1] */
    const int32_t *kv_indices; /* page ids */
    const int32_t *kv_len;     /* [requests] tokens; the pages hold at least as many */
};

struct reference_batch {
    uint32_t dtype;    /* enum attnd_dtype */
    uint32_t kv_dtype; /* of K and V; 0: dtype */
    uint32_t rows, heads_q, heads_kv;
    uint32_t dim;       /* of q and k; a multiple of 4 */
    uint32_t dim_vo;    /* of v and o; 0: dim */
    uint32_t page_size; /* tokens */
    uint32_t causal;    /* 1: on the last level, query i sees keys j <= kv_len - qo_len + i */
    uint32_t lse_ln;    /* 1: lse in natural logarithm; 0: base 2 */
    double sm_scale;    /* 0: 1/sqrt(dim) */
    struct reference_variant variant;
    uint32_t levels;
    struct reference_level level[REFERENCE_LEVELS_MAX];
    struct reference_rows q;
    struct reference_plane k, v;
    /* [rows][heads_q][dim_vo] and [rows][heads_q], both or NULL: receive how far o and lse may be
     * from those of reference_attend() if each score is off by REFERENCE_SCORE_ERROR. */
    double *o_error, *lse_error;
};

/* What fp32 may make of a score, as a part of the lengths of its q and k multiplied, and of itself:
 * products are summed in any order, rotated, capped. It matters for scores in the hundreds, and
 * there for rows in which keys compete: with one key far ahead o is its value, whatever the rest.
 */
#define REFERENCE_SCORE_ERROR 0x1p-20

/**
 * reference_attend() - one softmax over all keys a query sees, whatever level they are in
 * @o:   receives [rows][heads_q][dim_vo]
 * @lse: receives [rows][heads_q]
 *
 * Threads: one.
 * A row that sees nothing: o = 0, lse = -inf, or its sink where its head has one. NaN and infinity
 * among visible keys act as fp64 arithmetic has it; what a query does not see is not read.
 */
void reference_attend(const struct reference_batch *batch, double *o, double *lse);

struct reference_mismatch {
    uint64_t count;     /* elements that differ, of o and lse */
    const char *tensor; /* the first of them: "o" or "lse" */
    uint32_t row, head, dim;
    double got, want;
};

/**
 * reference_compare() - hold a result against the reference
 * @o_want, @lse_want: from reference_attend()
 * @o:   what is judged, 16-bit elements of batch->dtype
 * @lse: fp32 [row * stride_row + head * stride_head], or NULL with its strides ignored
 *
 * Where NaN and infinities stand is compared before any tolerance: o and then lse, first by class,
 * then within rtol and atol (fp16 1e-3, bf16 1e-2, lse 1e-3), and what @batch has as o_error and
 * lse_error beside them.
 * Return: 1 if everything agrees; 0 with @mismatch filled.
 */
int reference_compare(const struct reference_batch *batch, const double *o_want,
                      const double *lse_want, const struct reference_rows *o, const float *lse,
                      int64_t lse_stride_row, int64_t lse_stride_head,
                      struct reference_mismatch *mismatch);

#endif
