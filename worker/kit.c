/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/kit.h"

#include <stdlib.h>
#include <string.h>

static int find_field(const struct scheduler_pipeline *pipeline, const char *name)
{
    for (int f = 0; f < pipeline->field_count; f++)
        if (strncmp(pipeline->fields[f].name, name, sizeof pipeline->fields[f].name) == 0)
            return f;
    return -1;
}

enum base_code worker_kit_create(struct worker_kit **out, const struct scheduler_stream *stream,
                                 struct worker_dataset *dataset, struct base_error *error)
{
    if (stream->items != dataset->items)
        return base_error_set(error, BASE_CONFLICT, "stream of %llu items, but the manifest of %s has %llu",
                              (unsigned long long)stream->items, dataset->name,
                              (unsigned long long)dataset->items);
    if (stream->pipeline.mask && !manifest_masks(dataset->folder.manifest))
        return base_error_set(error, BASE_INVALID, "dataset %s has no masks", dataset->name);
    struct worker_kit *kit = calloc(1, sizeof *kit);
    if (!kit)
        return base_error_set(error, BASE_NO_MEMORY, "stream");
    kit->stream = *stream;
    kit->refused = calloc(dataset->items > 0 ? dataset->items : 1, sizeof *kit->refused);
    enum base_code code = kit->refused ? pipeline_create(&kit->pipeline, &kit->stream.pipeline, error)
                                       : base_error_set(error, BASE_NO_MEMORY, "stream");
    if (code != BASE_OK) {
        free(kit->refused);
        free(kit);
        return code;
    }
    const struct scheduler_pipeline *pipeline = &kit->stream.pipeline;
    wire_layout_init(&kit->layout, pipeline->fields, pipeline->field_count, pipeline->block_rows);
    base_hash_to_hex(stream->hash, 6, kit->hex);
    kit->label_field = find_field(pipeline, "label");
    kit->dataset = dataset;
    worker_dataset_hold(dataset);
    *out = kit;
    return BASE_OK;
}

void worker_kit_destroy(struct worker_kit *kit)
{
    if (!kit)
        return;
    for (int i = 0; i < WORKER_KIT_ORDERS; i++)
        scheduler_order_destroy(kit->orders[i].order);
    pipeline_destroy(kit->pipeline);
    free(kit->refused);
    worker_dataset_release(kit->dataset);
    free(kit);
}

/* The place of `epoch`, else the one to use for it: empty, or used longest ago. NULL: all in use. */
static struct worker_kit_order *find_order(struct worker_kit *kit, uint32_t epoch)
{
    struct worker_kit_order *oldest = NULL;
    for (int i = 0; i < WORKER_KIT_ORDERS; i++) {
        struct worker_kit_order *entry = &kit->orders[i];
        if (entry->order && entry->epoch == epoch)
            return entry;
        if (entry->users == 0 && (!oldest || entry->used < oldest->used))
            oldest = entry;
    }
    return oldest;
}

enum base_code worker_kit_get_order(struct worker_kit *kit, uint32_t epoch, struct scheduler_order **out,
                                    struct base_error *error)
{
    const struct scheduler_stream *stream = &kit->stream;
    struct worker_kit_order *entry = find_order(kit, epoch);
    struct scheduler_order *order = entry && entry->epoch == epoch ? entry->order : NULL;
    if (!order) {
        enum base_code code =
            scheduler_order_create(&order, stream->shuffle, stream->seed, epoch, stream->items, error);
        if (code != BASE_OK)
            return code;
    }
    *out = order;
    if (!entry) /* all are in use: this one is for one block */
        return BASE_OK;
    if (entry->order != order) {
        scheduler_order_destroy(entry->order);
        *entry = (struct worker_kit_order){.order = order, .epoch = epoch};
    }
    entry->users++;
    entry->used = ++kit->order_uses;
    return BASE_OK;
}

void worker_kit_put_order(struct worker_kit *kit, struct scheduler_order *order)
{
    for (int i = 0; order && i < WORKER_KIT_ORDERS; i++)
        if (kit->orders[i].order == order) {
            kit->orders[i].users--;
            return;
        }
    scheduler_order_destroy(order);
}

uint8_t worker_kit_wanted(const struct worker_kit *kit, const char (*names)[24], int count,
                          const char **missing)
{
    uint8_t wanted = 0;
    for (int i = 0; i < count; i++) {
        int field = find_field(&kit->stream.pipeline, names[i]);
        if (field < 0) {
            *missing = names[i];
            return 0;
        }
        wanted = (uint8_t)(wanted | 1u << field);
    }
    return wanted;
}
