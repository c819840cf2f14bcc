/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/part.h"

#include "base/buffer.h"

#include <stdlib.h>
#include <string.h>

enum base_code client_part_init(struct client_part *part, uint32_t block_rows, int fields_sent,
                                struct base_error *error)
{
    part->block_rows = block_rows;
    part->head = malloc(wire_part_head_bytes(fields_sent, block_rows));
    part->discard = malloc(CLIENT_PART_DISCARD_BYTES);
    if (part->head && part->discard)
        return BASE_OK;
    client_part_fini(part);
    return base_error_set(error, BASE_NO_MEMORY, "no memory for a connection's scratch");
}

void client_part_fini(struct client_part *part)
{
    free(part->head);
    free(part->discard);
    part->head = part->discard = NULL;
}

static struct wire_part_head head_of(const struct client_part *part)
{
    return wire_part_head_view(part->head, part->slots->fields.count, part->rows);
}

static enum base_code begin(struct client_part *part, int64_t now_ns, const struct wire_header *header,
                            struct base_error *error)
{
    struct client_arrival arrival = {header->request, header->block, header->epoch, header->from, header->to};
    part->active = true;
    part->headed = false;
    part->run_count = 0;
    part->request = header->request;
    memset(part->verified, 0, sizeof part->verified);
    enum client_placed placed = client_core_place(part->core, now_ns, part->worker, &arrival, &part->place);
    part->scratch = placed == CLIENT_PLACED_SCRATCH;
    if (part->scratch)
        return BASE_OK;
    part->rows = (uint32_t)(header->to - header->from);
    part->head_bytes = wire_part_head_bytes(part->slots->fields.count, part->rows);
    if (placed == CLIENT_PLACED_WRONG || part->rows > part->block_rows || header->length < part->head_bytes)
        return base_error_set(error, BASE_CORRUPT,
                              "DATA of block %llu rows %u to %u, %llu bytes: not what request %llu asked for",
                              (unsigned long long)header->block, header->from, header->to,
                              (unsigned long long)header->length, (unsigned long long)header->request);
    return BASE_OK;
}

static enum base_code read_head(struct client_part *part, uint64_t length, struct base_error *error)
{
    struct wire_part_head head = head_of(part);
    enum base_code code = wire_part_check(&head, part->slots->fields.sent, length, error);
    if (code != BASE_OK)
        return code;
    part->run_count = wire_part_runs(&head, part->slots->fields.sent, part->runs);
    part->headed = true;
    return BASE_OK;
}

/* Where the first byte of a run goes: of the slot's memory for that field, from the part's first row on. */
static uint8_t *run_memory(const struct client_part *part, const struct wire_part_run *run)
{
    const struct client_slot_memory *memory = &part->slots->slots[part->place.slot];
    if (run->is_lengths)
        return (uint8_t *)(memory->lengths[run->sent_index] + part->place.row);
    return memory->values[run->sent_index] +
           part->place.row * part->slots->fields.sent[run->sent_index].max_bytes;
}

enum base_code client_part_sink(struct client_part *part, int64_t now_ns, const struct wire_header *header,
                                uint64_t offset, struct iovec *into, struct base_error *error)
{
    enum base_code code = offset == 0 ? begin(part, now_ns, header, error) : BASE_OK;
    if (code != BASE_OK)
        return code;
    if (part->scratch) {
        client_core_stray(part->core, now_ns, part->worker);
        uint64_t left = header->length - offset;
        *into = (struct iovec){part->discard,
                               left < CLIENT_PART_DISCARD_BYTES ? left : CLIENT_PART_DISCARD_BYTES};
        return BASE_OK;
    }
    if (offset < part->head_bytes) {
        *into = (struct iovec){part->head + offset, part->head_bytes - offset};
        return BASE_OK;
    }
    if (!part->headed)
        code = read_head(part, header->length, error);
    for (int i = 0; i < part->run_count && code == BASE_OK; i++) {
        const struct wire_part_run *run = &part->runs[i];
        if (offset < run->offset || offset >= run->offset + run->size)
            continue;
        uint64_t done = offset - run->offset;
        *into = (struct iovec){run_memory(part, run) + done, run->size - done};
        return BASE_OK;
    }
    return code != BASE_OK ? code : base_error_set(error, BASE_CORRUPT, "DATA with bytes that no field has");
}

/* ---- verifying ---- */

