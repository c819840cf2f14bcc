/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server and workers on this machine, as child processes of this one. They end with it, even when it is killed: the kernel
 * signals them. Start before anything that makes threads (proto/rpc does). One thread.
 */
#ifndef CLIENT_CLI_CLUSTER_H
#define CLIENT_CLI_CLUSTER_H

#include "base/error.h"

#include <sys/types.h>

enum { CLI_CLUSTER_WORKERS_MAX = 64 };

struct cli_cluster_options {
    int workers, threads; /* threads of each worker; 0: the cores are shared out */
    const char *listen, *http, *state;
    const char *staging, *secret_file, *log_level; /* NULL: the programs' defaults */
    bool insecure;
    const char *const *data_roots, *const *worker_flags; /* worker_flags: passed on as they are */
    int data_root_count, worker_flag_count;
};

struct cli_cluster;

/* Returns when server and workers serve. CANCELLED: SIGINT or SIGTERM came meanwhile. On failure nothing is left running, and `error`
 * has the last words of the program that failed (INVALID: it says that its options are wrong). */
enum base_code cli_cluster_start(struct cli_cluster **cluster, const struct cli_cluster_options *options,
                                 int64_t timeout_ms, struct base_error *error);
/* Ends all: workers drain, then the server goes; what is left after grace_ms is killed. Clears *cluster; NULL is fine. */
void cli_cluster_stop(struct cli_cluster **cluster, int64_t grace_ms);

const char *cli_cluster_address(const struct cli_cluster *cluster); /* control port, reachable from here */
const char *cli_cluster_http(const struct cli_cluster *cluster);
/* CPU seconds that the workers have used. */
double cli_cluster_worker_cpu_s(const struct cli_cluster *cluster);
int cli_cluster_threads(const struct cli_cluster *cluster); /* of all workers */

/* Waits up to wait_ms for SIGINT or SIGTERM: its number, else 0. Tells on stderr of children that died; false in *any_left when
 * all have. Blocked from cli_cluster_start on. */
int cli_cluster_watch(struct cli_cluster *cluster, int wait_ms, bool *any_left);

#endif
