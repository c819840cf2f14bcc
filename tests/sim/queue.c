/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

/* ---- random numbers: splitmix64 ---- */

uint64_t sim_random_word(struct sim_random *random)
{
    uint64_t z = (random->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

int64_t sim_random_between(struct sim_random *random, int64_t least, int64_t most)
{
    if (most <= least)
        return least;
    return least + (int64_t)(sim_random_word(random) % ((uint64_t)(most - least) + 1));
}

bool sim_random_chance(struct sim_random *random, int permille)
{
    return permille > 0 && sim_random_between(random, 0, 999) < permille;
}

struct sim_random sim_random_of(uint64_t seed, enum sim_draws draws, uint64_t index)
{
    uint64_t key[3] = {seed, draws, index};
    return (struct sim_random){base_hash_xxh3(key, sizeof key)};
}

/* ---- events ---- */

static bool sooner(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->serial < b->serial;
}

static void *grown(void *from, size_t size)
{
    void *to = realloc(from, size);
    if (!to)
        abort(); /* a test without memory has nothing to say */
    return to;
}

void sim_queue_put(struct sim_queue *queue, const struct sim_event *wanted)
{
    if (queue->count == queue->capacity) {
        queue->capacity = queue->capacity ? 2 * queue->capacity : 1024;
        queue->events = grown(queue->events, queue->capacity * sizeof *queue->events);
    }
    struct sim_event event = *wanted;
    event.serial = queue->serial++;
    size_t at = queue->count++;
    while (at > 0 && sooner(&event, &queue->events[(at - 1) / 2])) {
        queue->events[at] = queue->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    queue->events[at] = event;
}

bool sim_queue_take(struct sim_queue *queue, struct sim_event *event)
{
    if (queue->count == 0)
        return false;
    *event = queue->events[0];
    struct sim_event last = queue->events[--queue->count];
    size_t at = 0;
    for (size_t child = 1; child < queue->count; child = 2 * at + 1) {
        if (child + 1 < queue->count && sooner(&queue->events[child + 1], &queue->events[child]))
            child++;
        if (!sooner(&queue->events[child], &last))
            break;
        queue->events[at] = queue->events[child];
        at = child;
    }
    queue->events[at] = last;
    return true;
}

void sim_queue_fini(struct sim_queue *queue)
{
    free(queue->events);
    *queue = (struct sim_queue){0};
}

/* ---- memory of one world ---- */

#define CHUNK_BYTES (256 * 1024)

struct sim_chunk {
    struct sim_chunk *next;
    _Alignas(16) char bytes[];
};

void *sim_memory_get(struct sim_memory *memory, size_t size)
{
    size = (size + 15) / 16 * 16;
    if (!memory->chunks || memory->used + size > CHUNK_BYTES) {
        struct sim_chunk *chunk = grown(NULL, sizeof *chunk + (size > CHUNK_BYTES ? size : CHUNK_BYTES));
        chunk->next = memory->chunks;
        memory->chunks = chunk;
        memory->used = 0;
    }
    void *at = memory->chunks->bytes + memory->used;
    memory->used += size;
    return memset(at, 0, size);
}

void sim_memory_fini(struct sim_memory *memory)
{
    while (memory->chunks) {
        struct sim_chunk *next = memory->chunks->next;
        free(memory->chunks);
        memory->chunks = next;
    }
}
