/* SPDX-License-Identifier: Apache-2.0 */
#include "server/arena.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 16384 };

struct server_arena_chunk {
    struct server_arena_chunk *next;
    size_t size, used;
    _Alignas(max_align_t) char bytes[];
};

void server_arena_init(struct server_arena *arena)
{
    *arena = (struct server_arena){0};
}

void server_arena_fini(struct server_arena *arena)
{
    while (arena->chunks) {
        struct server_arena_chunk *next = arena->chunks->next;
        free(arena->chunks);
        arena->chunks = next;
    }
}

void *server_arena_alloc(struct server_arena *arena, size_t size)
{
    size = (size + _Alignof(max_align_t) - 1) / _Alignof(max_align_t) * _Alignof(max_align_t);
    struct server_arena_chunk *chunk = arena->chunks;
    if (!chunk || chunk->size - chunk->used < size) {
        size_t bytes = size > CHUNK_BYTES ? size : CHUNK_BYTES;
        chunk = calloc(1, sizeof *chunk + bytes);
        if (!chunk) {
            arena->failed = true;
            return NULL;
        }
        chunk->size = bytes;
        chunk->next = arena->chunks;
        arena->chunks = chunk;
    }
    void *at = chunk->bytes + chunk->used;
    chunk->used += size;
    return at;
}

static char nothing[1];

static char *copy_text(struct server_arena *arena, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = server_arena_alloc(arena, size);
    return copy ? memcpy(copy, text, size) : nothing;
}

char *server_arena_text(struct server_arena *arena, const char *text)
{
    if (base_utf8_is_valid(text))
        return copy_text(arena, text);
    struct base_buffer escaped;
    base_buffer_init(&escaped);
    base_utf8_put(&escaped, text);
    const char *made = base_buffer_text(&escaped);
    char *copy = copy_text(arena, made ? made : "");
    arena->failed |= !made;
    base_buffer_fini(&escaped);
    return copy;
}

char *server_arena_print(struct server_arena *arena, const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return server_arena_text(arena, text);
}
