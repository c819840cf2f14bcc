/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ready blocks of one stream in the order of their positions, so that the one whose next use is farthest
 * is found without looking at all: between two low-waters it is the last one.
 */
#ifndef WORKER_SHELF_H
#define WORKER_SHELF_H

#include "worker/claims.h"

struct worker_shelf_entry {
    uint64_t start; /* linear position of its first row */
    uint32_t rows;
    uint32_t block;
    uint32_t pins; /* > 0: being sent, stays */
};

struct worker_shelf {
    struct worker_shelf_entry *entries; /* owned, ascending */
    uint32_t count;
};

void worker_shelf_fini(struct worker_shelf *shelf);
bool worker_shelf_put(struct worker_shelf *shelf, struct worker_shelf_entry entry); /* false: no memory */
void worker_shelf_remove(struct worker_shelf *shelf, uint64_t start);
void worker_shelf_pin(struct worker_shelf *shelf, uint64_t start, int by);

/* The unpinned entry whose next use is farthest by (sorted) claims; never used again counts as farthest, of
 * those the first. NULL: all are pinned, or there is none. */
const struct worker_shelf_entry *worker_shelf_farthest(const struct worker_shelf *shelf,
                                                       const struct worker_claims *claims,
                                                       uint64_t *next_use);

#endif
