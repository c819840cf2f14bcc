/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire/rows.h"

#include "base/buffer.h"
#include "base/hash.h"

#include <string.h>

/* Fields travel as they lie in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the wire is little endian and so must the host be");

enum { ALIGN = 64, LENGTH_BYTES = 4, HASH_BYTES = 8, SIZE_BYTES = 8, ROW_HASH_AT = 24 };

/* ---- row ---- */

void wire_row_write(const struct wire_row *row, uint8_t bytes[WIRE_ROW_BYTES])
{
    base_set_u64(bytes, row->item);
    base_set_u64(bytes + 8, row->used_item);
    base_set_u64(bytes + 16, row->occurrence);
    base_set_u64(bytes + ROW_HASH_AT, row->hash);
    bytes[32] = row->status;
    bytes[33] = row->cause;
    memset(bytes + 34, 0, WIRE_ROW_BYTES - 34);
}

enum base_code wire_row_read(const uint8_t bytes[WIRE_ROW_BYTES], struct wire_row *row,
                             struct base_error *error)
{
    *row = (struct wire_row){
        .item = base_get_u64(bytes),
        .used_item = base_get_u64(bytes + 8),
        .occurrence = base_get_u64(bytes + 16),
        .hash = base_get_u64(bytes + ROW_HASH_AT),
        .status = bytes[32],
        .cause = bytes[33],
    };
    if (row->status > WIRE_ROW_BAD)
        return base_error_set(error, BASE_CORRUPT, "row of item %llu has unknown status %u",
                              (unsigned long long)row->item, row->status);
    if (base_get_u16(bytes + 34) || base_get_u32(bytes + 36))
        return base_error_set(error, BASE_CORRUPT, "row of item %llu has reserved bytes that are not zero",
                              (unsigned long long)row->item);
    return BASE_OK;
}

/* ---- a block in memory ---- */

static size_t take(size_t *at, size_t size)
{
    size_t begin = *at;
    *at = (begin + size + ALIGN - 1) / ALIGN * ALIGN;
    return begin;
}

void wire_layout_init(struct wire_layout *layout, const struct scheduler_field *fields, int field_count,
                      uint32_t rows)
{
    *layout = (struct wire_layout){.fields = fields, .field_count = field_count, .rows = rows};
    size_t at = 0;
    layout->row_table = take(&at, (size_t)rows * WIRE_ROW_BYTES);
    layout->hashes = take(&at, (size_t)rows * (size_t)field_count * HASH_BYTES);
    for (int f = 0; f < field_count; f++)
        if (fields[f].ragged)
            layout->lengths[f] = take(&at, (size_t)rows * LENGTH_BYTES);
    for (int f = 0; f < field_count; f++)
        layout->values[f] = take(&at, rows * fields[f].max_bytes);
    layout->size = at;
}

static uint64_t ragged_bytes(const struct wire_layout *layout, const uint8_t *block, int field,
                             uint32_t index)
{
    uint64_t elements = base_get_u32(block + layout->lengths[field] + (size_t)index * LENGTH_BYTES);
    return elements * scheduler_dtype_bytes(layout->fields[field].dtype);
}

uint64_t wire_layout_hash_row(const struct wire_layout *layout, uint8_t *block, uint32_t index,
                              const uint64_t ragged_at[SCHEDULER_PIPELINE_FIELDS])
{
    size_t row_hashes = (size_t)layout->field_count * HASH_BYTES;
    uint8_t *hashes = block + layout->hashes + index * row_hashes;
    for (int f = 0; f < layout->field_count; f++) {
        bool ragged = layout->fields[f].ragged;
        uint64_t size = ragged ? ragged_bytes(layout, block, f, index) : layout->fields[f].max_bytes;
        const uint8_t *values = block + layout->values[f] + (ragged ? ragged_at[f] : index * size);
        base_set_u64(hashes + f * HASH_BYTES, base_hash_xxh3(values, size));
    }
    return base_hash_xxh3(hashes, row_hashes);
}

/* ---- sending a part ---- */

struct gather {
    struct iovec *iov;
    int count;
    uint64_t length;
};

static void gather_add(struct gather *gather, uint8_t *bytes, uint64_t size)
{
    if (!size)
        return;
    gather->iov[gather->count++] = (struct iovec){.iov_base = bytes, .iov_len = size};
    gather->length += size;
}

