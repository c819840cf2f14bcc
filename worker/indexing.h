/* SPDX-License-Identifier: Apache-2.0 */
/* Index orders: walk a folder and write its manifest, or compare it with the one there is; tell the server, until it knows. */
#ifndef WORKER_INDEXING_H
#define WORKER_INDEXING_H

#include "proto/rpc/rpc.h"
#include "worker/holdings.h"

struct worker_indexing;

struct worker_indexing_options {
    struct worker_chores *chores;
    const struct source_roots *roots;
    const struct worker_holdings *holdings;
    const char *state_dir;
    uint64_t worker;
    void (*finished)(void *context); /* there is a result to tell */
    void *context;
};

enum base_code worker_indexing_create(struct worker_indexing **indexing,
                                      const struct worker_indexing_options *options,
                                      struct base_error *error);
void worker_indexing_destroy(
    struct worker_indexing *indexing); /* NULL is fine; the channel is closed already */
void worker_indexing_order(struct worker_indexing *indexing, Millrace__V1__IndexOrder *const *orders,
                           size_t count);
/* Tells results that the server has not acknowledged yet. */
void worker_indexing_tell(struct worker_indexing *indexing, struct rpc_channel *channel);

#endif
