/* SPDX-License-Identifier: Apache-2.0 */
#include "server/server.h"

#include "base/buffer.h"
#include "base/clock.h"
#include "base/log.h"

#include <string.h>

enum { LIVE_MAX = SCHEDULER_WORKERS_MAX, STORE_AGAIN_MS = 1000 };

static const struct base_metric metrics[SERVER_METRICS] = {
    [SERVER_METRIC_CALLS] = {.name = "millrace_server_calls_total", .help = "Control calls received."},
    [SERVER_METRIC_CALLS_REFUSED] = {.name = "millrace_server_calls_refused_total",
                                     .help = "Control calls answered with an error."},
    [SERVER_METRIC_STORE_ERRORS] = {.name = "millrace_server_store_errors_total",
                                    .help = "Writes to the state store that failed."},
    [SERVER_METRIC_WORKERS_LOST] = {.name = "millrace_server_workers_lost_total",
                                    .help = "Workers whose lease ended."},
    [SERVER_METRIC_PLAN_CHANGES] = {.name = "millrace_server_plan_changes_total",
                                    .help = "New plan versions."},
    [SERVER_METRIC_SLOTS_MOVED] = {.name = "millrace_server_slots_moved_total",
                                   .help = "Plan slots that got another home."},
    [SERVER_METRIC_STREAMS_MADE] = {.name = "millrace_server_streams_made_total",
                                    .help = "Streams that went live."},
    [SERVER_METRIC_NEAR_MISSES] = {.name = "millrace_server_near_misses_total",
                                   .help = "Jobs that would share a stream but for their seed."},
    [SERVER_METRIC_FENCED] = {.name = "millrace_server_fenced_total",
                              .help = "Calls of processes of an earlier start of a job."},
    [SERVER_METRIC_EPOCHS_DIFFER] = {.name = "millrace_server_epochs_differ_total",
                                     .help = "Epochs of one stream that two jobs were handed differently."},
    [SERVER_METRIC_HTTP_CONNECTIONS] = {.name = "millrace_server_http_connections",
                                        .help = "Open connections of the HTTP port.",
                                        .type = BASE_METRIC_GAUGE},
    [SERVER_METRIC_HTTP_FULL] = {.name = "millrace_server_http_full_total",
                                 .help = "Times that the HTTP port had all connections that it may have."},
};

/* ---- a plan as it is stored: the primaries of all slots, then the secondaries ---- */

enum { PLAN_BYTES = 2 * 8 * SCHEDULER_PLAN_SLOTS };

static void pack_plan(const struct scheduler_plan *plan, uint8_t bytes[PLAN_BYTES])
{
    for (int i = 0; i < SCHEDULER_PLAN_SLOTS; i++) {
        base_set_u64(bytes + 8 * i, plan->primary[i]);
        base_set_u64(bytes + 8 * (SCHEDULER_PLAN_SLOTS + i), plan->secondary[i]);
    }
}

/* Without homes, if there are not as many as there should be. */
static void unpack_plan(const struct store_stream *from, struct scheduler_plan *plan)
{
    *plan = (struct scheduler_plan){.version = from->plan_version};
    for (int i = 0; from->homes_size == PLAN_BYTES && i < SCHEDULER_PLAN_SLOTS; i++) {
        plan->primary[i] = base_get_u64(from->homes + 8 * i);
        plan->secondary[i] = base_get_u64(from->homes + 8 * (SCHEDULER_PLAN_SLOTS + i));
    }
}

/* ---- refilling ---- */

struct loading {
    struct server *server;
    int64_t now_ns;
};

static void report(const char *what, const char *name, const struct base_error *error)
{
    char quoted[2 * BASE_ERROR_TEXT_BYTES];
    base_log(BASE_LOG_WARN, "state_not_loaded", "kind=%s name=%.64s error=%s", what, name,
             base_log_quote(error->text, quoted, sizeof quoted));
}

static void load_stream(void *context, const struct store_stream *from)
{
    struct loading *loading = context;
    struct scheduler_stream stream = {.items = from->items, .shuffle = from->shuffle, .seed = from->seed};
    struct scheduler_plan plan;
    struct base_error error;
    char hex[BASE_SHA256_HEX_CHARS + 1];
    base_hash_to_hex(from->hash, BASE_SHA256_BYTES, hex);
    memcpy(stream.dataset_version, from->dataset_version, BASE_SHA256_BYTES);
    memcpy(stream.fingerprint, from->fingerprint, sizeof stream.fingerprint);
    size_t length = strlen(from->sample_text);
    if (length >= sizeof stream.sample_text) {
        base_error_set(&error, BASE_CORRUPT, "its pipeline text is too long");
        report("stream", hex, &error);
        return;
    }
    memcpy(stream.sample_text, from->sample_text, length + 1);
    unpack_plan(from, &plan);
    if (scheduler_cluster_load_stream(loading->server->cluster, loading->now_ns, &stream, &plan, &error))
        report("stream", hex, &error);
}

