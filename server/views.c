/* SPDX-License-Identifier: Apache-2.0 */
/* What the HTTP port shows: health, metrics, and the control messages of the three lists as JSON. */
#include "server/views.h"

#include "base/clock.h"
#include "proto/schema/json.h"
#include "server/replies.h"

static int print_message(struct server_arena *arena, const void *message, struct base_buffer *body)
{
    bool failed = arena->failed || !message;
    if (!failed) {
        struct base_json json;
        base_json_begin(&json, body);
        schema_json_print(message, &json, NULL);
        base_buffer_put(body, "\n", 1);
    }
    server_arena_fini(arena);
    return failed ? 503 : 200;
}

static int jobs(void *context, struct base_buffer *body)
{
    struct server_arena arena;
    server_arena_init(&arena);
    return print_message(&arena, server_replies_jobs(&arena, context, SIZE_MAX), body);
}

static int workers(void *context, struct base_buffer *body)
{
    struct server_arena arena;
    server_arena_init(&arena);
    return print_message(&arena, server_replies_workers(&arena, context, base_clock_now_ns(), SIZE_MAX),
                         body);
}

static int datasets(void *context, struct base_buffer *body)
{
    struct server_arena arena;
    server_arena_init(&arena);
    return print_message(&arena, server_replies_datasets(&arena, context, SIZE_MAX), body);
}

static int live(void *context, struct base_buffer *body)
{
    (void)context;
    base_buffer_printf(body, "ok\n");
    return 200;
}

/* Without workers it is ready all the same: behind a load balancer that asks here, they could never reach it otherwise. */
static int ready(void *context, struct base_buffer *body)
{
    const struct server *server = context;
    int count = 0;
    for (int i = 0; i < scheduler_cluster_worker_count(server->cluster); i++)
        count += scheduler_cluster_worker_at(server->cluster, i)->state == SCHEDULER_WORKER_READY;
    if (server->stopping)
        base_buffer_printf(body, "not ready: the server is stopping\n");
    else
        base_buffer_printf(body, "ready: %d workers\n", count);
    return server->stopping ? 503 : 200;
}

static void print_jobs(const struct server *server, struct base_buffer *out)
{
    static const struct {
        const char *name, *type, *help;
    } rows[] = {
        {"millrace_job_rows_total", "counter", "Rows handed to the trainer, over the job's ranks."},
        {"millrace_job_stall_seconds_total", "counter",
         "Time the trainer waited for a batch, over the job's ranks."},
        {"millrace_job_ready_steps", "gauge",
         "Batches ready and not taken: empty means starved, full trainer-bound."},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        base_buffer_printf(out, "# HELP %s %s\n# TYPE %s %s\n", rows[i].name, rows[i].help, rows[i].name,
                           rows[i].type);
        for (const struct server_job *job = server->jobs.first; job; job = job->next) {
            struct server_job_totals totals = server_jobs_totals(job);
            double value = i == 0 ? (double)totals.rows : i == 1 ? totals.stall_s : totals.ready_steps;
            base_buffer_printf(out, "%s{job=\"%s\"} %.17g\n", rows[i].name, job->id, value);
        }
    }
}

static int metrics(void *context, struct base_buffer *body)
{
    struct server *server = context;
    base_metrics_print(server->metrics, SERVER_METRICS, NULL, body);
    print_jobs(server, body);
    server_counters_print(server, body);
    return 200;
}

const struct http_route server_routes[] = {
    {"/livez", "text/plain", live, false},
    {"/readyz", "text/plain", ready, false},
    {"/metrics", "text/plain; version=0.0.4", metrics, true},
    {"/api/v1/jobs", "application/json", jobs, true},
    {"/api/v1/workers", "application/json", workers, true},
    {"/api/v1/datasets", "application/json", datasets, true},
};
const int server_route_count = sizeof server_routes / sizeof *server_routes;
