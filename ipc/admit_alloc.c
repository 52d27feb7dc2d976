/*
 * admit_alloc.c - unpacking in bounded memory, and refusing what this version does not know.
 *
 * protobuf-c keeps fields it does not know in a list on the message they came in. A batch with such
 * a field asks for something this daemon would silently not do (a mask, a window), so the list must
 * be empty on the message and on every message inside it. The walk follows protobuf-c's own
 * descriptors, so a message added to the schema is covered without a line here.
 */
#include "ipc/admit_alloc.h"

static void *alloc_take(void *context, size_t size_bytes)
{
    struct attnd_admit_alloc *alloc = context;
    size_t free_bytes = alloc->size_bytes - alloc->used_bytes;

    if (size_bytes > free_bytes)
        return NULL;
    /* Round up what is taken, not what is asked: asked + 15 could overflow. */
    size_t taken_bytes = (size_bytes + ATTND_ADMIT_ALIGN_BYTES - 1) / ATTND_ADMIT_ALIGN_BYTES *
                         ATTND_ADMIT_ALIGN_BYTES;
    void *place = alloc->buffer + alloc->used_bytes;
    alloc->used_bytes += taken_bytes < free_bytes ? taken_bytes : free_bytes;
    return place;
}

static void alloc_keep(void *context, void *place)
{
    (void)context;
    (void)place;
}

void attnd_admit_alloc_init(struct attnd_admit_alloc *alloc, void *buffer, size_t size_bytes)
{
    alloc->allocator.alloc = alloc_take;
    alloc->allocator.free = alloc_keep;
    alloc->allocator.allocator_data = alloc;
    alloc->buffer = buffer;
    alloc->size_bytes = size_bytes;
    alloc->used_bytes = 0;
}

/* Whether @field is the member of its oneof that is set, and holds its only message. */
static const ProtobufCMessage *single_message(const ProtobufCMessage *message,
                                              const ProtobufCFieldDescriptor *field)
{
    const uint8_t *base = (const uint8_t *)message;

    if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
        const uint32_t *which = (const uint32_t *)(const void *)(base + field->quantifier_offset);
        if (*which != field->id)
            return NULL;
    }
    return *(ProtobufCMessage *const *)(const void *)(base + field->offset);
}

static int field_known(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    const uint8_t *base = (const uint8_t *)message;

    if (field->type != PROTOBUF_C_TYPE_MESSAGE)
        return 1;
    if (field->label != PROTOBUF_C_LABEL_REPEATED) {
        const ProtobufCMessage *inner = single_message(message, field);
        return !inner || attnd_admit_known(inner);
    }
    size_t count = *(const size_t *)(const void *)(base + field->quantifier_offset);
    ProtobufCMessage *const *list =
        *(ProtobufCMessage *const *const *)(const void *)(base + field->offset);
    for (size_t i = 0; i < count; i++)
        if (!attnd_admit_known(list[i]))
            return 0;
    return 1;
}

int attnd_admit_known(const ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *descriptor = message->descriptor;

    if (message->n_unknown_fields)
        return 0;
    for (unsigned i = 0; i < descriptor->n_fields; i++)
        if (!field_known(message, &descriptor->fields[i]))
            return 0;
    return 1;
}
