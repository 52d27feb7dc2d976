/* random_batch.c - what follows from a batch's description: sizes, whether it is legal, its text.
 */
#include "tests/support/random/random_batch.h"

#include "schemas/abi.h"

#include <inttypes.h>

uint32_t random_page_elements(const struct random_shape *shape)
{
    uint32_t elements = shape->heads_kv * shape->page_size * (shape->dim + shape->pad) + shape->pad;
    return (elements + 7) & ~7u;
}

uint32_t random_shape_pages(const struct random_shape *shape)
{
    uint32_t page_bytes = random_page_elements(shape) * 2 * 2 * shape->layers;
    uint32_t pages = RANDOM_POOL_BYTES / page_bytes;
    return pages < 16384 ? pages : 16384;
}

uint32_t random_batch_rows(const struct random_batch *batch)
{
    const struct random_level *last = &batch->level[batch->levels - 1];
    uint32_t rows = 0;

    for (uint32_t e = 0; e < last->requests; e++)
        rows += (uint32_t)last->entry[e].qo_len;
    return rows;
}

int32_t random_batch_pages(const struct random_batch *batch, uint32_t l, uint32_t e, uint32_t step)
{
    const struct random_entry *entry = &batch->level[l].entry[e];
    const int32_t page_size = (int32_t)batch->shape.page_size;
    int32_t kv_max = 0;

    for (uint32_t s = 0; s <= step; s++)
        kv_max = entry->kv_len[s] > kv_max ? entry->kv_len[s] : kv_max;
    return (kv_max + page_size - 1) / page_size;
}

int32_t random_batch_kv_max(const struct random_batch *batch)
{
    int32_t kv_max = 0;

    for (uint32_t l = 0; l < batch->levels; l++)
        for (uint32_t e = 0; e < batch->level[l].requests; e++)
            for (uint32_t s = 0; s < batch->steps; s++)
                if (batch->level[l].entry[e].kv_len[s] > kv_max)
                    kv_max = batch->level[l].entry[e].kv_len[s];
    return kv_max;
}

double random_batch_work(const struct random_batch *batch)
{
    double work = 0;

    for (uint32_t l = 0; l < batch->levels; l++)
        for (uint32_t e = 0; e < batch->level[l].requests; e++)
            for (uint32_t s = 0; s < batch->steps; s++)
                work += (double)batch->level[l].entry[e].kv_len[s] *
                        (batch->level[l].entry[e].qo_len * (double)batch->shape.group + 1);
    return work * 2 * batch->shape.heads_kv * batch->shape.dim * batch->shape.layers;
}

/* ---- legal ---- */

static int shape_valid(const struct random_shape *shape)
{
    const uint32_t odd = shape->dim_vo != 0 && shape->dim_vo != shape->dim;
    const uint32_t dims = odd ? (shape->dim == 192 && shape->dim_vo == 128) ||
                                    (shape->dim == 576 && shape->dim_vo == 512)
                              : shape->dim >= 16 && shape->dim <= 256 && shape->dim % 16 == 0;

    return dims && shape->heads_kv >= 1 && shape->group >= 1 && shape->page_size >= 1 &&
           shape->layers >= 1 && (shape->dtype == ATTND_FP16 || shape->dtype == ATTND_BF16) &&
           (shape->kv_dtype == 0 || attnd_dtype_is_fp8(shape->kv_dtype)) &&
           !(shape->service_pool &&
             (shape->hnd || shape->interleaved || shape->pad || shape->one_plane)) &&
           !(shape->one_plane && (!odd || shape->interleaved));
}

/* Lengths of one entry: not negative, within its pages, and new rows inside the request. */
static int entry_valid(const struct random_batch *batch, uint32_t l, uint32_t e)
{
    const struct random_entry *entry = &batch->level[l].entry[e];
    const int last = l + 1 == batch->levels;
    int32_t planned =
        random_batch_pages(batch, l, e, 0) + (last ? (int32_t)batch->reserve_pages : 0);

    for (uint32_t s = 0; s < batch->steps; s++)
        if (entry->kv_len[s] < 0 || (last && batch->append && entry->kv_len[s] < entry->qo_len))
            return 0;
    return entry->qo_len >= 0 && random_batch_pages(batch, l, e, batch->steps - 1) <= planned;
}

