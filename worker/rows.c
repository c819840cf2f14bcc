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
    row->borrows = false;
    rows->wanted++;
}

/* The next of the seeded substitutes that is not known as bad: skipping those gives the same as trying them. */
static void substitute(struct worker_rows *rows, struct worker_kit *kit, struct worker_row *row)
{
    const struct scheduler_stream *stream = &kit->stream;
    while (row->tries < WORKER_ROWS_TRIES) {
        uint64_t item =
            scheduler_order_substitute(stream->seed, rows->epoch, row->position, row->tries++, stream->items);
        if (pipeline_verdict_is_bad(worker_kit_verdict(kit, item)))
            continue;
        want(rows, row, item, row->position + 1);
        return;
    }
    row->used_item = row->item;
    row->occurrence = 0;
    row->status = WIRE_ROW_BAD;
    row->state = WORKER_ROW_DONE;
}

static void choose_item(struct worker_rows *rows, struct worker_kit *kit, struct worker_row *row)
{
    enum pipeline_verdict verdict = worker_kit_verdict(kit, row->item);
    if (pipeline_verdict_is_bad(verdict)) {
        row->cause = (uint8_t)verdict;
        substitute(rows, kit, row);
    } else {
        want(rows, row, row->item, 0);
    }
}

struct worker_rows *worker_rows_create(const struct worker_rows_block *blocks, uint32_t block_count,
                                       uint32_t epoch, uint64_t first, uint32_t count,
                                       const struct scheduler_order *order)
{
    size_t total = (size_t)block_count * count;
    struct worker_rows *rows = calloc(1, sizeof *rows + total * sizeof rows->row[0]);
    if (!rows)
        return NULL;
    memcpy(rows->blocks, blocks, block_count * sizeof *blocks);
    rows->block_count = block_count;
    rows->epoch = epoch;
    rows->count = count;
    for (uint32_t b = 0; b < block_count; b++)
        rows->masks |= blocks[b].kit->stream.pipeline.mask;
    for (size_t i = 0; i < total; i++) {
        struct worker_row *row = &rows->row[i];
        row->position = first + i / block_count;
        row->item = scheduler_order_item(order, row->position);
        choose_item(rows, blocks[i % block_count].kit, row);
    }
    return rows;
}

static void free_raw(struct worker_row *row)
{
    free(row->bytes);
    free(row->mask);
    row->bytes = row->mask = NULL;
}

void worker_rows_destroy(struct worker_rows *rows)
{
    for (size_t i = 0; rows && i < (size_t)rows->block_count * rows->count; i++)
        free_raw(&rows->row[i]);
    free(rows);
}

/* ---- raw bytes ---- */

/* The earlier sibling that reads the same item; NULL: none. */
static const struct worker_row *lender_of(const struct worker_rows *rows, uint32_t index)
{
    const struct worker_row *row = &rows->row[index], *first = row - index % rows->block_count;
    for (const struct worker_row *earlier = first; earlier < row; earlier++)
        if (earlier->state == WORKER_ROW_WANTED && !earlier->borrows && earlier->used_item == row->used_item)
            return earlier;
    return NULL;
}

static enum base_code look_up_item(const struct worker_rows *rows, struct worker_row *row,
                                   uint64_t item_max_bytes, struct base_error *error)
{
    const struct worker_dataset *dataset = rows->blocks[0].kit->dataset;
    struct manifest_entry entry;
    enum base_code code = manifest_entry(dataset->manifest, row->used_item, &entry, error);
    if (code != BASE_OK)
        return base_error_prefix(error, code, "dataset %s, item %llu", dataset->name,
                                 (unsigned long long)row->used_item);
    uint64_t mask_bytes = rows->masks ? entry.mask_size_bytes : 0;
    uint64_t size_bytes = entry.size_bytes > mask_bytes ? entry.size_bytes : mask_bytes;
    if (size_bytes > item_max_bytes)
        return base_error_set(error, BASE_TOO_LARGE,
                              "dataset %s: %.300s: %llu bytes are over the %llu that this worker may read "
                              "of an item (--raw)",
                              dataset->name, entry.name, (unsigned long long)size_bytes,
                              (unsigned long long)item_max_bytes);
    row->size_bytes = entry.size_bytes;
    row->mask_bytes = mask_bytes;
    row->label = entry.label;
    return BASE_OK;
}

