/* batch_check.c - the contract of schemas/batch.h, one plain condition after the other. */
#include "tests/support/oracle/batch_check.h"

#include <math.h>
#include <stddef.h>

static const char *check_indptr(const int32_t *indptr, uint32_t entries, uint32_t total)
{
    if (indptr[0] != 0)
        return "indptr does not start at 0";
    for (uint32_t i = 0; i < entries; i++)
        if (indptr[i + 1] < indptr[i])
            return "indptr falls";
    return indptr[entries] >= 0 && (uint32_t)indptr[entries] == total ? NULL : "indptr ends wrong";
}

static const char *check_level(const struct attnd_level_view *level, uint32_t rows,
                               const struct attnd_batch_limits *limits)
{
    const char *wrong = check_indptr(level->qo_indptr, level->entries, rows);

    if (!wrong)
        wrong = check_indptr(level->kv_indptr, level->entries, level->pages);
    for (uint32_t r = 0; !wrong && r < level->entries; r++) {
        int64_t pages = level->kv_indptr[r + 1] - level->kv_indptr[r];
        if (pages && (level->kv_last_page_len[r] < 1 ||
                      level->kv_last_page_len[r] > (int64_t)limits->page_size))
            wrong = "last_page_len";
        else if (pages && (pages - 1) * limits->page_size + level->kv_last_page_len[r] > INT32_MAX)
            wrong = "kv_len does not fit";
    }
    for (uint32_t p = 0; !wrong && p < level->pages; p++)
        if (level->kv_indices[p] < 0 || (uint32_t)level->kv_indices[p] >= limits->pool_pages)
            wrong = "page id";
    return wrong;
}

/* In long double: 64 bits of mantissa and no overflow, and not the code under test. */
static int reach_fits(uint64_t rows, uint64_t heads, uint64_t dim, int64_t row, int64_t head,
                      uint32_t element_bytes)
{
    if (row < 0 || head < 0)
        return 0;
    if (!rows || !heads)
        return 1;
    long double last = (long double)(rows - 1) * (long double)row +
                       (long double)(heads - 1) * (long double)head + (long double)dim;
    return last * element_bytes <= 0x1p63L;
}

static int disjoint(uint64_t rows, uint64_t heads, uint64_t dim, int64_t row, int64_t head)
{
    /* Each stride must step over everything of the smaller one. */
    uint64_t inner = (uint64_t)(row < head ? row : head);
    uint64_t outer = (uint64_t)(row < head ? head : row);
    uint64_t inner_count = row < head ? rows : heads, outer_count = row < head ? heads : rows;

    if (inner_count <= 1 || outer_count <= 1) {
        uint64_t step = rows > 1 ? (uint64_t)row : (uint64_t)head;
        return (rows <= 1 && heads <= 1) || rows == 0 || heads == 0 || step >= dim;
    }
    return inner >= dim && outer >= (inner_count - 1) * inner + dim;
}

static const char *check_strides(const struct attnd_batch_view *b,
                                 const struct attnd_batch_limits *limits)
{
    const uint64_t rows = b->rows, q = b->heads_q, kv = limits->heads_kv;

    if (!reach_fits(rows, q, limits->dim_qk, b->q_pitch.row, b->q_pitch.head, 2) ||
        !reach_fits(rows, q, limits->dim_vo, b->o_pitch.row, b->o_pitch.head, 2) ||
        !reach_fits(rows, q, 1, b->lse_pitch.row, b->lse_pitch.head, 4) ||
        !reach_fits(rows, kv, limits->dim_qk, b->k_pitch.row, b->k_pitch.head, 2) ||
        !reach_fits(rows, kv, limits->dim_vo, b->v_pitch.row, b->v_pitch.head, 2))
        return "a stride reaches too far";
    if (!disjoint(rows, q, limits->dim_vo, b->o_pitch.row, b->o_pitch.head) ||
        !disjoint(rows, q, 1, b->lse_pitch.row, b->lse_pitch.head))
        return "an output overlaps itself";
    return NULL;
}

static const char *check_head(const struct attnd_batch_view *batch,
                              const struct attnd_batch_limits *limits)
{
    if (batch->levels < 1 || batch->levels > limits->levels || batch->rows > limits->rows)
        return "levels or rows";
    if (!batch->heads_q || batch->heads_q % limits->heads_kv ||
        batch->heads_q / limits->heads_kv > ATTND_GROUP_MAX || batch->heads_q > ATTND_HEADS_MAX)
        return "heads_q";
    const int narrow = limits->pool_dtype == ATTND_FP8_E4M3 || limits->pool_dtype == ATTND_FP8_E5M2;
    if (narrow ? batch->dtype != ATTND_FP16 && batch->dtype != ATTND_BF16
               : batch->dtype != limits->pool_dtype)
        return "dtype";
    if (batch->flags & ~ATTND_BATCH_FLAGS)
        return "flags";
    if (!isfinite(batch->sm_scale) || batch->sm_scale <= 0)
        return "sm_scale";
    return NULL;
}

const char *batch_check(const struct attnd_batch_view *batch,
                        const struct attnd_batch_limits *limits)
{
    uint64_t entries = 0, pages = 0;
    const char *bad_head = check_head(batch, limits);

    if (bad_head)
        return bad_head;
    for (uint32_t l = 0; l < batch->levels; l++) {
        const char *wrong = check_level(&batch->level[l], batch->rows, limits);
        if (wrong)
            return wrong;
        entries += batch->level[l].entries;
        pages += batch->level[l].pages;
    }
    if (entries != batch->entries || entries > limits->requests || pages != batch->pages ||
        pages + (uint64_t)batch->reserve_pages * batch->level[batch->levels - 1].entries >
            limits->pages)
        return "entries or pages";
    return check_strides(batch, limits);
}

const char *advance_check(const struct attnd_advance_view *advance,
                          const struct attnd_batch_limits *limits)
{
    volatile int32_t seen = 0;

    if (advance->entries > limits->requests || advance->pages > limits->pages)
        return "entries or pages";
    for (uint32_t i = 0; i < advance->entries; i++)
        seen = advance->kv_len[i];
    for (uint32_t i = 0; i < advance->pages; i++)
        seen = advance->page_indices[i];
    (void)seen;
    if (!advance->pages)
        return advance->page_indptr ? "page_indptr without pages" : NULL;
    return check_indptr(advance->page_indptr, advance->entries, advance->pages);
}
