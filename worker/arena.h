/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which bytes of the staging memory are taken: first fit over a sorted list of free runs, in steps of 4 KiB.
 * Touches no memory itself, so the simulation runs it, too. Blocks of one stream have one size: their holes
 * fit each other.
 */
#ifndef WORKER_ARENA_H
#define WORKER_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#define WORKER_ARENA_STEP UINT64_C(4096)

struct worker_arena_run {
    uint64_t offset, size;
};

struct worker_arena {
    struct worker_arena_run *runs; /* free ones, sorted, never adjacent; owned */
    uint32_t count;
    uint64_t size_bytes, free_bytes;
};

/* False: no memory for the list. */
bool worker_arena_init(struct worker_arena *arena, uint64_t size_bytes);
void worker_arena_fini(struct worker_arena *arena);
uint64_t worker_arena_round(uint64_t size_bytes);
/* `size_bytes` is rounded up. False: no run is that long. */
bool worker_arena_take(struct worker_arena *arena, uint64_t size_bytes, uint64_t *offset);
/* Gives back [offset, offset + size), rounded up, of what was taken. False: no memory for the list, the bytes
 * are lost. */
bool worker_arena_give(struct worker_arena *arena, uint64_t offset, uint64_t size_bytes);

#endif
