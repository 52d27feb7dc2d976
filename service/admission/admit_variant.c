/*
 * admit_variant.c - the variant of a batch: each field against its range, and what it comes to.
 *
 * A variant arrives as the bytes of struct attnd_variant. Options that are off are not looked at,
 * and the view has them as if they had never been filled in. Options that are on have their
 * defaults. The tables name memory of the session; whether there is such memory is the daemon's to
 * know.
 */
#include "service/admission/admit_internal.h"

#include <math.h>
#include <string.h>

#define ROPE_THETA 10000.0f
#define SOFT_CAP_MAX 1e30f /* beyond it a cap times log2(e), or a scale over it, is no float */
#define TABLE_ALIGN_BYTES 4u

/* A finite value that is not negative; 0 is @absent. */
static int take_float(float *value, float absent, enum attnd_field field, struct attnd_fault *fault)
{
    if (!isfinite(*value) || *value < 0.0f)
        return attnd_fault_set(fault, -ATTND_E_RANGE, field, 0, attnd_fault_float(*value), 0);
    if (*value == 0.0f)
        *value = absent;
    return 0;
}

static int check_frame(const Attnd__Batch *message, struct attnd_variant *variant,
                       struct attnd_fault *fault)
{
    const size_t bytes = message->variant.len;

    if (bytes != sizeof(*variant))
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_VARIANT, 0, (int64_t)bytes,
                               sizeof(*variant));
    memcpy(variant, message->variant.data, sizeof(*variant));
    if (variant->size != sizeof(*variant))
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_VARIANT, 0, variant->size,
                               sizeof(*variant));
    if (variant->flags & ~ATTND_VARIANT_FLAGS)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_FLAGS, 0, variant->flags,
                               ATTND_VARIANT_FLAGS);
    return 0;
}

/* The three numbers of Llama 3.1, which stretches low frequencies only. */
static int check_stretch(struct attnd_variant *variant, struct attnd_fault *fault)
{
    if (variant->rope_old_context == 0) {
        variant->rope_low_freq_factor = variant->rope_high_freq_factor = 0.0f;
        return 0;
    }
    if (variant->rope_old_context > INT32_MAX)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_ROPE_OLD_CONTEXT, 0,
                               variant->rope_old_context, INT32_MAX);
    int code =
        take_float(&variant->rope_low_freq_factor, 1.0f, ATTND_F_ROPE_LOW_FREQ_FACTOR, fault);
    if (!code)
        code =
            take_float(&variant->rope_high_freq_factor, 4.0f, ATTND_F_ROPE_HIGH_FREQ_FACTOR, fault);
    if (!code && variant->rope_high_freq_factor < variant->rope_low_freq_factor)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_ROPE_HIGH_FREQ_FACTOR, 0,
                               attnd_fault_float(variant->rope_high_freq_factor),
                               attnd_fault_float(variant->rope_low_freq_factor));
    return code;
}

static int check_rope(struct attnd_variant *variant, uint32_t dim, struct attnd_fault *fault)
{
    int code = take_float(&variant->rope_theta, ROPE_THETA, ATTND_F_ROPE_THETA, fault);

    if (!code)
        code = take_float(&variant->rope_scale, 1.0f, ATTND_F_ROPE_SCALE, fault);
    if (!code)
        code = check_stretch(variant, fault);
    if (code)
        return code;
    if (variant->rope_dim > dim)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_ROPE_DIM, 0, variant->rope_dim, dim);
    if (variant->rope_dim % 2)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_ROPE_DIM, 0, variant->rope_dim,
                               variant->rope_dim - 1);
    if (variant->rope_dim == 0)
        variant->rope_dim = dim;
    return 0;
}

static int check_position(struct attnd_variant *variant, uint32_t dim, uint32_t *options,
                          struct attnd_fault *fault)
{
    if (variant->position_encoding > ATTND_POSITION_ROPE)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_POSITION_ENCODING, 0,
                               variant->position_encoding, ATTND_POSITION_ROPE);
    if (variant->position_encoding == ATTND_POSITION_ROPE) {
        const int appends = variant->flags & ATTND_VARIANT_ROPE_APPEND;
        *options |= appends ? ATTND_OPTION_ROPE_APPEND : ATTND_OPTION_ROPE;
        return check_rope(variant, dim, fault);
    }
    if (variant->flags & ATTND_VARIANT_ROPE_APPEND)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_FLAGS, 0, variant->flags,
                               variant->flags & ~ATTND_VARIANT_ROPE_APPEND);
    if (variant->position_encoding == ATTND_POSITION_ALIBI)
        *options |= ATTND_OPTION_ALIBI;
    variant->rope_theta = variant->rope_scale = 0.0f;
    variant->rope_low_freq_factor = variant->rope_high_freq_factor = 0.0f;
    variant->rope_old_context = variant->rope_dim = 0;
    return 0;
}

