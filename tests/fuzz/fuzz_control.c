/*
 * fuzz_control.c - any datagram as a control request, in memory as small as the input says.
 *
 * What is accepted must survive being packed and decoded again: nothing of it may lie outside the
 * allocator's buffer or point nowhere.
 */
#include "ipc/fdpass.h"
#include "service/control_decode.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

/* A decode in a buffer of exactly @room bytes, so that a sanitizer sees its end. */
struct decoded {
    void *buffer;
    struct attnd_admit_alloc alloc;
    Attnd__Request *request;
    int code;
};

static void decode(struct decoded *d, const void *bytes, size_t size, size_t room)
{
    d->buffer = aligned_alloc(ATTND_ADMIT_ALIGN_BYTES, room);
    fuzz_require(d->buffer != NULL, "memory");
    attnd_admit_alloc_init(&d->alloc, d->buffer, room);
    d->request = NULL;
    d->code = attnd_control_decode(bytes, size, &d->alloc, &d->request);
    fuzz_require(d->alloc.used_bytes <= room, "the allocator stays in its buffer");
    fuzz_require(d->code == -ATTND_E_PROTOCOL || d->request != NULL, "a request comes with 0");
}

static void repeat(const Attnd__Request *request)
{
    size_t size = attnd__request__get_packed_size(request);
    uint8_t *packed = malloc(size + 1);
    struct decoded again;

    fuzz_require(packed != NULL, "memory");
    fuzz_require(attnd__request__pack(request, packed) == size, "the packed size is right");
    decode(&again, packed, size, ATTND_CONTROL_DECODE_BYTES);
    fuzz_require(again.code == 0 && again.request->id == request->id &&
                     again.request->call_case == request->call_case,
                 "a request packed again is the same request");
    free(again.buffer);
    free(packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct decoded d;

    if (!data || bytes < 2 || bytes - 2 > ATTND_DATAGRAM_BYTES_MAX)
        return 0;
    /* Small buffers are where an allocator goes wrong; every fourth input has all there is. */
    size_t room = data[0] % 4 ? 16u * (1u + (data[0] | (size_t)data[1] << 8) % 512)
                              : ATTND_CONTROL_DECODE_BYTES;
    size_t size = bytes - 2;
    uint8_t *copy = malloc(size + 1);
    fuzz_require(copy != NULL, "memory");
    memcpy(copy, data + 2, size);
    decode(&d, copy, size, room);
    if (d.code == 0)
        repeat(d.request);
    free(d.buffer);
    free(copy);
    return 0;
}