/* Pads are at most 40 elements. */
double random_batch_rows_bytes(const struct random_batch *batch)
{
    const struct random_shape *shape = &batch->shape;
    const double heads_q = shape->heads_kv * shape->group;
    double row = (2.0 * (heads_q + 1) + 2.0 * (shape->heads_kv + 1)) * (shape->dim + 40) * 2 +
                 (heads_q + 1) * 41 * 4;

    return (random_batch_rows(batch) + 2) * row * batch->steps * shape->layers;
}

/* An entry of the level ends in front of row @row. */
static int ends_at(const struct random_level *level, int32_t row)
{
    int32_t end = 0;

    for (uint32_t e = 0; e < level->requests && end < row; e++)
        end += level->entry[e].qo_len;
    return end == row;
}

int random_batch_nested(const struct random_batch *batch)
{
    for (uint32_t l = 0; l + 1 < batch->levels; l++) {
        int32_t end = 0;
        for (uint32_t e = 0; e < batch->level[l].requests; e++) {
            end += batch->level[l].entry[e].qo_len;
            if (!ends_at(&batch->level[l + 1], end))
                return 0;
        }
    }
    return 1;
}

static float low_of(const struct random_variant *variant)
{
    return variant->rope_low != 0 ? variant->rope_low : 1;
}

static float high_of(const struct random_variant *variant)
{
    return variant->rope_high != 0 ? variant->rope_high : 4;
}

/* Keys that are stored rotated have one place, whichever rows see them. */
static int variant_valid(const struct random_batch *batch)
{
    const struct random_variant *variant = &batch->variant;

    if (low_of(variant) >= high_of(variant))
        return 0;
    if (variant->rope_dim % 2 || variant->rope_dim > batch->shape.dim ||
        (variant->rope_append && variant->position_encoding != ATTND_POSITION_ROPE))
        return 0;
    /* What is appended to V lies in what was appended to K. */
    if (batch->shape.one_plane &&
        (variant->rope_append || (batch->shape.kv_dtype && variant->k_scale != variant->v_scale)))
        return 0;
    /* What is rotated and then rounded to fp8 is judged by the last that was stored. */
    if (variant->rope_append && batch->shape.kv_dtype && batch->steps > 1)
        return 0;
    if (variant->mask && batch->steps > 1)
        return 0;
    return !variant->rope_append || random_batch_nested(batch);
}

int random_batch_valid(const struct random_batch *batch)
{
    const uint32_t rows = random_batch_rows(batch);
    uint64_t pages = 0;

    if (!variant_valid(batch) || !shape_valid(&batch->shape) || batch->levels < 1 ||
        batch->levels > RANDOM_LEVELS_MAX || batch->steps < 1 || batch->steps > RANDOM_STEPS_MAX ||
        (batch->append && batch->sharing == SHARE_ANY) ||
        random_batch_rows_bytes(batch) > RANDOM_ROWS_BYTES)
        return 0;
    for (uint32_t l = 0; l < batch->levels; l++) {
        uint32_t level_rows = 0;
        if (batch->level[l].requests > RANDOM_REQUESTS_MAX)
            return 0;
        for (uint32_t e = 0; e < batch->level[l].requests; e++) {
            if (!entry_valid(batch, l, e))
                return 0;
            level_rows += (uint32_t)batch->level[l].entry[e].qo_len;
            pages += (uint64_t)random_batch_pages(batch, l, e, batch->steps - 1);
        }
        if (level_rows != rows)
            return 0;
    }
    return pages <= random_shape_pages(&batch->shape);
}

/* ---- text ---- */

static void print_shape(FILE *file, const struct random_shape *shape)
{
    fprintf(file,
            "  pool: %s%s, head_dim %u/%u, %u KV heads x group %u, page_size %u, %u layers, %s%s",
            shape->dtype == ATTND_BF16 ? "bf16" : "fp16",
            shape->kv_dtype == 0                ? ""
            : shape->kv_dtype == ATTND_FP8_E4M3 ? ", K and V e4m3"
                                                : ", K and V e5m2",
            shape->dim, random_shape_vo(shape), shape->heads_kv, shape->group, shape->page_size,
            shape->layers, shape->hnd ? "HND" : "NHD",
            shape->interleaved ? ", K and V interleaved"
            : shape->one_plane ? ", V in front of K"
                               : "");
    if (shape->pad)
        fprintf(file, ", pad %u", shape->pad);
    fprintf(file, "%s\n", shape->service_pool ? ", of the service" : "");
}

