/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which blocks of a stream were made here in recent epochs, and which of them were evicted too early: says
 * why a block is made again. Two bits a block, for the epochs made most recently;
 * an older one counts as made: who asks for that is late, whoever made it.
 */
#ifndef WORKER_HISTORY_H
#define WORKER_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#define WORKER_HISTORY_EPOCHS 8

struct worker_history_epoch {
    uint64_t *made, *pressed; /* one allocation, owned by `made` */
    uint64_t used;            /* when, for forgetting the oldest */
    uint32_t epoch;
};

struct worker_history {
    struct worker_history_epoch epochs[WORKER_HISTORY_EPOCHS];
    uint64_t blocks, uses;
    int64_t forgotten; /* the latest epoch that is not remembered any more; -1: none */
};

void worker_history_init(struct worker_history *history, uint64_t blocks);
void worker_history_fini(struct worker_history *history);
/* Without memory nothing is remembered: only metrics suffer. */
void worker_history_made(struct worker_history *history, uint32_t epoch, uint64_t block);
void worker_history_evicted(struct worker_history *history, uint32_t epoch, uint64_t block, bool early);
bool worker_history_was_made(const struct worker_history *history, uint32_t epoch, uint64_t block,
                             bool *pressed);

#endif
