/* SPDX-License-Identifier: Apache-2.0 */
#include "server/replies.h"

#include "base/buffer.h"
#include "base/clock.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    HOLDERS_MAX = 16,
    BAD_LISTED_MAX = 100,
    ERRORS_LISTED_MAX = 100,
    NAME_BYTES = BASE_SHA256_BYTES + 2, /* of a hash in a list */
    NOBODY = 65535
};

/* NOLINTNEXTLINE(bugprone-macro-parentheses): `message` is a type */
#define NEW(arena, message, init) message_new(arena, sizeof(message), &(const message)init)

static void *message_new(struct server_arena *arena, size_t size, const void *init)
{
    void *message = server_arena_alloc(arena, size);
    return message ? memcpy(message, init, size) : NULL;
}

/* An array of `most` pointers, with room for at least one. */
static void *pointers(struct server_arena *arena, size_t most)
{
    return server_arena_alloc(arena, (most ? most : 1) * sizeof(void *));
}

static ProtobufCBinaryData view(const uint8_t *bytes, size_t size)
{
    union { /* packing only reads */
        const uint8_t *from;
        uint8_t *to;
    } cast = {.from = bytes};
    return (ProtobufCBinaryData){size, cast.to};
}

/* How many of `count` messages of a list fit into `most_bytes`. */
static size_t fit(void *const *messages, size_t count, size_t most_bytes)
{
    size_t bytes = 0, fits = 0;
    for (; fits < count && messages[fits]; fits++) {
        bytes += protobuf_c_message_get_packed_size(messages[fits]) + 6; /* and its tag and length */
        if (bytes > most_bytes)
            break;
    }
    return fits;
}

/* ---- parts ---- */

static Millrace__V1__Endpoint *endpoint(struct server_arena *arena, const struct server *server, uint64_t id)
{
    const struct scheduler_worker *worker = scheduler_cluster_worker(server->cluster, id);
    Millrace__V1__Endpoint *to = NEW(arena, Millrace__V1__Endpoint, MILLRACE__V1__ENDPOINT__INIT);
    char *text = worker ? server_arena_text(arena, worker->addresses) : NULL;
    if (!to)
        return NULL;
    to->worker = id;
    size_t lines = 1;
    for (const char *at = text; at && *at; at++)
        lines += *at == '\n';
    to->addresses = pointers(arena, lines);
    char *rest = NULL;
    for (char *line = text && to->addresses ? strtok_r(text, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest))
        to->addresses[to->n_addresses++] = line;
    return to;
}

static Millrace__V1__Stream *stream(struct server_arena *arena, const struct scheduler_stream *from,
                                    bool live)
{
    Millrace__V1__Stream *to = NEW(arena, Millrace__V1__Stream, MILLRACE__V1__STREAM__INIT);
    if (!to)
        return NULL;
    to->dataset_version = view(from->dataset_version, BASE_SHA256_BYTES);
    to->items = from->items;
    to->shuffle = from->shuffle;
    to->seed = from->seed;
    to->sample_text = server_arena_text(arena, from->sample_text);
    if (live)
        to->fingerprint = view(from->fingerprint, sizeof from->fingerprint);
    to->hash = view(from->hash, BASE_SHA256_BYTES);
    return to;
}

/* A plan's workers, in the order of their first slots, found by id. */
enum { PLACES = 4 * SCHEDULER_PLAN_WORKERS };

struct named {
    uint64_t ids[SCHEDULER_PLAN_WORKERS];
    size_t count;
    uint16_t places[PLACES]; /* index + 1; 0: free */
};

/* Index of a worker among them; appended when new. */
static uint16_t index_of(struct named *named, uint64_t id)
{
    if (id == SCHEDULER_PLAN_NOBODY)
        return NOBODY;
    size_t at = (id * UINT64_C(0x9E3779B97F4A7C15) >> 32) % PLACES;
    while (named->places[at] && named->ids[named->places[at] - 1] != id)
        at = (at + 1) % PLACES;
    if (named->places[at])
        return (uint16_t)(named->places[at] - 1);
    if (named->count == SCHEDULER_PLAN_WORKERS)
        return NOBODY;
    named->ids[named->count++] = id;
    named->places[at] = (uint16_t)named->count;
    return (uint16_t)(named->count - 1);
}

