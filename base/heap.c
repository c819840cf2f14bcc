/* SPDX-License-Identifier: Apache-2.0 */
#include "base/heap.h"

#include <stdlib.h>

bool base_heap_reserve(struct base_heap *heap, int count)
{
    if (count <= heap->room)
        return true;
    int room = count > 2 * heap->room ? count : 2 * heap->room;
    struct base_heap_node **grown = realloc(heap->nodes, (size_t)room * sizeof *grown);
    if (!grown)
        return false;
    heap->nodes = grown;
    heap->room = room;
    return true;
}

void base_heap_fini(struct base_heap *heap)
{
    free(heap->nodes);
    *heap = (struct base_heap){0};
}

static bool before(const struct base_heap_node *a, const struct base_heap_node *b)
{
    return a->key < b->key || (a->key == b->key && a->tie < b->tie);
}

static void put(const struct base_heap *heap, int at, struct base_heap_node *node)
{
    heap->nodes[at] = node;
    node->place = at + 1;
}

static void rise(const struct base_heap *heap, int at, struct base_heap_node *node)
{
    while (at > 0 && before(node, heap->nodes[(at - 1) / 2])) {
        put(heap, at, heap->nodes[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(heap, at, node);
}

static void sink(const struct base_heap *heap, int at, struct base_heap_node *node)
{
    for (int child = 2 * at + 1; child < heap->count; child = 2 * at + 1) {
        if (child + 1 < heap->count && before(heap->nodes[child + 1], heap->nodes[child]))
            child++;
        if (!before(heap->nodes[child], node))
            break;
        put(heap, at, heap->nodes[child]);
        at = child;
    }
    put(heap, at, node);
}

static void settle(const struct base_heap *heap, int at, struct base_heap_node *node)
{
    if (at > 0 && before(node, heap->nodes[(at - 1) / 2]))
        rise(heap, at, node);
    else
        sink(heap, at, node);
}

void base_heap_set(struct base_heap *heap, struct base_heap_node *node, int64_t key)
{
    int at = node->place ? node->place - 1 : heap->count++;
    node->key = key;
    settle(heap, at, node);
}

void base_heap_remove(struct base_heap *heap, struct base_heap_node *node)
{
    if (!node->place)
        return;
    int at = node->place - 1;
    struct base_heap_node *last = heap->nodes[--heap->count];
    node->place = 0;
    if (last != node)
        settle(heap, at, last);
}

struct base_heap_node *base_heap_first(const struct base_heap *heap)
{
    return heap->count > 0 ? heap->nodes[0] : NULL;
}
