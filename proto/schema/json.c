/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/schema/json.h"

#include "base/hash.h"

#include <stdlib.h>

static void print_bytes(const ProtobufCBinaryData *bytes, struct base_json *json, const char *key)
{
    char *hex = malloc(2 * bytes->len + 1);
    if (hex)
        base_hash_to_hex(bytes->data, bytes->len, hex);
    base_json_text(json, key, hex);
    free(hex);
}

static void print_value(const ProtobufCFieldDescriptor *field, const void *value, struct base_json *json,
                        const char *key)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_UINT32:
        base_json_uint(json, key, *(const uint32_t *)value);
        return;
    case PROTOBUF_C_TYPE_UINT64:
        base_json_uint(json, key, *(const uint64_t *)value);
        return;
    case PROTOBUF_C_TYPE_BOOL:
        base_json_bool(json, key, *(const protobuf_c_boolean *)value);
        return;
    case PROTOBUF_C_TYPE_DOUBLE:
        base_json_double(json, key, *(const double *)value);
        return;
    case PROTOBUF_C_TYPE_STRING:
        base_json_text(json, key, *(char *const *)value);
        return;
    case PROTOBUF_C_TYPE_BYTES:
        print_bytes(value, json, key);
        return;
    case PROTOBUF_C_TYPE_MESSAGE:
        if (*(ProtobufCMessage *const *)value)
            schema_json_print(*(ProtobufCMessage *const *)value, json, key);
        else
            base_json_text(json, key, NULL);
        return;
    default: /* the schema has no other types */
        base_json_text(json, key, NULL);
    }
}

static size_t value_size(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_UINT32:
        return sizeof(uint32_t);
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    default:
        return sizeof(uint64_t);
    }
}

static void print_field(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                        struct base_json *json)
{
    const uint8_t *base = (const uint8_t *)message;
    const void *value = base + field->offset;
    if (field->label != PROTOBUF_C_LABEL_REPEATED) {
        if (!(field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) ||
            *(const uint32_t *)(const void *)(base + field->quantifier_offset) == field->id)
            print_value(field, value, json, field->name);
        return;
    }
    size_t count = *(const size_t *)(const void *)(base + field->quantifier_offset);
    const uint8_t *values = *(uint8_t *const *)value;
    base_json_array(json, field->name);
    for (size_t i = 0; i < count; i++)
        print_value(field, values + i * value_size(field), json, NULL);
    base_json_array_end(json);
}

void schema_json_print(const ProtobufCMessage *message, struct base_json *json, const char *key)
{
    base_json_object(json, key);
    for (unsigned i = 0; i < message->descriptor->n_fields; i++)
        print_field(message, &message->descriptor->fields[i], json);
    base_json_object_end(json);
}