/* Whom a worker's name stands for is nothing to other workers: they name it only. */
static Millrace__V1__Endpoint *name_only(struct server_arena *arena, uint64_t id)
{
    Millrace__V1__Endpoint *to = NEW(arena, Millrace__V1__Endpoint, MILLRACE__V1__ENDPOINT__INIT);
    if (to)
        to->worker = id;
    return to;
}

static Millrace__V1__Plan *plan(struct server_arena *arena, const struct server *server,
                                const struct scheduler_plan *from, bool addresses)
{
    Millrace__V1__Plan *to = NEW(arena, Millrace__V1__Plan, MILLRACE__V1__PLAN__INIT);
    uint8_t *slots = server_arena_alloc(arena, 4 * SCHEDULER_PLAN_SLOTS);
    struct named named = {.count = 0};
    if (!to || !slots)
        return NULL;
    to->version = from->version;
    to->primary = (ProtobufCBinaryData){2 * SCHEDULER_PLAN_SLOTS, slots};
    to->secondary = (ProtobufCBinaryData){2 * SCHEDULER_PLAN_SLOTS, slots + 2 * SCHEDULER_PLAN_SLOTS};
    for (int i = 0; i < SCHEDULER_PLAN_SLOTS; i++) {
        base_set_u16(to->primary.data + 2 * i, index_of(&named, from->primary[i]));
        base_set_u16(to->secondary.data + 2 * i, index_of(&named, from->secondary[i]));
    }
    to->workers = pointers(arena, named.count);
    for (size_t i = 0; to->workers && i < named.count; i++)
        to->workers[to->n_workers++] =
            addresses ? endpoint(arena, server, named.ids[i]) : name_only(arena, named.ids[i]);
    return to;
}

/* ---- workers ---- */

uint64_t server_replies_orders_revision(const struct server *server, uint64_t id)
{
    const struct scheduler_worker *worker = scheduler_cluster_worker(server->cluster, id);
    return (worker ? worker->revision : 0) + server_datasets_revision(server->datasets);
}

static Millrace__V1__IndexOrder *index_order(struct server_arena *arena, const struct server_dataset *dataset,
                                             bool verify)
{
    Millrace__V1__IndexOrder *order = NEW(arena, Millrace__V1__IndexOrder, MILLRACE__V1__INDEX_ORDER__INIT);
    if (!order)
        return NULL;
    order->order = verify ? dataset->verify.id : dataset->index.id;
    order->dataset = server_arena_text(arena, dataset->name);
    order->path = dataset->path;
    order->masks = server_arena_text(arena, server_dataset_asked_masks(dataset));
    order->verify = verify;
    if (verify)
        order->version = view(dataset->version, BASE_SHA256_BYTES);
    return order;
}

static Millrace__V1__DatasetOrder *dataset_order(struct server_arena *arena, const struct server *server,
                                                 const struct server_dataset *dataset, uint64_t worker)
{
    Millrace__V1__DatasetOrder *order =
        NEW(arena, Millrace__V1__DatasetOrder, MILLRACE__V1__DATASET_ORDER__INIT);
    if (!order || !(order->holders = pointers(arena, HOLDERS_MAX)))
        return NULL;
    order->dataset = server_arena_text(arena, dataset->name);
    order->path = dataset->path;
    order->version = view(dataset->version, BASE_SHA256_BYTES);
    order->items = dataset->items;
    int count = scheduler_cluster_worker_count(server->cluster);
    for (int i = 0; i < count && order->n_holders < HOLDERS_MAX; i++) {
        const struct scheduler_worker *other = scheduler_cluster_worker_at(server->cluster, i);
        if (other->id != worker && other->state != SCHEDULER_WORKER_LOST &&
            scheduler_cluster_eligible(server->cluster, other->id, dataset->version, NULL))
            order->holders[order->n_holders++] = endpoint(arena, server, other->id);
    }
    return order;
}

