/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of one reply: allocated piece by piece, freed at once. A failed allocation is remembered: check `failed` once at the end. */
#ifndef SERVER_ARENA_H
#define SERVER_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct server_arena {
    struct server_arena_chunk *chunks;
    bool failed;
};

void server_arena_init(struct server_arena *arena);
void server_arena_fini(struct server_arena *arena);

/* Zeroed; NULL when memory is out (and failed is set). */
void *server_arena_alloc(struct server_arena *arena, size_t size);
/* A copy, as UTF-8 (a text may have been cut within a character, or be of a file's name); "" when memory is out, so that it may be put into a message. */
char *server_arena_text(struct server_arena *arena, const char *text);
char *server_arena_print(struct server_arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
