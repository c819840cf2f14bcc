/* SPDX-License-Identifier: Apache-2.0 */
/*
 * millrace-server: registers datasets, workers and jobs, and tells each stream's plan. No sample ever passes here.
 *   1. read options; refuse an open address without a secret
 *   2. open the state store and refill the scheduler's machine from it
 *   3. serve control calls (gRPC) and HTTP; print `ready ADDR http ADDR`
 *   4. one loop thread: call -> machine -> store -> answer, or park until something changes
 *   5. SIGTERM or SIGINT: not serving any more, parked calls are told so, then exit
 *
 * Limits: calls of 1 MB, 20,000 parked calls, 1 GiB of gRPC's buffers, 256 HTTP connections with headers of 16 KiB. Security: with a secret file every call carries a token that
 * it signs; without one only loopback is served, unless --insecure says otherwise.
 */
#include "server/http/http.h"
#include "server/server.h"
#include "server/views.h"

#include "base/address.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/options.h"
#include "proto/rpc/token.h"

#include <event2/event.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { STOP_GRACE_MS = 300, SETTLE_MOST_MS = 1000, HTTP_CONNECTIONS_MAX = 256 };

struct options {
    const char *listen, *http, *state, *secret_file, *log_level;
    int64_t keep_ms;
    bool insecure;
};

static const struct base_option table[] = {
    {"listen", BASE_OPTION_TEXT, "127.0.0.1:7070", "HOST:PORT", "control port (gRPC)",
     offsetof(struct options, listen), 0, 0},
    {"http", BASE_OPTION_TEXT, "127.0.0.1:7071", "HOST:PORT", "health, metrics and lists",
     offsetof(struct options, http), 0, 0},
    {"state", BASE_OPTION_TEXT, NULL, "DIR", "where datasets and jobs outlive a restart (required)",
     offsetof(struct options, state), 0, 0},
    {"keep-ms", BASE_OPTION_INT, "3600000", "MS", "how long ended jobs and lost workers stay listed",
     offsetof(struct options, keep_ms), 1, INT32_MAX},
    {"secret-file", BASE_OPTION_TEXT, NULL, "FILE", "the cluster's secret: calls must carry a token of it",
     offsetof(struct options, secret_file), 0, 0},
    {"insecure", BASE_OPTION_BOOL, NULL, NULL, "serve other addresses than loopback without a secret",
     offsetof(struct options, insecure), 0, 0},
    {"log-level", BASE_OPTION_TEXT, "info", "LEVEL", "debug, info, warn or error",
     offsetof(struct options, log_level), 0, 0},
};
static const struct base_options usage = {
    "millrace-server",
    "--state DIR [options]",
    "Registers datasets, workers and jobs of a Millrace cluster and plans who prepares what.",
    table,
    sizeof table / sizeof *table,
    0,
    0};

struct program {
    struct options options;
    struct server server;
    struct event_base *loop;
    struct base_mailbox *mailbox;
    struct rpc_server *rpc;
    struct http *http;
    struct event *mail, *timer, *term, *intr;
    char key[4097];
};

/* ---- the loop ---- */

static void settle(struct program *program)
{
    int64_t now_ns = base_clock_now_ns();
    int64_t wait_ns = server_settle(&program->server, now_ns) - now_ns;
    int64_t wait_ms = wait_ns <= 0 ? 0 : wait_ns / BASE_NS_PER_MS + 1;
    if (wait_ns > SETTLE_MOST_MS * BASE_NS_PER_MS)
        wait_ms = SETTLE_MOST_MS;
    struct timeval wait = {wait_ms / 1000, wait_ms % 1000 * 1000};
    event_add(program->timer, &wait);
}

static void on_mail(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    struct program *program = context;
    base_mailbox_drain(program->mailbox);
    settle(program);
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    settle(context);
}

static void on_signal(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    struct program *program = context;
    program->server.stopping = true;
    event_base_loopbreak(program->loop);
}

/* ---- start ---- */

static enum base_code check_open_address(const struct program *program, const char *what, const char *address,
                                         struct base_error *error)
{
    char host[256];
    uint16_t port;
    enum base_code code = base_address_parse(address, host, &port, error);
    if (code)
        return base_error_prefix(error, code, "--%s", what);
    if (base_address_is_loopback(host) || program->options.insecure || program->key[0])
        return BASE_OK;
    return base_error_set(
        error, BASE_REFUSED,
        "--%s %s is not a loopback address: give --secret-file FILE, or --insecure to serve anyone", what,
        address);
}

static enum base_code read_options(struct program *program, struct base_error *error)
{
    struct options *o = &program->options;
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    int level = 0;
    while (level < 4 && strcmp(o->log_level, levels[level]))
        level++;
    if (level == 4)
        return base_error_set(error, BASE_INVALID, "--log-level %s: it is debug, info, warn or error",
                              o->log_level);
    base_log_start("server", 2, (enum base_log_level)level);
    if (!o->state)
        return base_error_set(error, BASE_INVALID, "--state DIR is missing");
    enum base_code code = BASE_OK;
    if (o->secret_file)
        code = rpc_token_read_key(o->secret_file, program->key, sizeof program->key, error);
    if (!code)
        code = check_open_address(program, "listen", o->listen, error);
    if (!code)
        code = check_open_address(program, "http", o->http, error);
    return code;
}

