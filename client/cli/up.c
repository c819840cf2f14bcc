/* SPDX-License-Identifier: Apache-2.0 */
/*
 * millrace up: a whole Millrace on this machine.
 *   1. lock the state folder; start the server, wait until it is ready; start the workers, wait for each
 *   2. wait until the server knows them all; print `ready ADDR`
 *   3. watch: a child that dies is told on stderr, the rest goes on
 *   4. SIGTERM or SIGINT: workers drain and end, then the server; late ones are killed
 */
#include "client/cli/cli.h"
#include "client/cli/cluster.h"

#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WATCH_MS = 60000, ASK_MS = 50 };

struct options {
    struct cli_common common;
    int64_t workers, threads, start_ms, grace_ms;
    struct base_option_list data_roots;
    const char *listen, *http, *state, *staging, *log_level;
    bool insecure;
};

static const struct base_option table[] = {
    {"workers", BASE_OPTION_INT, "2", "N", "workers to start", offsetof(struct options, workers), 0,
     CLI_CLUSTER_WORKERS_MAX},
    {"data-root", BASE_OPTION_LIST, NULL, "DIR",
     "folder that datasets may lie beneath; none given: the current one",
     offsetof(struct options, data_roots), 0, 0},
    {"listen", BASE_OPTION_TEXT, "127.0.0.1:7070", "HOST:PORT",
     "control port; workers take free ports of that host", offsetof(struct options, listen), 0, 0},
    {"http", BASE_OPTION_TEXT, "127.0.0.1:7071", "HOST:PORT", "health, metrics and lists",
     offsetof(struct options, http), 0, 0},
    {"state", BASE_OPTION_TEXT, NULL, "DIR", "datasets, manifests and logs [~/.local/state/millrace]",
     offsetof(struct options, state), 0, 0},
    {"staging", BASE_OPTION_TEXT, NULL, "BYTES",
     "memory of each worker for prepared rows; not given: a quarter is shared out",
     offsetof(struct options, staging), 0, 0},
    {"threads", BASE_OPTION_INT, "0", "N", "prep threads of each worker; 0: the cores are shared out",
     offsetof(struct options, threads), 0, 1024},
    {"secret-file", BASE_OPTION_TEXT, NULL, "FILE", "the cluster's secret",
     offsetof(struct options, common.secret_file), 0, 0},
    {"insecure", BASE_OPTION_BOOL, NULL, NULL, "serve other addresses than loopback without a secret",
     offsetof(struct options, insecure), 0, 0},
    {"log-level", BASE_OPTION_TEXT, NULL, "LEVEL", "debug, info, warn or error",
     offsetof(struct options, log_level), 0, 0},
    {"start-ms", BASE_OPTION_INT, "30000", "MS", "longest wait until all is ready",
     offsetof(struct options, start_ms), 1, INT32_MAX},
    {"grace-ms", BASE_OPTION_INT, "10000", "MS",
     "at the end: how long workers may drain before they are killed", offsetof(struct options, grace_ms), 0,
     INT32_MAX},
    {"json", BASE_OPTION_BOOL, NULL, NULL, "print the ready line as JSON",
     offsetof(struct options, common.json), 0, 0},
};
const struct base_options cli_up_options = {"millrace up",
                                            "[options] [-- WORKER-OPTIONS]",
                                            "Runs a server and workers on this machine until SIGTERM or "
                                            "Ctrl-C, and ends all that it started. Prints `ready ADDR`\n"
                                            "when they serve. What stands behind -- goes to the workers.",
                                            table,
                                            sizeof table / sizeof *table,
                                            0,
                                            BASE_OPTIONS_LIST_MAX};

static enum base_code state_folder(const struct options *options, char out[PATH_MAX],
                                   struct base_error *error)
{
    const char *home = getenv("HOME"), *state = getenv("XDG_STATE_HOME");
    if (options->state && options->state[0])
        snprintf(out, PATH_MAX, "%s", options->state);
    else if (state && state[0] == '/')
        snprintf(out, PATH_MAX, "%s/millrace", state);
    else if (home && home[0] == '/')
        snprintf(out, PATH_MAX, "%s/.local/state/millrace", home);
    else
        return base_error_set(error, BASE_INVALID, "--state DIR is missing, and there is no $HOME");
    return BASE_OK;
}

/* Workers that the server counts as ready. */
static int ready_workers(const struct cli_common *common)
{
    ProtobufCMessage *reply = NULL;
    Millrace__V1__WorkersRequest request = MILLRACE__V1__WORKERS_REQUEST__INIT;
    if (cli_call(common,
                 &(struct rpc_request){&millrace__v1__cluster__descriptor, "Workers", &request.base, 1000},
                 &reply, NULL) != BASE_OK)
        return 0;
    const Millrace__V1__WorkersReply *workers = (const Millrace__V1__WorkersReply *)reply;
    int ready = 0;
    for (size_t i = 0; i < workers->n_workers; i++)
        ready += strcmp(workers->workers[i]->state, "ready") == 0;
    cli_free(reply);
    return ready;
}

