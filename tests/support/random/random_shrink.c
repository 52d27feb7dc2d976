/*
 * random_shrink.c - greedy: try every move in turn, keep what still fails, start over.
 *
 * A move changes a copy; whether the copy is legal is asked of random_batch_valid() and not known
 * here, except that rows taken from the last level must be taken from the others as well. Moves
 * that remove much come first. A new option of struct random_batch needs one line in `options`.
 */
#include "tests/support/random/random_shrink.h"

#include "schemas/abi.h"

#include <stddef.h>
#include <string.h>

/* ---- rows and requests ---- */

static void take_entry(struct random_level *level, uint32_t e)
{
    level->requests--;
    memmove(&level->entry[e], &level->entry[e + 1],
            (level->requests - e) * sizeof(level->entry[0]));
}

/* Rows begin..begin+count of every level but the last are gone. */
static void take_rows(struct random_batch *batch, int32_t begin, int32_t count)
{
    for (uint32_t l = 0; l + 1 < batch->levels; l++) {
        int32_t at = 0;
        for (uint32_t e = 0; e < batch->level[l].requests; e++) {
            struct random_entry *entry = &batch->level[l].entry[e];
            int32_t end = at + entry->qo_len;
            int32_t low = begin > at ? begin : at;
            int32_t high = begin + count < end ? begin + count : end;
            if (high > low)
                entry->qo_len -= high - low;
            at = end;
        }
    }
}

static void set_qo_len(struct random_batch *batch, uint32_t e, int32_t qo_len)
{
    struct random_level *last = &batch->level[batch->levels - 1];
    int32_t begin = qo_len;

    for (uint32_t before = 0; before < e; before++)
        begin += last->entry[before].qo_len;
    take_rows(batch, begin, last->entry[e].qo_len - qo_len);
    last->entry[e].qo_len = qo_len;
}

/* ---- moves: each returns 1 if it changed the batch ---- */

enum {
    MOVE_STEPS = 8,                                          /* drop one, from either end */
    MOVE_LEVELS = RANDOM_LEVELS_MAX,                         /* drop one */
    MOVE_REQUESTS = RANDOM_LEVELS_MAX * RANDOM_REQUESTS_MAX, /* drop one */
    MOVE_QO = RANDOM_REQUESTS_MAX * 3,                       /* to 0, to half, one less */
    MOVE_KV = RANDOM_LEVELS_MAX * RANDOM_REQUESTS_MAX * 3    /* the same */
};

static int move_steps(struct random_batch *batch, uint32_t which)
{
    if (batch->steps <= 1 || which > 1)
        return 0;
    batch->steps--;
    for (uint32_t l = 0; which == 1 && l < batch->levels; l++)
        for (uint32_t e = 0; e < batch->level[l].requests; e++) {
            int32_t *kv_len = batch->level[l].entry[e].kv_len;
            memmove(kv_len, kv_len + 1, batch->steps * sizeof(*kv_len));
        }
    return 1;
}

static int move_level(struct random_batch *batch, uint32_t l)
{
    if (batch->levels <= 1 || l >= batch->levels)
        return 0;
    batch->levels--;
    memmove(&batch->level[l], &batch->level[l + 1], (batch->levels - l) * sizeof(batch->level[0]));
    return 1;
}

static int move_request(struct random_batch *batch, uint32_t l, uint32_t e)
{
    if (l >= batch->levels || e >= batch->level[l].requests)
        return 0;
    struct random_level *level = &batch->level[l];
    if (l + 1 == batch->levels) {
        set_qo_len(batch, e, 0);
    } else if (level->entry[e].qo_len > 0) { /* its rows go to a neighbour */
        if (level->requests == 1)
            return 0;
        level->entry[e > 0 ? e - 1 : 1].qo_len += level->entry[e].qo_len;
    }
    take_entry(level, e);
    return 1;
}

static int32_t shorter(int32_t length, uint32_t how)
{
    return how == 0 ? 0 : how == 1 ? length / 2 : length - 1;
}

static int move_qo(struct random_batch *batch, uint32_t e, uint32_t how)
{
    const struct random_level *last = &batch->level[batch->levels - 1];

    if (e >= last->requests || last->entry[e].qo_len == 0)
        return 0;
    set_qo_len(batch, e, shorter(last->entry[e].qo_len, how));
    return 1;
}

static int move_kv(struct random_batch *batch, uint32_t l, uint32_t e, uint32_t how)
{
    int changed = 0;

    if (l >= batch->levels || e >= batch->level[l].requests)
        return 0;
    for (uint32_t s = 0; s < batch->steps; s++) {
        int32_t *kv_len = &batch->level[l].entry[e].kv_len[s];
        if (*kv_len > 0) {
            *kv_len = shorter(*kv_len, how);
            changed = 1;
        }
    }
    return changed;
}

