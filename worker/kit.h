/* SPDX-License-Identifier: Apache-2.0 */
/* What it takes to make and send blocks of one stream. Built and freed on the loop thread; immutable but for the orders. */
#ifndef WORKER_KIT_H
#define WORKER_KIT_H

#include "proto/wire/rows.h"
#include "scheduler/order.h"
#include "scheduler/stream.h"
#include "worker/dataset.h"

#define WORKER_KIT_ORDERS 4 /* epochs whose order is kept; of others it is made for each block */

struct worker_kit_order {
    struct scheduler_order *order;
    uint32_t epoch;
    int users;
    uint64_t used; /* when */
};

struct worker_kit {
    struct scheduler_stream stream;
    char hex[13];              /* of the hash, for logs */
    struct wire_layout layout; /* of a whole block; short ones lie in it, too */
    struct pipeline *pipeline;
    struct worker_dataset *dataset; /* a reference */
    _Atomic uint8_t *refused;       /* bad ones, as this pipeline judges; owned; any thread */
    int label_field;                /* -1: none */
    struct worker_kit_order orders[WORKER_KIT_ORDERS];
    uint64_t order_uses;
};

enum base_code worker_kit_create(struct worker_kit **kit, const struct scheduler_stream *stream,
                                 struct worker_dataset *dataset, struct base_error *error);
void worker_kit_destroy(struct worker_kit *kit);

/* The order of an epoch (key), until put. */
enum base_code worker_kit_get_order(struct worker_kit *kit, uint32_t epoch, struct scheduler_order **order,
                                    struct base_error *error);
void worker_kit_put_order(struct worker_kit *kit, struct scheduler_order *order);

/* What this pipeline is to think of an item, and whom to tell. Good and warned are the dataset's, so that jobs learn from each
 * other. Bad is the pipeline's own: it may be so for its caps, and even the cause depends on which test comes first; a row may not
 * depend on what else this worker did. Any thread. */
static inline enum pipeline_verdict worker_kit_verdict(const struct worker_kit *kit, uint64_t item)
{
    enum pipeline_verdict own = atomic_load_explicit(&kit->refused[item], memory_order_relaxed);
    enum pipeline_verdict all = worker_dataset_verdict(kit->dataset, item);
    return own ? own : pipeline_verdict_is_bad(all) ? PIPELINE_UNKNOWN : all;
}
/* True when that is news. */
static inline bool worker_kit_judge(struct worker_kit *kit, uint64_t item, enum pipeline_verdict verdict)
{
    bool news = false;
    if (pipeline_verdict_is_bad(verdict))
        news =
            atomic_exchange_explicit(&kit->refused[item], (uint8_t)verdict, memory_order_relaxed) != verdict;
    if (pipeline_verdict_is_bad(verdict) && !pipeline_verdict_is_final(verdict))
        return news;
    return worker_dataset_judge(kit->dataset, item, verdict);
}

/* The made fields that `names` choose, as a mask; 0: one of them is not made, and `missing` names it. */
uint8_t worker_kit_wanted(const struct worker_kit *kit, const char (*names)[24], int count,
                          const char **missing);

#endif
