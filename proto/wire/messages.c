/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire/messages.h"

#include "proto/wire/header.h"
#include "proto/wire/rows.h"

#include <string.h>

static enum base_code check_done(const struct base_reader *reader, const char *what, struct base_error *error)
{
    if (reader->failed)
        return base_error_set(error, BASE_CORRUPT,
                              "%s payload of %zu bytes is cut or has a text that does not fit", what,
                              reader->size);
    if (!base_reader_done(reader))
        return base_error_set(error, BASE_CORRUPT, "%s payload has %zu bytes over", what,
                              reader->size - reader->at);
    return BASE_OK;
}

/* ---- HELLO ---- */

void wire_hello_write(const struct wire_hello *hello, struct base_buffer *out)
{
    base_buffer_put_u16(out, hello->version_min);
    base_buffer_put_u16(out, hello->version_max);
    base_buffer_put_u64(out, hello->features);
    base_buffer_put_text(out, hello->token);
    base_buffer_put_text(out, hello->name);
}

enum base_code wire_hello_read(const uint8_t *bytes, size_t size, struct wire_hello *hello,
                               struct base_error *error)
{
    struct base_reader reader = base_reader_of(bytes, size);
    hello->version_min = base_reader_u16(&reader);
    hello->version_max = base_reader_u16(&reader);
    hello->features = base_reader_u64(&reader);
    base_reader_text(&reader, hello->token, sizeof hello->token);
    base_reader_text(&reader, hello->name, sizeof hello->name);
    enum base_code code = check_done(&reader, "HELLO", error);
    if (code != BASE_OK)
        return code;
    if (!hello->version_min || hello->version_min > hello->version_max)
        return base_error_set(error, BASE_CORRUPT, "HELLO with versions %u to %u", hello->version_min,
                              hello->version_max);
    return BASE_OK;
}

uint16_t wire_hello_agree(const struct wire_hello *mine, const struct wire_hello *theirs)
{
    uint16_t least = mine->version_min > theirs->version_min ? mine->version_min : theirs->version_min;
    uint16_t most = mine->version_max < theirs->version_max ? mine->version_max : theirs->version_max;
    return most >= least ? most : 0;
}

/* ---- OPEN ---- */

void wire_open_write(const struct wire_open *open, struct base_buffer *out)
{
    base_buffer_put(out, open->stream, sizeof open->stream);
    base_buffer_put(out, open->fingerprint, sizeof open->fingerprint);
    base_buffer_put_text(out, open->job);
    base_buffer_put_u32(out, open->rank);
    base_buffer_put_u8(out, (uint8_t)open->field_count);
    for (int i = 0; i < open->field_count; i++)
        base_buffer_put_text(out, open->fields[i]);
}

static void read_bytes(struct base_reader *reader, uint8_t *to, size_t size)
{
    const uint8_t *view = base_reader_view(reader, size);
    if (view)
        memcpy(to, view, size);
}

/* 0 when outside 1..WIRE_FIELDS_MAX, which the caller then names. */
static int read_count(struct base_reader *reader)
{
    int count = base_reader_u8(reader);
    return count <= WIRE_FIELDS_MAX ? count : 0;
}

enum base_code wire_open_read(const uint8_t *bytes, size_t size, struct wire_open *open,
                              struct base_error *error)
{
    struct base_reader reader = base_reader_of(bytes, size);
    *open = (struct wire_open){0};
    read_bytes(&reader, open->stream, sizeof open->stream);
    read_bytes(&reader, open->fingerprint, sizeof open->fingerprint);
    base_reader_text(&reader, open->job, sizeof open->job);
    open->rank = base_reader_u32(&reader);
    open->field_count = read_count(&reader);
    if (!reader.failed && !open->field_count)
        return base_error_set(error, BASE_CORRUPT, "OPEN of no fields or more than %d", WIRE_FIELDS_MAX);
    for (int i = 0; i < open->field_count; i++)
        base_reader_text(&reader, open->fields[i], sizeof open->fields[i]);
    enum base_code code = check_done(&reader, "OPEN", error);
    if (code != BASE_OK)
        return code;
    for (int i = 0; i < open->field_count; i++)
        for (int j = 0; j < i; j++)
            if (strcmp(open->fields[i], open->fields[j]) == 0)
                return base_error_set(error, BASE_CORRUPT, "OPEN names field \"%s\" twice", open->fields[i]);
    return BASE_OK;
}

/* ---- OPEN's answer ---- */

static void write_field(const struct scheduler_field *field, struct base_buffer *out)
{
    base_buffer_put_text(out, field->name);
    base_buffer_put_u8(out, (uint8_t)field->dtype);
    base_buffer_put_u8(out, field->ragged);
    base_buffer_put_u8(out, (uint8_t)field->rank);
    for (int i = 0; i < field->rank; i++)
        base_buffer_put_u64(out, (uint64_t)field->dims[i]);
    base_buffer_put_u64(out, field->max_bytes);
}

void wire_opened_write(const struct wire_opened *opened, struct base_buffer *out)
{
    base_buffer_put_u32(out, opened->requests_max);
    base_buffer_put_u32(out, opened->block_rows);
    base_buffer_put_u8(out, (uint8_t)opened->field_count);
    for (int i = 0; i < opened->field_count; i++)
        write_field(&opened->fields[i], out);
    base_buffer_put_u8(out, opened->wanted);
}

