/* siphash.h - SipHash-2-4 with 128 bits of result (Aumasson and Bernstein), fed piece by piece. */
#ifndef ATTND_CLIENT_SIPHASH_H
#define ATTND_CLIENT_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

struct attnd_siphash {
    uint64_t v[4];
    uint64_t pending; /* bytes that make no word yet */
    uint64_t bytes;   /* fed so far */
};

void attnd_siphash_begin(struct attnd_siphash *hash, const uint8_t key[16]);
void attnd_siphash_feed(struct attnd_siphash *hash, const void *data, size_t bytes);
void attnd_siphash_end(struct attnd_siphash *hash, uint64_t out[2]);

#endif
