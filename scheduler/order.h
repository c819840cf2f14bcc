/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of an epoch: which item stands at which position. N <= 65,536: Fisher-Yates from Philox, a table; above: a
 * keyed bijection (Feistel network with cycle walking, key from (seed, epoch)), O(1) memory and time up to 2^48.
 * Immutable after create: any thread.
 */
#ifndef SCHEDULER_ORDER_H
#define SCHEDULER_ORDER_H

#include "base/error.h"

#define SCHEDULER_ORDER_TABLE_MAX UINT64_C(65536)
#define SCHEDULER_ORDER_ITEMS_MAX (UINT64_C(1) << 48)

struct scheduler_order;

/* shuffle false: item = position, and seed and epoch do not enter. items 1 .. 2^48. */
enum base_code scheduler_order_create(struct scheduler_order **order, bool shuffle, uint64_t seed,
                                      uint32_t epoch, uint64_t items, struct base_error *error);
void scheduler_order_destroy(struct scheduler_order *order);

uint64_t scheduler_order_item(const struct scheduler_order *order, uint64_t position); /* position < items */
uint64_t scheduler_order_position(const struct scheduler_order *order, uint64_t item); /* the inverse */

/* Item of substitute try 0..15 for a bad row at (epoch, position): uniform, seeded, not filtered. The sample's
 * occurrence is position + 1. */
uint64_t scheduler_order_substitute(uint64_t seed, uint32_t epoch, uint64_t position, int try_index,
                                    uint64_t items);

#endif
