/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/items.h"

void client_items_init(struct client_items *items, const struct scheduler_stream *stream)
{
    *items = (struct client_items){.stream = stream};
}

void client_items_fini(struct client_items *items)
{
    for (int i = 0; i < CLIENT_ITEMS_EPOCHS; i++)
        scheduler_order_destroy(items->orders[i]);
}

static enum base_code get_order(struct client_items *items, uint32_t epoch,
                                const struct scheduler_order **order, struct base_error *error)
{
    const struct scheduler_stream *stream = items->stream;
    struct scheduler_order *made;
    for (int i = 0; i < CLIENT_ITEMS_EPOCHS; i++)
        if (items->orders[i] && items->epochs[i] == epoch) {
            *order = items->orders[i];
            return BASE_OK;
        }
    enum base_code code =
        scheduler_order_create(&made, stream->shuffle, stream->seed, epoch, stream->items, error);
    if (code != BASE_OK)
        return code;
    int at = items->oldest;
    items->oldest = (at + 1) % CLIENT_ITEMS_EPOCHS;
    scheduler_order_destroy(items->orders[at]);
    items->orders[at] = made;
    items->epochs[at] = epoch;
    *order = made;
    return BASE_OK;
}

enum base_code client_items_check(struct client_items *items, const struct client_items_part *part,
                                  struct base_error *error)
{
    const struct wire_row *rows = part->rows;
    const struct scheduler_order *order = NULL;
    enum base_code code = get_order(items, part->epoch, &order, error);
    if (code != BASE_OK)
        return code;
    bool all = !items->stream->shuffle || items->stream->items <= SCHEDULER_ORDER_TABLE_MAX;
    uint64_t looks = part->bytes / CLIENT_ITEMS_STEP_BYTES;
    if (looks < 1)
        looks = 1;
    if (all || looks > part->count)
        looks = part->count;
    for (uint64_t look = 0; look < looks; look++) {
        uint32_t i = (uint32_t)((part->pick + look) % part->count);
        uint64_t item = scheduler_order_item(order, part->position + i);
        bool its_own = rows[i].status != WIRE_ROW_OK || rows[i].used_item == item;
        if (rows[i].item != item || !its_own)
            return base_error_set(
                error, BASE_CORRUPT,
                "DATA has item %llu (made of %llu) at epoch %u position %llu, not item %llu",
                (unsigned long long)rows[i].item, (unsigned long long)rows[i].used_item, part->epoch,
                (unsigned long long)(part->position + i), (unsigned long long)item);
    }
    return BASE_OK;
}
