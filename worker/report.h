/* SPDX-License-Identifier: Apache-2.0 */
/* The WorkerSync message: what this worker has to say, gathered into memory that is used again. Loop thread only. */
#ifndef WORKER_REPORT_H
#define WORKER_REPORT_H

#include "base/metrics.h"
#include "worker/core.h"
#include "worker/holdings.h"
#include "worker/orders.h"
#include "worker/streams.h"

#define WORKER_REPORT_BAD_ITEMS 1000 /* waiting for the server at most; more are in the log and counted */

struct worker_report;

struct worker_report_sync {
    uint64_t worker, incarnation, staging_bytes, seen_revision;
    uint32_t cores, wait_ms;
    bool draining, leaving;
    const struct worker_core *core;
    const struct worker_holdings *holdings;
    const struct worker_streams *streams;
    const struct worker_orders *orders;
    struct base_metric *serve_metrics, *make_metrics;
};

enum base_code worker_report_create(struct worker_report **report, struct base_error *error);
void worker_report_destroy(struct worker_report *report); /* NULL is fine */
void worker_report_set_addresses(struct worker_report *report, const char *const *addresses, int count);
void worker_report_bad_item(struct worker_report *report, const uint8_t version[32], uint64_t item,
                            const char *name, const char *cause);

/* Valid until the next call of any function here or of what it reports. *bad_items: how many of them it carries; say them to
 * worker_report_answered when this sync ends. */
const Millrace__V1__WorkerSync *worker_report_fill(struct worker_report *report,
                                                   const struct worker_report_sync *sync, size_t *bad_items);
/* `told`: the server has them; else they are sent again. */
void worker_report_answered(struct worker_report *report, size_t bad_items, bool told);

#endif
