/*
 * fuzz_control.c - any datagram as a control request, in memory as small as the input says.
 *
 * Half of the inputs are bytes, and half are choices (made_message.h). What is accepted must
 * survive being packed and decoded again: nothing of it may lie outside the allocator's buffer or
 * point nowhere.
 */
#include "ipc/fdpass.h"
#include "service/rpc/control_decode.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/made_message.h"

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

static void decode_twice(const uint8_t *bytes, size_t size, size_t room)
{
    struct decoded d;

    decode(&d, bytes, size, room);
    if (d.code == 0 && attnd_admit_known(&d.request->base))
        repeat(d.request);
    free(d.buffer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    made_or_raw(data, bytes, &attnd__request__descriptor, ATTND_CONTROL_DECODE_BYTES, decode_twice);
    return 0;
}