enum base_code worker_rows_look_up(struct worker_rows *rows, uint64_t item_max_bytes, uint64_t *size_bytes,
                                   struct base_error *error)
{
    *size_bytes = 0;
    rows->reads = 0;
    for (uint32_t i = 0; i < rows->block_count * rows->count; i++) {
        struct worker_row *row = &rows->row[i];
        if (row->state != WORKER_ROW_WANTED)
            continue;
        const struct worker_row *lender = lender_of(rows, i);
        row->borrows = lender;
        if (lender) {
            row->size_bytes = lender->size_bytes;
            row->label = lender->label;
            continue;
        }
        enum base_code code = look_up_item(rows, row, item_max_bytes, error);
        if (code != BASE_OK)
            return code;
        *size_bytes += row->size_bytes + row->mask_bytes;
        rows->reads++;
    }
    return BASE_OK;
}

enum base_code worker_rows_read(struct worker_rows *rows, uint32_t index, struct base_error *error)
{
    const struct worker_dataset *dataset = rows->blocks[0].kit->dataset;
    struct worker_row *row = &rows->row[index];
    row->bytes = malloc(row->size_bytes > 0 ? row->size_bytes : 1);
    row->mask = rows->masks ? malloc(row->mask_bytes > 0 ? row->mask_bytes : 1) : NULL;
    if (!row->bytes || (rows->masks && !row->mask))
        return base_error_set(error, BASE_NO_MEMORY, "dataset %s, item %llu: %llu raw bytes", dataset->name,
                              (unsigned long long)row->used_item,
                              (unsigned long long)(row->size_bytes + row->mask_bytes));
    enum base_code code =
        source_folder_read(&dataset->folder, row->used_item, row->bytes, &row->size_bytes, error);
    if (code == BASE_OK && rows->masks)
        code = source_folder_read_mask(&dataset->folder, row->used_item, row->mask, &row->mask_bytes, error);
    if (code != BASE_OK)
        return base_error_prefix(error, code, "dataset %s", dataset->name);
    row->state = WORKER_ROW_READ;
    return BASE_OK;
}

/* ---- making ---- */

/* Rows lie at a fixed stride until all are done: substitutes come late. */
static uint8_t *field_at(const struct worker_rows_block *block, int field, uint32_t position)
{
    const struct wire_layout *layout = &block->kit->layout;
    return block->bytes + layout->values[field] + position * layout->fields[field].max_bytes;
}

/* Those who make their rows of one item's bytes. */
struct sharers {
    struct worker_row *row[PIPELINE_SIBLINGS];
    struct worker_kit *kit[PIPELINE_SIBLINGS];
    struct pipeline_row out[PIPELINE_SIBLINGS];
    struct pipeline_sibling sibling[PIPELINE_SIBLINGS];
    int count;
};

static void add_sharer(struct sharers *sharers, struct worker_rows *rows, uint32_t index,
                       const struct worker_row *reader)
{
    const struct worker_rows_block *block = &rows->blocks[index % rows->block_count];
    struct worker_kit *kit = block->kit;
    struct worker_row *row = &rows->row[index];
    struct pipeline_row *out = &sharers->out[sharers->count];
    enum pipeline_verdict known = worker_kit_verdict(kit, row->used_item);
    for (int f = 0; f < kit->layout.field_count; f++)
        out->field[f] = field_at(block, f, index / rows->block_count);
    sharers->row[sharers->count] = row;
    sharers->kit[sharers->count] = kit;
    sharers->sibling[sharers->count++] = (struct pipeline_sibling){
        .pipeline = kit->pipeline,
        .row = out,
        .input = {.bytes = reader->bytes,
                  .size = reader->size_bytes,
                  .mask = reader->mask,
                  .mask_size = reader->mask_bytes,
                  .label = row->label,
                  .sample_key =
                      base_philox_sample_key(kit->stream.seed, row->used_item, rows->epoch, row->occurrence),
                  .known = pipeline_verdict_is_bad(known) ? PIPELINE_UNKNOWN : known}};
}

static void take_row(struct worker_rows *rows, const struct sharers *sharers, int index,
                     const struct worker_rows_work *work)
{
    const struct pipeline_sibling *sibling = &sharers->sibling[index];
    struct worker_row *row = sharers->row[index];
    struct worker_kit *kit = sharers->kit[index];
    if (worker_kit_judge(kit, row->used_item, sibling->verdict) && sibling->error.code == BASE_BAD_SAMPLE)
        work->bad(work->context, row->used_item, &sibling->error);
    rows->wanted--;
    row->state = WORKER_ROW_DONE;
    if (sibling->error.code == BASE_OK) {
        memcpy(row->ragged_length, sharers->out[index].ragged_length, sizeof row->ragged_length);
        return;
    }
    if (row->occurrence == 0)
        row->cause = (uint8_t)sibling->verdict;
    substitute(rows, kit, row);
}

