/*
 * policy.h - what a variant does with scores, as the kernels ask for it.
 *
 * The GPU's loops have the same three questions as types: which keys a row sees, what a score
 * becomes, how a row ends. On the CPU the first is a span (struct attnd_rows), the second is this,
 * and the third is attnd_cpu_row_finish(). All numbers are in log2 units, as scores are.
 */
#ifndef ATTND_PERSISTENT_CPU_POLICY_H
#define ATTND_PERSISTENT_CPU_POLICY_H

#include <stdint.h>

struct attnd_cpu_policy {
    float soft_cap;             /* s = soft_cap * tanh(s / soft_cap); 0: none */
    const float *slope;         /* [rows] s += slope * (key - position); NULL: none */
    const int32_t *position;    /* [rows] where the row stands */
    const uint8_t *mask;        /* bits, least significant first; NULL: none */
    const uint64_t *mask_bit;   /* [rows] the bit of key 0; 1: the row sees the key */
    const float *cosine, *sine; /* [pairs][ATTND_KEYS_BLOCK] by which K is rotated; NULL: not */
    uint32_t pairs;             /* dimension d with d + pairs */
};

#endif
