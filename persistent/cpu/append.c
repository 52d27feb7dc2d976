/*
 * append.c - K and V rows of new tokens into their pages, K rotated if the variant says so.
 *
 * Query row i of a request is its token number kv_len - row_count + i: the lengths already count
 * what is being appended. Tokens before 0 and pages outside the pool are left alone.
 */
#include <string.h>

#include "persistent/cpu/cpu.h"
#include "persistent/plan/plan.h"

/* The last level's entry that owns @row: the last that begins at or before it, as entries without
 * rows come before the one that begins at the same row. */
static uint32_t entry_of(const struct attnd_cpu_run *run, uint32_t row)
{
    uint32_t begin = run->last_level_begin, end = run->plan->entries;
    while (end - begin > 1) {
        uint32_t middle = begin + (end - begin) / 2;
        if (run->entries[middle].row_begin <= row)
            begin = middle;
        else
            end = middle;
    }
    return begin;
}

/* Every head of one row into token @token of @page. */
static void store_row(const struct attnd_cpu_run *run, const struct attnd_cpu_plane *plane,
                      int64_t page, uint32_t token, const uint16_t *in, int64_t in_stride_head,
                      uint32_t dim)
{
    uint16_t *out = plane->base + page * plane->stride_page + token * plane->stride_token;
    for (uint32_t head = 0; head < run->plan->heads_kv; head++)
        memcpy(out + head * plane->stride_head, in + head * in_stride_head, dim * sizeof *out);
}

/* Rows of K that are rotated on their way, one head after the other. */
static void store_rotated(const struct attnd_cpu_worker *worker, const struct attnd_cpu_run *run,
                          int64_t page, uint32_t token, int64_t position, const uint16_t *in)
{
    const struct attnd_plan_head *plan = run->plan;
    const struct attnd_kernel *kernel = worker->backend->kernel;
    uint16_t *out = run->k.base + page * run->k.stride_page + token * run->k.stride_token;
    float row[ATTND_HEAD_DIM_MAX];
    for (uint32_t head = 0; head < plan->heads_kv; head++) {
        kernel->widen(row, in + head * plan->k_pitch.head, plan->dim_qk, plan->dtype, 1.0f);
        attnd_cpu_rope_row(run, worker->frequency, position, row);
        kernel->narrow(out + head * run->k.stride_head, row, plan->dim_qk, plan->dtype, 1.0f);
    }
}

int attnd_cpu_append(const struct attnd_cpu_worker *worker, struct attnd_cpu_run *run,
                     uint32_t item)
{
    const struct attnd_plan_head *plan = run->plan;
    const uint32_t page_size = run->pool->page_size;
    const uint32_t row_begin = item * ATTND_APPEND_ROWS;
    uint32_t row_end = row_begin + ATTND_APPEND_ROWS;
    row_end = row_end < plan->rows ? row_end : plan->rows;
    uint32_t e = entry_of(run, row_begin);
    const int rotated = (run->options & ATTND_OPTION_ROPE_APPEND) != 0;
    if (rotated)
        attnd_cpu_rope_begin(run, worker->frequency);
    for (uint32_t row = row_begin; row < row_end; row++) {
        if (attnd_cpu_run_cancelled(run))
            return -ATTND_E_CANCELLED;
        while (e + 1 < plan->entries && run->entries[e + 1].row_begin <= row)
            e++;
        const struct attnd_entry *entry = &run->entries[e];
        int64_t position = (int64_t)attnd_cpu_kv_len(run, e) - entry->row_count +
                           (int64_t)(row - entry->row_begin);
        if (position < 0)
            continue;
        int64_t page = attnd_cpu_page(run, entry, (uint32_t)position / page_size);
        if (page < 0) {
            attnd_cpu_run_fail(run, -ATTND_E_RANGE);
            continue;
        }
        const uint32_t token = (uint32_t)position % page_size;
        if (rotated)
            store_rotated(worker, run, page, token, position,
                          run->append_k + row * plan->k_pitch.row);
        else
            store_row(run, &run->k, page, token, run->append_k + row * plan->k_pitch.row,
                      plan->k_pitch.head, plan->dim_qk);
        store_row(run, &run->v, page, token, run->append_v + row * plan->v_pitch.row,
                  plan->v_pitch.head, plan->dim_vo);
    }
    return 0;
}
