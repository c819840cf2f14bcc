/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/arena.h"

#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

bool worker_arena_init(struct worker_arena *arena, uint64_t size_bytes)
{
    size_bytes -= size_bytes % WORKER_ARENA_STEP;
    *arena = (struct worker_arena){.size_bytes = size_bytes, .free_bytes = size_bytes};
    if (!base_grow(&arena->runs, 0, sizeof *arena->runs))
        return false;
    if (size_bytes > 0)
        arena->runs[arena->count++] = (struct worker_arena_run){0, size_bytes};
    return true;
}

void worker_arena_fini(struct worker_arena *arena)
{
    free(arena->runs);
    *arena = (struct worker_arena){0};
}

uint64_t worker_arena_round(uint64_t size_bytes)
{
    return (size_bytes + WORKER_ARENA_STEP - 1) / WORKER_ARENA_STEP * WORKER_ARENA_STEP;
}

static void remove_run(struct worker_arena *arena, uint32_t at)
{
    arena->count--;
    memmove(arena->runs + at, arena->runs + at + 1, (arena->count - at) * sizeof *arena->runs);
}

bool worker_arena_take(struct worker_arena *arena, uint64_t size_bytes, uint64_t *offset)
{
    uint64_t size = worker_arena_round(size_bytes);
    if (size > arena->free_bytes)
        return false;
    for (uint32_t at = 0; at < arena->count; at++) {
        struct worker_arena_run *run = &arena->runs[at];
        if (run->size < size)
            continue;
        *offset = run->offset;
        run->offset += size;
        run->size -= size;
        arena->free_bytes -= size;
        if (run->size == 0)
            remove_run(arena, at);
        return true;
    }
    return false;
}

/* The first free run behind `offset`. */
static uint32_t find_run(const struct worker_arena *arena, uint64_t offset)
{
    uint32_t low = 0, high = arena->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (arena->runs[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool insert_run(struct worker_arena *arena, uint32_t at, struct worker_arena_run run)
{
    if (!base_grow(&arena->runs, arena->count, sizeof run))
        return false;
    memmove(arena->runs + at + 1, arena->runs + at, (arena->count - at) * sizeof *arena->runs);
    arena->runs[at] = run;
    arena->count++;
    return true;
}

bool worker_arena_give(struct worker_arena *arena, uint64_t offset, uint64_t size_bytes)
{
    uint64_t size = worker_arena_round(size_bytes);
    if (size == 0)
        return true;
    uint32_t at = find_run(arena, offset);
    struct worker_arena_run *before = at > 0 ? &arena->runs[at - 1] : NULL;
    struct worker_arena_run *after = at < arena->count ? &arena->runs[at] : NULL;
    bool joins_before = before && before->offset + before->size == offset;
    bool joins_after = after && offset + size == after->offset;
    if (joins_before && joins_after) {
        before->size += size + after->size;
        remove_run(arena, at);
    } else if (joins_before) {
        before->size += size;
    } else if (joins_after) {
        after->offset = offset;
        after->size += size;
    } else if (!insert_run(arena, at, (struct worker_arena_run){offset, size})) {
        return false;
    }
    arena->free_bytes += size;
    return true;
}