static enum base_code load_open(struct loading *loading, const struct store_job *from,
                                const Millrace__V1__JobOpen *open, struct base_error *error)
{
    static struct server_job_parts parts; /* large; the loop thread's alone */
    struct scheduler_job_request request;
    enum base_code code = server_jobs_request(open, &parts, &request, error);
    if (code)
        return code;
    const struct server_dataset *dataset = server_datasets_find(loading->server->datasets, from->dataset);
    if (!dataset || !dataset->has_version)
        return base_error_set(error, BASE_NOT_FOUND, "its dataset %s is gone", from->dataset);
    memcpy(request.dataset_version, dataset->version, BASE_SHA256_BYTES);
    request.items = dataset->items;
    struct scheduler_job_stored stored = {.first_epoch = from->first_epoch,
                                          .at = {from->epoch, from->position}};
    memcpy(stored.stream, from->stream, sizeof stored.stream);
    code = scheduler_cluster_load_job(loading->server->cluster, loading->now_ns, &request, &stored, error);
    if (!code && !server_jobs_opened(&loading->server->jobs, open, parts.text, loading->now_ns))
        code = base_error_set(error, BASE_NO_MEMORY, "no memory");
    return code;
}

static void load_job(void *context, const struct store_job *from)
{
    struct loading *loading = context;
    struct base_error error;
    Millrace__V1__JobOpen *open =
        millrace__v1__job_open__unpack(NULL, from->record_size, (const uint8_t *)from->record);
    if (!open)
        base_error_set(&error, BASE_CORRUPT, "its record does not parse");
    enum base_code code = open ? load_open(loading, from, open, &error) : error.code;
    if (code)
        report("job", from->id, &error);
    if (code == BASE_NOT_FOUND) /* or each start would report it again */
        store_job_remove(loading->server->store, from->id, NULL);
    if (open)
        millrace__v1__job_open__free_unpacked(open, NULL);
}

enum base_code server_open(struct server *server, const char *state_dir, int64_t keep_ms,
                           struct base_error *error)
{
    *server = (struct server){0};
    memcpy(server->metrics, metrics, sizeof metrics);
    struct loading loading = {server, base_clock_now_ns()};
    uint64_t first = 0;
    enum base_code code = store_open(&server->store, state_dir, error);
    if (!code)
        code = store_first_number(server->store, (uint64_t)(base_clock_wall_ns() / 1000), &first, error);
    struct scheduler_cluster_options options = {.keep_ms = keep_ms, .first_revision = first};
    if (!code)
        code = scheduler_cluster_create(&server->cluster, &options, error);
    if (!code)
        code = server_datasets_create(&server->datasets, server->store, first, error);
    if (!code)
        code = server_park_create(&server->park, server, error);
    if (!code)
        code = store_streams_each(server->store, load_stream, &loading, error);
    if (!code)
        code = store_jobs_each(server->store, load_job, &loading, error);
    if (code)
        server_close(server);
    return code;
}

void server_close(struct server *server)
{
    server_park_destroy(server->park);
    server->park = NULL;
    server_counters_fini(server);
    server_jobs_fini(&server->jobs);
    server_datasets_destroy(server->datasets);
    server->datasets = NULL;
    scheduler_cluster_destroy(server->cluster);
    server->cluster = NULL;
    if (server->store)
        store_close(&server->store);
}

/* ---- storing ---- */

static void store_failed(struct server *server, const char *what, const struct base_error *error)
{
    char quoted[2 * BASE_ERROR_TEXT_BYTES];
    base_metric_add(&server->metrics[SERVER_METRIC_STORE_ERRORS], 1);
    base_log(BASE_LOG_ERROR, "state_not_saved", "kind=%s error=%s", what,
             base_log_quote(error->text, quoted, sizeof quoted));
}

static enum base_code store_live(struct server *server, const struct scheduler_live_stream *live,
                                 struct base_error *error)
{
    const struct scheduler_stream *id = &live->identity;
    uint8_t homes[PLAN_BYTES];
    pack_plan(&live->plan, homes);
    struct store_stream record = {
        .items = id->items,
        .seed = id->seed,
        .shuffle = id->shuffle,
        .sample_text = id->sample_text,
        .plan_version = live->plan.version,
        .homes = homes,
        .homes_size = sizeof homes,
    };
    memcpy(record.hash, id->hash, sizeof record.hash);
    memcpy(record.dataset_version, id->dataset_version, sizeof record.dataset_version);
    memcpy(record.fingerprint, id->fingerprint, sizeof record.fingerprint);
    return store_stream_put(server->store, &record, error);
}

static enum base_code store_job(struct server *server, const struct scheduler_job *job,
                                struct base_error *error)
{
    const struct server_job *known = server_jobs_find(&server->jobs, job->id);
    if (!known)
        return BASE_OK; /* its open has failed for want of memory */
    struct store_job record = {
        .id = job->id,
        .dataset = known->dataset,
        .record = (const char *)known->record,
        .record_size = known->record_size,
        .first_epoch = job->first_epoch,
        .epoch = job->at.epoch,
        .position = job->at.position,
    };
    if (job->stream && job->has_start) /* one that waits for its start finds its stream again */
        memcpy(record.stream, job->stream->identity.hash, sizeof record.stream);
    return store_job_put(server->store, &record, error);
}

