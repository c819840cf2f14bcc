/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/memory.h"

#include "client/python/src/align.h"
#include "client/python/src/ring.h"

#include <stdlib.h>
#include <sys/mman.h>

#define LARGE_PAGE_BYTES ((size_t)2 << 20)

struct python_pool *python_memory_open(uint32_t room)
{
    struct python_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    pool->room = room;
    pool->chunks = calloc(room, sizeof *pool->chunks);
    atomic_init(&pool->refs, 1);
    if (pool->chunks)
        return pool;
    free(pool);
    return NULL;
}

void python_memory_get(struct python_pool *pool)
{
    atomic_fetch_add(&pool->refs, 1);
}

void python_memory_put(struct python_pool *pool)
{
    if (!pool || atomic_fetch_sub(&pool->refs, 1) > 1)
        return;
    python_ring_put(pool->ring);
    free(pool->chunks);
    free(pool);
}

void *python_memory_allocate(void *context, size_t bytes)
{
    struct python_pool *pool = context;
    size_t align = bytes < LARGE_PAGE_BYTES ? PYTHON_ALIGN : LARGE_PAGE_BYTES;
    size_t whole = (bytes + align - 1) / align * align;
    if (pool->count == pool->room)
        return NULL;
    void *memory = aligned_alloc(align, whole);
    if (!memory)
        return NULL;
    if (align == LARGE_PAGE_BYTES)
        madvise(memory, whole, MADV_HUGEPAGE); /* a hint */
    struct python_chunk *chunk = &pool->chunks[pool->count++];
    chunk->memory = memory;
    chunk->bytes = bytes;
    atomic_store(&chunk->refs, 1);
    return memory;
}

void python_memory_free(void *context, void *memory, size_t bytes)
{
    struct python_pool *pool = context;
    (void)bytes;
    for (uint32_t i = 0; i < pool->count; i++)
        if (pool->chunks[i].memory == memory) {
            python_memory_release(&pool->chunks[i]);
            return;
        }
}

struct python_chunk *python_memory_hold(struct python_pool *pool, const void *at)
{
    for (uint32_t i = 0; i < pool->count; i++) {
        struct python_chunk *chunk = &pool->chunks[i];
        const char *begin = chunk->memory, *place = at;
        if (begin && place >= begin && place < begin + chunk->bytes) {
            atomic_fetch_add(&chunk->refs, 1);
            return chunk;
        }
    }
    return NULL;
}

void python_memory_release(struct python_chunk *chunk)
{
    if (atomic_fetch_sub(&chunk->refs, 1) > 1)
        return;
    free(chunk->memory);
    chunk->memory = NULL;
}
