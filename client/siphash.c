/*
 * siphash.c - SipHash-2-4, 128 bits.
 *
 * A keyed hash: without the key nobody finds two contents of one hash, and nobody learns from a
 * hash what was hashed. Words are read little-endian on every machine, so that engines agree.
 */
#include "client/siphash.h"

static uint64_t rotate(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64 - bits);
}

static void rounds(uint64_t v[4], int count)
{
    while (count-- > 0) {
        v[0] += v[1];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[0] = rotate(v[0], 32);
        v[2] += v[3];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[2] = rotate(v[2], 32);
    }
}

static uint64_t little_endian(const uint8_t *bytes)
{
    uint64_t word = 0;
    for (unsigned i = 0; i < 8; i++)
        word |= (uint64_t)bytes[i] << 8 * i;
    return word;
}

static void absorb(struct attnd_siphash *hash, uint64_t word)
{
    hash->v[3] ^= word;
    rounds(hash->v, 2);
    hash->v[0] ^= word;
}

void attnd_siphash_begin(struct attnd_siphash *hash, const uint8_t key[16])
{
    uint64_t low = little_endian(key), high = little_endian(key + 8);
    *hash = (struct attnd_siphash){.v = {low ^ 0x736f6d6570736575u, high ^ 0x646f72616e646f6du,
                                         low ^ 0x6c7967656e657261u, high ^ 0x7465646279746573u}};
    hash->v[1] ^= 0xee;
}

void attnd_siphash_feed(struct attnd_siphash *hash, const void *data, size_t bytes)
{
    const uint8_t *from = data;
    while (bytes > 0) {
        unsigned place = (unsigned)(hash->bytes % 8);
        if (place == 0 && bytes >= 8) {
            absorb(hash, little_endian(from));
            from += 8;
            bytes -= 8;
            hash->bytes += 8;
            continue;
        }
        hash->pending |= (uint64_t)*from++ << 8 * place;
        bytes--;
        if (++hash->bytes % 8 == 0) {
            absorb(hash, hash->pending);
            hash->pending = 0;
        }
    }
}

void attnd_siphash_end(struct attnd_siphash *hash, uint64_t out[2])
{
    absorb(hash, hash->pending | hash->bytes << 56);
    hash->v[2] ^= 0xee;
    rounds(hash->v, 4);
    out[0] = hash->v[0] ^ hash->v[1] ^ hash->v[2] ^ hash->v[3];
    hash->v[1] ^= 0xdd;
    rounds(hash->v, 4);
    out[1] = hash->v[0] ^ hash->v[1] ^ hash->v[2] ^ hash->v[3];
}
