/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server, whole: one loop thread owns everything here. Control calls arrive through the mailbox, change the scheduler's machine or the
 * books, and are answered at once or parked until something changes (park.h).
 */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "base/metrics.h"
#include "proto/rpc/rpc.h"
#include "scheduler/cluster.h"
#include "server/datasets.h"
#include "server/jobs.h"
#include "server/park.h"
#include "server/store/store.h"

#include <stdbool.h>

enum server_metric {
    SERVER_METRIC_CALLS,
    SERVER_METRIC_CALLS_REFUSED,
    SERVER_METRIC_STORE_ERRORS,
    SERVER_METRIC_WORKERS_LOST,
    SERVER_METRIC_PLAN_CHANGES,
    SERVER_METRIC_SLOTS_MOVED,
    SERVER_METRIC_STREAMS_MADE,
    SERVER_METRIC_NEAR_MISSES,
    SERVER_METRIC_FENCED,
    SERVER_METRIC_EPOCHS_DIFFER,
    SERVER_METRIC_HTTP_CONNECTIONS,
    SERVER_METRIC_HTTP_FULL,
    SERVER_METRICS,
};

struct server_worker_counters; /* counters.c */

/* A refusal that was logged: the same is not said again at once. */
struct server_refusal {
    uint64_t hash; /* of its text */
    int64_t logged_ns;
};
#define SERVER_REFUSALS 256

struct server {
    struct store *store;
    struct scheduler_cluster *cluster;
    struct server_datasets *datasets;
    struct server_jobs jobs;
    struct server_park *park;
    struct server_worker_counters **counters; /* by worker */
    int counters_count;
    int64_t store_after_ns;     /* a write has failed: none before */
    struct base_error unstored; /* not OK: why what has changed is not on the disk, since the last try */
    struct base_metric metrics[SERVER_METRICS];
    uint64_t datasets_seen; /* their revision when all waiting calls were last woken */
    struct server_refusal refusals[SERVER_REFUSALS];
    const char *token_key; /* NULL: HTTP is open */
    bool stopping;
};

/* Opens the store in `state_dir` and refills everything from it. Ended jobs and lost workers stay listed for
 * keep_ms. */
enum base_code server_open(struct server *server, const char *state_dir, int64_t keep_ms,
                           struct base_error *error);
void server_close(struct server *server);

/* After events: stores what changed, gives out orders, logs, answers parked calls. Returns when it wants to be called at the latest. */
int64_t server_settle(struct server *server, int64_t now_ns);
/* The storing alone, for the end. */
void server_persist(struct server *server, int64_t now_ns);

extern const rpc_handler server_cluster_handlers[], server_datasets_handlers[], server_jobs_handlers[];

/* ---- counters.c: what workers count ---- */

void server_counters_set(struct server *server, const Millrace__V1__WorkerSync *sync);
/* The sum of a worker's rows of that name; 0 when there is none. */
double server_counters_sum(const struct server *server, uint64_t worker, const char *name);
void server_counters_print(const struct server *server, struct base_buffer *out);
/* Forgets those of workers that the machine has forgotten. */
void server_counters_prune(struct server *server);
void server_counters_fini(struct server *server);

#endif
