/*
 * kernel.h - the arithmetic of attention, once per instruction set.
 *
 * The tile interpreter (tile.c) decides what meets what: it resolves pages to row pointers, cuts KV
 * into blocks and says which keys each row sees. A kernel only computes. kernel_impl.h is the
 * one source of all of them; kernel_avx512.c, kernel_avx2.c and kernel_portable.c compile it over
 * their vector header.
 */
#ifndef ATTND_PERSISTENT_CPU_KERNEL_H
#define ATTND_PERSISTENT_CPU_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "persistent/cpu/policy.h"
#include "schemas/abi.h"

#define ATTND_KEYS_BLOCK 64u /* keys a kernel call takes at most; the backend's kv_granule */
#define ATTND_DECODE_ROWS 16u
/* K and V of a decode block take 16 KiB: half of a first-level cache, the other half being filled
 * with what comes next. */
#define ATTND_DECODE_ELEMENTS 4096u
#define ATTND_ROWS_MAX 192u /* packed rows that a worker's buffers hold */

/* Packed query rows of one KV head and their running softmax: p = 2^(s - m), l = sum p,
 * o = sum p v, unnormalised. Empty: m = -inf, l = 0, o = 0; m = -inf with l > 0 has seen keys at
 * -inf only. Row i is query token i / group, head i % group of the KV head. q already carries
 * sm_scale * log2(e), so that s is in log2 units. q holds whole micro-tiles: rows from count up to
 * there exist, and it does not matter what is in them. */
struct attnd_rows {
    uint32_t count, dim;
    float *q;                              /* [count][dim] */
    float *o;                              /* [count][dim] */
    float *m, *l;                          /* [count] */
    const uint32_t *begin, *end;           /* [count] the row sees key positions [begin, end) */
    const struct attnd_cpu_policy *policy; /* NULL: scores are what the products are */
};

/* Consecutive keys of one entry: key t stands at position begin + t. The pointers name KV head 0,
 * in bytes because elements are of 8 or of 16 bits; those from count on repeat the last key's. */
struct attnd_keys {
    uint32_t begin, count; /* 1 <= count <= ATTND_KEYS_BLOCK */
    uint32_t dtype;        /* enum attnd_dtype */
    const uint8_t *k[ATTND_KEYS_BLOCK], *v[ATTND_KEYS_BLOCK];
};

/* The input of one kernel call: keys, and the way (bytes) from KV head 0 to the head meant. */
struct attnd_kv_block {
    const struct attnd_keys *keys;
    ptrdiff_t k_head, v_head;
};

/* Memory of K, or of V, that decode asks for while it computes: of each key a run of bytes from the
 * way @head on. */
struct attnd_ahead {
    const uint8_t *const *key; /* [count] as attnd_keys has them */
    uint32_t count;            /* at least 1 */
    ptrdiff_t head;
    size_t at; /* bytes of the first run that are behind */
    size_t run_bytes;
};

/* Where prefill keeps a block in the form its inner loop wants. */
struct attnd_panel {
    float *k; /* [dim][ATTND_KEYS_BLOCK], transposed */
    float *v; /* [ATTND_KEYS_BLOCK][dim] */
};

/* All functions are pure except for their outputs; any thread. dim is a multiple of 64. */
struct attnd_kernel {
    const char *name;

    /* out[i] = scale * in[i] */
    void (*widen)(float *out, const void *in, uint32_t count, uint32_t dtype, float scale);

    /* out[i] = scale * in[i], rounded to nearest even; of fp8: to the largest if it is beyond */
    void (*narrow)(void *out, const float *in, uint32_t count, uint32_t dtype, float scale);

    /* sum[i] += weight * part[i] */
    void (*blend)(float *sum, const float *part, uint32_t count, float weight);

    /* Brings q of rows into the order of elements in which decode reads keys of @dtype. */
    void (*decode_begin)(const struct attnd_rows *rows, uint32_t dtype);

    /* Lets at most ATTND_DECODE_ROWS rows see a block; reads K and V once, as they lie, and asks
     * for as much of @ahead meanwhile: of K, and of V. Between begin and end. */
    void (*decode)(const struct attnd_rows *rows, const struct attnd_kv_block *block,
                   const struct attnd_ahead ahead[2]);

    /* Brings o of rows from that order into its own. */
    void (*decode_end)(const struct attnd_rows *rows, uint32_t dtype);

    /* Lets any number of rows see a block; unpacks K and V first, and fetches @next into the cache
     * meanwhile. Micro-tiles of rows that see nothing of it are skipped. */
    void (*prefill)(const struct attnd_rows *rows, const struct attnd_kv_block *block,
                    const struct attnd_kv_block *next, const struct attnd_panel *panel);
};

/**
 * attnd_kernel_find() - the kernels for an instruction set
 * @isa: "avx512", "avx2", "portable"; NULL: the best this processor has
 *
 * Return: static storage; NULL if the name is unknown or the processor lacks it.
 */
const struct attnd_kernel *attnd_kernel_find(const char *isa);

extern const struct attnd_kernel attnd_kernel_portable;
extern const struct attnd_kernel attnd_kernel_avx2;   /* x86-64 */
extern const struct attnd_kernel attnd_kernel_avx512; /* x86-64 */

#endif