static Millrace__V1__LiveJob *live_job(struct server_arena *arena, const struct scheduler_job *job)
{
    Millrace__V1__LiveJob *live = NEW(arena, Millrace__V1__LiveJob, MILLRACE__V1__LIVE_JOB__INIT);
    if (!live)
        return NULL;
    live->job = server_arena_text(arena, job->id);
    live->weight = job->weight;
    return live;
}

static Millrace__V1__StreamOrder *stream_order(struct server_arena *arena, const struct server *server,
                                               const struct scheduler_live_stream *live, bool with_plan)
{
    Millrace__V1__StreamOrder *order =
        NEW(arena, Millrace__V1__StreamOrder, MILLRACE__V1__STREAM_ORDER__INIT);
    if (!order || !(order->live = pointers(arena, (size_t)live->jobs)))
        return NULL;
    order->stream = stream(arena, &live->identity, true);
    order->plan_version = live->planned ? live->plan.version : 0;
    if (live->planned && with_plan)
        order->plan = plan(arena, server, &live->plan, false);
    const struct scheduler_job *job = scheduler_cluster_reader_next(live, NULL);
    for (; job && order->n_live < (size_t)live->jobs; job = scheduler_cluster_reader_next(live, job))
        if (job->state == SCHEDULER_JOB_RUNNING || job->state == SCHEDULER_JOB_WAITING)
            order->live[order->n_live++] = live_job(arena, job);
    return order;
}

static void add_dataset_orders(struct server_arena *arena, const struct server *server, uint64_t worker,
                               Millrace__V1__WorkerOrders *orders)
{
    size_t most = 0;
    for (const struct server_dataset *d = server_datasets_first(server->datasets); d; d = d->next)
        most++;
    orders->index = pointers(arena, 2 * most);
    orders->datasets = pointers(arena, most);
    if (!orders->index || !orders->datasets)
        return;
    for (const struct server_dataset *d = server_datasets_first(server->datasets); d; d = d->next) {
        if (d->index.id && d->index.worker == worker)
            orders->index[orders->n_index++] = index_order(arena, d, false);
        if (d->verify.id && d->verify.worker == worker)
            orders->index[orders->n_index++] = index_order(arena, d, true);
        if (d->has_version)
            orders->datasets[orders->n_datasets++] = dataset_order(arena, server, d, worker);
    }
}

/* ---- its live streams ---- */

static bool is_wanted(const Millrace__V1__WorkerSync *sync, const struct scheduler_live_stream *live)
{
    for (size_t i = 0; i < sync->n_wanted; i++)
        if (sync->wanted[i].len == BASE_SHA256_BYTES &&
            memcmp(sync->wanted[i].data, live->identity.hash, BASE_SHA256_BYTES) == 0)
            return true;
    return false;
}

bool server_replies_orders_behind(const struct server *server, const Millrace__V1__WorkerSync *sync)
{
    return sync->n_wanted > 0 || scheduler_cluster_served_since(server->cluster, sync->worker, sync->told);
}

/* A live stream of a worker, and whether it shall hear all of it. */
struct due {
    const struct scheduler_live_stream *live;
    bool wanted;
};

/* Those that changed first come first: where a message is full, all that changed up to there has been told. */
static int compare_due(const void *a, const void *b)
{
    uint64_t x = ((const struct due *)a)->live->revision, y = ((const struct due *)b)->live->revision;
    return x < y ? -1 : x > y;
}

