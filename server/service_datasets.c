/* SPDX-License-Identifier: Apache-2.0 */
/* The Datasets service. */
#include "server/answer.h"

#include "base/clock.h"

#include <string.h>

enum { VERIFY_WAIT_MS = 60000 };

static void answer_info(struct server *server, struct rpc_call *call, const struct server_dataset *dataset)
{
    struct server_arena arena;
    server_arena_init(&arena);
    server_answer(server, call, &arena, server_replies_dataset(&arena, server, dataset, true));
}

static void answer_gone(struct server *server, struct rpc_call *call, const char *name)
{
    struct base_error error;
    server_datasets_unknown(server->datasets, name, &error);
    server_answer_error(server, call, &error);
}

/* ---- add ---- */

static bool add_ready(void *context, const ProtobufCMessage *message)
{
    struct server *server = context;
    const struct server_dataset *dataset =
        server_datasets_find(server->datasets, ((const Millrace__V1__DatasetAdd *)message)->name);
    return !dataset || !dataset->index.id;
}

static void add_answer(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct server *server = context;
    const char *name = ((const Millrace__V1__DatasetAdd *)message)->name;
    const struct server_dataset *dataset = server_datasets_find(server->datasets, name);
    if (!dataset) {
        answer_gone(server, call, name);
    } else if (!dataset->index.id && dataset->error[0]) {
        struct base_error error;
        base_error_set(&error, dataset->index_code ? dataset->index_code : BASE_INVALID, "dataset %s: %s",
                       name, dataset->error);
        server_answer_error(server, call, &error);
    } else {
        answer_info(server, call, dataset);
    }
}

static const struct server_park_kind add_kind = {add_ready, add_answer};

static void on_add(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct server *server = context;
    const Millrace__V1__DatasetAdd *add = (const Millrace__V1__DatasetAdd *)message;
    struct server_dataset *dataset;
    struct base_error error;
    struct server_dataset_place place = {add->path, add->masks};
    if (server_datasets_add(server->datasets, add->name, &place, &dataset, &error))
        server_answer_error(server, call, &error);
    else
        server_park_add(server->park, base_clock_now_ns(), add->wait_ms,
                        &(struct server_park_call){&add_kind, SERVER_PARK_ANY_KEY, call, message});
}

/* ---- verify ---- */

static bool verify_ready(void *context, const ProtobufCMessage *message)
{
    struct server *server = context;
    const struct server_dataset *dataset =
        server_datasets_find(server->datasets, ((const Millrace__V1__DatasetName *)message)->name);
    return !dataset || !dataset->verify.id;
}

static void verify_answer(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct server *server = context;
    const char *name = ((const Millrace__V1__DatasetName *)message)->name;
    const struct server_dataset *dataset = server_datasets_find(server->datasets, name);
    struct base_error error;
    if (!dataset) {
        answer_gone(server, call, name);
    } else if (dataset->verify.id || dataset->verify_code) {
        base_error_set(&error, dataset->verify.id ? BASE_TIMEOUT : dataset->verify_code, "dataset %s: %s",
                       name, dataset->verify.id ? "no worker has answered yet" : dataset->error);
        server_answer_error(server, call, &error);
    } else {
        struct server_arena arena;
        Millrace__V1__VerifyReply reply = MILLRACE__V1__VERIFY_REPLY__INIT;
        reply.items = dataset->items;
        reply.changed = dataset->changed;
        reply.changed_names = dataset->changed_names.line;
        reply.n_changed_names = dataset->changed_names.count;
        server_arena_init(&arena);
        server_answer(server, call, &arena, &reply);
    }
}

static const struct server_park_kind verify_kind = {verify_ready, verify_answer};

static void on_verify(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct server *server = context;
    const Millrace__V1__DatasetName *verify = (const Millrace__V1__DatasetName *)message;
    struct server_dataset *dataset = server_datasets_find(server->datasets, verify->name);
    struct base_error error;
    if (!dataset)
        answer_gone(server, call, verify->name);
    else if (server_datasets_verify(server->datasets, dataset, &error))
        server_answer_error(server, call, &error);
    else
        server_park_add(server->park, base_clock_now_ns(), verify->wait_ms ? verify->wait_ms : VERIFY_WAIT_MS,
                        &(struct server_park_call){&verify_kind, SERVER_PARK_ANY_KEY, call, message});
}

/* ---- the rest ---- */

static void on_list(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    (void)message;
    struct server_arena arena;
    server_arena_init(&arena);
    server_answer(context, call, &arena,
                  server_replies_datasets(&arena, context, SERVER_REPLIES_MESSAGE_BYTES));
}

static void on_show(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct server *server = context;
    const char *name = ((const Millrace__V1__DatasetName *)message)->name;
    const struct server_dataset *dataset = server_datasets_find(server->datasets, name);
    if (dataset)
        answer_info(server, call, dataset);
    else
        answer_gone(server, call, name);
}

/* The live job that reads a dataset; NULL: none. */
static const struct scheduler_job *reader(const struct server *server, const char *dataset)
{
    for (int i = 0; i < scheduler_cluster_job_count(server->cluster); i++) {
        const struct scheduler_job *job = scheduler_cluster_job_at(server->cluster, i);
        const struct server_job *known = server_jobs_find(&server->jobs, job->id);
        bool live = job->state == SCHEDULER_JOB_PREPARING || job->state == SCHEDULER_JOB_WAITING ||
                    job->state == SCHEDULER_JOB_RUNNING;
        if (live && known && !strcmp(known->dataset, dataset))
            return job;
    }
    return NULL;
}

static void on_remove(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct server *server = context;
    const char *name = ((const Millrace__V1__DatasetName *)message)->name;
    const struct scheduler_job *job = reader(server, name);
    struct base_error error;
    enum base_code code =
        job ? base_error_set(&error, BASE_CONFLICT, "dataset %s is being read by job %s", name, job->id)
            : server_datasets_remove(server->datasets, name, &error);
    if (code)
        server_answer_error(server, call, &error);
    else
        server_answer_empty(server, call);
}

const rpc_handler server_datasets_handlers[] = {on_add, on_list, on_show, on_verify, on_remove};
