/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of one block in the making: which item stands in for which, their raw bytes, and the block's bytes. Used by one
 * thread at a time (worker/make.h says which).
 *
 *   WANTED -> READ -> DONE        good
 *     ^         |
 *     +---------+-> DONE(bad)     bad: the next substitute that is not known as bad; after 16 none is left
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
    uint8_t cause; /* verdict on `item` when it is bad */
    int tries;
    uint8_t *bytes; /* raw; owned */
    uint64_t size_bytes;
    int64_t label;
    uint32_t ragged_length[SCHEDULER_PIPELINE_FIELDS];
};

struct worker_rows {
    struct worker_kit *kit;
    uint8_t *block; /* in staging */
    uint32_t epoch, count, wanted;
    struct worker_row row[];
};

/* Positions [first, first + count) of an epoch (key); items known as bad have their substitutes already. NULL: no memory. */
struct worker_rows *worker_rows_create(struct worker_kit *kit, uint8_t *block, uint32_t epoch, uint64_t first,
                                       uint32_t count, const struct scheduler_order *order);
void worker_rows_destroy(struct worker_rows *rows); /* with raw bytes that are left; NULL is fine */

/* Sizes and labels of wanted rows from the manifest; may decompress names. *size_bytes: their sum. TOO_LARGE: one of them is over
 * `item_max_bytes`, and is named. */
enum base_code worker_rows_look_up(struct worker_rows *rows, uint64_t item_max_bytes, uint64_t *size_bytes,
                                   struct base_error *error);
/* Reads one wanted row's item. Blocks: I/O threads. */
enum base_code worker_rows_read(struct worker_rows *rows, uint32_t index, struct base_error *error);

/* Makes row `index` from its raw bytes, which go. BAD_SAMPLE: `error` has the cause, *news says whether it is the first to know;
 * the row is WANTED again, or DONE as bad. Other codes end the block. */
enum base_code worker_rows_make(struct worker_rows *rows, uint32_t index, struct pipeline_scratch *scratch,
                                bool *news, struct base_error *error);
/* All rows are DONE: packs ragged fields, writes lengths, hashes and the row table. Returns the bytes used. */
uint64_t worker_rows_finish(struct worker_rows *rows);

#endif