static void tell_streams(struct server_arena *arena, const struct server *server,
                         const Millrace__V1__WorkerSync *sync, struct due *due, size_t count,
                         Millrace__V1__WorkerOrders *orders)
{
    size_t bytes = millrace__v1__worker_orders__get_packed_size(orders) + NAME_BYTES * count;
    bool full = false;
    orders->told = orders->plans_told = scheduler_cluster_revision(server->cluster);
    qsort(due, count, sizeof *due, compare_due);
    for (size_t i = 0; i < count; i++) {
        const struct scheduler_live_stream *live = due[i].live;
        if (!full && (due[i].wanted || live->revision > sync->told)) {
            Millrace__V1__StreamOrder *order =
                stream_order(arena, server, live, due[i].wanted || live->plan_revision > sync->plans_told);
            if (!order)
                return;
            bytes += millrace__v1__stream_order__get_packed_size(order) + 6;
            full = bytes > SERVER_REPLIES_MESSAGE_BYTES && orders->n_streams > 0;
            if (!full) {
                orders->streams[orders->n_streams++] = order;
                continue;
            }
            orders->told = live->revision - 1 > sync->told ? live->revision - 1 : sync->told;
            orders->plans_told = sync->plans_told; /* plans of those that are left are older, perhaps */
        }
        orders->kept[orders->n_kept++] = view(live->identity.hash, BASE_SHA256_BYTES);
    }
}

static void add_streams(struct server_arena *arena, const struct server *server,
                        const Millrace__V1__WorkerSync *sync, Millrace__V1__WorkerOrders *orders)
{
    size_t count = 0;
    orders->streams_kept =
        orders->revision == sync->seen_revision && !server_replies_orders_behind(server, sync);
    orders->told = sync->told;
    orders->plans_told = sync->plans_told;
    if (orders->streams_kept)
        return;
    while (scheduler_cluster_served_at(server->cluster, sync->worker, (int)count))
        count++;
    struct due *due = server_arena_alloc(arena, (count + 1) * sizeof *due);
    orders->streams = pointers(arena, count);
    orders->kept = server_arena_alloc(arena, (count + 1) * sizeof *orders->kept);
    if (!due || !orders->streams || !orders->kept)
        return;
    for (size_t i = 0; i < count; i++) {
        due[i].live = scheduler_cluster_served_at(server->cluster, sync->worker, (int)i);
        due[i].wanted = is_wanted(sync, due[i].live);
    }
    tell_streams(arena, server, sync, due, count, orders);
}

Millrace__V1__WorkerOrders *server_replies_orders(struct server_arena *arena, const struct server *server,
                                                  const Millrace__V1__WorkerSync *sync)
{
    uint64_t id = sync->worker;
    Millrace__V1__WorkerOrders *orders =
        NEW(arena, Millrace__V1__WorkerOrders, MILLRACE__V1__WORKER_ORDERS__INIT);
    const struct scheduler_worker *worker = scheduler_cluster_worker(server->cluster, id);
    if (!orders || !worker)
        return orders;
    orders->revision = server_replies_orders_revision(server, id);
    orders->lease_ms = (uint32_t)scheduler_cluster_lease_ms(server->cluster);
    orders->drain = worker->drain_ordered;
    add_dataset_orders(arena, server, id, orders);
    size_t probes = 0;
    while (scheduler_cluster_probe_at(server->cluster, id, (int)probes))
        probes++;
    orders->probe = pointers(arena, probes);
    if (!orders->probe)
        return orders;
    for (size_t i = 0; i < probes; i++)
        orders->probe[orders->n_probe++] =
            stream(arena, scheduler_cluster_probe_at(server->cluster, id, (int)i), false);
    add_streams(arena, server, sync, orders);
    return orders;
}

static Millrace__V1__WorkerInfo *worker_info(struct server_arena *arena, const struct server *server,
                                             const struct scheduler_worker *worker, int64_t now_ns)
{
    Millrace__V1__WorkerInfo *info = NEW(arena, Millrace__V1__WorkerInfo, MILLRACE__V1__WORKER_INFO__INIT);
    if (!info)
        return NULL;
    info->endpoint = endpoint(arena, server, worker->id);
    info->cores = (uint32_t)worker->weight;
    info->staging_bytes = worker->staging_bytes;
    info->state = server_arena_text(arena, scheduler_worker_state_name(worker->state));
    info->silent_ms = (uint64_t)((now_ns - worker->seen_ns) / BASE_NS_PER_MS);
    info->blocks_made =
        (uint64_t)server_counters_sum(server, worker->id, "millrace_worker_blocks_made_total");
    info->rows_made = (uint64_t)server_counters_sum(server, worker->id, "millrace_worker_rows_made_total");
    info->busy = server_counters_sum(server, worker->id, "millrace_worker_making_ratio");
    info->queue_ms = 1000 * server_counters_sum(server, worker->id, "millrace_worker_queue_seconds");
    return info;
}

