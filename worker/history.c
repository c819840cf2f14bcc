/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/history.h"

#include <stdlib.h>
#include <string.h>

void worker_history_init(struct worker_history *history, uint64_t blocks)
{
    *history = (struct worker_history){.blocks = blocks, .forgotten = -1};
}

void worker_history_fini(struct worker_history *history)
{
    for (int i = 0; i < WORKER_HISTORY_EPOCHS; i++)
        free(history->epochs[i].made);
    worker_history_init(history, history->blocks);
}

static const struct worker_history_epoch *find(const struct worker_history *history, uint32_t epoch)
{
    for (int i = 0; i < WORKER_HISTORY_EPOCHS; i++)
        if (history->epochs[i].made && history->epochs[i].epoch == epoch)
            return &history->epochs[i];
    return NULL;
}

static struct worker_history_epoch *begin(struct worker_history *history, uint32_t epoch)
{
    struct worker_history_epoch *oldest = &history->epochs[0];
    for (int i = 1; i < WORKER_HISTORY_EPOCHS; i++)
        if (history->epochs[i].used < oldest->used)
            oldest = &history->epochs[i];
    uint64_t words = (history->blocks + 63) / 64;
    uint64_t *bits = oldest->made ? oldest->made : malloc(2 * words * sizeof *bits);
    if (!bits)
        return NULL;
    memset(bits, 0, 2 * words * sizeof *bits);
    if (oldest->made && oldest->epoch > history->forgotten)
        history->forgotten = oldest->epoch;
    *oldest = (struct worker_history_epoch){.made = bits, .pressed = bits + words, .epoch = epoch};
    return oldest;
}

static void set(uint64_t *bits, uint64_t at, bool on)
{
    uint64_t bit = UINT64_C(1) << at % 64;
    bits[at / 64] = on ? bits[at / 64] | bit : bits[at / 64] & ~bit;
}

static bool get(const uint64_t *bits, uint64_t at)
{
    return bits[at / 64] >> at % 64 & 1;
}

void worker_history_made(struct worker_history *history, uint32_t epoch, uint64_t block)
{
    struct worker_history_epoch *row = NULL;
    for (int i = 0; i < WORKER_HISTORY_EPOCHS; i++)
        if (history->epochs[i].made && history->epochs[i].epoch == epoch)
            row = &history->epochs[i];
    if (!row)
        row = begin(history, epoch);
    if (!row)
        return;
    row->used = ++history->uses;
    set(row->made, block, true);
    set(row->pressed, block, false);
}

void worker_history_evicted(struct worker_history *history, uint32_t epoch, uint64_t block, bool early)
{
    const struct worker_history_epoch *row = find(history, epoch);
    if (row)
        set(row->pressed, block, early);
}

bool worker_history_was_made(const struct worker_history *history, uint32_t epoch, uint64_t block,
                             bool *pressed)
{
    const struct worker_history_epoch *row = find(history, epoch);
    *pressed = false;
    if (!row)
        return epoch <= history->forgotten;
    if (!get(row->made, block))
        return false;
    *pressed = get(row->pressed, block);
    return true;
}
