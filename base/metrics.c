/* SPDX-License-Identifier: Apache-2.0 */
#include "base/metrics.h"

#include <inttypes.h>
#include <string.h>

static void print_head(const struct base_metric *metric, struct base_buffer *out)
{
    base_buffer_printf(out, "# HELP %s %s\n# TYPE %s %s\n", metric->name, metric->help, metric->name,
                       metric->type == BASE_METRIC_COUNTER ? "counter" : "gauge");
}

static void print_labels(const char *extra, const char *labels, struct base_buffer *out)
{
    bool has_extra = extra && *extra, has_labels = labels && *labels;
    if (has_extra || has_labels)
        base_buffer_printf(out, "{%s%s%s}", has_extra ? extra : "", has_extra && has_labels ? "," : "",
                           has_labels ? labels : "");
}

void base_metrics_print(struct base_metric *table, size_t count, const char *extra_labels,
                        struct base_buffer *out)
{
    for (size_t i = 0; i < count; i++) {
        struct base_metric *metric = &table[i];
        if (!metric->name)
            continue; /* a number that the table leaves out */
        if (i == 0 || !table[i - 1].name || strcmp(table[i - 1].name, metric->name) != 0)
            print_head(metric, out);
        base_buffer_printf(out, "%s", metric->name);
        print_labels(extra_labels, metric->labels, out);
        if (metric->scale == 0 || metric->scale == 1)
            base_buffer_printf(out, " %" PRId64 "\n", base_metric_get(metric));
        else
            base_buffer_printf(out, " %.15g\n", (double)base_metric_get(metric) * metric->scale);
    }
}
