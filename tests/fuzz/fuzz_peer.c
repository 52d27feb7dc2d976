/*
 * fuzz_peer.c - any datagram as a message of another service, in memory as small as the input says.
 *
 * What is accepted must survive being packed and decoded again, and a grant must be what the code
 * behind relies on: planes for each layer, of memories that it has, and pages within the pool.
 */
#include "ipc/fdpass.h"
#include "service/peers/message.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/made_message.h"

#include <string.h>

/* In a buffer of exactly @room bytes, so that a sanitizer sees its end. */
struct decoded {
    void *buffer;
    struct attnd_admit_alloc alloc;
    Attnd__PeerMessage *message;
    int code;
};

static void decode(struct decoded *d, const void *bytes, size_t size, size_t room)
{
    d->buffer = aligned_alloc(ATTND_ADMIT_ALIGN_BYTES, room);
    fuzz_require(d->buffer != NULL, "memory");
    attnd_admit_alloc_init(&d->alloc, d->buffer, room);
    d->message = NULL;
    d->code = attnd_peer_decode(bytes, size, &d->alloc, &d->message);
    fuzz_require(d->alloc.used_bytes <= room, "the allocator stays in its buffer");
    fuzz_require(d->code == 0 || d->code == -ATTND_E_PROTOCOL, "it is understood or not");
    fuzz_require(d->code != 0 || d->message != NULL, "a message comes with 0");
}

static void check_grant(const Attnd__PeerGrant *grant)
{
    fuzz_require(grant->n_k == grant->layers && grant->n_v == grant->layers, "a plane a layer");
    for (size_t i = 0; i < grant->n_k; i++)
        fuzz_require(grant->k[i]->memory < grant->n_memory && grant->v[i]->memory < grant->n_memory,
                     "planes lie in memories that there are");
    for (size_t i = 0; i < grant->n_page; i++)
        fuzz_require(grant->page[i] < grant->pages, "pages are the pool's");
    fuzz_require(grant->n_memory <= ATTND_FDS_MAX, "a descriptor each");
}

static void repeat(const Attnd__PeerMessage *message)
{
    size_t size = attnd__peer_message__get_packed_size(message);
    uint8_t *packed = malloc(size + 1);
    struct decoded again;

    fuzz_require(packed != NULL, "memory");
    fuzz_require(attnd__peer_message__pack(message, packed) == size, "the packed size is right");
    decode(&again, packed, size, ATTND_PEER_DECODE_BYTES);
    fuzz_require(again.code == 0 && again.message->message_case == message->message_case,
                 "a message packed again is the same message");
    free(again.buffer);
    free(packed);
}

static void decode_twice(const uint8_t *bytes, size_t size, size_t room)
{
    struct decoded d;

    decode(&d, bytes, size, room);
    if (d.code == 0 && d.message->message_case == ATTND__PEER_MESSAGE__MESSAGE_GRANT)
        check_grant(d.message->grant);
    if (d.code == 0)
        repeat(d.message);
    free(d.buffer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    made_or_raw(data, bytes, &attnd__peer_message__descriptor, ATTND_PEER_DECODE_BYTES,
                decode_twice);
    return 0;
}
