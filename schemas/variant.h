/*
 * variant.h - the attention variant of a batch: what its softmax does beside scaling and causality.
 *
 * One struct goes from the engine to the loops that compute. An engine fills it in and points to it
 * from struct attnd_batch. The library carries it as it is, the daemon checks each field, and the
 * worker finds it behind the head of the plan. A variant belongs to a set: an advance keeps it.
 * Query i of a request stands at position kv_len - qo_len + i, and key j at position j. The keys of
 * a row with several levels are one list, level after level: its query stands at kv_len of all its
 * levels - qo_len + i, and key j of a level behind all keys that the row has on earlier levels.
 * Causality and a mask are of the last level's keys; what comes before is all past.
 */
#ifndef ATTND_SCHEMAS_VARIANT_H
#define ATTND_SCHEMAS_VARIANT_H

#include <stdint.h>

enum attnd_position_encoding {
    ATTND_POSITION_NONE = 0,
    ATTND_POSITION_ALIBI = 1, /* s += slope[head] * (key - row); slopes as in the paper, or those of
                                 alibi_slopes */
    ATTND_POSITION_ROPE = 2   /* q and k are rotated when they are used (Llama: halves) */
};

/* A table of floats or bits in registered memory. memory 0 (in the heap: ATTND_NONE): absent. */
struct attnd_variant_table {
    uint32_t memory;
    uint32_t layer_stride; /* elements from a layer's to the next layer's; 0: all layers share it */
    uint64_t offset_bytes; /* multiple of 4 */
};

/* Scales. K or V is the pool's element times k_scale or v_scale and its head's. A pool of fp8 is
 * quantised by append: x becomes x * (1 / scale), computed in fp32, then the nearest fp8, ties to
 * even. A value beyond the largest becomes the largest, infinity too; NaN stays NaN. Rows that are
 * appended to other pools are stored as they are.
 *
 * Version 1. Of what is absent or off, the other fields are not read.
 *
 * The memory of tables is held until the plan is set again or destroyed. An option that the worker
 * lacks is refused with -ATTND_E_UNSUPPORTED: field the option, index ATTND_F_BACKEND. So is one
 * that does not go with another, whose field is then the index. A plan with a mask is not advanced
 * (the advance is refused) but set again. Keys that are stored rotated stand at one position, so
 * with ATTND_VARIANT_ROPE_APPEND no entry of a level may end inside one of a later level. And where
 * V lies in the rows of K (dim_vo of the pool), append stores both in one place: so there is no
 * ATTND_VARIANT_ROPE_APPEND, and in pools of fp8 k_scale is v_scale. In kv_scales, too, what K has
 * is to be what V has; tables are not looked into.
 */
struct attnd_variant {
    uint32_t size;              /* sizeof: the version */
    uint32_t flags;             /* ATTND_VARIANT_* */
    uint32_t position_encoding; /* enum attnd_position_encoding */
    int32_t window_left;        /* a row sees keys from its own position - this on; < 0: all */
    float logits_soft_cap;      /* s = cap * tanh(s / cap) of the scaled s; 0: none; up to 1e30 */
    float rope_theta;           /* base of the angles; 0: 10000 */
    float rope_scale;           /* positions are divided by it; 0: 1 */
    float rope_low_freq_factor; /* Llama 3.1: these three together, or rope_old_context 0 */
    float rope_high_freq_factor;
    uint32_t
        rope_old_context; /* tokens that the model was trained with first; 0: no such scaling */
    uint32_t rope_dim;    /* the first of head_dim are rotated, even; 0: all */
    float q_scale, k_scale, v_scale; /* s takes q_scale * k_scale, o takes v_scale; 0: 1 */
    uint32_t fixed_split;            /* keys of a split, rounded up to the worker's granule; a
                                        request's tiles then depend on itself alone; 0: free */
    uint32_t chunk; /* a row sees keys of its own chunk of so many positions alone (Llama 4); 0: of
                       all. Beside a window, or on several levels, it is refused */
    struct attnd_variant_table sinks; /* float [heads_q]: the denominator takes exp(sink[head]). It
                                         is that alone where a row sees no key: lse is the sink
                                         then, and o 0. A sink of -inf is none. */
    struct attnd_variant_table mask;  /* bits: bit i * kv_len + j of a request, least significant
                                         first, is 1 where its query i may see key j;
                                         attnd_batch.mask_indptr says where a request's begin;
                                         layer_stride 0. Causality and window hold beside it. */
    struct attnd_variant_table kv_scales;    /* float [2][heads_kv]: of each head of K, then of V;
                                                beside k_scale and v_scale, which they multiply */
    struct attnd_variant_table alibi_slopes; /* float [heads_q], with ATTND_POSITION_ALIBI: a rank
                                                of tensor parallelism has its part of the
                                                model's; absent: as in the paper for heads_q */
};

#define ATTND_VARIANT_BYTES 128u

/* A variant that changes nothing, to begin with:
 * struct attnd_variant variant = ATTND_VARIANT_INIT; variant.window_left = 4095; */
#define ATTND_VARIANT_INIT                                                                         \
    {                                                                                              \
        .size = ATTND_VARIANT_BYTES, .window_left = -1                                             \
    }

/* append stores rotated keys, so that they need no rotation when they are used; q still is rotated
 * when it is used. With ATTND_POSITION_ROPE only. */
#define ATTND_VARIANT_ROPE_APPEND 0x1u
#define ATTND_VARIANT_FLAGS 0x1u

#endif