static void print_rows(FILE *file, const char *name, const struct random_rows *rows)
{
    if (rows->heads_first || rows->pad)
        fprintf(file, "  %s: %s, pad %u\n", name,
                rows->heads_first ? "[heads, rows, dim]" : "[rows, heads, dim]", rows->pad);
}

static void print_variant(FILE *file, const struct random_variant *variant)
{
    if (variant->window)
        fprintf(file, "  window_left %u\n", variant->window - 1);
    if (variant->soft_cap != 0)
        fprintf(file, "  logits_soft_cap %g\n", (double)variant->soft_cap);
    if (variant->position_encoding)
        fprintf(file, "  position_encoding %u\n", variant->position_encoding);
    if (variant->position_encoding == ATTND_POSITION_ROPE)
        fprintf(file, "  rope theta %g, scale %g, old_context %u, low %g, high %g, dim %u%s\n",
                (double)variant->rope_theta, (double)variant->rope_scale, variant->rope_old_context,
                (double)variant->rope_low, (double)variant->rope_high, variant->rope_dim,
                variant->rope_append ? ", at append" : "");
    if (variant->q_scale != 0 || variant->k_scale != 0 || variant->v_scale != 0)
        fprintf(file, "  scales q %g, k %g, v %g\n", (double)variant->q_scale,
                (double)variant->k_scale, (double)variant->v_scale);
    if (variant->kv_scales)
        fprintf(file, "  scales of heads, %s\n",
                variant->kv_scales == 1 ? "one table for all layers" : "one a layer");
    if (variant->fixed_split)
        fprintf(file, "  fixed_split %u\n", variant->fixed_split);
    if (variant->mask)
        fprintf(file, "  mask of kind %u\n", variant->mask);
    if (variant->sinks)
        fprintf(file, "  sinks, %s\n", variant->sinks == 1 ? "one for all layers" : "one a layer");
}

static void print_levels(FILE *file, const struct random_batch *batch)
{
    for (uint32_t l = 0; l < batch->levels; l++) {
        fprintf(file, "  level %u:", l);
        for (uint32_t e = 0; e < batch->level[l].requests; e++) {
            const struct random_entry *entry = &batch->level[l].entry[e];
            fprintf(file, " {qo %d, kv", entry->qo_len);
            for (uint32_t s = 0; s < batch->steps; s++)
                fprintf(file, "%s%d", s ? " > " : " ", entry->kv_len[s]);
            fputc('}', file);
        }
        fputc('\n', file);
    }
}

void random_batch_print(FILE *file, const struct random_batch *batch)
{
    static const char *const sharing[] = {"", ", leading pages shared", ", pages shared anywhere"};
    static const char *const garbage[] = {"finite", "NaN", "infinite", "large"};

    fprintf(file, "batch: data seed %" PRIu64 ", %u steps, lane %u%s%s%s%s%s%s\n", batch->seed,
            batch->steps, batch->lane, batch->causal ? ", causal" : "",
            batch->append ? ", append" : "", sharing[batch->sharing],
            batch->tight ? ", tight plan" : "", batch->seen_nan ? ", a visible NaN" : "",
            batch->quiet ? ", quiet" : "");
    print_shape(file, &batch->shape);
    print_levels(file, batch);
    fprintf(file, "  garbage %s, lse %s, sm_scale %g, q_scale %g, reserve_pages %u\n",
            garbage[batch->garbage],
            !batch->want_lse ? "not wanted"
            : batch->lse_ln  ? "ln"
                             : "log2",
            (double)batch->sm_scale, (double)batch->q_scale, batch->reserve_pages);
    print_variant(file, &batch->variant);
    print_rows(file, "q", &batch->q);
    print_rows(file, "o", &batch->o);
    print_rows(file, "lse", &batch->lse);
    print_rows(file, "k, v rows", &batch->kv_rows);
}