/* Where a field's values of rows [from, to) lie. */
static struct iovec values_of(const struct wire_layout *layout, uint8_t *block, int field, uint32_t from,
                              uint32_t to)
{
    uint8_t *values = block + layout->values[field];
    uint64_t row_bytes = layout->fields[field].max_bytes;
    if (!layout->fields[field].ragged)
        return (struct iovec){.iov_base = values + from * row_bytes, .iov_len = (to - from) * row_bytes};
    uint64_t begin = 0, size = 0;
    for (uint32_t i = 0; i < from; i++)
        begin += ragged_bytes(layout, block, field, i);
    for (uint32_t i = from; i < to; i++)
        size += ragged_bytes(layout, block, field, i);
    return (struct iovec){.iov_base = values + begin, .iov_len = size};
}

static bool is_wanted(uint8_t wanted, int field)
{
    return wanted >> field & 1;
}

static int count_wanted(const struct wire_layout *layout, uint8_t wanted)
{
    int count = 0;
    for (int f = 0; f < layout->field_count; f++)
        count += is_wanted(wanted, f);
    return count;
}

size_t wire_part_scratch_bytes(const struct wire_layout *layout, uint8_t wanted, uint32_t rows)
{
    return wire_part_head_bytes(count_wanted(layout, wanted), rows);
}

static uint8_t *copy_hashes(const struct wire_layout *layout, const uint8_t *block, uint8_t wanted,
                            uint32_t from, uint32_t to, uint8_t *out)
{
    for (uint32_t i = from; i < to; i++)
        for (int f = 0; f < layout->field_count; f++)
            if (is_wanted(wanted, f)) {
                size_t at = (size_t)i * (size_t)layout->field_count + (size_t)f;
                memcpy(out, block + layout->hashes + at * HASH_BYTES, HASH_BYTES);
                out += HASH_BYTES;
            }
    return out;
}

int wire_part_gather(const struct wire_layout *layout, uint8_t *block, const struct wire_cut *cut,
                     uint8_t *scratch, struct iovec *iov, uint64_t *length)
{
    uint8_t wanted = cut->wanted;
    uint32_t from = cut->from, to = cut->to;
    int sent = count_wanted(layout, wanted);
    uint32_t rows = to - from;
    uint8_t *row_table = scratch + sent * SIZE_BYTES, *hashes = row_table + (size_t)rows * WIRE_ROW_BYTES;
    struct iovec values[SCHEDULER_PIPELINE_FIELDS];
    for (int f = 0, s = 0; f < layout->field_count; f++)
        if (is_wanted(wanted, f)) {
            values[f] = values_of(layout, block, f, from, to);
            base_set_u64(scratch + s++ * SIZE_BYTES, values[f].iov_len);
        }
    memcpy(row_table, block + layout->row_table + (size_t)from * WIRE_ROW_BYTES,
           (size_t)rows * WIRE_ROW_BYTES);
    uint8_t *end = copy_hashes(layout, block, wanted, from, to, hashes);
    base_set_u64(end, base_hash_xxh3(scratch, (size_t)(end - scratch)));

    struct gather gather = {.iov = iov};
    gather_add(&gather, scratch, wire_part_head_bytes(sent, rows));
    for (int f = 0; f < layout->field_count; f++)
        if (is_wanted(wanted, f) && !layout->fields[f].ragged)
            gather_add(&gather, values[f].iov_base, values[f].iov_len);
    for (int f = 0; f < layout->field_count; f++)
        if (is_wanted(wanted, f) && layout->fields[f].ragged)
            gather_add(&gather, block + layout->lengths[f] + (size_t)from * LENGTH_BYTES,
                       (uint64_t)rows * LENGTH_BYTES);
    for (int f = 0; f < layout->field_count; f++)
        if (is_wanted(wanted, f) && layout->fields[f].ragged)
            gather_add(&gather, values[f].iov_base, values[f].iov_len);
    *length = gather.length;
    return gather.count;
}

/* ---- receiving a part ---- */

size_t wire_part_head_bytes(int fields_sent, uint32_t rows)
{
    size_t sent = (size_t)fields_sent;
    return sent * SIZE_BYTES + (size_t)rows * (WIRE_ROW_BYTES + sent * HASH_BYTES) + HASH_BYTES;
}

struct wire_part_head wire_part_head_view(const uint8_t *head, int fields_sent, uint32_t rows)
{
    const uint8_t *row_table = head + fields_sent * SIZE_BYTES;
    return (struct wire_part_head){
        .rows = rows,
        .fields_sent = fields_sent,
        .directory = head,
        .row_table = row_table,
        .hashes = row_table + (size_t)rows * WIRE_ROW_BYTES,
    };
}

static uint64_t directory_bytes(const struct wire_part_head *head, int sent_index)
{
    return base_get_u64(head->directory + sent_index * SIZE_BYTES);
}

