/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/report.h"

#include "base/clock.h"
#include "base/log.h"
#include "worker/make.h"
#include "worker/serve.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS_MAX = 1024, DATASETS_MAX = 1024, PROBES_MAX = 256, BAD_ITEMS_MAX = 500 }; /* of one message */

/* ---- metrics of the machine ---- */

enum core_kind { TOTAL, GAUGE, GAUGE_MS, GAUGE_REAL }; /* the last two: of a double */

struct core_metric {
    const char *name, *labels, *help;
    size_t offset; /* of the count in struct worker_counts */
    enum core_kind kind;
};

#define REMADE(cause) offsetof(struct worker_counts, blocks_remade) + sizeof(uint64_t) * (cause)

static const struct core_metric core_metrics[] = {
    {"millrace_worker_blocks_made_total", NULL, "Blocks made", offsetof(struct worker_counts, blocks_made),
     TOTAL},
    {"millrace_worker_rows_made_total", NULL, "Rows made", offsetof(struct worker_counts, rows_made), TOTAL},
    {"millrace_worker_blocks_remade_total", "cause=\"plan\"", "Blocks made again or elsewhere, by cause",
     REMADE(WORKER_CAUSE_PLAN), TOTAL},
    {"millrace_worker_blocks_remade_total", "cause=\"death\"", NULL, REMADE(WORKER_CAUSE_DEATH), TOTAL},
    {"millrace_worker_blocks_remade_total", "cause=\"hedge\"", NULL, REMADE(WORKER_CAUSE_HEDGE), TOTAL},
    {"millrace_worker_blocks_remade_total", "cause=\"pressure\"", NULL, REMADE(WORKER_CAUSE_PRESSURE), TOTAL},
    {"millrace_worker_blocks_remade_total", "cause=\"late\"", NULL, REMADE(WORKER_CAUSE_LATE), TOTAL},
    {"millrace_worker_blocks_unavailable_total", NULL, "Blocks not made: an item could not be had",
     offsetof(struct worker_counts, blocks_unavailable), TOTAL},
    {"millrace_worker_blocks_failed_total", NULL, "Blocks not made: permanent errors",
     offsetof(struct worker_counts, blocks_failed), TOTAL},
    {"millrace_worker_blocks_evicted_total", NULL, "Staged blocks that made room",
     offsetof(struct worker_counts, blocks_evicted), TOTAL},
    {"millrace_worker_sibling_sets_forgotten_total", NULL,
     "Sets of streams whose cost together was forgotten, as there are too many",
     offsetof(struct worker_counts, sibling_sets_forgotten), TOTAL},
    {"millrace_worker_requests_total", NULL, "GET frames", offsetof(struct worker_counts, requests), TOTAL},
    {"millrace_worker_answers_total", "kind=\"data\"", "Answers to requests, by kind",
     offsetof(struct worker_counts, sent), TOTAL},
    {"millrace_worker_answers_total", "kind=\"moved\"", NULL, offsetof(struct worker_counts, moved), TOTAL},
    {"millrace_worker_answers_total", "kind=\"retry\"", NULL, offsetof(struct worker_counts, retried), TOTAL},
    {"millrace_worker_answers_total", "kind=\"fail\"", NULL, offsetof(struct worker_counts, failed), TOTAL},
    {"millrace_worker_invalid_requests_total", NULL, "Requests that were refused as wrong",
     offsetof(struct worker_counts, invalid), TOTAL},
    {"millrace_worker_rows_sent_total", NULL, "Rows sent", offsetof(struct worker_counts, sent_rows), TOTAL},
    {"millrace_worker_cancelled_total", NULL, "Requests taken back",
     offsetof(struct worker_counts, cancelled), TOTAL},
    {"millrace_worker_blocks_queued", NULL, "Blocks waiting to be made",
     offsetof(struct worker_counts, blocks_queued), GAUGE},
    {"millrace_worker_blocks_making", NULL, "Blocks in the making",
     offsetof(struct worker_counts, blocks_making), GAUGE},
    {"millrace_worker_blocks_ready", NULL, "Blocks staged", offsetof(struct worker_counts, blocks_ready),
     GAUGE},
    {"millrace_worker_staged_bytes", NULL, "Staging memory in use",
     offsetof(struct worker_counts, staged_bytes), GAUGE},
    {"millrace_worker_requests_waiting", NULL, "Requests waiting for a block",
     offsetof(struct worker_counts, waiting), GAUGE},
    {"millrace_worker_streams", NULL, "Live streams", offsetof(struct worker_counts, streams), GAUGE},
    {"millrace_worker_claims", NULL, "Claims, live or fading", offsetof(struct worker_counts, claims), GAUGE},
    {"millrace_worker_claims_dormant", NULL,
     "Claims that stand still while others move, or for long: staging is not held for them",
     offsetof(struct worker_counts, claims_dormant), GAUGE},
    {"millrace_worker_queue_seconds", NULL, "How long blocks wait before they are made, smoothed",
     offsetof(struct worker_counts, queue_ms), GAUGE_MS},
    {"millrace_worker_making_ratio", NULL, "Places in the making that are in use, smoothed",
     offsetof(struct worker_counts, making_share), GAUGE_REAL},
};

