/* SPDX-License-Identifier: Apache-2.0 */
/* The item at each position of a stream, known here too: a worker that answers with another one's row, its hashes right and all,
 * is found out. */
#ifndef CLIENT_ITEMS_H
#define CLIENT_ITEMS_H

#include "proto/wire/rows.h"
#include "scheduler/order.h"
#include "scheduler/stream.h"

#define CLIENT_ITEMS_EPOCHS 2 /* look-ahead reaches into the next one */

struct client_items {
    const struct scheduler_stream *stream; /* not owned */
    struct scheduler_order *orders[CLIENT_ITEMS_EPOCHS];
    uint32_t epochs[CLIENT_ITEMS_EPOCHS];
    int oldest;
};

void client_items_init(struct client_items *items, const struct scheduler_stream *stream);
void client_items_fini(struct client_items *items);
/* `count` rows from `position` on; `epoch` as it enters keys. */
struct client_items_part {
    uint32_t epoch, count;
    uint64_t position;
    const struct wire_row *rows;
    uint64_t bytes; /* of the part */
    uint64_t pick;  /* any number: where not all rows are looked at, row `pick` % count is the first */
};
/*
 * CORRUPT: a row of another item. All rows are looked at, but where the item of a position is not in a table (above
 * SCHEDULER_ORDER_TABLE_MAX items, shuffled): finding it costs what hashing 4 KiB does, so there it is one row for each
 * CLIENT_ITEMS_STEP_BYTES, at least one: all of the usual images, one in ten of 3 KB.
 */
#define CLIENT_ITEMS_STEP_BYTES 32768
enum base_code client_items_check(struct client_items *items, const struct client_items_part *part,
                                  struct base_error *error);

#endif
