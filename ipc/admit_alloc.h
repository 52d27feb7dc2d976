/*
 * admit_alloc.h - an allocator for protobuf-c that ends.
 *
 * A few hundred hostile bytes unpack to many times their size. So unpacking happens in a fixed
 * buffer that only grows towards its end; when it is used up, unpacking fails. Freeing does
 * nothing: the message goes when the buffer does.
 */
#ifndef ATTND_IPC_ADMIT_ALLOC_H
#define ATTND_IPC_ADMIT_ALLOC_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#define ATTND_ADMIT_ALIGN_BYTES 16u

struct attnd_admit_alloc {
    ProtobufCAllocator allocator; /* for protobuf-c; its allocator_data points at this struct */
    uint8_t *buffer;
    size_t size_bytes, used_bytes;
};

/**
 * attnd_admit_alloc_init() - lend @buffer to the allocator
 * @alloc:  must not move while it is in use
 * @buffer: ATTND_ADMIT_ALIGN_BYTES aligned; borrowed
 */
void attnd_admit_alloc_init(struct attnd_admit_alloc *alloc, void *buffer, size_t size_bytes);

/**
 * attnd_admit_known() - 1 if neither the message nor any message in it carries unknown fields
 * @message: unpacked, any type; depth is bounded by its type
 */
int attnd_admit_known(const ProtobufCMessage *message);

#endif
