/* SPDX-License-Identifier: Apache-2.0 */
/* Circular lists, and an index with linear probing: at most half full, a removal closes the gap it leaves. */
#include "scheduler/cluster_state.h"

#include <stdlib.h>
#include <string.h>

void cluster_list_init(struct cluster_link *head)
{
    *head = (struct cluster_link){.before = head, .after = head};
}

bool cluster_list_empty(const struct cluster_link *head)
{
    return head->after == head;
}

void cluster_list_add(struct cluster_link *head, struct cluster_link *link, void *owner)
{
    if (link->after)
        return;
    *link = (struct cluster_link){.before = head->before, .after = head, .owner = owner};
    head->before->after = link;
    head->before = link;
}

void cluster_list_remove(struct cluster_link *link)
{
    if (!link->after)
        return;
    link->before->after = link->after;
    link->after->before = link->before;
    *link = (struct cluster_link){0};
}

void *cluster_list_first(const struct cluster_link *head)
{
    return head->after->owner;
}

void *cluster_list_next(const struct cluster_link *link)
{
    return link->after->owner;
}

void *cluster_list_take(struct cluster_link *head)
{
    void *owner = head->after->owner;
    if (owner)
        cluster_list_remove(head->after);
    return owner;
}

/* ---- the index ---- */

uint64_t cluster_hash_bytes(const uint8_t *hash)
{
    uint64_t word;
    memcpy(&word, hash, sizeof word);
    return word;
}

static int place_of(const struct cluster_index *index, uint64_t hash)
{
    return (int)((hash * UINT64_C(0x9E3779B97F4A7C15) >> 32) & (uint64_t)(index->room - 1));
}

static void put(const struct cluster_index *index, uint64_t hash, void *item)
{
    int at = place_of(index, hash);
    while (index->entries[at].item)
        at = (at + 1) & (index->room - 1);
    index->entries[at] = (struct cluster_entry){hash, item};
}

bool cluster_index_reserve(struct cluster_index *index)
{
    if (2 * (index->used + 1) <= index->room)
        return true;
    struct cluster_index grown = {.used = index->used, .room = index->room ? 2 * index->room : 16};
    grown.entries = calloc((size_t)grown.room, sizeof *grown.entries);
    if (!grown.entries)
        return false;
    for (int i = 0; i < index->room; i++)
        if (index->entries[i].item)
            put(&grown, index->entries[i].hash, index->entries[i].item);
    free(index->entries);
    *index = grown;
    return true;
}

void cluster_index_put(struct cluster_index *index, uint64_t hash, void *item)
{
    put(index, hash, item);
    index->used++;
}

static void close_gap(const struct cluster_index *index, int gap)
{
    int last = index->room - 1;
    for (int at = (gap + 1) & last; index->entries[at].item; at = (at + 1) & last) {
        int home = place_of(index, index->entries[at].hash);
        if (((at - home) & last) < ((at - gap) & last))
            continue; /* it would come before its home */
        index->entries[gap] = index->entries[at];
        gap = at;
    }
    index->entries[gap] = (struct cluster_entry){0};
}

void cluster_index_remove(struct cluster_index *index, uint64_t hash, const void *item)
{
    if (!index->room)
        return;
    for (int at = place_of(index, hash); index->entries[at].item; at = (at + 1) & (index->room - 1)) {
        if (index->entries[at].item != item)
            continue;
        close_gap(index, at);
        index->used--;
        return;
    }
}

void *cluster_index_find(const struct cluster_index *index, uint64_t hash, cluster_index_same *same,
                         const void *key)
{
    if (!index->room)
        return NULL;
    for (int at = place_of(index, hash); index->entries[at].item; at = (at + 1) & (index->room - 1))
        if (index->entries[at].hash == hash && (!same || same(index->entries[at].item, key)))
            return index->entries[at].item;
    return NULL;
}
