/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/slots.h"

#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

void worker_slots_init(struct worker_slots *slots, size_t item_bytes)
{
    *slots = (struct worker_slots){.item_bytes = item_bytes, .first_free = WORKER_SLOTS_NONE};
}

void worker_slots_fini(struct worker_slots *slots)
{
    free(slots->items);
    worker_slots_init(slots, slots->item_bytes);
}

void *worker_slots_get(struct worker_slots *slots, uint32_t *index)
{
    struct worker_slot *slot;
    uint32_t generation = 1;
    if (slots->first_free != WORKER_SLOTS_NONE) {
        *index = slots->first_free;
        slot = worker_slots_at(slots, *index);
        slots->first_free = slot->next_free;
        generation = slot->generation;
    } else {
        if (slots->count > UINT32_MAX / 4 || !base_grow(&slots->items, slots->count, slots->item_bytes))
            return NULL;
        *index = slots->count++;
        slot = worker_slots_at(slots, *index);
    }
    memset(slot, 0, slots->item_bytes);
    slot->generation = generation;
    slot->used = true;
    slots->used++;
    return slot;
}

void worker_slots_put(struct worker_slots *slots, uint32_t index)
{
    struct worker_slot *slot = worker_slots_at(slots, index);
    slot->used = false;
    if (++slot->generation == 0)
        slot->generation = 1;
    slot->next_free = slots->first_free;
    slots->first_free = index;
    slots->used--;
}

void *worker_slots_find(const struct worker_slots *slots, uint64_t handle)
{
    uint32_t index = (uint32_t)handle;
    if (index >= slots->count)
        return NULL;
    struct worker_slot *slot = worker_slots_at(slots, index);
    return slot->used && slot->generation == handle >> 32 ? slot : NULL;
}

uint64_t worker_slots_handle(const struct worker_slots *slots, uint32_t index)
{
    const struct worker_slot *slot = worker_slots_at(slots, index);
    return (uint64_t)slot->generation << 32 | index;
}