Millrace__V1__WorkersReply *server_replies_workers(struct server_arena *arena, const struct server *server,
                                                   int64_t now_ns, size_t most_bytes)
{
    Millrace__V1__WorkersReply *reply =
        NEW(arena, Millrace__V1__WorkersReply, MILLRACE__V1__WORKERS_REPLY__INIT);
    int count = scheduler_cluster_worker_count(server->cluster);
    if (!reply || !(reply->workers = pointers(arena, (size_t)count)))
        return reply;
    for (int i = 0; i < count; i++)
        reply->workers[reply->n_workers++] =
            worker_info(arena, server, scheduler_cluster_worker_at(server->cluster, i), now_ns);
    size_t fits = fit((void **)reply->workers, reply->n_workers, most_bytes);
    reply->omitted = (uint32_t)(reply->n_workers - fits);
    reply->n_workers = fits;
    return reply;
}

/* ---- datasets ---- */

struct listing {
    struct server_arena *arena;
    Millrace__V1__DatasetInfo *info;
};

static void list_bad(void *context, const struct store_bad_item *bad)
{
    struct listing *listing = context;
    Millrace__V1__BadItem *item = NEW(listing->arena, Millrace__V1__BadItem, MILLRACE__V1__BAD_ITEM__INIT);
    if (!item)
        return;
    item->item = bad->item;
    item->name = server_arena_text(listing->arena, bad->name);
    item->cause = server_arena_text(listing->arena, bad->cause);
    listing->info->bad[listing->info->n_bad++] = item;
}

/* Workers that are eligible are counted; why others are not is said of the first of them, when `errors`. */
static void add_workers(struct server_arena *arena, const struct server *server,
                        const struct server_dataset *dataset, bool errors, Millrace__V1__DatasetInfo *info)
{
    int count = scheduler_cluster_worker_count(server->cluster), more = 0;
    if (!(info->worker_errors = pointers(arena, ERRORS_LISTED_MAX + 1)))
        return;
    for (int i = 0; i < count; i++) {
        const struct scheduler_worker *worker = scheduler_cluster_worker_at(server->cluster, i);
        const char *error = "";
        if (worker->state == SCHEDULER_WORKER_LOST)
            continue;
        if (scheduler_cluster_eligible(server->cluster, worker->id, dataset->version, &error))
            info->eligible_workers++;
        else if (!errors || !error || !error[0])
            continue;
        else if (info->n_worker_errors == ERRORS_LISTED_MAX)
            more++;
        else
            info->worker_errors[info->n_worker_errors++] =
                server_arena_print(arena, "worker %" PRIu64 ": %s", worker->id, error);
    }
    if (more)
        info->worker_errors[info->n_worker_errors++] = server_arena_print(arena, "and %d more", more);
}

Millrace__V1__DatasetInfo *server_replies_dataset(struct server_arena *arena, const struct server *server,
                                                  const struct server_dataset *dataset, bool whole)
{
    Millrace__V1__DatasetInfo *info = NEW(arena, Millrace__V1__DatasetInfo, MILLRACE__V1__DATASET_INFO__INIT);
    if (!info)
        return NULL;
    info->name = server_arena_text(arena, dataset->name);
    info->path = dataset->path;
    info->masks = dataset->masks;
    info->state = server_arena_text(arena, server_dataset_state_name(dataset->state));
    info->error = server_arena_text(arena, dataset->error);
    info->code = dataset->index_code;
    info->indexing = dataset->index.id != 0;
    info->items = dataset->items;
    info->bytes = dataset->bytes;
    info->skipped = dataset->skipped;
    if (!dataset->has_version)
        return info;
    info->version = view(dataset->version, BASE_SHA256_BYTES);
    add_workers(arena, server, dataset, whole, info);
    struct listing listing = {arena, info};
    store_bad_items_count(server->store, dataset->version, &info->bad_items, NULL);
    if (whole) {
        info->bad = pointers(arena, BAD_LISTED_MAX);
        if (info->bad)
            store_bad_items_each(server->store, dataset->version, BAD_LISTED_MAX, list_bad, &listing, NULL);
        info->classes = dataset->classes.line;
        info->n_classes = dataset->classes.count;
        info->skipped_names = dataset->skipped_names.line;
        info->n_skipped_names = dataset->skipped_names.count;
    }
    return info;
}

