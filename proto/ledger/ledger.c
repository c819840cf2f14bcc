/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/ledger/ledger.h"

#include "base/hash.h"

#include <string.h>

#define BATCH_FIXED_BYTES 64
#define RUN_BYTES 12

enum { FLAG_RESUMED = 1, FLAG_USES_EPOCH = 2, FLAG_ABANDONS = 4, FLAGS = 7, TAILS = 3 };

static const uint8_t magic[4] = {'M', 'R', 'L', 'G'};

static uint32_t check_of(const uint8_t *head)
{
    return (uint32_t)base_hash_xxh3(head, 12);
}

/* ---- writing ---- */

/* The length is set by finish. */
static size_t begin(struct base_buffer *out, enum ledger_kind kind)
{
    size_t at = out->size;
    base_buffer_put(out, magic, sizeof magic);
    base_buffer_put_u16(out, LEDGER_VERSION);
    base_buffer_put_u16(out, (uint16_t)kind);
    base_buffer_put_u64(out, 0);
    return at;
}

static void finish(struct base_buffer *out, size_t at)
{
    if (out->failed)
        return;
    base_set_u32(out->bytes + at + 8, (uint32_t)(out->size - at - LEDGER_HEAD_BYTES));
    base_set_u32(out->bytes + at + 12, check_of(out->bytes + at));
    base_buffer_put_u64(out, base_hash_xxh3(out->bytes + at, out->size - at));
}

void ledger_put_start(struct base_buffer *out, const struct ledger_start *start)
{
    size_t at = begin(out, LEDGER_START);
    base_buffer_put_text(out, start->job);
    base_buffer_put_u32(out, start->rank);
    base_buffer_put_u32(out, start->world);
    base_buffer_put_u32(out, start->batch);
    base_buffer_put_u8(out, start->tail);
    base_buffer_put_u8(out, (uint8_t)((start->resumed ? FLAG_RESUMED : 0) |
                                      (start->uses_epoch ? FLAG_USES_EPOCH : 0) |
                                      (start->abandons ? FLAG_ABANDONS : 0)));
    base_buffer_put_u16(out, 0);
    base_buffer_put_u64(out, start->generation);
    base_buffer_put_u64(out, start->items);
    base_buffer_put_u32(out, start->first_epoch);
    base_buffer_put_u32(out, start->epoch);
    base_buffer_put_u64(out, start->position);
    base_buffer_put(out, start->dataset_version, sizeof start->dataset_version);
    base_buffer_put(out, start->stream, sizeof start->stream);
    base_buffer_put(out, start->fingerprint, sizeof start->fingerprint);
    finish(out, at);
}

size_t ledger_batch_bytes(uint32_t rows, int runs)
{
    return LEDGER_HEAD_BYTES + BATCH_FIXED_BYTES + (size_t)runs * RUN_BYTES + 8 * (size_t)rows +
           (rows + 7) / 8 + LEDGER_END_BYTES;
}

void ledger_put_batch(struct base_buffer *out, const struct ledger_batch *batch)
{
    size_t at = begin(out, LEDGER_BATCH);
    base_buffer_put_u32(out, batch->job_epoch);
    base_buffer_put_u32(out, batch->epoch);
    base_buffer_put_u64(out, batch->step);
    base_buffer_put_u64(out, batch->steps);
    base_buffer_put_u64(out, batch->step_begin);
    base_buffer_put_u64(out, batch->step_valid);
    base_buffer_put_u32(out, batch->after_epoch);
    base_buffer_put_u32(out, 0);
    base_buffer_put_u64(out, batch->after_position);
    base_buffer_put_u32(out, batch->padding);
    base_buffer_put_u32(out, (uint32_t)batch->run_count);
    for (int i = 0; i < batch->run_count; i++) {
        base_buffer_put_u64(out, batch->runs[i].begin);
        base_buffer_put_u32(out, batch->runs[i].count);
    }
    base_buffer_put(out, batch->hashes, 8 * (size_t)batch->rows);
    base_buffer_put(out, batch->valid, (batch->rows + 7) / 8);
    finish(out, at);
}

/* ---- reading ---- */

bool ledger_may_begin(const uint8_t *bytes, size_t size)
{
    return memcmp(bytes, magic, size < sizeof magic ? size : sizeof magic) == 0;
}

enum base_code ledger_head(const uint8_t head[LEDGER_HEAD_BYTES], size_t *record_bytes,
                           struct base_error *error)
{
    uint32_t version = base_get_u16(head + 4), kind = base_get_u16(head + 6), length = base_get_u32(head + 8);
    if (memcmp(head, magic, sizeof magic) != 0)
        return base_error_set(error, BASE_CORRUPT, "not a record of a ledger");
    if (base_get_u32(head + 12) != check_of(head))
        return base_error_set(error, BASE_CORRUPT, "the head of a record does not match its check");
    if (version != LEDGER_VERSION)
        return base_error_set(error, BASE_UNSUPPORTED, "a ledger of version %u: this build reads version %u",
                              version, LEDGER_VERSION);
    if ((kind != LEDGER_START && kind != LEDGER_BATCH) || length > LEDGER_LENGTH_MAX)
        return base_error_set(error, BASE_CORRUPT, "a record of kind %u with %u bytes", kind, length);
    *record_bytes = LEDGER_HEAD_BYTES + length + LEDGER_END_BYTES;
    return BASE_OK;
}

