/*
 * copy.c - arrays on their way to the daemon.
 *
 * The daemon reads a batch once, on another processor, and it has read the batch that lay there
 * before. A store to such a line waits until the other processor has given it up, and the read then
 * waits for this one to hand it over. For long arrays that is most of what planning takes. Stores
 * past the caches do neither. They are not ordered with those that publish the slot (R1), so a
 * fence ends them.
 */
#include "client/submit.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

/* Shorter arrays are handed over from cache to cache about as fast. */
#define STREAM_BYTES_MIN 32768u

void attnd_copy_out(void *to, const void *from, uint64_t bytes)
{
    const uint64_t line = ATTND_CACHE_LINE, lines_bytes = bytes / line * line;
    uint8_t *out = to;
    const uint8_t *in = from;

    if (bytes < STREAM_BYTES_MIN || (uintptr_t)to % line) {
        memcpy(to, from, bytes);
        return;
    }
    for (uint64_t at = 0; at < lines_bytes; at += line)
        for (uint64_t part = at; part < at + line; part += sizeof(__m128i)) {
            __m128i words;
            memcpy(&words, in + part, sizeof(words));
            _mm_stream_si128((__m128i *)(void *)(out + part), words);
        }
    memcpy(out + lines_bytes, in + lines_bytes, bytes - lines_bytes);
    _mm_sfence();
}

#else

void attnd_copy_out(void *to, const void *from, uint64_t bytes)
{
    memcpy(to, from, bytes);
}

#endif
