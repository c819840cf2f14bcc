/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/shelf.h"

#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

void worker_shelf_fini(struct worker_shelf *shelf)
{
    free(shelf->entries);
    *shelf = (struct worker_shelf){0};
}

static uint64_t end_of(const struct worker_shelf_entry *entry)
{
    return entry->start + entry->rows;
}

/* How many entries end at or before `position`. Blocks do not overlap, so ends ascend, too. */
static uint32_t ended(const struct worker_shelf *shelf, uint64_t position)
{
    uint32_t low = 0, high = shelf->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (end_of(&shelf->entries[middle]) <= position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool worker_shelf_put(struct worker_shelf *shelf, struct worker_shelf_entry entry)
{
    if (!base_grow(&shelf->entries, shelf->count, sizeof entry))
        return false;
    uint32_t at = ended(shelf, entry.start);
    memmove(shelf->entries + at + 1, shelf->entries + at, (shelf->count - at) * sizeof entry);
    shelf->entries[at] = entry;
    shelf->count++;
    return true;
}

void worker_shelf_remove(struct worker_shelf *shelf, uint64_t start)
{
    uint32_t at = ended(shelf, start);
    shelf->count--;
    memmove(shelf->entries + at, shelf->entries + at + 1, (shelf->count - at) * sizeof *shelf->entries);
}

void worker_shelf_pin(struct worker_shelf *shelf, uint64_t start, int by)
{
    shelf->entries[ended(shelf, start)].pins += (uint32_t)by;
}

/* The last unpinned one of [low, high). */
static const struct worker_shelf_entry *last_free(const struct worker_shelf *shelf, uint32_t low,
                                                  uint32_t high)
{
    for (uint32_t at = high; at > low; at--)
        if (shelf->entries[at - 1].pins == 0)
            return &shelf->entries[at - 1];
    return NULL;
}

static const struct worker_shelf_entry *first_free(const struct worker_shelf *shelf, uint32_t low,
                                                   uint32_t high)
{
    for (uint32_t at = low; at < high; at++)
        if (shelf->entries[at].pins == 0)
            return &shelf->entries[at];
    return NULL;
}

const struct worker_shelf_entry *worker_shelf_farthest(const struct worker_shelf *shelf,
                                                       const struct worker_claims *claims, uint64_t *next_use)
{
    const struct worker_shelf_entry *farthest = NULL;
    bool linear = claims->wrap == 0;
    uint32_t low = 0;
    *next_use = 0;
    for (uint32_t i = 0; i <= claims->sorted_count; i++) {
        uint32_t high = i < claims->sorted_count ? ended(shelf, claims->sorted[i]) : shelf->count;
        bool never = claims->sorted_count == 0 || (linear && i == 0);
        const struct worker_shelf_entry *entry =
            never ? first_free(shelf, low, high) : last_free(shelf, low, high);
        if (entry) {
            uint64_t use = worker_claims_next_use(claims, entry->start, end_of(entry));
            if (!farthest || use > *next_use) {
                farthest = entry;
                *next_use = use;
            }
        }
        low = high;
    }
    return farthest;
}