/* One write of all that is out of date. */
struct writing {
    struct server *server;
    bool begun;
    enum base_code code;
    struct base_error error;
};

static bool write_begin(struct writing *writing)
{
    if (!writing->begun && !writing->code) {
        writing->code = store_begin(writing->server->store, &writing->error);
        writing->begun = !writing->code;
    }
    return !writing->code;
}

static void write_streams(struct writing *writing)
{
    struct server *server = writing->server;
    uint8_t hash[BASE_SHA256_BYTES];
    bool gone;
    while (scheduler_cluster_take_stream(server->cluster, hash, &gone)) {
        const struct scheduler_live_stream *live = scheduler_cluster_stream(server->cluster, hash);
        if (!write_begin(writing))
            continue;
        if (gone)
            writing->code = store_stream_remove(server->store, hash, &writing->error);
        else if (live)
            writing->code = store_live(server, live, &writing->error);
    }
}

static void write_jobs(struct writing *writing)
{
    struct server *server = writing->server;
    char id[SCHEDULER_JOB_CHARS];
    bool gone;
    while (scheduler_cluster_take_job(server->cluster, id, &gone)) {
        const struct scheduler_job *job = scheduler_cluster_job(server->cluster, id);
        if (write_begin(writing)) {
            if (gone)
                writing->code = store_job_remove(server->store, id, &writing->error);
            else if (job)
                writing->code = store_job(server, job, &writing->error);
        }
        if (!job) /* a closed one is listed for a while */
            server_jobs_remove(&server->jobs, id);
    }
}

void server_persist(struct server *server, int64_t now_ns)
{
    struct writing writing = {.server = server};
    if (now_ns < server->store_after_ns)
        return;
    write_streams(&writing);
    write_jobs(&writing);
    if (writing.begun && writing.code)
        store_rollback(server->store);
    else if (writing.begun)
        writing.code = store_commit(server->store, &writing.error);
    server->unstored.code = writing.code;
    if (!writing.code)
        return;
    server->unstored = writing.error;
    store_failed(server, "jobs and streams", &writing.error);
    scheduler_cluster_store_again(server->cluster);
    server->store_after_ns = now_ns + STORE_AGAIN_MS * BASE_NS_PER_MS;
}

/* ---- settling ---- */

static void log_lines(struct server *server)
{
    char line[SCHEDULER_WORDS_CHARS], quoted[2 * SCHEDULER_WORDS_CHARS];
    while (scheduler_cluster_take_line(server->cluster, line))
        base_log(BASE_LOG_INFO, "scheduler", "text=%s", base_log_quote(line, quoted, sizeof quoted));
}

static void assign_orders(struct server *server)
{
    static uint64_t live[LIVE_MAX]; /* the loop thread's alone */
    int count = 0;
    if (!server_datasets_ordering(server->datasets))
        return;
    for (int i = 0; i < scheduler_cluster_worker_count(server->cluster) && count < LIVE_MAX; i++) {
        const struct scheduler_worker *worker = scheduler_cluster_worker_at(server->cluster, i);
        if (worker->state == SCHEDULER_WORKER_READY)
            live[count++] = worker->id;
    }
    server_datasets_assign(server->datasets, live, count);
}

static void copy_counts(struct server *server)
{
    struct scheduler_cluster_counts counts = scheduler_cluster_counts(server->cluster);
    base_metric_set(&server->metrics[SERVER_METRIC_WORKERS_LOST], (int64_t)counts.workers_lost);
    base_metric_set(&server->metrics[SERVER_METRIC_PLAN_CHANGES], (int64_t)counts.plan_changes);
    base_metric_set(&server->metrics[SERVER_METRIC_SLOTS_MOVED], (int64_t)counts.slots_moved);
    base_metric_set(&server->metrics[SERVER_METRIC_STREAMS_MADE], (int64_t)counts.streams_made);
    base_metric_set(&server->metrics[SERVER_METRIC_NEAR_MISSES], (int64_t)counts.near_misses);
    base_metric_set(&server->metrics[SERVER_METRIC_FENCED], (int64_t)counts.fenced);
}

static void wake(struct server *server)
{
    char job[SCHEDULER_JOB_CHARS];
    uint64_t worker, datasets = server_datasets_revision(server->datasets);
    while (scheduler_cluster_take_woken_worker(server->cluster, &worker))
        server_park_wake(server->park, server_park_worker_key(worker));
    while (scheduler_cluster_take_woken_job(server->cluster, job))
        server_park_wake(server->park, server_park_job_key(job));
    if (datasets == server->datasets_seen)
        return;
    server->datasets_seen = datasets;
    server_park_wake_all(server->park);
}

int64_t server_settle(struct server *server, int64_t now_ns)
{
    scheduler_cluster_tick(server->cluster, now_ns);
    server_persist(server, now_ns);
    assign_orders(server);
    log_lines(server);
    copy_counts(server);
    server_counters_prune(server);
    wake(server);
    int64_t park_ns = server_park_poll(server->park, now_ns),
            machine_ns = scheduler_cluster_deadline_ns(server->cluster);
    return machine_ns < park_ns ? machine_ns : park_ns;
}