static enum base_code check_run(const struct wire_part_head *head, const struct scheduler_field *field,
                                uint64_t bytes, struct base_error *error)
{
    uint64_t most = head->rows * field->max_bytes;
    if (field->ragged ? bytes > most || bytes % scheduler_dtype_bytes(field->dtype) : bytes != most)
        return base_error_set(error, BASE_CORRUPT,
                              "DATA of %u rows has %llu bytes of field \"%s\" (largest row %llu)", head->rows,
                              (unsigned long long)bytes, field->name, (unsigned long long)field->max_bytes);
    return BASE_OK;
}

enum base_code wire_part_check(const struct wire_part_head *head, const struct scheduler_field *sent,
                               uint64_t length, struct base_error *error)
{
    uint64_t sum = wire_part_head_bytes(head->fields_sent, head->rows);
    size_t hashed = (size_t)sum - HASH_BYTES;
    if (base_hash_xxh3(head->directory, hashed) != base_get_u64(head->directory + hashed))
        return base_error_set(error, BASE_CORRUPT, "DATA of %u rows: its head does not match its checksum",
                              head->rows);
    for (int s = 0; s < head->fields_sent; s++) {
        uint64_t bytes = directory_bytes(head, s);
        enum base_code code = check_run(head, &sent[s], bytes, error);
        if (code != BASE_OK)
            return code;
        sum += bytes + (sent[s].ragged ? (uint64_t)head->rows * LENGTH_BYTES : 0);
    }
    if (sum != length)
        return base_error_set(error, BASE_CORRUPT, "DATA of %llu bytes, but its directory gives %llu",
                              (unsigned long long)length, (unsigned long long)sum);
    return BASE_OK;
}

struct run_list {
    struct wire_part_run *runs;
    int count;
    uint64_t at;
};

static void run_add(struct run_list *list, int sent_index, bool is_lengths, uint64_t size)
{
    if (!size)
        return;
    list->runs[list->count++] = (struct wire_part_run){
        .sent_index = sent_index, .is_lengths = is_lengths, .offset = list->at, .size = size};
    list->at += size;
}

int wire_part_runs(const struct wire_part_head *head, const struct scheduler_field *sent,
                   struct wire_part_run runs[WIRE_PART_RUNS])
{
    struct run_list list = {.runs = runs, .at = wire_part_head_bytes(head->fields_sent, head->rows)};
    for (int s = 0; s < head->fields_sent; s++)
        if (!sent[s].ragged)
            run_add(&list, s, false, directory_bytes(head, s));
    for (int s = 0; s < head->fields_sent; s++)
        if (sent[s].ragged)
            run_add(&list, s, true, (uint64_t)head->rows * LENGTH_BYTES);
    for (int s = 0; s < head->fields_sent; s++)
        if (sent[s].ragged)
            run_add(&list, s, false, directory_bytes(head, s));
    return list.count;
}

enum base_code wire_part_check_lengths(const struct wire_part_head *head, const struct scheduler_field *sent,
                                       int sent_index, const uint8_t *lengths, struct base_error *error)
{
    const struct scheduler_field *field = &sent[sent_index];
    uint64_t element = scheduler_dtype_bytes(field->dtype), sum = 0;
    for (uint32_t i = 0; i < head->rows; i++) {
        uint64_t bytes = base_get_u32(lengths + (size_t)i * LENGTH_BYTES) * element;
        if (bytes > field->max_bytes)
            return base_error_set(
                error, BASE_CORRUPT, "DATA's row %u has %llu bytes of field \"%s\" (largest row %llu)", i,
                (unsigned long long)bytes, field->name, (unsigned long long)field->max_bytes);
        sum += bytes;
    }
    if (sum != directory_bytes(head, sent_index))
        return base_error_set(
            error, BASE_CORRUPT, "DATA's lengths of field \"%s\" give %llu bytes, its directory %llu",
            field->name, (unsigned long long)sum, (unsigned long long)directory_bytes(head, sent_index));
    return BASE_OK;
}

static const uint8_t *hash_at(const struct wire_part_head *head, uint32_t index, int sent_index)
{
    return head->hashes + ((size_t)index * (size_t)head->fields_sent + (size_t)sent_index) * HASH_BYTES;
}

bool wire_part_verify_field(const struct wire_part_head *head, uint32_t index, int sent_index,
                            const void *bytes, size_t size)
{
    return base_hash_xxh3(bytes, size) == base_get_u64(hash_at(head, index, sent_index));
}

bool wire_part_verify_row(const struct wire_part_head *head, uint32_t index)
{
    return base_hash_xxh3(hash_at(head, index, 0), (size_t)head->fields_sent * HASH_BYTES) ==
           base_get_u64(head->row_table + (size_t)index * WIRE_ROW_BYTES + ROW_HASH_AT);
}
