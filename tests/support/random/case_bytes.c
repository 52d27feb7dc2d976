/* case_bytes.c - a case as a client writes it into its arena, straight through protobuf-c and not
 * through libattnd, so that tests of admission do not hang on the client being right. */
#include "schemas/attnd.pb-c.h"
#include "tests/support/rigs/plan_case.h"

#include <string.h>

static uint64_t put_array(uint8_t *arena, uint64_t arena_bytes, uint64_t *end, const int32_t *words,
                          uint64_t count)
{
    uint64_t offset = (*end + 63) / 64 * 64;

    if (offset + count * sizeof(int32_t) > arena_bytes)
        *end = UINT64_MAX / 2; /* stays too far */
    else
        *end = offset + count * sizeof(int32_t);
    if (*end <= arena_bytes && count)
        memcpy(arena + offset, words, count * sizeof(int32_t));
    return offset;
}

static void set_strides(Attnd__Strides *strides, int64_t row, int64_t head)
{
    attnd__strides__init(strides);
    strides->row = row;
    strides->head = head;
}

struct case_bytes case_write(const struct plan_case *c, uint8_t *arena, uint64_t arena_bytes)
{
    const struct attnd_batch_view *batch = &c->batch;
    struct case_bytes at = {.header_offset_bytes = 64};
    Attnd__Level level[ATTND_LEVELS_MAX], *levels[ATTND_LEVELS_MAX];
    Attnd__Strides q, o, lse, k, v;
    Attnd__Batch message = ATTND__BATCH__INIT;
    uint64_t end = at.header_offset_bytes + ATTND_PAGE_BYTES;

    for (uint32_t l = 0; l < batch->levels; l++) {
        const struct attnd_level_view *from = &batch->level[l];
        uint64_t indptrs = (uint64_t)from->entries + 1;
        attnd__level__init(&level[l]);
        level[l].entries = from->entries;
        level[l].pages = from->pages;
        at.qo_indptr[l] = put_array(arena, arena_bytes, &end, from->qo_indptr, indptrs);
        at.kv_indptr[l] = put_array(arena, arena_bytes, &end, from->kv_indptr, indptrs);
        at.kv_indices[l] = put_array(arena, arena_bytes, &end, from->kv_indices, from->pages);
        at.kv_last_page_len[l] =
            put_array(arena, arena_bytes, &end, from->kv_last_page_len, from->entries);
        level[l].qo_indptr = at.qo_indptr[l];
        level[l].kv_indptr = at.kv_indptr[l];
        level[l].kv_indices = at.kv_indices[l];
        level[l].kv_last_page_len = at.kv_last_page_len[l];
        levels[l] = &level[l];
    }
    if (batch->mask_indptr) {
        message.has_mask_indptr = 1;
        message.mask_indptr = put_array(arena, arena_bytes, &end, batch->mask_indptr,
                                        (uint64_t)batch->level[batch->levels - 1].entries + 1);
    }
    message.rows = batch->rows;
    message.heads_q = batch->heads_q;
    message.dtype = batch->dtype;
    message.flags = batch->flags;
    message.has_sm_scale = 1;
    message.sm_scale = batch->sm_scale;
    message.has_reserve_pages = 1;
    message.reserve_pages = batch->reserve_pages;
    message.n_level = batch->levels;
    message.level = levels;
    set_strides(message.q = &q, batch->q_pitch.row, batch->q_pitch.head);
    set_strides(message.o = &o, batch->o_pitch.row, batch->o_pitch.head);
    set_strides(message.lse = &lse, batch->lse_pitch.row, batch->lse_pitch.head);
    set_strides(message.k = &k, batch->k_pitch.row, batch->k_pitch.head);
    set_strides(message.v = &v, batch->v_pitch.row, batch->v_pitch.head);
    message.has_variant = batch->variant.size != 0;
    message.variant.data = (uint8_t *)(uintptr_t)&batch->variant;
    message.variant.len = sizeof(batch->variant);
    if (end > arena_bytes)
        return at;
    at.header_bytes = (uint32_t)attnd__batch__pack(&message, arena + at.header_offset_bytes);
    at.end = end;
    return at;
}