/* Ragged rows lie packed from the part's first row on; their lengths came as little-endian numbers. */
static enum base_code read_lengths(struct client_part *part, const struct wire_part_head *head, int s,
                                   struct base_error *error)
{
    const struct scheduler_field *field = &part->slots->fields.sent[s];
    struct client_slot_memory *memory = &part->slots->slots[part->place.slot];
    uint32_t *lengths = memory->lengths[s] + part->place.row;
    uint64_t at = part->place.row * field->max_bytes;
    enum base_code code =
        wire_part_check_lengths(head, part->slots->fields.sent, s, (uint8_t *)lengths, error);
    for (uint32_t i = 0; i < part->rows && code == BASE_OK; i++) {
        lengths[i] = base_get_u32((uint8_t *)&lengths[i]);
        memory->places[s][part->place.row + i] = at;
        at += lengths[i] * scheduler_dtype_bytes(field->dtype);
    }
    return code;
}

/* Rows of a field up to `rows` that were not looked at yet. */
static enum base_code verify_field(struct client_part *part, const struct wire_part_head *head, int s,
                                   uint32_t rows, struct base_error *error)
{
    const struct scheduler_field *field = &part->slots->fields.sent[s];
    const struct client_slot_memory *memory = &part->slots->slots[part->place.slot];
    for (uint32_t i = part->verified[s]; i < rows; i++) {
        uint32_t row = part->place.row + i;
        size_t size = field->max_bytes;
        const uint8_t *values = memory->values[s] + row * size;
        if (field->ragged) {
            size = memory->lengths[s][row] * scheduler_dtype_bytes(field->dtype);
            values = memory->values[s] + memory->places[s][row];
        }
        if (!wire_part_verify_field(head, i, s, values, size))
            return base_error_set(error, BASE_CORRUPT,
                                  "DATA of request %llu: row %u's field \"%s\" does not match its hash",
                                  (unsigned long long)part->request, i, field->name);
    }
    part->verified[s] = rows > part->verified[s] ? rows : part->verified[s];
    return BASE_OK;
}

enum base_code client_part_placed(struct client_part *part, uint64_t offset, struct base_error *error)
{
    enum base_code code = BASE_OK;
    if (!part->active || part->scratch || !part->headed)
        return BASE_OK;
    struct wire_part_head head = head_of(part);
    for (int i = 0; i < part->run_count && code == BASE_OK; i++) {
        const struct wire_part_run *run = &part->runs[i];
        const struct scheduler_field *field = &part->slots->fields.sent[run->sent_index];
        if (field->ragged || offset <= run->offset)
            continue;
        uint64_t rows = (offset - run->offset) / field->max_bytes;
        code = verify_field(part, &head, run->sent_index, rows < part->rows ? (uint32_t)rows : part->rows,
                            error);
    }
    return code;
}

static enum base_code verify(struct client_part *part, const struct wire_header *header,
                             struct wire_row rows[WIRE_ROWS_MAX], struct base_error *error)
{
    struct wire_part_head head = head_of(part);
    enum base_code code = part->headed ? BASE_OK : read_head(part, header->length, error);
    for (int s = 0; s < part->slots->fields.count && code == BASE_OK; s++)
        if (part->slots->fields.sent[s].ragged)
            code = read_lengths(part, &head, s, error);
    for (int s = 0; s < part->slots->fields.count && code == BASE_OK; s++)
        code = verify_field(part, &head, s, part->rows, error);
    for (uint32_t i = 0; i < part->rows && code == BASE_OK; i++) {
        code = wire_row_read(head.row_table + i * WIRE_ROW_BYTES, &rows[i], error);
        if (code == BASE_OK && part->slots->fields.all && !wire_part_verify_row(&head, i))
            code = base_error_set(error, BASE_CORRUPT, "DATA of block %llu: row %u does not match its hash",
                                  (unsigned long long)header->block, header->from + i);
    }
    if (code != BASE_OK)
        return code;
    struct client_items_part came = {.epoch = header->epoch,
                                     .count = part->rows,
                                     .position = header->block * part->block_rows + header->from,
                                     .rows = rows,
                                     .bytes = header->length,
                                     .pick = header->request};
    return client_items_check(part->items, &came, error);
}

enum base_code client_part_done(struct client_part *part, int64_t now_ns, const struct wire_header *header,
                                struct base_error *error)
{
    struct wire_row rows[WIRE_ROWS_MAX];
    if (!part->active)
        return base_error_set(error, BASE_CORRUPT, "DATA without bytes");
    part->active = false;
    if (part->scratch)
        return BASE_OK;
    enum base_code code = verify(part, header, rows, error);
    if (code == BASE_OK)
        client_core_data(part->core, now_ns, part->worker, header->request, rows);
    return code;
}
