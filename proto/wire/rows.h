/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows: how a block lies in a worker's memory and how a part of it lies on the wire.
 *
 *   row, 40 bytes     item8 used_item8 occurrence8 row_hash8 status1 cause1 reserved6
 *   field hash        XXH3 over the field's bytes of that row (a ragged one's values; an empty one: no bytes)
 *   row_hash          XXH3 over the row's field hashes (8 bytes each, all made fields in field order)
 *
 *   block in memory   rows K*40 | hashes K*F*8 (row-major, all fields) | lengths K*4 a ragged field
 *                     | one run a field: fixed K*max_bytes; ragged K*max_bytes reserved, packed from the start;
 *                     each of these begins at a multiple of 64
 *   DATA payload      directory: u64 a sent field, bytes of its values in this part | rows n*40
 *                     | hashes n*S*8 (sent fields only, row-major) | XXH3 of all before it: the head
 *                     | fixed fields' runs | ragged lengths n*4 a field (elements) | ragged values; unpadded, in
 *                     field order
 *
 * Lengths, not offsets, travel: parts concatenate. Ragged fields of rank 1 only, so far: no shapes travel.
 */
#ifndef PROTO_WIRE_ROWS_H
#define PROTO_WIRE_ROWS_H

#include "base/error.h"
#include "scheduler/pipeline.h"

#include <sys/uio.h>

#define WIRE_ROW_BYTES 40
#define WIRE_ROWS_MAX 256 /* of a block */
#define WIRE_LABEL_BAD (-100)

enum wire_row_status { WIRE_ROW_OK = 0, WIRE_ROW_SUBSTITUTED = 1, WIRE_ROW_BAD = 2 };

struct wire_row {
    uint64_t item, used_item, occurrence, hash;
    uint8_t status, cause; /* cause: enum pipeline_verdict of `item` when it is bad */
};
void wire_row_write(const struct wire_row *row, uint8_t bytes[WIRE_ROW_BYTES]);
/* CORRUPT when the status is unknown or reserved bytes are not zero. */
enum base_code wire_row_read(const uint8_t bytes[WIRE_ROW_BYTES], struct wire_row *row,
                             struct base_error *error);

/* Offsets of a block of `rows` rows in memory; `size` is the whole, a multiple of 64. */
struct wire_layout {
    const struct scheduler_field *fields; /* not owned */
    int field_count;
    uint32_t rows;
    size_t row_table, hashes, lengths[SCHEDULER_PIPELINE_FIELDS], values[SCHEDULER_PIPELINE_FIELDS], size;
    /* lengths: u32 little endian, elements; of a fixed field 0 and unused */
};
void wire_layout_init(struct wire_layout *layout, const struct scheduler_field *fields, int field_count,
                      uint32_t rows);

/* Hashes the fields of row `index` (ragged: `values` at byte offset `ragged_at[f]` of the field's run) into
 * the block's hash table and returns the row hash. */
uint64_t wire_layout_hash_row(const struct wire_layout *layout, uint8_t *block, uint32_t index,
                              const uint64_t ragged_at[SCHEDULER_PIPELINE_FIELDS]);

/* Rows [from, to) of a block with the fields of mask `wanted`. */
struct wire_cut {
    uint8_t wanted;
    uint32_t from, to;
};
/* The DATA payload of a cut, gathered from a made block without
 * copying what is large: the head is written to `scratch` (wire_part_scratch_bytes), everything else points
 * into the block. Returns the number of iovecs (<= WIRE_PART_IOVECS) and *length their sum. */
#define WIRE_PART_IOVECS (1 + 2 * SCHEDULER_PIPELINE_FIELDS)
size_t wire_part_scratch_bytes(const struct wire_layout *layout, uint8_t wanted, uint32_t rows);
int wire_part_gather(const struct wire_layout *layout, uint8_t *block, const struct wire_cut *cut,
                     uint8_t *scratch, struct iovec *iov, uint64_t *length);

/* Receiving: the part's head (directory, rows, hashes, their checksum) has a size known beforehand; then come
 * the runs. */
size_t wire_part_head_bytes(int fields_sent, uint32_t rows);
struct wire_part_head {
    uint32_t rows;
    int fields_sent;
    const uint8_t *directory, *row_table, *hashes; /* views into the head's bytes */
};
struct wire_part_head wire_part_head_view(const uint8_t *head, int fields_sent, uint32_t rows);
/* The head against its checksum, and the directory against the field specs and the payload length: fixed
 * fields exactly rows*max_bytes, ragged ones at most that and whole elements, the sum right. CORRUPT
 * otherwise. */
enum base_code wire_part_check(const struct wire_part_head *head, const struct scheduler_field *sent,
                               uint64_t length, struct base_error *error);
/* What follows the head, in order, of a part that was checked: empty runs are left out. Returns how many
 * (<= WIRE_PART_RUNS). */
#define WIRE_PART_RUNS (2 * SCHEDULER_PIPELINE_FIELDS)
struct wire_part_run {
    int sent_index;
    bool is_lengths;
    uint64_t offset, size; /* in the payload */
};
int wire_part_runs(const struct wire_part_head *head, const struct scheduler_field *sent,
                   struct wire_part_run runs[WIRE_PART_RUNS]);
/* A ragged field's lengths (rows * 4 bytes), once they are there: none over the largest row, the sum as the
 * directory says. */
enum base_code wire_part_check_lengths(const struct wire_part_head *head, const struct scheduler_field *sent,
                                       int sent_index, const uint8_t *lengths, struct base_error *error);
/* Row `index`'s field `sent_index` hashes as the head says? */
bool wire_part_verify_field(const struct wire_part_head *head, uint32_t index, int sent_index,
                            const void *bytes, size_t size);
/* Only when all made fields were sent. */
bool wire_part_verify_row(const struct wire_part_head *head, uint32_t index);

#endif
