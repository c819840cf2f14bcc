/* SPDX-License-Identifier: Apache-2.0 */
/* The Cluster service: workers report and get orders; operators look and drain. */
#include "server/answer.h"

#include "base/clock.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DATASETS_MAX = 65536,
    PROBES_MAX = 4096,
    FRONTS_MAX = 4096,
    WANTED_MAX = 1024,
    BAD_NAME_CHARS = 1024,
    BAD_CAUSE_CHARS = 256
};

static bool orders_ready(void *context, const ProtobufCMessage *message)
{
    const Millrace__V1__WorkerSync *sync = (const Millrace__V1__WorkerSync *)message;
    return server_replies_orders_revision(context, sync->worker) != sync->seen_revision ||
           server_replies_orders_behind(context, sync);
}

static void answer_orders(struct server *server, struct rpc_call *call, const ProtobufCMessage *message,
                          bool refused)
{
    struct server_arena arena;
    server_arena_init(&arena);
    Millrace__V1__WorkerOrders *orders =
        server_replies_orders(&arena, server, (const Millrace__V1__WorkerSync *)message);
    if (orders)
        orders->bad_items_refused = refused;
    server_answer(server, call, &arena, orders);
}

static void orders_answer(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    answer_orders(context, call, message, false);
}

static const struct server_park_kind orders_kind = {orders_ready, orders_answer};

/* Its bad items are to be said again: with its next poll, so not more often than it polls. */
static void refusal_answer(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    answer_orders(context, call, message, true);
}

static const struct server_park_kind refusal_kind = {orders_ready, refusal_answer};

/* ---- the report ---- */

struct report_parts {
    struct scheduler_dataset_held *datasets;
    struct scheduler_probe_result *probes;
    struct scheduler_front *fronts;
    char addresses[SCHEDULER_ADDRESSES_CHARS];
};

static void parts_fini(struct report_parts *parts)
{
    free(parts->datasets);
    free(parts->probes);
    free(parts->fronts);
}

static enum base_code join_addresses(const Millrace__V1__WorkerSync *sync, char *out,
                                     struct base_error *error)
{
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < sync->n_addresses; i++) {
        size_t length = strlen(sync->addresses[i]);
        if (!length || strchr(sync->addresses[i], '\n') || used + length + 2 > SCHEDULER_ADDRESSES_CHARS)
            return base_error_set(error, BASE_INVALID, "worker %" PRIu64 ": bad address or too many",
                                  sync->worker);
        if (used)
            out[used++] = '\n';
        memcpy(out + used, sync->addresses[i], length + 1);
        used += length;
    }
    return used ? BASE_OK
                : base_error_set(error, BASE_INVALID, "worker %" PRIu64 ": no address", sync->worker);
}

static bool copy_exact(const ProtobufCBinaryData *from, uint8_t *to, size_t size)
{
    if (from->len == size)
        memcpy(to, from->data, size);
    return from->len == size;
}

static bool fill_parts(const Millrace__V1__WorkerSync *sync, struct report_parts *parts)
{
    for (size_t i = 0; i < sync->n_datasets; i++) {
        const Millrace__V1__DatasetHeld *from = sync->datasets[i];
        parts->datasets[i] =
            (struct scheduler_dataset_held){.eligible = from->eligible, .error = from->error};
        if (!copy_exact(&from->version, parts->datasets[i].version, BASE_SHA256_BYTES))
            return false;
    }
    for (size_t i = 0; i < sync->n_probes; i++) {
        const Millrace__V1__StreamProbe *from = sync->probes[i];
        parts->probes[i] = (struct scheduler_probe_result){.error = from->error};
        bool ok = copy_exact(&from->key, parts->probes[i].key, BASE_SHA256_BYTES);
        if (!ok || (!copy_exact(&from->fingerprint, parts->probes[i].fingerprint, 16) && !from->error[0]))
            return false;
    }
    for (size_t i = 0; i < sync->n_fronts; i++) {
        const Millrace__V1__StreamFront *from = sync->fronts[i];
        parts->fronts[i] = (struct scheduler_front){.epoch = from->epoch, .position = from->position};
        if (!copy_exact(&from->stream, parts->fronts[i].stream, BASE_SHA256_BYTES))
            return false;
    }
    return true;
}

static enum base_code parts_init(const Millrace__V1__WorkerSync *sync, struct report_parts *parts,
                                 struct base_error *error)
{
    *parts = (struct report_parts){0};
    if (sync->n_datasets > DATASETS_MAX || sync->n_probes > PROBES_MAX || sync->n_fronts > FRONTS_MAX ||
        sync->n_wanted > WANTED_MAX)
        return base_error_set(error, BASE_TOO_LARGE, "worker %" PRIu64 ": too much in one sync",
                              sync->worker);
    enum base_code code = join_addresses(sync, parts->addresses, error);
    if (code)
        return code;
    parts->datasets = calloc(sync->n_datasets + 1, sizeof *parts->datasets);
    parts->probes = calloc(sync->n_probes + 1, sizeof *parts->probes);
    parts->fronts = calloc(sync->n_fronts + 1, sizeof *parts->fronts);
    if (!parts->datasets || !parts->probes || !parts->fronts)
        return base_error_set(error, BASE_NO_MEMORY, "worker %" PRIu64 ": no memory", sync->worker);
    if (!fill_parts(sync, parts))
        return base_error_set(error, BASE_INVALID, "worker %" PRIu64 ": a hash of the wrong length",
                              sync->worker);
    return BASE_OK;
}

