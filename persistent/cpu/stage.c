/*
 * stage.c - rows of K and V that no kernel takes as they lie.
 *
 * A kernel reads rows of a multiple of 64 elements, K and V of one length. What
 * a pool has otherwise is copied, a block of keys and one head at a time, into rows of the worker's
 * that end in zeros: these add nothing to a product, and what they add to an output is not stored.
 */
#include "persistent/cpu/stage.h"

#include <string.h>

static void copy_rows(uint8_t *to, const uint8_t *const *rows, ptrdiff_t head, uint32_t count,
                      size_t row_bytes, size_t padded_bytes)
{
    for (uint32_t t = 0; t < count; t++, to += padded_bytes) {
        memcpy(to, rows[t] + head, row_bytes);
        memset(to + row_bytes, 0, padded_bytes - row_bytes);
    }
}

struct attnd_kv_block attnd_cpu_stage(struct attnd_cpu_worker *worker,
                                      const struct attnd_cpu_run *run,
                                      const struct attnd_kv_block *block)
{
    const struct attnd_keys *from = block->keys;
    struct attnd_keys *keys = &worker->staged;

    const size_t element_bytes = attnd_dtype_bytes(from->dtype);
    const size_t padded_bytes = run->dim * element_bytes;

    copy_rows(worker->staged_k, from->k, block->k_head, from->count,
              run->plan->dim_qk * element_bytes, padded_bytes);
    copy_rows(worker->staged_v, from->v, block->v_head, from->count,
              run->plan->dim_vo * element_bytes, padded_bytes);
    keys->begin = from->begin;
    keys->count = from->count;
    keys->dtype = from->dtype;
    for (uint32_t t = 0; t < ATTND_KEYS_BLOCK; t++) {
        const uint32_t row = t < from->count ? t : from->count - 1;
        keys->k[t] = worker->staged_k + row * padded_bytes;
        keys->v[t] = worker->staged_v + row * padded_bytes;
    }
    return (struct attnd_kv_block){keys, 0, 0};
}
