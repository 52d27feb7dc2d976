/*
 * attnctl_json.c - a message as JSON, by its own description.
 *
 * The schema's names are the keys, so whatever is added to Status is printed without a line here.
 * Optional fields that are absent are left out, lists always appear. Numbers are printed as
 * numbers; 64-bit ones exceed what some readers keep exactly, but none of ours get there in years.
 */
#include "service/ctl/attnctl.h"

#include <inttypes.h>
#include <math.h>

void attnctl_print_json_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20)
            fprintf(out, "\\u%04x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void print_enum(FILE *out, const ProtobufCFieldDescriptor *field, int value)
{
    const ProtobufCEnumValue *name = protobuf_c_enum_descriptor_get_value(field->descriptor, value);
    if (name)
        attnctl_print_json_string(out, name->name);
    else
        fprintf(out, "%d", value);
}

static void print_bytes(FILE *out, const ProtobufCBinaryData *data)
{
    fputc('"', out);
    for (size_t i = 0; i < data->len; i++)
        fprintf(out, "%02x", data->data[i]);
    fputc('"', out);
}

static void print_real(FILE *out, double value)
{
    if (isfinite(value))
        fprintf(out, "%.17g", value);
    else
        fputs("null", out);
}

static void print_value(FILE *out, const ProtobufCFieldDescriptor *field, const void *value)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        fprintf(out, "%" PRId32, *(const int32_t *)value);
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        fprintf(out, "%" PRId64, *(const int64_t *)value);
        break;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        fprintf(out, "%" PRIu32, *(const uint32_t *)value);
        break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        fprintf(out, "%" PRIu64, *(const uint64_t *)value);
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        print_real(out, (double)*(const float *)value);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        print_real(out, *(const double *)value);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        fputs(*(const protobuf_c_boolean *)value ? "true" : "false", out);
        break;
    case PROTOBUF_C_TYPE_ENUM:
        print_enum(out, field, *(const int *)value);
        break;
    case PROTOBUF_C_TYPE_STRING:
        attnctl_print_json_string(out, *(char *const *)value);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        print_bytes(out, value);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        attnctl_print_json(out, *(ProtobufCMessage *const *)value);
        break;
    }
}

static size_t element_bytes(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return sizeof(uint32_t);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return sizeof(uint64_t);
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_ENUM:
        return sizeof(int);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    }
    return 0;
}

static void print_list(FILE *out, const ProtobufCMessage *message,
                       const ProtobufCFieldDescriptor *field)
{
    const char *base = (const char *)message;
    size_t count = *(const size_t *)(const void *)(base + field->quantifier_offset);
    const char *list = *(char *const *)(const void *)(base + field->offset);

    fputc('[', out);
    for (size_t i = 0; i < count; i++) {
        if (i)
            fputc(',', out);
        print_value(out, field, list + i * element_bytes(field->type));
    }
    fputc(']', out);
}

/* As protobuf-c says that a field is set: a member of a oneof, a pointer, or a has_ flag. */
static int is_set(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    const char *base = (const char *)message;

    if (field->label == PROTOBUF_C_LABEL_REQUIRED || field->label == PROTOBUF_C_LABEL_REPEATED)
        return 1;
    if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
        return *(const uint32_t *)(const void *)(base + field->quantifier_offset) == field->id;
    if (field->type == PROTOBUF_C_TYPE_MESSAGE || field->type == PROTOBUF_C_TYPE_STRING)
        return *(const void *const *)(const void *)(base + field->offset) != NULL;
    return *(const protobuf_c_boolean *)(const void *)(base + field->quantifier_offset) != 0;
}

void attnctl_print_json(FILE *out, const ProtobufCMessage *message)
{
    const char *base = (const char *)message;
    const char *separator = "";

    fputc('{', out);
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        if (!is_set(message, field))
            continue;
        fprintf(out, "%s\"%s\":", separator, field->name);
        if (field->label == PROTOBUF_C_LABEL_REPEATED)
            print_list(out, message, field);
        else
            print_value(out, field, base + field->offset);
        separator = ",";
    }
    fputc('}', out);
}
