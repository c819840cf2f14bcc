/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/rows.h"

#include "base/buffer.h"
#include "base/philox.h"

#include <stdlib.h>
#include <string.h>

/* ---- which item ---- */

static void want(struct worker_rows *rows, struct worker_row *row, uint64_t item, uint64_t occurrence)
{
    row->used_item = item;
    row->occurrence = occurrence;
    row->status = occurrence > 0 ? WIRE_ROW_SUBSTITUTED : WIRE_ROW_OK;
    row->state = WORKER_ROW_WANTED;
    rows->wanted++;
}

/* The next of the seeded substitutes that is not known as bad: skipping those gives the same as trying them. */
static void substitute(struct worker_rows *rows, struct worker_row *row)
{
    const struct scheduler_stream *stream = &rows->kit->stream;
    while (row->tries < WORKER_ROWS_TRIES) {
        uint64_t item =
            scheduler_order_substitute(stream->seed, rows->epoch, row->position, row->tries++, stream->items);
        if (pipeline_verdict_is_bad(worker_kit_verdict(rows->kit, item)))
            continue;
        want(rows, row, item, row->position + 1);
        return;
    }
    row->used_item = row->item;
    row->occurrence = 0;
    row->status = WIRE_ROW_BAD;
    row->state = WORKER_ROW_DONE;
}

struct worker_rows *worker_rows_create(struct worker_kit *kit, uint8_t *block, uint32_t epoch, uint64_t first,
                                       uint32_t count, const struct scheduler_order *order)
{
    struct worker_rows *rows = calloc(1, sizeof *rows + count * sizeof rows->row[0]);
    if (!rows)
        return NULL;
    rows->kit = kit;
    rows->block = block;
    rows->epoch = epoch;
    rows->count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct worker_row *row = &rows->row[i];
        row->position = first + i;
        row->item = scheduler_order_item(order, row->position);
        enum pipeline_verdict verdict = worker_kit_verdict(kit, row->item);
        if (pipeline_verdict_is_bad(verdict)) {
            row->cause = (uint8_t)verdict;
            substitute(rows, row);
        } else {
            want(rows, row, row->item, 0);
        }
    }
    return rows;
}

void worker_rows_destroy(struct worker_rows *rows)
{
    for (uint32_t i = 0; rows && i < rows->count; i++)
        free(rows->row[i].bytes);
    free(rows);
}

/* ---- raw bytes ---- */

enum base_code worker_rows_look_up(struct worker_rows *rows, uint64_t item_max_bytes, uint64_t *size_bytes,
                                   struct base_error *error)
{
    struct manifest_entry entry;
    *size_bytes = 0;
    for (uint32_t i = 0; i < rows->count; i++) {
        struct worker_row *row = &rows->row[i];
        if (row->state != WORKER_ROW_WANTED)
            continue;
        enum base_code code = manifest_entry(rows->kit->dataset->manifest, row->used_item, &entry, error);
        if (code != BASE_OK)
            return base_error_prefix(error, code, "dataset %s, item %llu", rows->kit->dataset->name,
                                     (unsigned long long)row->used_item);
        if (entry.size_bytes > item_max_bytes)
            return base_error_set(
                error, BASE_TOO_LARGE,
                "dataset %s: %.300s: %llu bytes are over the %llu that this worker may read "
                "of an item (--raw)",
                rows->kit->dataset->name, entry.name, (unsigned long long)entry.size_bytes,
                (unsigned long long)item_max_bytes);
        row->size_bytes = entry.size_bytes;
        row->label = entry.label;
        *size_bytes += entry.size_bytes;
    }
    return BASE_OK;
}

enum base_code worker_rows_read(struct worker_rows *rows, uint32_t index, struct base_error *error)
{
    const struct worker_dataset *dataset = rows->kit->dataset;
    struct worker_row *row = &rows->row[index];
    row->bytes = malloc(row->size_bytes > 0 ? row->size_bytes : 1);
    if (!row->bytes)
        return base_error_set(error, BASE_NO_MEMORY, "dataset %s, item %llu: %llu raw bytes", dataset->name,
                              (unsigned long long)row->used_item, (unsigned long long)row->size_bytes);
    enum base_code code = source_folder_read(dataset->roots, dataset->path, dataset->manifest, row->used_item,
                                             row->bytes, &row->size_bytes, error);
    if (code != BASE_OK)
        return base_error_prefix(error, code, "dataset %s", dataset->name);
    row->state = WORKER_ROW_READ;
    return BASE_OK;
}

/* ---- making ---- */