static enum base_code sync_machine(struct server *server, const Millrace__V1__WorkerSync *sync,
                                   struct base_error *error)
{
    struct report_parts parts;
    enum base_code code = parts_init(sync, &parts, error);
    struct scheduler_worker_report report = {
        .id = sync->worker,
        .incarnation = sync->incarnation,
        .addresses = parts.addresses,
        .weight = sync->cores,
        .staging_bytes = sync->staging_bytes,
        .draining = sync->draining,
        .queue_ms = sync->queue_ms,
        .datasets = parts.datasets,
        .dataset_count = (int)sync->n_datasets,
        .probes = parts.probes,
        .probe_count = (int)sync->n_probes,
        .fronts = parts.fronts,
        .front_count = (int)sync->n_fronts,
    };
    if (!code)
        code = scheduler_cluster_worker_sync(server->cluster, base_clock_now_ns(), &report, error);
    parts_fini(&parts);
    return code;
}

/* Items of a version that is registered or read: what a worker says must not fill the disk. */
static bool is_item(const struct server *server, const uint8_t *version, uint64_t item)
{
    const struct server_dataset *dataset = server_datasets_find_version(server->datasets, version);
    if (dataset)
        return item < dataset->items;
    for (int i = 0; i < scheduler_cluster_stream_count(server->cluster); i++) {
        const struct scheduler_stream *id = &scheduler_cluster_stream_at(server->cluster, i)->identity;
        if (!memcmp(id->dataset_version, version, BASE_SHA256_BYTES))
            return item < id->items;
    }
    return false;
}

static enum base_code put_bad_items(struct server *server, const Millrace__V1__WorkerSync *sync,
                                    struct base_error *error)
{
    enum base_code code = store_begin(server->store, error);
    if (code)
        return code;
    for (size_t i = 0; !code && i < sync->n_bad_items; i++) {
        const Millrace__V1__BadItem *from = sync->bad_items[i];
        char name[BAD_NAME_CHARS], cause[BAD_CAUSE_CHARS];
        struct store_bad_item bad = {.item = from->item, .name = name, .cause = cause};
        if (!copy_exact(&from->dataset_version, bad.version, BASE_SHA256_BYTES) ||
            !is_item(server, bad.version, bad.item))
            continue;
        snprintf(name, sizeof name, "%s", from->name);
        snprintf(cause, sizeof cause, "%s", from->cause);
        code = store_bad_item_put(server->store, &bad, error);
    }
    if (code)
        store_rollback(server->store);
    return code ? code : store_commit(server->store, error);
}

static bool keep_bad_items(struct server *server, const Millrace__V1__WorkerSync *sync)
{
    struct base_error error;
    char quoted[2 * BASE_ERROR_TEXT_BYTES];
    if (!sync->n_bad_items || !put_bad_items(server, sync, &error))
        return true;
    base_metric_add(&server->metrics[SERVER_METRIC_STORE_ERRORS], 1);
    base_log(BASE_LOG_ERROR, "state_not_saved", "kind=bad_items worker=%" PRIu64 " error=%s", sync->worker,
             base_log_quote(error.text, quoted, sizeof quoted));
    return false;
}

static void on_sync(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct server *server = context;
    const Millrace__V1__WorkerSync *sync = (const Millrace__V1__WorkerSync *)message;
    struct base_error error;
    enum base_code code = sync->worker
                              ? sync_machine(server, sync, &error)
                              : base_error_set(&error, BASE_INVALID, "worker 0: that is nobody's id");
    if (code) {
        server_answer_error(server, call, &error);
        return;
    }
    server_counters_set(server, sync);
    const struct server_park_kind *kind = keep_bad_items(server, sync) ? &orders_kind : &refusal_kind;
    if (sync->leaving)
        scheduler_cluster_worker_leave(server->cluster, base_clock_now_ns(), sync->worker, sync->incarnation);
    server_park_add(server->park, base_clock_now_ns(), sync->wait_ms,
                    &(struct server_park_call){kind, server_park_worker_key(sync->worker), call, message});
}

static void on_indexed(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct server *server = context;
    struct base_error error;
    if (server_datasets_indexed(server->datasets, (const Millrace__V1__IndexResult *)message, &error))
        server_answer_error(server, call, &error);
    else
        server_answer_empty(server, call);
}

static void on_workers(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    (void)message;
    struct server_arena arena;
    server_arena_init(&arena);
    server_answer(context, call, &arena,
                  server_replies_workers(&arena, context, base_clock_now_ns(), SERVER_REPLIES_MESSAGE_BYTES));
}

static void on_drain(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct server *server = context;
    uint64_t worker = ((const Millrace__V1__DrainRequest *)message)->worker;
    struct base_error error;
    if (scheduler_cluster_worker_drain(server->cluster, base_clock_now_ns(), worker, &error)) {
        server_answer_error(server, call, &error);
        return;
    }
    base_log(BASE_LOG_INFO, "worker_drain", "worker=%" PRIu64, worker);
    server_answer_empty(server, call);
}

const rpc_handler server_cluster_handlers[] = {on_sync, on_indexed, on_workers, on_drain};
