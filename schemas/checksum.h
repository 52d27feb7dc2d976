/*
 * checksum.h - a command that says of itself that it is whole.
 *
 * A reader of the command ring across a bus would need two trips: the tail, and, once that has
 * moved, the slot behind it. Both can be read in one trip, but nothing orders two reads that are on
 * their way at the same time: the tail may be new and the slot, or a part of it, still old. So the
 * slot carries a sum over all its words and its number in the ring. A reader that finds the sum
 * right has the slot as it was written; one that does not reads it again, after the tail. The sum
 * is 64 bits over words that daemon and worker trust each other with: it guards against reading too
 * early, not against an attacker. Its halves are summed apart, because a warp adds up 32 bits in
 * one instruction.
 */
#ifndef ATTND_SCHEMAS_CHECKSUM_H
#define ATTND_SCHEMAS_CHECKSUM_H

#include "schemas/abi.h"

#include <string.h>

#ifdef __CUDACC__
#define ATTND_CHECKSUM_FUNCTION static __host__ __device__ __forceinline__
#else
#define ATTND_CHECKSUM_FUNCTION static inline
#endif

#define ATTND_CHECKSUM_WORDS (sizeof(struct attnd_command) / 8 - 1) /* the last is the sum */

/** attnd_checksum_seed() - of word number @place of the command that is number @index. */
ATTND_CHECKSUM_FUNCTION uint64_t attnd_checksum_seed(uint32_t place, uint32_t index)
{
    return (place + 1u) * 0x9e3779b97f4a7c15u + index * 0xd1342543de82ef95u;
}

/** attnd_checksum_word() - what a word adds. */
ATTND_CHECKSUM_FUNCTION uint64_t attnd_checksum_word(uint64_t word, uint64_t seed)
{
    uint64_t x = word + seed;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/** attnd_checksum() - of the command that is number @index, free-running, of its ring. */
static inline uint64_t attnd_checksum(const struct attnd_command *command, uint32_t index)
{
    uint64_t words[sizeof(*command) / 8];
    uint32_t low = 0, high = 0;
    memcpy(words, command, sizeof(*command));
    for (uint32_t place = 0; place < ATTND_CHECKSUM_WORDS; place++) {
        const uint64_t sum = attnd_checksum_word(words[place], attnd_checksum_seed(place, index));
        low += (uint32_t)sum;
        high += (uint32_t)(sum >> 32);
    }
    return (uint64_t)high << 32 | low;
}

#endif