static enum base_code read_start(struct base_reader *reader, struct ledger_start *start,
                                 struct base_error *error)
{
    *start = (struct ledger_start){0};
    base_reader_text(reader, start->job, sizeof start->job);
    start->rank = base_reader_u32(reader);
    start->world = base_reader_u32(reader);
    start->batch = base_reader_u32(reader);
    start->tail = base_reader_u8(reader);
    uint8_t flags = base_reader_u8(reader);
    uint16_t reserved = base_reader_u16(reader);
    start->resumed = flags & FLAG_RESUMED;
    start->uses_epoch = flags & FLAG_USES_EPOCH;
    start->abandons = flags & FLAG_ABANDONS;
    start->generation = base_reader_u64(reader);
    start->items = base_reader_u64(reader);
    start->first_epoch = base_reader_u32(reader);
    start->epoch = base_reader_u32(reader);
    start->position = base_reader_u64(reader);
    const uint8_t *hashes = base_reader_view(reader, 32 + 32 + 16);
    if (!hashes || !base_reader_done(reader))
        return base_error_set(error, BASE_CORRUPT, "a start of the wrong size");
    memcpy(start->dataset_version, hashes, 32);
    memcpy(start->stream, hashes + 32, 32);
    memcpy(start->fingerprint, hashes + 64, 16);
    if (flags > FLAGS || reserved || start->tail >= TAILS || !start->job[0] || !start->batch ||
        start->batch > LEDGER_ROWS_MAX || start->rank >= start->world || start->world > LEDGER_WORLD_MAX ||
        !start->items || start->items > LEDGER_ITEMS_MAX || start->position > start->items ||
        start->epoch < start->first_epoch)
        return base_error_set(error, BASE_CORRUPT, "a start with impossible numbers");
    return BASE_OK;
}

static bool read_runs(struct base_reader *reader, struct ledger_batch *batch, uint32_t run_count)
{
    uint64_t rows = 0;
    if (run_count > LEDGER_RUNS_MAX)
        return false;
    for (uint32_t i = 0; i < run_count; i++) {
        struct ledger_run *run = &batch->runs[i];
        run->begin = base_reader_u64(reader);
        run->count = base_reader_u32(reader);
        rows += run->count;
        if (!run->count || run->begin > LEDGER_ITEMS_MAX)
            return false;
    }
    batch->run_count = (int)run_count;
    batch->rows = (uint32_t)rows;
    return rows <= LEDGER_ROWS_MAX && batch->padding <= LEDGER_ROWS_MAX;
}

static enum base_code read_batch(struct base_reader *reader, struct ledger_batch *batch,
                                 struct base_error *error)
{
    *batch = (struct ledger_batch){0};
    batch->job_epoch = base_reader_u32(reader);
    batch->epoch = base_reader_u32(reader);
    batch->step = base_reader_u64(reader);
    batch->steps = base_reader_u64(reader);
    batch->step_begin = base_reader_u64(reader);
    batch->step_valid = base_reader_u64(reader);
    batch->after_epoch = base_reader_u32(reader);
    uint32_t reserved = base_reader_u32(reader);
    batch->after_position = base_reader_u64(reader);
    batch->padding = base_reader_u32(reader);
    if (!read_runs(reader, batch, base_reader_u32(reader)) || reserved || batch->job_epoch > batch->epoch ||
        batch->step >= batch->steps || batch->step_begin > LEDGER_ITEMS_MAX ||
        batch->step_valid > LEDGER_ITEMS_MAX || batch->after_position > LEDGER_ITEMS_MAX)
        return base_error_set(error, BASE_CORRUPT, "a batch with impossible numbers");
    batch->hashes = base_reader_view(reader, 8 * (size_t)batch->rows);
    batch->valid = base_reader_view(reader, (batch->rows + 7) / 8);
    if (!base_reader_done(reader))
        return base_error_set(error, BASE_CORRUPT, "a batch of the wrong size");
    if (batch->rows % 8 && batch->valid[batch->rows / 8] >> batch->rows % 8)
        return base_error_set(error, BASE_CORRUPT, "a batch with more valid bits than rows");
    return BASE_OK;
}

enum base_code ledger_parse(const uint8_t *bytes, size_t size, struct ledger_record *record,
                            struct base_error *error)
{
    size_t whole;
    if (size < LEDGER_HEAD_BYTES)
        return base_error_set(error, BASE_CORRUPT, "a cut record");
    enum base_code code = ledger_head(bytes, &whole, error);
    if (code != BASE_OK)
        return code;
    if (whole != size)
        return base_error_set(error, BASE_CORRUPT, "a cut record");
    if (base_hash_xxh3(bytes, size - LEDGER_END_BYTES) != base_get_u64(bytes + size - LEDGER_END_BYTES))
        return base_error_set(error, BASE_CORRUPT, "a record that does not match its checksum");
    record->kind = (enum ledger_kind)base_get_u16(bytes + 6);
    struct base_reader reader =
        base_reader_of(bytes + LEDGER_HEAD_BYTES, size - LEDGER_HEAD_BYTES - LEDGER_END_BYTES);
    return record->kind == LEDGER_START ? read_start(&reader, &record->start, error)
                                        : read_batch(&reader, &record->batch, error);
}