static enum base_code make_shared(struct worker_rows *rows, struct sharers *sharers,
                                  struct worker_rows_work *work, struct base_error *error)
{
    work->decodes += (uint32_t)pipeline_siblings_run(work->scratch, sharers->sibling, sharers->count);
    for (int i = 0; i < sharers->count; i++) {
        const struct pipeline_sibling *sibling = &sharers->sibling[i];
        if (sibling->error.code != BASE_OK && sibling->error.code != BASE_BAD_SAMPLE) {
            *error = sibling->error;
            return error->code;
        }
        work->shared += sibling->shared;
        take_row(rows, sharers, i, work);
    }
    return BASE_OK;
}

enum base_code worker_rows_make(struct worker_rows *rows, uint32_t position, struct worker_rows_work *work,
                                struct base_error *error)
{
    uint32_t first = position * rows->block_count, end = first + rows->block_count;
    enum base_code code = BASE_OK;
    for (uint32_t i = first; i < end && code == BASE_OK; i++) {
        struct worker_row *reader = &rows->row[i];
        if (reader->state != WORKER_ROW_READ)
            continue;
        struct sharers sharers = {.count = 0};
        uint64_t item = reader->used_item;
        add_sharer(&sharers, rows, i, reader);
        for (uint32_t other = i + 1; other < end; other++) {
            const struct worker_row *row = &rows->row[other];
            if (row->state == WORKER_ROW_WANTED && row->borrows && row->used_item == item)
                add_sharer(&sharers, rows, other, reader);
        }
        code = make_shared(rows, &sharers, work, error);
        free_raw(reader);
    }
    return code;
}

static void fill_bad(const struct worker_rows_block *block, struct worker_row *row, uint32_t position)
{
    const struct wire_layout *layout = &block->kit->layout;
    for (int f = 0; f < layout->field_count; f++) {
        row->ragged_length[f] = 0;
        if (!layout->fields[f].ragged)
            memset(field_at(block, f, position), 0, layout->fields[f].max_bytes);
    }
    if (block->kit->label_field >= 0)
        base_set_u64(field_at(block, block->kit->label_field, position), (uint64_t)WIRE_LABEL_BAD);
}

/* Moves the values of a ragged field together and writes their lengths; returns their bytes. */
static uint64_t pack(struct worker_rows *rows, uint32_t index, int field, uint64_t at[])
{
    const struct worker_rows_block *block = &rows->blocks[index];
    const struct wire_layout *layout = &block->kit->layout;
    uint64_t element = scheduler_dtype_bytes(layout->fields[field].dtype), end = 0;
    for (uint32_t i = 0; i < rows->count; i++) {
        uint32_t length = worker_rows_at(rows, index, i)->ragged_length[field];
        memmove(block->bytes + layout->values[field] + end, field_at(block, field, i), length * element);
        base_set_u32(block->bytes + layout->lengths[field] + i * sizeof length, length);
        at[i] = end;
        end += length * element;
    }
    return end;
}

uint64_t worker_rows_finish(struct worker_rows *rows, uint32_t index)
{
    const struct worker_rows_block *block = &rows->blocks[index];
    const struct wire_layout *layout = &block->kit->layout;
    uint64_t at[SCHEDULER_PIPELINE_FIELDS][WIRE_ROWS_MAX] = {{0}};
    uint64_t used = layout->size;
    for (uint32_t i = 0; i < rows->count; i++)
        if (worker_rows_at(rows, index, i)->status == WIRE_ROW_BAD)
            fill_bad(block, worker_rows_at(rows, index, i), i);
    for (int f = 0; f < layout->field_count; f++) {
        if (!layout->fields[f].ragged)
            continue;
        uint64_t bytes = pack(rows, index, f, at[f]);
        if (f == layout->field_count - 1) /* nothing lies behind it */
            used = layout->values[f] + bytes;
    }
    for (uint32_t i = 0; i < rows->count; i++) {
        const struct worker_row *row = worker_rows_at(rows, index, i);
        uint64_t ragged_at[SCHEDULER_PIPELINE_FIELDS];
        for (int f = 0; f < SCHEDULER_PIPELINE_FIELDS; f++)
            ragged_at[f] = at[f][i];
        struct wire_row wire = {.item = row->item,
                                .used_item = row->used_item,
                                .occurrence = row->occurrence,
                                .hash = wire_layout_hash_row(layout, block->bytes, i, ragged_at),
                                .status = (uint8_t)row->status,
                                .cause = row->cause};
        wire_row_write(&wire, block->bytes + layout->row_table + (size_t)i * WIRE_ROW_BYTES);
    }
    return used;
}
