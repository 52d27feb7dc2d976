/*
 * fuzz_control.c - any datagram as a control request, in memory as small as the input says.
 *
 * protobuf-c is a library without coverage counters, so bytes alone would seldom become a request.
 * Half of the inputs are choices instead: a walk over the schema's own descriptors that writes
 * fields, mostly of the right kind, at any depth. What is accepted must survive being packed and
 * decoded again: nothing of it may lie outside the allocator's buffer or point nowhere.
 */
#include "ipc/fdpass.h"
#include "service/rpc/control_decode.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/rigs/plan_case.h"

#include <string.h>

#define MADE_BYTES 16384u
#define DEPTH_MAX 3u

struct datagram {
    uint8_t bytes[MADE_BYTES];
    size_t size;
};

static void put_byte(struct datagram *to, uint32_t byte)
{
    if (to->size < sizeof(to->bytes))
        to->bytes[to->size++] = (uint8_t)byte;
}

static void put_varint(struct datagram *to, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put_byte(to, ((uint32_t)value & 0x7f) | 0x80);
    put_byte(to, (uint32_t)value);
}

static void put_fields(struct datagram *to, struct case_source *source,
                       const ProtobufCMessageDescriptor *descriptor, uint32_t depth);

/* A length and as many bytes: a message where the field is one, else choices (packed integers). */
static void put_block(struct datagram *to, struct case_source *source,
                      const ProtobufCFieldDescriptor *field, uint32_t depth)
{
    static struct datagram inner[DEPTH_MAX + 1];
    struct datagram *block = &inner[depth];

    block->size = 0;
    if (field->type == PROTOBUF_C_TYPE_MESSAGE && depth < DEPTH_MAX)
        put_fields(block, source, field->descriptor, depth + 1);
    else
        for (uint32_t i = case_below(source, 40); i > 0; i--)
            put_byte(block, case_below(source, 256));
    put_varint(to, block->size);
    for (size_t i = 0; i < block->size; i++)
        put_byte(to, block->bytes[i]);
}

static uint32_t wire_type(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_MESSAGE:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_STRING:
        return 2;
    case PROTOBUF_C_TYPE_DOUBLE:
        return 1;
    case PROTOBUF_C_TYPE_FLOAT:
        return 5;
    default:
        return 0;
    }
}

static void put_field(struct datagram *to, struct case_source *source,
                      const ProtobufCFieldDescriptor *field, uint32_t depth)
{
    uint32_t wire = wire_type(field->type);

    if (field->flags & PROTOBUF_C_FIELD_FLAG_PACKED)
        wire = 2;
    if (case_below(source, 16) == 1)
        wire = case_below(source, 8);
    put_varint(to, (uint64_t)field->id << 3 | wire);
    if (wire == 2)
        put_block(to, source, field, depth);
    else if (wire == 0)
        put_varint(to, case_below(source, 8) ? case_below(source, 300)
                                             : (uint64_t)case_below(source, UINT32_MAX) << 20);
    else
        for (uint32_t i = wire == 1 ? 8 : 4; i > 0; i--)
            put_byte(to, case_below(source, 256));
}

/* Mostly each field once, sometimes left out or repeated; seldom one that is not in the schema. */
static void put_fields(struct datagram *to, struct case_source *source,
                       const ProtobufCMessageDescriptor *descriptor, uint32_t depth)
{
    const uint32_t call = case_below(source, descriptor->n_fields + 1);

    for (uint32_t i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        uint32_t times = case_below(source, 8) == 1 ? case_below(source, 4) : 1;

        if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
            times = i == call;
        for (; times > 0; times--)
            put_field(to, source, field, depth);
    }
    if (case_below(source, 32) == 1)
        put_byte(to, case_below(source, 256));
}

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

/* In a buffer of any size: small ones are where an allocator goes wrong. */
static void decode_twice(const uint8_t *bytes, size_t size, size_t room)
{
    struct decoded d;
    uint8_t *copy = malloc(size + 1);

    fuzz_require(copy != NULL, "memory");
    memcpy(copy, bytes, size);
    decode(&d, copy, size, room);
    if (d.code == 0 && attnd_admit_known(&d.request->base))
        repeat(d.request);
    free(d.buffer);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct datagram made;
    struct case_source source = {.bytes = data, .bytes_left = bytes};

    if (!data || bytes < 4 || bytes > ATTND_DATAGRAM_BYTES_MAX)
        return 0;
    const uint32_t raw = case_below(&source, 2);
    const size_t room = case_below(&source, 4) ? ATTND_CONTROL_DECODE_BYTES
                                               : 16u * (1u + (size_t)case_below(&source, 512));
    if (raw) {
        decode_twice(source.bytes, source.bytes_left, room);
        return 0;
    }
    made.size = 0;
    put_fields(&made, &source, &attnd__request__descriptor, 0);
    decode_twice(made.bytes, made.size, room);
    return 0;
}