Millrace__V1__DatasetsReply *server_replies_datasets(struct server_arena *arena, const struct server *server,
                                                     size_t most_bytes)
{
    Millrace__V1__DatasetsReply *reply =
        NEW(arena, Millrace__V1__DatasetsReply, MILLRACE__V1__DATASETS_REPLY__INIT);
    size_t count = 0;
    for (const struct server_dataset *d = server_datasets_first(server->datasets); d; d = d->next)
        count++;
    if (!reply || !(reply->datasets = pointers(arena, count)))
        return reply;
    for (const struct server_dataset *d = server_datasets_first(server->datasets); d; d = d->next)
        reply->datasets[reply->n_datasets++] = server_replies_dataset(arena, server, d, false);
    size_t fits = fit((void **)reply->datasets, reply->n_datasets, most_bytes);
    reply->omitted = (uint32_t)(reply->n_datasets - fits);
    reply->n_datasets = fits;
    return reply;
}

/* ---- jobs ---- */

static Millrace__V1__Cursor *cursor(struct server_arena *arena, struct scheduler_cursor from)
{
    Millrace__V1__Cursor *to = NEW(arena, Millrace__V1__Cursor, MILLRACE__V1__CURSOR__INIT);
    if (to) {
        to->epoch = from.epoch;
        to->position = from.position;
    }
    return to;
}

static Millrace__V1__JobCursor *start_of(struct server_arena *arena, const struct scheduler_job *job)
{
    Millrace__V1__JobCursor *to = NEW(arena, Millrace__V1__JobCursor, MILLRACE__V1__JOB_CURSOR__INIT);
    const struct scheduler_stream *id = &job->stream->identity;
    if (!to)
        return NULL;
    to->at = cursor(arena, job->start);
    to->dataset_version = view(id->dataset_version, BASE_SHA256_BYTES);
    to->fingerprint = view(id->fingerprint, sizeof id->fingerprint);
    to->stream = view(id->hash, BASE_SHA256_BYTES);
    to->first_epoch = job->first_epoch;
    return to;
}

static void add_running(struct server_arena *arena, const struct server *server,
                        const struct scheduler_job *job, Millrace__V1__JobAnswer *answer)
{
    const struct server_job *known = server_jobs_find(&server->jobs, job->id);
    const struct server_dataset *dataset =
        known ? server_datasets_find(server->datasets, known->dataset) : NULL;
    answer->stream = stream(arena, &job->stream->identity, true);
    if (job->stream->planned)
        answer->plan = plan(arena, server, &job->stream->plan, true);
    answer->start = start_of(arena, job);
    answer->pipeline_text = known ? known->pipeline_text : answer->pipeline_text;
    if (dataset && !memcmp(dataset->version, job->stream->identity.dataset_version, BASE_SHA256_BYTES)) {
        answer->classes = dataset->classes.line;
        answer->n_classes = dataset->classes.count;
    }
}