static double value_of(const struct core_metric *metric, const struct worker_counts *counts)
{
    const char *at = (const char *)counts + metric->offset;
    uint64_t count;
    double real;
    memcpy(&count, at, sizeof count);
    memcpy(&real, at, sizeof real);
    if (metric->kind == GAUGE_REAL)
        return real;
    return metric->kind == GAUGE_MS ? real / 1000 : (double)count;
}

enum {
    CORE_METRICS = sizeof core_metrics / sizeof *core_metrics,
    COUNTERS = CORE_METRICS + WORKER_MAKE_METRICS + WORKER_SERVE_METRICS
};

/* ---- the report ---- */

struct bad_item {
    uint8_t version[BASE_SHA256_BYTES];
    uint64_t item;
    char *name, *cause; /* owned */
};

struct worker_report {
    char **addresses; /* not owned */
    size_t address_count;
    struct bad_item bad[WORKER_REPORT_BAD_ITEMS];
    size_t bad_count;
    bool bad_out; /* a sync that carries some is not answered yet: one at a time does */
    uint8_t front_streams[STREAMS_MAX][BASE_SHA256_BYTES];
    Millrace__V1__WorkerSync sync;
    ProtobufCBinaryData wanted[WORKER_ORDERS_WANTED];
    Millrace__V1__DatasetHeld held[DATASETS_MAX], *held_list[DATASETS_MAX];
    Millrace__V1__StreamProbe probes[PROBES_MAX], *probe_list[PROBES_MAX];
    Millrace__V1__StreamFront fronts[STREAMS_MAX], *front_list[STREAMS_MAX];
    Millrace__V1__BadItem items[BAD_ITEMS_MAX], *item_list[BAD_ITEMS_MAX];
    Millrace__V1__Counter counters[COUNTERS], *counter_list[COUNTERS];
};

enum base_code worker_report_create(struct worker_report **out, struct base_error *error)
{
    *out = calloc(1, sizeof **out);
    return *out ? BASE_OK : base_error_set(error, BASE_NO_MEMORY, "report");
}

static void free_bad(struct worker_report *report, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(report->bad[i].name);
        free(report->bad[i].cause);
    }
    report->bad_count -= count;
    memmove(report->bad, report->bad + count, report->bad_count * sizeof report->bad[0]);
}

void worker_report_destroy(struct worker_report *report)
{
    if (!report)
        return;
    free_bad(report, report->bad_count);
    free(report->addresses);
    free(report);
}

/* protobuf-c has no const; it only reads. */
static char *mutable_text(const char *text)
{
    union {
        const char *in;
        char *out;
    } cast = {.in = text};
    return cast.out;
}

void worker_report_set_addresses(struct worker_report *report, const char *const *addresses, int count)
{
    report->addresses = calloc((size_t)count, sizeof *report->addresses);
    for (int i = 0; report->addresses && i < count; i++)
        report->addresses[report->address_count++] = mutable_text(addresses[i]);
}

void worker_report_bad_item(struct worker_report *report, const uint8_t version[32], uint64_t item,
                            const char *name, const char *cause)
{
    if (report->bad_count == WORKER_REPORT_BAD_ITEMS)
        return;
    struct bad_item *bad = &report->bad[report->bad_count];
    *bad = (struct bad_item){.item = item, .name = strdup(name), .cause = strdup(cause)};
    memcpy(bad->version, version, sizeof bad->version);
    if (bad->name && bad->cause) {
        report->bad_count++;
        return;
    }
    free(bad->name);
    free(bad->cause);
}

void worker_report_answered(struct worker_report *report, size_t bad_items, bool told)
{
    if (bad_items == 0)
        return;
    report->bad_out = false;
    if (told)
        free_bad(report, bad_items);
}

/* ---- filling ---- */

static void fill_datasets(struct worker_report *report, const struct worker_holdings *holdings)
{
    size_t count = worker_holdings_count(holdings);
    count = count < DATASETS_MAX ? count : DATASETS_MAX;
    for (size_t i = 0; i < count; i++) {
        worker_holdings_report(holdings, i, &report->held[i]);
        report->held_list[i] = &report->held[i];
    }
    report->sync.datasets = report->held_list;
    report->sync.n_datasets = count;
}

