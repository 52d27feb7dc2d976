/*
 * made_message.c - see made_message.h.
 */
#include "tests/fuzz/made_message.h"
#include "ipc/fdpass.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 3u

static void put_byte(struct made_message *to, uint32_t byte)
{
    if (to->size < sizeof(to->bytes))
        to->bytes[to->size++] = (uint8_t)byte;
}

static void put_varint(struct made_message *to, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put_byte(to, ((uint32_t)value & 0x7f) | 0x80);
    put_byte(to, (uint32_t)value);
}

static void put_fields(struct made_message *to, struct case_source *source,
                       const ProtobufCMessageDescriptor *descriptor, uint32_t depth);

/* A length and as many bytes: a message where the field is one, else choices (packed integers). */
static void put_block(struct made_message *to, struct case_source *source,
                      const ProtobufCFieldDescriptor *field, uint32_t depth)
{
    static struct made_message inner[DEPTH_MAX + 1];
    struct made_message *block = &inner[depth];

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

static void put_field(struct made_message *to, struct case_source *source,
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
static void put_fields(struct made_message *to, struct case_source *source,
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

void made_message(struct made_message *to, struct case_source *source,
                  const ProtobufCMessageDescriptor *descriptor)
{
    to->size = 0;
    put_fields(to, source, descriptor, 0);
}

void made_or_raw(const uint8_t *data, size_t bytes, const ProtobufCMessageDescriptor *descriptor,
                 size_t room_bytes, void (*decode)(const uint8_t *copy, size_t size, size_t room))
{
    static struct made_message made;
    struct case_source source = {.bytes = data, .bytes_left = bytes};

    if (!data || bytes < 4 || bytes > ATTND_DATAGRAM_BYTES_MAX)
        return;
    const uint32_t raw = case_below(&source, 2);
    const size_t room =
        case_below(&source, 4) ? room_bytes : 16u * (1u + (size_t)case_below(&source, 512));
    if (!raw)
        made_message(&made, &source, descriptor);
    const size_t size = raw ? source.bytes_left : made.size;
    uint8_t *copy = malloc(size + 1);
    fuzz_require(copy != NULL, "memory");
    memcpy(copy, raw ? source.bytes : made.bytes, size);
    decode(copy, size, room);
    free(copy);
}
