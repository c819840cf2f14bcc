/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes blocks: raw items are read by I/O threads, rows are made by prep threads, which never block on I/O.
 *
 *   begin -> LOOKUP (I/O: sizes, labels) -> raw budget -> READ (I/O: an item a task) -> PREP (prep: a block a task) -> made
 *              ^                              | waits                | unavailable                |       |
 *              +------------------------------|----------------------|--- rows found bad ---------+       |
 *                                             +----------------------+----> made(UNAVAILABLE) <-----------+ (no memory)
 *
 * Sibling blocks (struct worker_sibling) are one making: one look-up, one read and one decode an item.
 * A row found bad keeps its cause and fetches its seeded substitute, at most 16 of them; then it is `bad`: zeros, label -100.
 * All functions are for the loop thread, which owns the mailbox.
 */
#ifndef WORKER_MAKE_H
#define WORKER_MAKE_H

#include "base/mailbox.h"
#include "base/metrics.h"
#include "worker/core.h"
#include "worker/kit.h"
#include "worker/staging.h"

#define WORKER_RAW_ITEM_BYTES                                                                                \
    (UINT64_C(256) << 20) /* of one item, where the raw budget is less: more is unavailable here */

struct worker_make;

struct worker_make_events {
    /* Exactly once a begun block, siblings one after the other; inside begin only when memory is out. */
    void (*made)(void *context, uint64_t block, const struct worker_made *made);
    /* News of an item that is a bad sample. */
    void (*bad_item)(void *context, const struct worker_dataset *dataset, uint64_t item, const char *name,
                     const char *cause);
};

struct worker_make_options {
    int prep_threads, io_threads;
    bool idle;                            /* prep threads are SCHED_IDLE */
    uint64_t raw_bytes;                   /* of items read and not yet made; one block may always go */
    const struct worker_staging *staging; /* where offsets of blocks begin */
    struct base_mailbox *mailbox;
    const struct worker_make_events *events;
    void *context;
};

enum base_code worker_make_start(struct worker_make **make, const struct worker_make_options *options,
                                 struct base_error *error);
/* Waits for running tasks; blocks begun are dropped without a word. Drains the mailbox. Clears *make. */
void worker_make_stop(struct worker_make **make);

/* Carries out a MAKE action; its stream, and those of its siblings, are struct worker_kit. */
void worker_make_begin(struct worker_make *make, const struct worker_action *action);
void worker_make_hasten(struct worker_make *make, uint64_t block, int64_t deadline_ns);

enum {
    WORKER_METRIC_READ_ITEMS,
    WORKER_METRIC_READ_BYTES,
    WORKER_METRIC_READ_ERRORS,
    WORKER_METRIC_DECODED_ITEMS,
    WORKER_METRIC_SHARED_ROWS,
    WORKER_METRIC_TOGETHER_BLOCKS,
    WORKER_METRIC_PREP_NS,
    WORKER_METRIC_ROWS_OK,
    WORKER_METRIC_ROWS_SUBSTITUTED,
    WORKER_METRIC_ROWS_BAD,
    WORKER_METRIC_BAD_ITEMS,
    WORKER_METRIC_RAW_BYTES,
    WORKER_MAKE_METRICS,
};
struct base_metric *worker_make_metrics(struct worker_make *make); /* WORKER_MAKE_METRICS rows */

#endif
