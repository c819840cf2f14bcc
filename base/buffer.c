/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 256 };

void base_buffer_init(struct base_buffer *buffer)
{
    *buffer = (struct base_buffer){0};
}

void base_buffer_fini(struct base_buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (struct base_buffer){0};
}

void base_buffer_clear(struct base_buffer *buffer)
{
    buffer->size = 0;
    buffer->failed = false;
}

static bool reserve(struct base_buffer *buffer, size_t more)
{
    if (buffer->failed)
        return false;
    if (more <= buffer->capacity - buffer->size)
        return true;
    size_t capacity = buffer->capacity ? buffer->capacity : FIRST_CAPACITY;
    while (capacity - buffer->size < more && capacity <= SIZE_MAX / 2)
        capacity *= 2;
    uint8_t *bytes = capacity - buffer->size < more ? NULL : realloc(buffer->bytes, capacity);
    if (!bytes) {
        buffer->failed = true;
        return false;
    }
    buffer->bytes = bytes;
    buffer->capacity = capacity;
    return true;
}

uint8_t *base_buffer_extend(struct base_buffer *buffer, size_t size)
{
    /* One byte at least, so that NULL always means failure. */
    if (!reserve(buffer, size ? size : 1))
        return NULL;
    uint8_t *at = buffer->bytes + buffer->size;
    buffer->size += size;
    return at;
}

void base_buffer_put(struct base_buffer *buffer, const void *bytes, size_t size)
{
    uint8_t *at = base_buffer_extend(buffer, size);
    if (at && size)
        memcpy(at, bytes, size);
}

void base_buffer_put_u8(struct base_buffer *buffer, uint8_t value)
{
    base_buffer_put(buffer, &value, 1);
}

void base_buffer_put_u16(struct base_buffer *buffer, uint16_t value)
{
    uint8_t *at = base_buffer_extend(buffer, 2);
    if (at)
        base_set_u16(at, value);
}

void base_buffer_put_u32(struct base_buffer *buffer, uint32_t value)
{
    uint8_t *at = base_buffer_extend(buffer, 4);
    if (at)
        base_set_u32(at, value);
}

void base_buffer_put_u64(struct base_buffer *buffer, uint64_t value)
{
    uint8_t *at = base_buffer_extend(buffer, 8);
    if (at)
        base_set_u64(at, value);
}

void base_buffer_put_text(struct base_buffer *buffer, const char *text)
{
    size_t size = strnlen(text, UINT16_MAX);
    base_buffer_put_u16(buffer, (uint16_t)size);
    base_buffer_put(buffer, text, size);
}

void base_buffer_printf(struct base_buffer *buffer, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    int chars = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (chars < 0)
        buffer->failed = true;
    else if (reserve(buffer, (size_t)chars + 1)) {
        vsnprintf((char *)buffer->bytes + buffer->size, (size_t)chars + 1, format, again);
        buffer->size += (size_t)chars;
    }
    va_end(again);
}

const char *base_buffer_text(struct base_buffer *buffer)
{
    if (!reserve(buffer, 1))
        return NULL;
    buffer->bytes[buffer->size] = 0;
    return (const char *)buffer->bytes;
}

struct base_reader base_reader_of(const void *bytes, size_t size)
{
    return (struct base_reader){.bytes = bytes, .size = size};
}

const uint8_t *base_reader_view(struct base_reader *reader, size_t size)
{
    if (reader->failed || size > reader->size - reader->at) {
        reader->failed = true;
        return NULL;
    }
    if (!size)
        return (const uint8_t *)""; /* not NULL, even when nothing at all was given */
    const uint8_t *view = reader->bytes + reader->at;
    reader->at += size;
    return view;
}

uint8_t base_reader_u8(struct base_reader *reader)
{
    const uint8_t *at = base_reader_view(reader, 1);
    return at ? *at : 0;
}

uint16_t base_reader_u16(struct base_reader *reader)
{
    const uint8_t *at = base_reader_view(reader, 2);
    return at ? base_get_u16(at) : 0;
}

uint32_t base_reader_u32(struct base_reader *reader)
{
    const uint8_t *at = base_reader_view(reader, 4);
    return at ? base_get_u32(at) : 0;
}

uint64_t base_reader_u64(struct base_reader *reader)
{
    const uint8_t *at = base_reader_view(reader, 8);
    return at ? base_get_u64(at) : 0;
}

void base_reader_text(struct base_reader *reader, char *text, size_t capacity)
{
    size_t size = base_reader_u16(reader);
    const uint8_t *view = base_reader_view(reader, size);
    if (view && (size >= capacity || memchr(view, 0, size)))
        reader->failed = true;
    if (reader->failed)
        size = 0;
    if (size)
        memcpy(text, view, size);
    if (capacity)
        text[size] = 0;
}

bool base_reader_done(const struct base_reader *reader)
{
    return !reader->failed && reader->at == reader->size;
}