Millrace__V1__JobAnswer *server_replies_job(struct server_arena *arena, const struct server *server,
                                            const struct scheduler_job *job)
{
    Millrace__V1__JobAnswer *answer = NEW(arena, Millrace__V1__JobAnswer, MILLRACE__V1__JOB_ANSWER__INIT);
    if (!answer)
        return NULL;
    /* a stream without a plan yet (just after a restart) is not ready to be read */
    bool running =
        job->state == SCHEDULER_JOB_RUNNING && job->stream && job->has_start && job->stream->planned;
    answer->revision = job->revision;
    answer->state = server_arena_text(arena, running || job->state != SCHEDULER_JOB_RUNNING
                                                 ? scheduler_job_state_name(job->state)
                                                 : scheduler_job_state_name(SCHEDULER_JOB_PREPARING));
    answer->reason = server_arena_text(arena, job->reason);
    answer->lease_ms = (uint32_t)scheduler_cluster_lease_ms(server->cluster);
    answer->short_first_epoch = job->short_first_epoch;
    if (job->note[0] && (answer->notes = pointers(arena, 1)))
        answer->notes[answer->n_notes++] = server_arena_text(arena, job->note);
    if (running)
        add_running(arena, server, job, answer);
    return answer;
}

static void add_certificates(struct server_arena *arena, const struct server_job *job,
                             Millrace__V1__JobInfo *info)
{
    info->certificates = pointers(arena, (size_t)job->certificate_count);
    for (int i = 0; info->certificates && i < job->certificate_count; i++) {
        const struct server_certificate *from = &job->certificates[i];
        Millrace__V1__EpochCertificate *to =
            NEW(arena, Millrace__V1__EpochCertificate, MILLRACE__V1__EPOCH_CERTIFICATE__INIT);
        if (!to)
            return;
        to->epoch = from->is.epoch;
        to->stream_epoch = from->is.stream_epoch;
        to->positions = from->is.positions;
        to->hash = view(from->hash, sizeof from->hash);
        to->complete = from->is.whole;
        info->certificates[info->n_certificates++] = to;
    }
}

static Millrace__V1__JobInfo *job_info(struct server_arena *arena, const struct server *server,
                                       const struct scheduler_job *job)
{
    Millrace__V1__JobInfo *info = NEW(arena, Millrace__V1__JobInfo, MILLRACE__V1__JOB_INFO__INIT);
    const struct server_job *known = server_jobs_find(&server->jobs, job->id);
    static const char *const tails[] = {"drop", "pad", "exact"};
    if (!info)
        return NULL;
    info->job = server_arena_text(arena, job->id);
    info->state = server_arena_text(arena, scheduler_job_state_name(job->state));
    info->tail = server_arena_text(arena, tails[job->shape.tail]);
    info->reason = server_arena_text(arena, job->reason);
    info->world = job->shape.world;
    info->batch = job->shape.batch;
    info->at = cursor(arena, job->at);
    info->ranks_live = (uint32_t)job->ranks_live;
    info->weight = job->weight;
    if (job->stream)
        info->stream = view(job->stream->identity.hash, BASE_SHA256_BYTES);
    if (!known)
        return info;
    struct server_job_totals totals = server_jobs_totals(known);
    info->dataset = server_arena_text(arena, known->dataset);
    info->rows = totals.rows;
    info->rows_per_s = known->rows_per_s;
    info->stall_share = totals.stall_share;
    info->ready_steps = totals.ready_steps;
    info->substituted = totals.substituted;
    info->skipped = totals.skipped;
    add_certificates(arena, known, info);
    return info;
}

Millrace__V1__JobsReply *server_replies_jobs(struct server_arena *arena, const struct server *server,
                                             size_t most_bytes)
{
    Millrace__V1__JobsReply *reply = NEW(arena, Millrace__V1__JobsReply, MILLRACE__V1__JOBS_REPLY__INIT);
    int count = scheduler_cluster_job_count(server->cluster);
    if (!reply || !(reply->jobs = pointers(arena, (size_t)count)))
        return reply;
    for (int i = 0; i < count; i++)
        reply->jobs[reply->n_jobs++] = job_info(arena, server, scheduler_cluster_job_at(server->cluster, i));
    size_t fits = fit((void **)reply->jobs, reply->n_jobs, most_bytes);
    reply->omitted = (uint32_t)(reply->n_jobs - fits);
    reply->n_jobs = fits;
    return reply;
}
