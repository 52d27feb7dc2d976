/*
 * reference_variant.h - what a variant means to the judge: its own reading of the contract, key by
 * key, with nothing of visible.h and position.h.
 */
#ifndef ATTND_TESTS_SUPPORT_ORACLE_REFERENCE_VARIANT_H
#define ATTND_TESTS_SUPPORT_ORACLE_REFERENCE_VARIANT_H

#include <stdint.h>

/* All zero: nothing. */
struct reference_variant {
    uint32_t windowed;
    int32_t window_left; /* if windowed: key j is seen where j >= p - window_left */
    double soft_cap;     /* 0: none */
    uint32_t alibi;
    const float *sinks; /* [heads_q]; NULL: none */
    /* Rotary embeddings; theta 0: none. Of q always, of k unless it was stored like that. */
    double rope_theta, rope_scale, rope_low, rope_high;
    uint32_t rope_old_context, rope_dim, rope_keys_stored;
    double qk_scale, v_scale; /* 0: 1 */
    const float *kv_scales;   /* [2][heads_kv] of K and of V; NULL: 1 */
    const uint8_t *mask;      /* NULL: none */
    const int32_t *mask_indptr;
};

/** reference_sees() - may a query at position @p (which may be negative) see key @j? */
int reference_sees(const struct reference_variant *variant, int32_t p, int32_t j);

/** reference_unmasked() - the mask's bit of query @i of request @request, which has @kv_len keys,
 * for key @j. */
int reference_unmasked(const struct reference_variant *variant, uint32_t request, int32_t i,
                       int32_t kv_len, int32_t j);

/** reference_score() - the score of head @head among @heads, scaled already, for key @j at @p. */
double reference_score(const struct reference_variant *variant, double score, uint32_t head,
                       uint32_t heads, int32_t p, int32_t j);

/** reference_rotate() - a row of q or k at position @p. */
void reference_rotate(const struct reference_variant *variant, double *row, int32_t p);

/** reference_slope() - of ALiBi, as its authors' code makes the list. */
double reference_slope(uint32_t head, uint32_t heads);

#endif