/* Fields of four bytes and their simplest value. */
static const struct {
    size_t offset;
    uint32_t simple;
} options[] = {
#define OPTION(field, simple)                                                                      \
    {                                                                                              \
        offsetof(struct random_batch, field), simple                                               \
    }
    OPTION(variant.window, 0),
    OPTION(variant.soft_cap, 0),
    OPTION(variant.position_encoding, 0),
    OPTION(variant.sinks, 0),
    OPTION(variant.mask, 0),
    OPTION(variant.fixed_split, 0),
    OPTION(variant.rope_append, 0),
    OPTION(variant.rope_old_context, 0),
    OPTION(variant.rope_low, 0),
    OPTION(variant.rope_high, 0),
    OPTION(variant.rope_dim, 0),
    OPTION(variant.rope_theta, 0),
    OPTION(variant.rope_scale, 0),
    OPTION(variant.q_scale, 0),
    OPTION(variant.k_scale, 0),
    OPTION(variant.v_scale, 0),
    OPTION(variant.kv_scales, 0),
    OPTION(append, 0),
    OPTION(sharing, SHARE_NONE),
    OPTION(seen_nan, 0),
    OPTION(garbage, GARBAGE_FINITE),
    OPTION(causal, 0),
    OPTION(want_lse, 0),
    OPTION(lse_ln, 0),
    OPTION(tight, 0),
    OPTION(quiet, 0),
    OPTION(lane, 0),
    OPTION(reserve_pages, 0),
    OPTION(sm_scale, 0),
    OPTION(q_scale, 0),
    OPTION(q.heads_first, 0),
    OPTION(q.pad, 0),
    OPTION(o.heads_first, 0),
    OPTION(o.pad, 0),
    OPTION(lse.heads_first, 0),
    OPTION(lse.pad, 0),
    OPTION(kv_rows.heads_first, 0),
    OPTION(kv_rows.pad, 0),
    OPTION(shape.layers, 1),
    OPTION(shape.group, 1),
    OPTION(shape.heads_kv, 1),
    OPTION(shape.one_plane, 0),
    OPTION(shape.dim_vo, 0),
    OPTION(shape.dim, 64),
    OPTION(shape.page_size, 16),
    OPTION(shape.page_size, 1),
    OPTION(shape.service_pool, 0),
    OPTION(shape.hnd, 0),
    OPTION(shape.interleaved, 0),
    OPTION(shape.pad, 0),
    OPTION(shape.dtype, ATTND_FP16),
    OPTION(shape.kv_dtype, 0),
#undef OPTION
};
#define OPTIONS (sizeof(options) / sizeof(options[0]))

static int move_option(struct random_batch *batch, uint32_t which)
{
    uint8_t *field = (uint8_t *)batch + options[which].offset;

    if (memcmp(field, &options[which].simple, sizeof(uint32_t)) == 0)
        return 0;
    /* Page sizes are tried in both; only the smaller may replace the other. */
    if (options[which].offset == offsetof(struct random_batch, shape.page_size) &&
        batch->shape.page_size < options[which].simple)
        return 0;
    memcpy(field, &options[which].simple, sizeof(uint32_t));
    return 1;
}

/* Move number @n. Return: 1 changed, 0 it does not apply, -1 there is none of that number. */
static int move(struct random_batch *batch, uint32_t n)
{
    if (n < MOVE_STEPS)
        return move_steps(batch, n);
    n -= MOVE_STEPS;
    if (n < MOVE_LEVELS)
        return move_level(batch, n);
    n -= MOVE_LEVELS;
    if (n < MOVE_REQUESTS)
        return move_request(batch, n / RANDOM_REQUESTS_MAX, n % RANDOM_REQUESTS_MAX);
    n -= MOVE_REQUESTS;
    if (n < OPTIONS)
        return move_option(batch, n);
    n -= (uint32_t)OPTIONS;
    if (n < MOVE_QO)
        return move_qo(batch, n / 3, n % 3);
    n -= MOVE_QO;
    if (n < MOVE_KV)
        return move_kv(batch, n / 3 / RANDOM_REQUESTS_MAX, n / 3 % RANDOM_REQUESTS_MAX, n % 3);
    return -1;
}

uint32_t random_shrink(struct random_batch *batch, random_fails_fn *fails, void *context,
                       uint32_t tries_max)
{
    uint32_t kept = 0, kept_before, tries = 0;

    do {
        kept_before = kept;
        for (uint32_t n = 0;; n++) {
            struct random_batch smaller = *batch;
            int changed = move(&smaller, n);
            if (changed < 0)
                break;
            if (!changed || !random_batch_valid(&smaller))
                continue;
            if (tries++ == tries_max)
                return kept;
            if (fails(context, &smaller)) {
                *batch = smaller;
                kept++;
                n--; /* the same once more */
            }
        }
    } while (kept > kept_before);
    return kept;
}