static enum base_code await_workers(struct cli_cluster *cluster, const struct options *options,
                                    int64_t deadline_ns, struct base_error *error)
{
    struct cli_common common = options->common;
    bool any_left = true;
    common.server = cli_cluster_address(cluster);
    while (ready_workers(&common) < options->workers) {
        if (cli_cluster_watch(cluster, ASK_MS, &any_left) != 0)
            return base_error_set(error, BASE_CANCELLED, "interrupted");
        if (!any_left || base_clock_now_ns() > deadline_ns)
            return base_error_set(error, BASE_TIMEOUT, "the workers have not all registered");
    }
    return BASE_OK;
}

static void say_ready(const struct cli_cluster *cluster, const struct options *options, const char *state)
{
    if (!options->common.json) {
        printf("ready %s\n", cli_cluster_address(cluster));
        fflush(stdout);
        fprintf(stderr, "millrace: %d worker%s; http://%s; state and logs in %s; Ctrl-C ends all\n",
                (int)options->workers, options->workers == 1 ? "" : "s", cli_cluster_http(cluster), state);
        return;
    }
    struct base_buffer out;
    struct base_json json;
    base_buffer_init(&out);
    base_json_begin(&json, &out);
    base_json_object(&json, NULL);
    base_json_text(&json, "ready", cli_cluster_address(cluster));
    base_json_text(&json, "http", cli_cluster_http(cluster));
    base_json_text(&json, "state", state);
    base_json_object_end(&json);
    cli_flush(&out);
}

static int watch(struct cli_cluster *cluster)
{
    bool any_left = true;
    while (any_left)
        if (cli_cluster_watch(cluster, WATCH_MS, &any_left) != 0)
            return CLI_EXIT_OK;
    fputs("millrace: all that was started has ended\n", stderr);
    return CLI_EXIT_FAILED;
}

/* Workers want absolute paths; here relative ones are as good. roots[i]: the caller's to free. */
static enum base_code resolve_roots(const struct options *options, const char *roots[BASE_OPTIONS_LIST_MAX],
                                    int *count, struct base_error *error)
{
    int given = options->data_roots.count;
    for (*count = 0; *count < (given ? given : 1); ++*count) {
        const char *path = given ? options->data_roots.values[*count] : ".";
        roots[*count] = realpath(path, NULL);
        if (!roots[*count])
            return base_error_errno(error, errno, "--data-root %s", path);
    }
    return BASE_OK;
}

static int up(const struct options *options, const struct base_options_rest *rest)
{
    char state[PATH_MAX];
    struct base_error error;
    struct cli_cluster *cluster = NULL;
    const char *roots[BASE_OPTIONS_LIST_MAX];
    int64_t deadline_ns = base_clock_deadline_ns(options->start_ms);
    struct cli_cluster_options what = {.workers = (int)options->workers,
                                       .threads = (int)options->threads,
                                       .listen = options->listen,
                                       .http = options->http,
                                       .state = state,
                                       .staging = options->staging,
                                       .secret_file = options->common.secret_file,
                                       .log_level = options->log_level,
                                       .insecure = options->insecure,
                                       .data_roots = roots,
                                       .worker_flags = rest->positional,
                                       .worker_flag_count = rest->count};
    enum base_code code = state_folder(options, state, &error);
    if (code == BASE_OK)
        code = resolve_roots(options, roots, &what.data_root_count, &error);
    if (code == BASE_OK)
        code = cli_cluster_start(&cluster, &what, options->start_ms, &error);
    if (code == BASE_OK)
        code = await_workers(cluster, options, deadline_ns, &error);
    int status = CLI_EXIT_OK;
    if (code == BASE_OK) {
        say_ready(cluster, options, state);
        status = watch(cluster);
    } else if (code != BASE_CANCELLED) {
        status = cli_fail("millrace up", options->common.json, &error);
        status = code == BASE_INVALID ? CLI_EXIT_USAGE : status;
    }
    cli_cluster_stop(&cluster, options->grace_ms);
    for (int i = 0; i < what.data_root_count; i++)
        free((char *)(uintptr_t)roots[i]);
    return status;
}

int cli_up(int argc, char **argv)
{
    static struct options options;
    static struct base_options_rest rest;
    int status;
    return cli_parse(&cli_up_options, argc, argv, &options, &rest, &status) ? up(&options, &rest) : status;
}
