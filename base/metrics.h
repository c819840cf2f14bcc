/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics as table rows beside their module:
 *   enum { BLOCKS_MADE, ... , N };
 *   static struct base_metric metrics[N] = { [BLOCKS_MADE] = {.name = "millrace_worker_blocks_made_total", ...} };
 * Values are added to from any thread; the text is Prometheus' exposition format (base units, _total, no per-sample labels).
 */
#ifndef BASE_METRICS_H
#define BASE_METRICS_H

#include "base/buffer.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum base_metric_type { BASE_METRIC_COUNTER, BASE_METRIC_GAUGE };

struct base_metric {
    const char *name;   /* with unit and _total as Prometheus asks */
    const char *labels; /* `cause="plan"` or NULL: rows of one name are neighbours in the table */
    const char *help;
    enum base_metric_type type;
    double scale; /* printed value = value * scale; 0 means 1 (nanoseconds to seconds: 1e-9) */
    _Atomic int64_t value;
};

static inline void base_metric_add(struct base_metric *metric, int64_t by)
{
    atomic_fetch_add_explicit(&metric->value, by, memory_order_relaxed);
}

static inline void base_metric_set(struct base_metric *metric, int64_t value)
{
    atomic_store_explicit(&metric->value, value, memory_order_relaxed);
}

static inline int64_t base_metric_get(struct base_metric *metric)
{
    return atomic_load_explicit(&metric->value, memory_order_relaxed);
}

/* Appends the table; HELP and TYPE once a name. `extra_labels` (or NULL) is put first in every row. */
void base_metrics_print(struct base_metric *table, size_t count, const char *extra_labels,
                        struct base_buffer *out);

#endif
