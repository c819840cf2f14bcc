/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A binary heap of nodes that live in what they order: least (key, tie) first. A node knows its place, so that a key may change and
 * a node may go at any time. A zeroed node is in no heap.
 */
#ifndef BASE_HEAP_H
#define BASE_HEAP_H

#include <stdbool.h>
#include <stdint.h>

struct base_heap_node {
    int64_t key;
    int32_t tie;
    int32_t place; /* from 1; 0: in no heap */
};

struct base_heap { /* zeroed: empty */
    struct base_heap_node **nodes;
    int count, room; /* of nodes; the caller's array, unless it grows */
};

/* Room for so many nodes, on the heap; false: no memory. */
bool base_heap_reserve(struct base_heap *heap, int count);
void base_heap_fini(struct base_heap *heap); /* of one that was reserved */

/* Puts a node in, or moves it to its new key. There must be room. */
void base_heap_set(struct base_heap *heap, struct base_heap_node *node, int64_t key);
void base_heap_remove(struct base_heap *heap, struct base_heap_node *node); /* in none: nothing happens */
struct base_heap_node *base_heap_first(const struct base_heap *heap);       /* NULL: empty */

#endif
