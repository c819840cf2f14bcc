/* SPDX-License-Identifier: Apache-2.0 */
/* The Jobs service: ranks open, report, close. */
#include "server/answer.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/certificates.h"

#include <string.h>

static void answer_job(struct server *server, struct rpc_call *call, const char *id)
{
    const struct scheduler_job *job = scheduler_cluster_job(server->cluster, id);
    struct base_error error;
    struct server_arena arena;
    if (!job) {
        base_error_set(&error, BASE_NOT_FOUND, "job %.128s is not known", id);
        server_answer_error(server, call, &error);
    } else if (job->state == SCHEDULER_JOB_REFUSED) {
        base_error_set(&error, BASE_CONFLICT, "job %s: %s", id, job->reason);
        server_answer_error(server, call, &error);
    } else {
        server_arena_init(&arena);
        server_answer(server, call, &arena, server_replies_job(&arena, server, job));
    }
}

static enum base_code open_job(struct server *server, const Millrace__V1__JobOpen *open,
                               struct base_error *error)
{
    static struct server_job_parts parts; /* large; the loop thread's alone */
    struct scheduler_job_request request;
    const struct server_dataset *dataset = server_datasets_find(server->datasets, open->dataset);
    if (!dataset)
        return server_datasets_unknown(server->datasets, open->dataset, error);
    enum base_code code = server_jobs_request(open, &parts, &request, error);
    if (code)
        return code;
    if (!dataset->has_version)
        return base_error_set(
            error, dataset->state == SERVER_DATASET_FAILED ? BASE_INVALID : BASE_UNAVAILABLE,
            "dataset %s is %s%s%s", dataset->name, server_dataset_state_name(dataset->state),
            dataset->error[0] ? ": " : "", dataset->error);
    if (parts.pipeline.mask && !dataset->masks[0])
        return base_error_set(
            error, BASE_INVALID,
            "dataset %s has no masks, and the pipeline has Mask: `millrace dataset add %s %s --masks FOLDER`",
            dataset->name, dataset->name, dataset->path);
    memcpy(request.dataset_version, dataset->version, BASE_SHA256_BYTES);
    request.items = dataset->items;
    int64_t now_ns = base_clock_now_ns();
    code = scheduler_cluster_job_open(server->cluster, now_ns, &request, error);
    if (!code && !server_jobs_opened(&server->jobs, open, parts.text, now_ns))
        code = base_error_set(error, BASE_NO_MEMORY, "job %s: no memory", open->job);
    return code;
}

/* An answer to an open or a close says that a restart does not undo it. Syncs are answered all the same: streams run on. */
static bool is_durable(struct server *server, struct rpc_call *call, const char *job)
{
    struct base_error error;
    if (!server->unstored.code)
        return true;
    base_error_set(&error, BASE_UNAVAILABLE, "job %s: the server cannot store it: %s", job,
                   server->unstored.text);
    server_answer_error(server, call, &error);
    return false;
}

static void open_answer(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const char *job = ((const Millrace__V1__JobOpen *)message)->job;
    if (is_durable(context, call, job))
        answer_job(context, call, job);
}

static const struct server_park_kind open_kind = {NULL, open_answer};

static void on_open(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct server *server = context;
    const Millrace__V1__JobOpen *open = (const Millrace__V1__JobOpen *)message;
    struct base_error error;
    if (open_job(server, open, &error)) {
        server_answer_error(server, call, &error);
        return;
    }
    server_park_add(server->park, base_clock_now_ns(), 0,
                    &(struct server_park_call){&open_kind, SERVER_PARK_ANY_KEY, call, message});
}

/* ---- sync ---- */

static bool sync_ready(void *context, const ProtobufCMessage *message)
{
    struct server *server = context;
    const Millrace__V1__JobSync *sync = (const Millrace__V1__JobSync *)message;
    const struct scheduler_job *job = scheduler_cluster_job(server->cluster, sync->job);
    return !job || job->revision != sync->seen_revision;
}

static void sync_answer(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    answer_job(context, call, ((const Millrace__V1__JobSync *)message)->job);
}

static const struct server_park_kind sync_kind = {sync_ready, sync_answer};

static void on_sync(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct server *server = context;
    const Millrace__V1__JobSync *sync = (const Millrace__V1__JobSync *)message;
    struct scheduler_job_report report = {.job = sync->job,
                                          .rank = sync->rank,
                                          .generation = sync->generation,
                                          .has_cursor = sync->at != NULL,
                                          .seeks = sync->seeks,
                                          .first_epoch = sync->first_epoch};
    struct base_error error;
    if (sync->at)
        report.at = (struct scheduler_cursor){sync->at->epoch, sync->at->position};
    int64_t now_ns = base_clock_now_ns();
    if (scheduler_cluster_job_sync(server->cluster, now_ns, &report, &error)) {
        server_answer_error(server, call, &error);
        return;
    }
    struct server_job *known = server_jobs_find(&server->jobs, sync->job);
    if (known) {
        server_jobs_report(known, sync, now_ns);
        server_certificates_report(server, known, sync);
    }
    server_park_add(server->park, now_ns, sync->wait_ms,
                    &(struct server_park_call){&sync_kind, server_park_job_key(sync->job), call, message});
}

static void close_answer(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    if (is_durable(context, call, ((const Millrace__V1__JobClose *)message)->job))
        server_answer_empty(context, call);
}

static const struct server_park_kind close_kind = {NULL, close_answer};

static void on_close(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct server *server = context;
    const Millrace__V1__JobClose *closing = (const Millrace__V1__JobClose *)message;
    struct scheduler_job_report report = {.job = closing->job,
                                          .rank = closing->rank,
                                          .generation = closing->generation,
                                          .has_cursor = closing->at != NULL};
    struct base_error error;
    const Millrace__V1__JobSync *last = closing->last;
    if (last)
        report.seeks = last->seeks, report.first_epoch = last->first_epoch;
    if (closing->at)
        report.at = (struct scheduler_cursor){closing->at->epoch, closing->at->position};
    int64_t now_ns = base_clock_now_ns();
    if (scheduler_cluster_job_close(server->cluster, now_ns, &report, &error)) {
        server_answer_error(server, call, &error);
        return;
    }
    struct server_job *known = server_jobs_find(&server->jobs, closing->job);
    if (known && last && last->rank == closing->rank && last->generation == closing->generation) {
        server_jobs_report(known, last, now_ns);
        server_certificates_report(server, known, last);
    }
    server_park_add(server->park, base_clock_now_ns(), 0,
                    &(struct server_park_call){&close_kind, SERVER_PARK_ANY_KEY, call, message});
}

static void on_list(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    (void)message;
    struct server_arena arena;
    server_arena_init(&arena);
    server_answer(context, call, &arena, server_replies_jobs(&arena, context, SERVER_REPLIES_MESSAGE_BYTES));
}

const rpc_handler server_jobs_handlers[] = {on_open, on_sync, on_close, on_list};
