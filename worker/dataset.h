/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One dataset version as a worker holds it: the manifest, where its files are, and a verdict for each item, one byte, learnt
 * at first sight and kept as long as the process lives (another build may judge otherwise, so they are not stored).
 */
#ifndef WORKER_DATASET_H
#define WORKER_DATASET_H

#include "proto/manifest/manifest.h"
#include "worker/pipeline/pipeline.h"
#include "worker/source/source.h"

#include <stdatomic.h>

struct worker_dataset {
    struct manifest *manifest;   /* owned */
    char *name, *path;           /* owned */
    struct source_folder folder; /* of these */
    uint64_t items;
    _Atomic uint8_t
        *verdicts;  /* enum pipeline_verdict; any thread; decisions read them through worker/kit.h */
    int references; /* loop thread */
};

/* Takes the manifest over on success; begins with one reference. */
enum base_code worker_dataset_create(struct worker_dataset **dataset, struct manifest *manifest,
                                     const char *name, const char *path, const struct source_roots *roots,
                                     struct base_error *error);
void worker_dataset_hold(struct worker_dataset *dataset);
void worker_dataset_release(
    struct worker_dataset *dataset); /* frees it with the last reference; NULL is fine */

static inline enum pipeline_verdict worker_dataset_verdict(const struct worker_dataset *dataset,
                                                           uint64_t item)
{
    return atomic_load_explicit(&dataset->verdicts[item], memory_order_relaxed);
}
/* True when that is news. */
static inline bool worker_dataset_judge(struct worker_dataset *dataset, uint64_t item,
                                        enum pipeline_verdict verdict)
{
    return atomic_exchange_explicit(&dataset->verdicts[item], (uint8_t)verdict, memory_order_relaxed) !=
           verdict;
}

#endif
