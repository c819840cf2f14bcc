/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of one size in one growing array, named by handles: generation << 32 | index, never 0. A handle of
 * a record that was put back finds nothing. Growing moves the records: keep indexes, not pointers, across a
 * get.
 */
#ifndef WORKER_SLOTS_H
#define WORKER_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WORKER_SLOTS_NONE UINT32_MAX

/* What every record begins with. */
struct worker_slot {
    uint32_t generation;
    uint32_t next_free; /* of free ones */
    bool used;
};

struct worker_slots {
    uint8_t *items; /* owned */
    size_t item_bytes;
    uint32_t count, first_free, used;
};

void worker_slots_init(struct worker_slots *slots, size_t item_bytes);
void worker_slots_fini(struct worker_slots *slots);
/* A record, zeroed behind its slot, and its index; NULL: no memory. */
void *worker_slots_get(struct worker_slots *slots, uint32_t *index);
void worker_slots_put(struct worker_slots *slots, uint32_t index);

static inline void *worker_slots_at(const struct worker_slots *slots, uint32_t index)
{
    return slots->items + (size_t)index * slots->item_bytes;
}
/* NULL: stale or never given. */
void *worker_slots_find(const struct worker_slots *slots, uint64_t handle);
uint64_t worker_slots_handle(const struct worker_slots *slots, uint32_t index);

#endif
