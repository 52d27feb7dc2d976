/*
 * json.c - a message as JSON, by its own description.
 *
 * The schema's names are the keys, so a field that is added to Status is printed without a line
 * here. Optional fields that are absent are left out; lists always appear.
 */
#include "service/ctl/json.h"

#include "schemas/errors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

json_t *attnd_json_text(const char *text)
{
    json_t *value = json_string(text);
    char *ascii;

    if (value)
        return value;
    ascii = strdup(text);
    if (!ascii)
        return NULL;
    for (char *c = ascii; *c; c++)
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    value = json_string(ascii);
    free(ascii);
    return value;
}

json_t *attnd_json_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *attnd_json_count(uint64_t value)
{
    return value > INT64_MAX ? json_real((double)value) : json_integer((json_int_t)value);
}

int attnd_json_print(FILE *out, json_t *value, size_t flags)
{
    int failed = !value || json_dumpf(value, out, flags) < 0 || fputc('\n', out) == EOF;

    json_decref(value);
    return failed || ferror(out) ? -ATTND_E_SYSTEM : 0;
}

/* ---- messages ---- */

static json_t *enum_value(const ProtobufCFieldDescriptor *field, int value)
{
    const ProtobufCEnumValue *name = protobuf_c_enum_descriptor_get_value(field->descriptor, value);

    return name ? json_string(name->name) : json_integer(value);
}

static json_t *hexadecimal(const ProtobufCBinaryData *data)
{
    char *text = malloc(2 * data->len + 1);
    json_t *value;

    if (!text)
        return NULL;
    text[0] = 0;
    for (size_t i = 0; i < data->len; i++)
        snprintf(text + 2 * i, 3, "%02x", data->data[i]);
    value = json_string(text);
    free(text);
    return value;
}

static json_t *whole_number(ProtobufCType type, const void *value)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return json_integer(*(const int64_t *)value);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return json_integer(*(const uint32_t *)value);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return attnd_json_count(*(const uint64_t *)value);
    default:
        return json_integer(*(const int32_t *)value);
    }
}

static json_t *field_value(const ProtobufCFieldDescriptor *field, const void *value)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_FLOAT:
        return attnd_json_real((double)*(const float *)value);
    case PROTOBUF_C_TYPE_DOUBLE:
        return attnd_json_real(*(const double *)value);
    case PROTOBUF_C_TYPE_BOOL:
        return json_boolean(*(const protobuf_c_boolean *)value);
    case PROTOBUF_C_TYPE_ENUM:
        return enum_value(field, *(const int *)value);
    case PROTOBUF_C_TYPE_STRING:
        return attnd_json_text(*(char *const *)value);
    case PROTOBUF_C_TYPE_BYTES:
        return hexadecimal(value);
    case PROTOBUF_C_TYPE_MESSAGE:
        return attnd_json_message(*(ProtobufCMessage *const *)value);
    default:
        return whole_number(field->type, value);
    }
}

/* Of a list, by protobuf-c's type. */
static const size_t element_bytes[] = {
    [PROTOBUF_C_TYPE_INT32] = 4,
    [PROTOBUF_C_TYPE_SINT32] = 4,
    [PROTOBUF_C_TYPE_SFIXED32] = 4,
    [PROTOBUF_C_TYPE_UINT32] = 4,
    [PROTOBUF_C_TYPE_FIXED32] = 4,
    [PROTOBUF_C_TYPE_FLOAT] = 4,
    [PROTOBUF_C_TYPE_INT64] = 8,
    [PROTOBUF_C_TYPE_SINT64] = 8,
    [PROTOBUF_C_TYPE_SFIXED64] = 8,
    [PROTOBUF_C_TYPE_UINT64] = 8,
    [PROTOBUF_C_TYPE_FIXED64] = 8,
    [PROTOBUF_C_TYPE_DOUBLE] = 8,
    [PROTOBUF_C_TYPE_BOOL] = sizeof(protobuf_c_boolean),
    [PROTOBUF_C_TYPE_ENUM] = sizeof(int),
    [PROTOBUF_C_TYPE_STRING] = sizeof(char *),
    [PROTOBUF_C_TYPE_BYTES] = sizeof(ProtobufCBinaryData),
    [PROTOBUF_C_TYPE_MESSAGE] = sizeof(ProtobufCMessage *),
};

static json_t *list_value(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    const char *base = (const char *)message;
    size_t count = *(const size_t *)(const void *)(base + field->quantifier_offset);
    const char *list = *(char *const *)(const void *)(base + field->offset);
    json_t *array = json_array();

    for (size_t i = 0; array && i < count; i++)
        if (json_array_append_new(array,
                                  field_value(field, list + i * element_bytes[field->type]))) {
            json_decref(array);
            return NULL;
        }
    return array;
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

json_t *attnd_json_message(const ProtobufCMessage *message)
{
    const char *base = (const char *)message;
    json_t *object = json_object();

    for (unsigned i = 0; object && i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        json_t *value;

        if (!is_set(message, field))
            continue;
        value = field->label == PROTOBUF_C_LABEL_REPEATED
                    ? list_value(message, field)
                    : field_value(field, base + field->offset);
        if (json_object_set_new(object, field->name, value)) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}
