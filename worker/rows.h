/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of one block in the making, or of sibling blocks that are made together: which item stands in for which, their raw bytes,
 * and the blocks' bytes. Used by one thread at a time (worker/make.h says which).
 *
 *   WANTED -> READ -> DONE        good
 *     ^         |
 *     +---------+-> DONE(bad)     bad: the next substitute that is not known as bad; after 16 none is left
 *
 * Siblings mostly want the same item at a position: then the first of them reads it, and the others borrow its bytes and its decode.
 */
#ifndef WORKER_ROWS_H
#define WORKER_ROWS_H

#include "worker/kit.h"

#define WORKER_ROWS_TRIES 16

enum worker_row_state { WORKER_ROW_WANTED, WORKER_ROW_READ, WORKER_ROW_DONE };

struct worker_row {
    uint64_t position, item, used_item, occurrence;
    enum worker_row_state state;
    enum wire_row_status status;
    bool borrows;  /* WANTED: an earlier sibling reads the same item */
    uint8_t cause; /* verdict on `item` when it is bad */
    int tries;
    uint8_t *bytes; /* raw; owned */
    uint64_t size_bytes;
    uint8_t *mask; /* where a pipeline has Mask; raw; owned */
    uint64_t mask_bytes;
    int64_t label;
    uint32_t ragged_length[SCHEDULER_PIPELINE_FIELDS];
};

struct worker_rows_block {
    struct worker_kit *kit;
    uint8_t *bytes; /* in staging */
};

struct worker_rows {
    struct worker_rows_block blocks[PIPELINE_SIBLINGS];
    uint32_t block_count, epoch, count; /* count: of positions */
    bool masks;                         /* one of the pipelines has Mask: an item is read with its mask */
    uint32_t wanted, reads;             /* rows that are not DONE; of those, after a look-up: to be read */
    struct worker_row row[];            /* worker_rows_at; block_count * count */
};

static inline struct worker_row *worker_rows_at(struct worker_rows *rows, uint32_t block, uint32_t position)
{
    return &rows->row[position * rows->block_count + block];
}

/* Positions [first, first + count) of an epoch (key); items known as bad have their substitutes already. Several blocks: their streams
 * are of one family. NULL: no memory. */
struct worker_rows *worker_rows_create(const struct worker_rows_block *blocks, uint32_t block_count,
                                       uint32_t epoch, uint64_t first, uint32_t count,
                                       const struct scheduler_order *order);
void worker_rows_destroy(struct worker_rows *rows); /* with raw bytes that are left; NULL is fine */

/* Sizes and labels of wanted rows from the manifest, and which of them borrow; may decompress names. *size_bytes: the sum of what is
 * to be read. TOO_LARGE: one of them is over `item_max_bytes`, and is named. */
enum base_code worker_rows_look_up(struct worker_rows *rows, uint64_t item_max_bytes, uint64_t *size_bytes,
                                   struct base_error *error);
/* Reads the item, and its mask, of rows->row[index], which is WANTED and does not borrow. Blocks: I/O threads. */
enum base_code worker_rows_read(struct worker_rows *rows, uint32_t index, struct base_error *error);

struct worker_rows_work {
    struct pipeline_scratch *scratch;
    /* An item is a bad sample, and this is the first to know. */
    void (*bad)(void *context, uint64_t item, const struct base_error *error);
    void *context;
    uint32_t decodes, shared; /* counted up: items decoded; rows for which a sibling's decode was enough */
};
/* Makes the rows of a position whose raw bytes are there; these go. A bad row is WANTED again, or DONE as bad. A code ends all blocks. */
enum base_code worker_rows_make(struct worker_rows *rows, uint32_t position, struct worker_rows_work *work,
                                struct base_error *error);
/* All rows are DONE: packs a block's ragged fields, writes lengths, hashes and the row table. Returns the bytes used. */
uint64_t worker_rows_finish(struct worker_rows *rows, uint32_t block);

#endif
