/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growable bytes, little-endian puts and gets, and a bounded reader for outside bytes. Not thread-safe.
 */
#ifndef BASE_BUFFER_H
#define BASE_BUFFER_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct base_buffer {
    uint8_t *bytes; /* owned */
    size_t size, capacity;
    bool failed; /* an allocation failed: puts after that do nothing; check once at the end */
};

void base_buffer_init(struct base_buffer *buffer);
void base_buffer_fini(struct base_buffer *buffer);
void base_buffer_clear(struct base_buffer *buffer); /* keeps the memory */

/* Room for `size` more bytes at the end, counted as used; NULL when memory is out. */
uint8_t *base_buffer_extend(struct base_buffer *buffer, size_t size);
void base_buffer_put(struct base_buffer *buffer, const void *bytes, size_t size);
void base_buffer_put_u8(struct base_buffer *buffer, uint8_t value);
void base_buffer_put_u16(struct base_buffer *buffer, uint16_t value);
void base_buffer_put_u32(struct base_buffer *buffer, uint32_t value);
void base_buffer_put_u64(struct base_buffer *buffer, uint64_t value);
void base_buffer_put_text(struct base_buffer *buffer, const char *text); /* u16 length, bytes; cut at 65535 */
/* Appends formatted text without its terminator. */
void base_buffer_printf(struct base_buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The bytes as a terminated string (the terminator is not counted); NULL when memory is out. */
const char *base_buffer_text(struct base_buffer *buffer);

/* Reads outside bytes: a read past the end sets `failed` and returns zeros. */
struct base_reader {
    const uint8_t *bytes;
    size_t size, at;
    bool failed;
};

struct base_reader base_reader_of(const void *bytes, size_t size);
uint8_t base_reader_u8(struct base_reader *reader);
uint16_t base_reader_u16(struct base_reader *reader);
uint32_t base_reader_u32(struct base_reader *reader);
uint64_t base_reader_u64(struct base_reader *reader);
/* A view of `size` bytes; NULL (and failed) when there are fewer. */
const uint8_t *base_reader_view(struct base_reader *reader, size_t size);
/* u16 length and bytes, copied and terminated; fails when longer than `capacity` - 1 or when a zero byte is inside. */
void base_reader_text(struct base_reader *reader, char *text, size_t capacity);
bool base_reader_done(const struct base_reader *reader); /* all read, nothing failed */

/* Here, so that each becomes the one load or store that it is. */
static inline uint16_t base_get_u16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return le16toh(value);
}

static inline uint32_t base_get_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return le32toh(value);
}

static inline uint64_t base_get_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return le64toh(value);
}

static inline void base_set_u16(uint8_t *at, uint16_t value)
{
    value = htole16(value);
    memcpy(at, &value, sizeof value);
}

static inline void base_set_u32(uint8_t *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof value);
}

static inline void base_set_u64(uint8_t *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof value);
}

#endif