static enum base_code start_loop(struct program *program, struct base_error *error)
{
    enum base_code code = base_mailbox_create(&program->mailbox, error);
    if (code)
        return code;
    program->loop = event_base_new();
    if (!program->loop)
        return base_error_set(error, BASE_NO_MEMORY, "no event loop");
    program->mail =
        event_new(program->loop, base_mailbox_fd(program->mailbox), EV_READ | EV_PERSIST, on_mail, program);
    program->timer = event_new(program->loop, -1, 0, on_timer, program);
    program->term = evsignal_new(program->loop, SIGTERM, on_signal, program);
    program->intr = evsignal_new(program->loop, SIGINT, on_signal, program);
    if (!program->mail || !program->timer || !program->term || !program->intr ||
        event_add(program->mail, NULL) || event_add(program->term, NULL) || event_add(program->intr, NULL))
        return base_error_set(error, BASE_NO_MEMORY, "no events");
    return BASE_OK;
}

static bool token_allows(void *context, const char *token)
{
    const struct server *server = context;
    int64_t now_s = base_clock_wall_ns() / BASE_NS_PER_S;
    return !server->token_key || !rpc_token_check(server->token_key, token, now_s, NULL);
}

static enum base_code start_ports(struct program *program, struct base_error *error)
{
    const struct rpc_service services[] = {
        {&millrace__v1__cluster__descriptor, server_cluster_handlers, &program->server},
        {&millrace__v1__datasets__descriptor, server_datasets_handlers, &program->server},
        {&millrace__v1__jobs__descriptor, server_jobs_handlers, &program->server},
    };
    struct rpc_server_options options = {
        .address = program->options.listen,
        .token_key = program->key[0] ? program->key : NULL,
        .mailbox = program->mailbox,
        .services = services,
        .service_count = sizeof services / sizeof *services,
    };
    struct http_options http = {
        .address = program->options.http,
        .routes = server_routes,
        .count = server_route_count,
        .context = &program->server,
        .allowed = token_allows,
        .connections_max = HTTP_CONNECTIONS_MAX,
        .connections = &program->server.metrics[SERVER_METRIC_HTTP_CONNECTIONS],
        .full = &program->server.metrics[SERVER_METRIC_HTTP_FULL],
    };
    program->server.token_key = options.token_key;
    enum base_code code = http_start(&program->http, program->loop, &http, error);
    if (!code)
        code = rpc_server_start(&program->rpc, &options, error);
    return code;
}

static void run(struct program *program)
{
    const char *address = rpc_server_address(program->rpc), *http = http_address(program->http);
    rpc_server_set_serving(program->rpc, true);
    base_log(BASE_LOG_INFO, "ready", "address=%s http=%s state=%s", address, http, program->options.state);
    printf("ready %s http %s\n", address, http);
    fflush(stdout);
    settle(program);
    event_base_dispatch(program->loop);
    base_log(BASE_LOG_INFO, "stopping", "cause=signal");
}

static void stop(struct program *program)
{
    if (program->rpc)
        rpc_server_set_serving(program->rpc, false);
    if (program->server.store)
        server_persist(&program->server, base_clock_now_ns());
    server_park_destroy(program->server.park);
    program->server.park = NULL;
    if (program->rpc)
        rpc_server_stop(&program->rpc, STOP_GRACE_MS);
    if (program->http)
        http_stop(&program->http);
    struct event *events[] = {program->mail, program->timer, program->term, program->intr};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++) {
        if (events[i])
            event_free(events[i]);
    }
    base_mailbox_destroy(program->mailbox);
    if (program->loop)
        event_base_free(program->loop);
    server_close(&program->server);
}

static enum base_code serve(struct program *program, struct base_error *error)
{
    base_limits_descriptors();
    signal(SIGPIPE, SIG_IGN);
    base_limits_heap();
    umask(S_IRWXG | S_IRWXO); /* the state is nobody else's */
    rpc_start();
    enum base_code code =
        server_open(&program->server, program->options.state, program->options.keep_ms, error);
    if (!code)
        code = start_loop(program, error);
    if (!code)
        code = start_ports(program, error);
    if (!code)
        run(program);
    stop(program);
    rpc_stop();
    return code;
}

int main(int argc, char **argv)
{
    static struct program program;
    struct base_options_rest rest;
    struct base_error error;
    enum base_code code = base_options_parse(&usage, argc, argv, &program.options, &rest, &error);
    if (!code && rest.help) {
        base_options_help(&usage, stdout);
        return 0;
    }
    if (!code && rest.version) {
        puts("millrace-server " MILLRACE_VERSION);
        return 0;
    }
    if (!code)
        code = read_options(&program, &error);
    if (code) {
        fprintf(stderr, "millrace-server: %s\n", error.text);
        return 2;
    }
    code = serve(&program, &error);
    if (code)
        fprintf(stderr, "millrace-server: %s\n", error.text);
    return code ? 1 : 0;
}
