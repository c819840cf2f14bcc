/* SPDX-License-Identifier: Apache-2.0 */
/* Any control message as JSON, by its descriptor: field names as in the schema, bytes in hexadecimal, every field present. */
#ifndef PROTO_SCHEMA_JSON_H
#define PROTO_SCHEMA_JSON_H

#include "base/json.h"

#include <protobuf-c/protobuf-c.h>

/* `key` NULL inside arrays and at the top. */
void schema_json_print(const ProtobufCMessage *message, struct base_json *json, const char *key);

#endif