static void read_field(struct base_reader *reader, struct scheduler_field *field)
{
    base_reader_text(reader, field->name, sizeof field->name);
    int dtype = base_reader_u8(reader), ragged = base_reader_u8(reader), rank = base_reader_u8(reader);
    if (dtype < SCHEDULER_U8 || dtype > SCHEDULER_BF16 || ragged > 1 || rank > SCHEDULER_FIELD_DIMS)
        reader->failed = true;
    if (reader->failed)
        return;
    field->dtype = (enum scheduler_dtype)dtype;
    field->ragged = ragged;
    field->rank = rank;
    for (int i = 0; i < rank; i++)
        field->dims[i] = (int64_t)base_reader_u64(reader);
    field->max_bytes = base_reader_u64(reader);
}

/* A fixed field's dims give its bytes; a ragged one is [-1], so far. */
static enum base_code check_field(const struct scheduler_field *field, struct base_error *error)
{
    uint64_t bytes = scheduler_dtype_bytes(field->dtype);
    bool good = field->name[0] && field->max_bytes && field->max_bytes <= WIRE_DATA_MAX_BYTES;
    if (field->ragged)
        good = good && field->rank == 1 && field->dims[0] == -1 && field->max_bytes % bytes == 0;
    for (int i = 0; good && !field->ragged && i < field->rank; i++) {
        good = field->dims[i] > 0 && (uint64_t)field->dims[i] <= WIRE_DATA_MAX_BYTES / bytes;
        bytes *= good ? (uint64_t)field->dims[i] : 1;
    }
    if (!good || (!field->ragged && bytes != field->max_bytes))
        return base_error_set(error, BASE_CORRUPT,
                              "OPEN's answer: field \"%s\" has a shape that does not give its %llu bytes",
                              field->name, (unsigned long long)field->max_bytes);
    return BASE_OK;
}

static enum base_code check_opened(const struct wire_opened *opened, struct base_error *error)
{
    uint32_t rows = opened->block_rows;
    if (!opened->requests_max)
        return base_error_set(error, BASE_CORRUPT, "OPEN's answer allows no requests");
    if (!rows || rows > WIRE_ROWS_MAX || (rows & (rows - 1)))
        return base_error_set(error, BASE_CORRUPT,
                              "OPEN's answer: blocks of %u rows, not a power of two in 1..%d", rows,
                              WIRE_ROWS_MAX);
    if (!opened->wanted || opened->wanted >> opened->field_count)
        return base_error_set(error, BASE_CORRUPT, "OPEN's answer sends fields 0x%02x of %d", opened->wanted,
                              opened->field_count);
    uint64_t total = 0;
    for (int i = 0; i < opened->field_count; i++) {
        enum base_code code = check_field(&opened->fields[i], error);
        if (code != BASE_OK)
            return code;
        for (int j = 0; j < i; j++)
            if (strcmp(opened->fields[i].name, opened->fields[j].name) == 0)
                return base_error_set(error, BASE_CORRUPT, "OPEN's answer has field \"%s\" twice",
                                      opened->fields[i].name);
        total += opened->fields[i].max_bytes + sizeof(uint32_t);
    }
    if (total * rows + wire_part_head_bytes(opened->field_count, rows) > WIRE_DATA_MAX_BYTES)
        return base_error_set(error, BASE_TOO_LARGE,
                              "OPEN's answer: blocks of %u rows of %llu bytes are over %llu", rows,
                              (unsigned long long)total, (unsigned long long)WIRE_DATA_MAX_BYTES);
    return BASE_OK;
}

enum base_code wire_opened_read(const uint8_t *bytes, size_t size, struct wire_opened *opened,
                                struct base_error *error)
{
    struct base_reader reader = base_reader_of(bytes, size);
    *opened = (struct wire_opened){0};
    opened->requests_max = base_reader_u32(&reader);
    opened->block_rows = base_reader_u32(&reader);
    opened->field_count = read_count(&reader);
    if (!reader.failed && !opened->field_count)
        return base_error_set(error, BASE_CORRUPT, "OPEN's answer has no fields or more than %d",
                              WIRE_FIELDS_MAX);
    for (int i = 0; i < opened->field_count; i++)
        read_field(&reader, &opened->fields[i]);
    opened->wanted = base_reader_u8(&reader);
    enum base_code code = check_done(&reader, "OPEN's answer's", error);
    return code == BASE_OK ? check_opened(opened, error) : code;
}

/* ---- MARK, MOVED ---- */

void wire_mark_write(const struct wire_mark *mark, struct base_buffer *out)
{
    base_buffer_put_u32(out, mark->epoch);
    base_buffer_put_u64(out, mark->position);
}

enum base_code wire_mark_read(const uint8_t *bytes, size_t size, struct wire_mark *mark,
                              struct base_error *error)
{
    struct base_reader reader = base_reader_of(bytes, size);
    mark->epoch = base_reader_u32(&reader);
    mark->position = base_reader_u64(&reader);
    return check_done(&reader, "low-water mark", error);
}

void wire_moved_write(uint64_t worker, struct base_buffer *out)
{
    base_buffer_put_u64(out, worker);
}

enum base_code wire_moved_read(const uint8_t *bytes, size_t size, uint64_t *worker, struct base_error *error)
{
    struct base_reader reader = base_reader_of(bytes, size);
    *worker = base_reader_u64(&reader);
    enum base_code code = check_done(&reader, "MOVED", error);
    if (code == BASE_OK && !*worker)
        return base_error_set(error, BASE_CORRUPT, "MOVED to nobody");
    return code;
}