static void fill_probes(struct worker_report *report, const struct worker_streams *streams)
{
    size_t count = 0;
    for (size_t i = 0; i < worker_streams_probes(streams) && count < PROBES_MAX; i++)
        if (worker_streams_report(streams, i, &report->probes[count])) {
            report->probe_list[count] = &report->probes[count];
            count++;
        }
    report->sync.probes = report->probe_list;
    report->sync.n_probes = count;
}

static void add_front(void *context, const struct worker_front *front)
{
    struct worker_report *report = context;
    size_t at = report->sync.n_fronts;
    if (at == STREAMS_MAX)
        return;
    memcpy(report->front_streams[at], front->stream, BASE_SHA256_BYTES);
    Millrace__V1__StreamFront *message = &report->fronts[at];
    millrace__v1__stream_front__init(message);
    message->stream = (ProtobufCBinaryData){BASE_SHA256_BYTES, report->front_streams[at]};
    message->epoch = front->epoch;
    message->position = front->position;
    report->front_list[at] = message;
    report->sync.n_fronts++;
}

static size_t fill_bad_items(struct worker_report *report)
{
    size_t most = report->bad_count < BAD_ITEMS_MAX ? report->bad_count : BAD_ITEMS_MAX;
    size_t count = report->bad_out ? 0 : most;
    for (size_t i = 0; i < count; i++) {
        struct bad_item *bad = &report->bad[i];
        Millrace__V1__BadItem *message = &report->items[i];
        millrace__v1__bad_item__init(message);
        message->dataset_version = (ProtobufCBinaryData){sizeof bad->version, bad->version};
        message->item = bad->item;
        message->name = bad->name;
        message->cause = bad->cause;
        report->item_list[i] = message;
    }
    report->sync.bad_items = report->item_list;
    report->sync.n_bad_items = count;
    report->bad_out = report->bad_out || count > 0;
    return count;
}

static void add_counter(struct worker_report *report, const char *name, const char *labels, double value,
                        bool gauge)
{
    size_t at = report->sync.n_counters++;
    Millrace__V1__Counter *message = &report->counters[at];
    millrace__v1__counter__init(message);
    message->name = mutable_text(name);
    message->labels = mutable_text(labels ? labels : "");
    message->value = value;
    message->gauge = gauge;
    report->counter_list[at] = message;
}

static void add_table(struct worker_report *report, struct base_metric *table, int count)
{
    for (int i = 0; i < count; i++) {
        double scale = table[i].scale > 0 ? table[i].scale : 1;
        add_counter(report, table[i].name, table[i].labels, (double)base_metric_get(&table[i]) * scale,
                    table[i].type == BASE_METRIC_GAUGE);
    }
}

static void fill_counters(struct worker_report *report, const struct worker_report_sync *from)
{
    struct worker_counts counts;
    worker_core_counts(from->core, base_clock_now_ns(), &counts);
    report->sync.queue_ms = counts.queue_ms;
    for (int i = 0; i < CORE_METRICS; i++) {
        const struct core_metric *metric = &core_metrics[i];
        add_counter(report, metric->name, metric->labels, value_of(metric, &counts), metric->kind != TOTAL);
    }
    add_table(report, from->make_metrics, WORKER_MAKE_METRICS);
    add_table(report, from->serve_metrics, WORKER_SERVE_METRICS);
    report->sync.counters = report->counter_list;
}

const Millrace__V1__WorkerSync *worker_report_fill(struct worker_report *report,
                                                   const struct worker_report_sync *from, size_t *bad_items)
{
    Millrace__V1__WorkerSync *sync = &report->sync;
    millrace__v1__worker_sync__init(sync);
    sync->worker = from->worker;
    sync->incarnation = from->incarnation;
    sync->addresses = report->addresses;
    sync->n_addresses = report->address_count;
    sync->cores = from->cores;
    sync->staging_bytes = from->staging_bytes;
    sync->draining = from->draining;
    sync->leaving = from->leaving;
    sync->seen_revision = from->seen_revision;
    sync->told = from->orders->whole ? from->orders->whole->told : 0;
    sync->plans_told = from->orders->whole ? from->orders->whole->plans_told : 0;
    sync->wanted = report->wanted;
    sync->n_wanted = from->orders->wanted_count;
    memcpy(report->wanted, from->orders->wanted, sync->n_wanted * sizeof *report->wanted);
    sync->wait_ms = from->wait_ms;
    fill_datasets(report, from->holdings);
    fill_probes(report, from->streams);
    sync->fronts = report->front_list;
    worker_core_fronts(from->core, add_front, report);
    *bad_items = fill_bad_items(report);
    fill_counters(report, from);
    return sync;
}
