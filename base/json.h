/* SPDX-License-Identifier: Apache-2.0 */
/* Writes JSON into a buffer, commas by itself. Text that is not UTF-8 has its bad bytes replaced by U+FFFD. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/buffer.h"

struct base_json {
    struct base_buffer *out;
    bool comma;
};

void base_json_begin(struct base_json *json, struct base_buffer *out);
/* `key` NULL inside arrays and at the top. */
void base_json_object(struct base_json *json, const char *key);
void base_json_object_end(struct base_json *json);
void base_json_array(struct base_json *json, const char *key);
void base_json_array_end(struct base_json *json);
void base_json_text(struct base_json *json, const char *key, const char *value); /* NULL value: null */
void base_json_int(struct base_json *json, const char *key, int64_t value);
void base_json_uint(struct base_json *json, const char *key, uint64_t value);
void base_json_double(struct base_json *json, const char *key, double value); /* not finite: null */
void base_json_bool(struct base_json *json, const char *key, bool value);

#endif