static int check_scales(struct attnd_variant *variant, uint32_t *options, struct attnd_fault *fault)
{
    int code = take_float(&variant->q_scale, 1.0f, ATTND_F_Q_SCALE, fault);

    if (!code)
        code = take_float(&variant->k_scale, 1.0f, ATTND_F_K_SCALE, fault);
    if (!code)
        code = take_float(&variant->v_scale, 1.0f, ATTND_F_V_SCALE, fault);
    if (variant->q_scale != 1.0f || variant->k_scale != 1.0f || variant->v_scale != 1.0f)
        *options |= ATTND_OPTION_SCALES;
    return code;
}

static int check_table(struct attnd_variant_table *table, enum attnd_field field, uint32_t option,
                       uint32_t *options, struct attnd_fault *fault)
{
    if (table->memory == 0) {
        *table = (struct attnd_variant_table){.memory = ATTND_NONE};
        return 0;
    }
    *options |= option;
    if (table->offset_bytes % TABLE_ALIGN_BYTES)
        return attnd_fault_set(fault, -ATTND_E_INVALID, field, 0, (int64_t)table->offset_bytes,
                               TABLE_ALIGN_BYTES);
    return 0;
}

/* A table without the options that it goes with is not read. */
static int check_tables(struct attnd_variant *variant, uint32_t *options, struct attnd_fault *fault)
{
    int code = 0;

#define OPTION(name, field, value)
#define TABLE(name, field, member, elements, beside)                                               \
    if ((*options & (beside)) != (beside))                                                         \
        variant->member.memory = 0;                                                                \
    if (!code)                                                                                     \
        code = check_table(&variant->member, ATTND_F_##field, ATTND_OPTION_##name, options, fault);
#include "schemas/options.def"
    return code;
}

/* A row has one place among the keys of one level. */
static int check_chunk(const struct attnd_variant *variant, uint32_t levels, uint32_t *options,
                       struct attnd_fault *fault)
{
    if (variant->chunk == 0)
        return 0;
    if (variant->chunk > INT32_MAX)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_CHUNK, 0, variant->chunk, INT32_MAX);
    if (variant->window_left >= 0 || levels > 1)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_CHUNK,
                               levels > 1 ? ATTND_F_LEVELS : ATTND_F_WINDOW_LEFT, variant->chunk,
                               0);
    *options |= ATTND_OPTION_CHUNK;
    return 0;
}

static int check_fields(struct attnd_variant *variant, uint32_t dim, uint32_t *options,
                        struct attnd_fault *fault)
{
    int code;

    if (variant->window_left >= 0)
        *options |= ATTND_OPTION_WINDOW;
    if ((code = take_float(&variant->logits_soft_cap, 0.0f, ATTND_F_LOGITS_SOFT_CAP, fault)) ||
        (code = check_position(variant, dim, options, fault)) ||
        (code = check_scales(variant, options, fault)) ||
        (code = check_table(&variant->mask, ATTND_F_MASK, ATTND_OPTION_MASK, options, fault)) ||
        (code = check_tables(variant, options, fault)))
        return code;
    if (variant->logits_soft_cap > SOFT_CAP_MAX)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_LOGITS_SOFT_CAP, 0,
                               attnd_fault_float(variant->logits_soft_cap),
                               attnd_fault_float(SOFT_CAP_MAX));
    if (variant->logits_soft_cap > 0.0f)
        *options |= ATTND_OPTION_SOFT_CAP;
    if (variant->fixed_split > INT32_MAX)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_FIXED_SPLIT, 0, variant->fixed_split,
                               INT32_MAX);
    if (variant->fixed_split)
        *options |= ATTND_OPTION_FIXED_SPLIT;
    return 0;
}

int attnd_admit_variant(const Attnd__Batch *message, const struct attnd_batch_limits *limits,
                        struct attnd_batch_view *batch, struct attnd_fault *fault)
{
    batch->options = 0;
    batch->variant = (struct attnd_variant)ATTND_VARIANT_INIT;
    if (message->has_variant) {
        int code = check_frame(message, &batch->variant, fault);
        if (code)
            return code;
    }
    int code = check_fields(&batch->variant, limits->dim_qk, &batch->options, fault);
    if (!code)
        code = check_chunk(&batch->variant, batch->levels, &batch->options, fault);
    if (!code && batch->options & ATTND_OPTION_MASK && !message->has_mask_indptr)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_MASK_INDPTR, 0, 0, 0);
    return code;
}
