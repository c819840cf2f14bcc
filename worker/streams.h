/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Candidates' fingerprints, and the live streams that this worker serves.
 *
 *   candidate or live stream -> (chore: fingerprint of its sample section) -> told in the next sync
 *   live stream: fingerprint is ours, and its dataset is held -> kit, and into the machine; else it waits, or is refused
 */
#ifndef WORKER_STREAMS_H
#define WORKER_STREAMS_H

#include "worker/core.h"
#include "worker/holdings.h"
#include "worker/kit.h"

struct worker_streams;

struct worker_streams_options {
    struct worker_chores *chores;
    struct worker_core *core;
    const struct worker_holdings *holdings;
    void (*changed)(void *context); /* a fingerprint is known: sync, and order again */
    void *context;
};

enum base_code worker_streams_create(struct worker_streams **streams,
                                     const struct worker_streams_options *options, struct base_error *error);
void worker_streams_destroy(struct worker_streams *streams); /* NULL is fine */

/* What the server wants now; called again when fingerprints or datasets have come. Pump the machine afterwards. */
void worker_streams_order(struct worker_streams *streams, int64_t now_ns,
                          const Millrace__V1__WorkerOrders *orders);
struct worker_kit *worker_streams_find(const struct worker_streams *streams, const uint8_t hash[32]);
void worker_streams_gone(struct worker_streams *streams,
                         struct worker_kit *kit); /* the machine let it go: frees it */

size_t worker_streams_probes(const struct worker_streams *streams);
/* False: not known yet. Valid until the next order. */
bool worker_streams_report(const struct worker_streams *streams, size_t index,
                           Millrace__V1__StreamProbe *probe);

#endif
