/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void base_json_begin(struct base_json *json, struct base_buffer *out)
{
    *json = (struct base_json){.out = out};
}

static void put_escaped(struct base_buffer *out, unsigned char byte)
{
    static const char short_of[0x20] = {['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};
    if (byte == '"' || byte == '\\')
        base_buffer_printf(out, "\\%c", byte);
    else if (short_of[byte])
        base_buffer_printf(out, "\\%c", short_of[byte]);
    else
        base_buffer_printf(out, "\\u%04x", byte);
}

static void put_string(struct base_buffer *out, const char *text)
{
    base_buffer_put_u8(out, '"');
    for (const char *at = text; *at;) {
        size_t size = base_utf8_size(at);
        unsigned char byte = (unsigned char)*at;
        if (!size) {
            base_buffer_put(out, "\xef\xbf\xbd", 3); /* U+FFFD */
            at++;
            continue;
        }
        if (byte < 0x20 || byte == '"' || byte == '\\')
            put_escaped(out, byte);
        else
            base_buffer_put(out, at, size);
        at += size;
    }
    base_buffer_put_u8(out, '"');
}

static void before_value(struct base_json *json, const char *key)
{
    if (json->comma)
        base_buffer_put_u8(json->out, ',');
    if (key) {
        put_string(json->out, key);
        base_buffer_put_u8(json->out, ':');
    }
    json->comma = true;
}

static void open_nest(struct base_json *json, const char *key, uint8_t bracket)
{
    before_value(json, key);
    base_buffer_put_u8(json->out, bracket);
    json->comma = false;
}

static void close_nest(struct base_json *json, uint8_t bracket)
{
    base_buffer_put_u8(json->out, bracket);
    json->comma = true;
}

void base_json_object(struct base_json *json, const char *key)
{
    open_nest(json, key, '{');
}

void base_json_object_end(struct base_json *json)
{
    close_nest(json, '}');
}

void base_json_array(struct base_json *json, const char *key)
{
    open_nest(json, key, '[');
}

void base_json_array_end(struct base_json *json)
{
    close_nest(json, ']');
}

void base_json_text(struct base_json *json, const char *key, const char *value)
{
    before_value(json, key);
    if (value)
        put_string(json->out, value);
    else
        base_buffer_put(json->out, "null", 4);
}

void base_json_int(struct base_json *json, const char *key, int64_t value)
{
    before_value(json, key);
    base_buffer_printf(json->out, "%" PRId64, value);
}

void base_json_uint(struct base_json *json, const char *key, uint64_t value)
{
    before_value(json, key);
    base_buffer_printf(json->out, "%" PRIu64, value);
}

void base_json_double(struct base_json *json, const char *key, double value)
{
    before_value(json, key);
    if (!isfinite(value)) {
        base_buffer_put(json->out, "null", 4);
        return;
    }
    /* The shorter text when it reads back the same. */
    char text[32];
    snprintf(text, sizeof text, "%.15g", value);
    if (strtod(text, NULL) != value)
        snprintf(text, sizeof text, "%.17g", value);
    char *point = strchr(text, ','); /* a host program may have set a locale */
    if (point)
        *point = '.';
    base_buffer_printf(json->out, "%s", text);
}

void base_json_bool(struct base_json *json, const char *key, bool value)
{
    before_value(json, key);
    base_buffer_printf(json->out, "%s", value ? "true" : "false");
}
