/*
 * append.c - K and V rows of new tokens into their pages, K rotated if the variant says so, both
 * quantised if the pool is of another type.
 *
 * Query row i of a request is its token number kv_len - row_count + i: the lengths already count
 * what is being appended. Tokens before 0 and pages outside the pool are left alone.
 */
#include <string.h>

#include "persistent/cpu/items.h"
#include "persistent/cpu/lookup.h"
#include "persistent/cpu/rope.h"
#include "persistent/cpu/run.h"
#include "persistent/cpu/variant.h"
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

/* Rows of K or of V on their way. */
struct rows {
    const struct attnd_cpu_plane *plane;
    const uint16_t *in;       /* of the run */
    struct attnd_pitch pitch; /* there */
    uint32_t dim;
    float (*scale)(const struct attnd_cpu_run *run, uint32_t kv_head);
    int rotated;
};

/* Query row @row, which stands at @position, into token @token of @page. */
static void store_row(const struct attnd_cpu_worker *worker, const struct attnd_cpu_run *run,
                      const struct rows *rows, int64_t page, uint32_t token, uint32_t row,
                      int64_t position)
{
    const struct attnd_kernel *kernel = worker->backend->kernel;
    const uint32_t from = run->plan->dtype, to = run->pool->dtype;
    const uint16_t *in = rows->in + row * rows->pitch.row;
    uint8_t *out =
        rows->plane->base + page * rows->plane->stride_page + token * rows->plane->stride_token;
    float wide[ATTND_HEAD_DIM_MAX];

    for (uint32_t head = 0; head < run->plan->heads_kv; head++) {
        const uint16_t *head_in = in + head * rows->pitch.head;
        uint8_t *head_out = out + head * rows->plane->stride_head;
        if (from == to && !rows->rotated) {
            memcpy(head_out, head_in, rows->dim * sizeof *in);
            continue;
        }
        kernel->widen(wide, head_in, rows->dim, from, 1.0f);
        if (rows->rotated)
            attnd_cpu_rope_row(run, worker->frequency, position, wide);
        kernel->narrow(head_out, wide, rows->dim, to,
                       from == to ? 1.0f : 1.0f / rows->scale(run, head));
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
    const struct rows k = {
        .plane = &run->k,
        .in = run->append_k,
        .pitch = plan->k_pitch,
        .dim = plan->dim_qk,
        .scale = attnd_cpu_k_scale,
        .rotated = (run->options & ATTND_OPTION_ROPE_APPEND) != 0,
    };
    const struct rows v = {
        .plane = &run->v,
        .in = run->append_v,
        .pitch = plan->v_pitch,
        .dim = plan->dim_vo,
        .scale = attnd_cpu_v_scale,
    };
    if (k.rotated)
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
        store_row(worker, run, &k, page, token, row, position + attnd_cpu_keys_before(run, e));
        store_row(worker, run, &v, page, token, row, position);
    }
    return 0;
}
