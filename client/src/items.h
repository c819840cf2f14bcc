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
    uint64_t pick; /* any number: where only one row is looked at, row `pick` % count */
};
/* CORRUPT: a row of another item. One row is looked at where an item's place costs more to find than to look up (above
 * SCHEDULER_ORDER_TABLE_MAX). */
enum base_code client_items_check(struct client_items *items, const struct client_items_part *part,
                                  struct base_error *error);

#endif
