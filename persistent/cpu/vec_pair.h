/*
 * vec_pair.h - pairs of vectors where elements of bf16 are unpacked in their order. Included by a
 * vec_*.h that has vf_load_bf16().
 */
#ifndef ATTND_PERSISTENT_CPU_VEC_PAIR_H
#define ATTND_PERSISTENT_CPU_VEC_PAIR_H

/* 2 * VF_LANES elements, in an order that is the header's own. */
static inline void vf_load_pair_bf16(vf out[2], const uint16_t *in)
{
    out[0] = vf_load_bf16(in);
    out[1] = vf_load_bf16(in + VF_LANES);
}

/* As many elements one after the other, into that order. */
static inline void vf_to_pair(vf x[2])
{
    (void)x;
}

/* And back. */
static inline void vf_from_pair(vf x[2])
{
    (void)x;
}

#endif