/* Rows lie at a fixed stride until all are done: substitutes come late. */
static uint8_t *field_at(const struct worker_rows *rows, int field, uint32_t index)
{
    const struct wire_layout *layout = &rows->kit->layout;
    return rows->block + layout->values[field] + index * layout->fields[field].max_bytes;
}

enum base_code worker_rows_make(struct worker_rows *rows, uint32_t index, struct pipeline_scratch *scratch,
                                bool *news, struct base_error *error)
{
    struct worker_kit *kit = rows->kit;
    struct worker_row *row = &rows->row[index];
    struct pipeline_row out = {.field = {NULL}};
    for (int f = 0; f < kit->layout.field_count; f++)
        out.field[f] = field_at(rows, f, index);
    enum pipeline_verdict known = worker_kit_verdict(kit, row->used_item), verdict = known;
    struct pipeline_input input = {
        .bytes = row->bytes,
        .size = row->size_bytes,
        .label = row->label,
        .sample_key = base_philox_sample_key(kit->stream.seed, row->used_item, rows->epoch, row->occurrence),
        .known = pipeline_verdict_is_bad(known) ? PIPELINE_UNKNOWN : known};
    enum base_code code = pipeline_run(kit->pipeline, scratch, &input, &out, &verdict, error);
    free(row->bytes);
    row->bytes = NULL;
    if (code != BASE_OK && code != BASE_BAD_SAMPLE)
        return code;
    *news = worker_kit_judge(kit, row->used_item, verdict);
    rows->wanted--;
    row->state = WORKER_ROW_DONE;
    if (code == BASE_OK) {
        memcpy(row->ragged_length, out.ragged_length, sizeof row->ragged_length);
        return BASE_OK;
    }
    if (row->occurrence == 0)
        row->cause = (uint8_t)verdict;
    substitute(rows, row);
    return code;
}

static void fill_bad(struct worker_rows *rows, uint32_t index)
{
    const struct wire_layout *layout = &rows->kit->layout;
    for (int f = 0; f < layout->field_count; f++) {
        rows->row[index].ragged_length[f] = 0;
        if (!layout->fields[f].ragged)
            memset(field_at(rows, f, index), 0, layout->fields[f].max_bytes);
    }
    if (rows->kit->label_field >= 0)
        base_set_u64(field_at(rows, rows->kit->label_field, index), (uint64_t)WIRE_LABEL_BAD);
}

/* Moves the values of a ragged field together and writes their lengths; returns their bytes. */
static uint64_t pack(struct worker_rows *rows, int field, uint64_t at[])
{
    const struct wire_layout *layout = &rows->kit->layout;
    uint64_t element = scheduler_dtype_bytes(layout->fields[field].dtype), end = 0;
    for (uint32_t i = 0; i < rows->count; i++) {
        uint32_t length = rows->row[i].ragged_length[field];
        memmove(rows->block + layout->values[field] + end, field_at(rows, field, i), length * element);
        base_set_u32(rows->block + layout->lengths[field] + i * sizeof length, length);
        at[i] = end;
        end += length * element;
    }
    return end;
}

uint64_t worker_rows_finish(struct worker_rows *rows)
{
    const struct wire_layout *layout = &rows->kit->layout;
    uint64_t at[SCHEDULER_PIPELINE_FIELDS][WIRE_ROWS_MAX] = {{0}};
    uint64_t used = layout->size;
    for (uint32_t i = 0; i < rows->count; i++)
        if (rows->row[i].status == WIRE_ROW_BAD)
            fill_bad(rows, i);
    for (int f = 0; f < layout->field_count; f++) {
        if (!layout->fields[f].ragged)
            continue;
        uint64_t bytes = pack(rows, f, at[f]);
        if (f == layout->field_count - 1) /* nothing lies behind it */
            used = layout->values[f] + bytes;
    }
    for (uint32_t i = 0; i < rows->count; i++) {
        const struct worker_row *row = &rows->row[i];
        uint64_t ragged_at[SCHEDULER_PIPELINE_FIELDS];
        for (int f = 0; f < SCHEDULER_PIPELINE_FIELDS; f++)
            ragged_at[f] = at[f][i];
        struct wire_row wire = {.item = row->item,
                                .used_item = row->used_item,
                                .occurrence = row->occurrence,
                                .hash = wire_layout_hash_row(layout, rows->block, i, ragged_at),
                                .status = (uint8_t)row->status,
                                .cause = row->cause};
        wire_row_write(&wire, rows->block + layout->row_table + (size_t)i * WIRE_ROW_BYTES);
    }
    return used;
}
