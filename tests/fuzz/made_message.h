/*
 * made_message.h - a message of the schema out of choices, instead of bytes.
 *
 * protobuf-c is a library without coverage counters, so bytes alone would seldom become a message.
 * This walks over the schema's own descriptors and writes fields, mostly of the right kind, at any
 * depth.
 */
#ifndef ATTND_TESTS_FUZZ_MADE_MESSAGE_H
#define ATTND_TESTS_FUZZ_MADE_MESSAGE_H

#include "tests/support/rigs/plan_case.h"

#include <protobuf-c/protobuf-c.h>

#define MADE_BYTES 16384u

struct made_message {
    uint8_t bytes[MADE_BYTES];
    size_t size;
};

/** made_message() - of @descriptor's type, packed, as @source chooses. */
void made_message(struct made_message *to, struct case_source *source,
                  const ProtobufCMessageDescriptor *descriptor);

/** made_or_raw() - an input of a fuzz target: half of them are bytes of a message, and half choices
 * that make one of @descriptor's type. @decode: is given a copy that ends where it says, and how
 * many bytes it may decode into: @room_bytes, or fewer, because small ones are where an allocator
 * goes wrong. */
void made_or_raw(const uint8_t *data, size_t bytes, const ProtobufCMessageDescriptor *descriptor,
                 size_t room_bytes, void (*decode)(const uint8_t *copy, size_t size, size_t room));

#endif
