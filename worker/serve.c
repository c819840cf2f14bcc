/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/serve.h"

#include "worker/connection.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct base_metric metric_table[WORKER_SERVE_METRICS] = {
    [WORKER_METRIC_CONNECTIONS] = {.name = "millrace_worker_connections",
                                   .help = "Open connections of the data port",
                                   .type = BASE_METRIC_GAUGE},
    [WORKER_METRIC_ACCEPTED] = {.name = "millrace_worker_connections_accepted_total",
                                .help = "Connections accepted"},
    [WORKER_METRIC_DROPPED_LIMIT] = {.name = "millrace_worker_connections_dropped_total",
                                     .labels = "cause=\"too_many\"",
                                     .help =
                                         "Connections turned away, closed by this worker or cut, by cause"},
    [WORKER_METRIC_DROPPED_FRAME] = {.name = "millrace_worker_connections_dropped_total",
                                     .labels = "cause=\"bad_frame\""},
    [WORKER_METRIC_DROPPED_RULES] = {.name = "millrace_worker_connections_dropped_total",
                                     .labels = "cause=\"broke_rules\""},
    [WORKER_METRIC_DROPPED_TOKEN] = {.name = "millrace_worker_connections_dropped_total",
                                     .labels = "cause=\"bad_token\""},
    [WORKER_METRIC_DROPPED_STALL] = {.name = "millrace_worker_connections_dropped_total",
                                     .labels = "cause=\"stalled\""},
    [WORKER_METRIC_DROPPED_HELLO] = {.name = "millrace_worker_connections_dropped_total",
                                     .labels = "cause=\"no_hello\""},
    [WORKER_METRIC_DROPPED_CUT] = {.name = "millrace_worker_connections_dropped_total",
                                   .labels = "cause=\"cut\""},
    [WORKER_METRIC_BYTES_IN] = {.name = "millrace_worker_received_bytes_total",
                                .help = "Bytes received on the data port"},
    [WORKER_METRIC_BYTES_OUT] = {.name = "millrace_worker_sent_bytes_total",
                                 .help = "Bytes sent on the data port"},
    [WORKER_METRIC_BYTES_LENT] = {.name = "millrace_worker_lent_bytes_total",
                                  .help = "Bytes of rows that trainers of this host took from its memory"},
    [WORKER_METRIC_CONNECTIONS_LOCAL] = {.name = "millrace_worker_connections_local_total",
                                         .help = "Connections whose trainer has mapped this worker's memory"},
    [WORKER_METRIC_PAGES] = {.name = "millrace_worker_manifest_pages_total", .help = "Manifest pages served"},
};

struct base_metric *worker_serve_metrics(struct worker_serve *serve)
{
    return serve->metrics;
}

/* ---- the machine's actions ---- */

static void arm_wake(struct worker_serve *serve)
{
    int64_t wake_ns = worker_core_wake_ns(serve->options.core);
    if (wake_ns >= serve->armed_ns) /* a timer that is early does no harm, and mostly it has not changed */
        return;
    serve->armed_ns = wake_ns;
    int64_t left_ns = wake_ns - base_clock_now_ns();
    int64_t left_us = left_ns > 0 ? left_ns / 1000 + 1 : 0;
    struct timeval left = {left_us / 1000000, left_us % 1000000};
    evtimer_add(serve->wake, &left);
}

static void act(struct worker_serve *serve)
{
    struct worker_action action;
    while (worker_core_next(serve->options.core, &action))
        worker_answer_act(serve, &action);
}

void worker_serve_pump(struct worker_serve *serve)
{
    if (serve->pumping)
        return; /* the pump above goes on */
    serve->pumping = true;
    act(serve);
    while (serve->touched) { /* all that one has to say leaves together; what has left may free others */
        struct connection *connection = serve->touched;
        serve->touched = connection->touched_next;
        connection->touched = false;
        worker_connection_update(connection);
        act(serve);
    }
    serve->pumping = false;
    if (worker_core_broken(serve->options.core)) {
        base_log(BASE_LOG_ERROR, "worker_broken",
                 "error=\"the worker's tables are out of memory or wrong: ending\"");
        abort();
    }
    arm_wake(serve);
}

static void on_wake(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    struct worker_serve *serve = context;
    serve->armed_ns = INT64_MAX;
    worker_core_tick(serve->options.core, base_clock_now_ns());
    worker_serve_pump(serve);
}

/* ---- upkeep ---- */

static void on_reap(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    struct worker_serve *serve = context;
    for (struct connection **at = &serve->first; *at;) {
        struct connection *connection = *at;
        if (!connection->dead) {
            at = &connection->next;
            continue;
        }
        *at = connection->next;
        serve->count--;
        worker_connection_free(connection);
    }
    base_metric_set(&serve->metrics[WORKER_METRIC_CONNECTIONS], serve->count);
    worker_serve_pump(serve); /* pins that went with their links */
}

static void on_sweep(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    struct worker_serve *serve = context;
    int64_t now_ns = base_clock_now_ns();
    for (struct connection *connection = serve->first; connection; connection = connection->next)
        if (!connection->dead)
            worker_connection_sweep(connection, now_ns);
}

/* ---- accepting ---- */

static void print_peer(const struct sockaddr_storage *from, socklen_t size, char *text, size_t text_bytes)
{
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    getnameinfo((const struct sockaddr *)from, size, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(text, text_bytes, from->ss_family == AF_INET6 ? "[%.64s]:%.16s" : "%.64s:%.16s", host, port);
}

static void accept_one(struct worker_serve *serve, int fd, const struct sockaddr_storage *from,
                       socklen_t size)
{
    char peer[BASE_ERROR_TEXT_BYTES / 4];
    print_peer(from, size, peer, sizeof peer);
    if (serve->count >= serve->options.connections_max) {
        base_metric_add(&serve->metrics[WORKER_METRIC_DROPPED_LIMIT], 1);
        base_log(BASE_LOG_WARN, "connection_refused", "peer=%s cause=\"%d connections are open\"", peer,
                 serve->count);
        close(fd);
        return;
    }
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* best effort, all of these */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on); /* a peer whose machine is gone says nothing */
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &(int){30}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &(int){10}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &(int){3}, sizeof(int));
    base_metric_add(&serve->metrics[WORKER_METRIC_ACCEPTED], 1);
    worker_connection_accept(serve, fd, peer);
    base_metric_set(&serve->metrics[WORKER_METRIC_CONNECTIONS], serve->count);
}

static void on_acceptable(evutil_socket_t listener, short what, void *context)
{
    (void)what;
    for (int i = 0; i < 64; i++) { /* the rest comes round again */
        struct sockaddr_storage from = {0};
        socklen_t size = sizeof from;
        int fd = accept4(listener, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            accept_one(context, fd, &from, size);
        else if (errno != ECONNABORTED && errno != EINTR)
            return; /* nobody waits, or descriptors are out: those who wait stay in the backlog */
    }
}

/* ---- life ---- */

static bool add_event(struct event **event, struct worker_serve *serve, int fd, short what,
                      event_callback_fn run, const struct timeval *every)
{
    *event = event_new(serve->options.loop, fd, what, run, serve);
    return *event && (!(what & (EV_READ | EV_PERSIST)) || event_add(*event, every) == 0);
}

enum base_code worker_serve_start(struct worker_serve **out, const struct worker_serve_options *options,
                                  struct base_error *error)
{
    struct worker_serve *serve = calloc(1, sizeof *serve);
    if (!serve) {
        close(options->listen_fd);
        return base_error_set(error, BASE_NO_MEMORY, "data port");
    }
    serve->options = *options;
    serve->armed_ns = INT64_MAX;
    memcpy(serve->metrics, metric_table, sizeof metric_table);
    struct timeval every = {0, WORKER_SWEEP_MS * 1000};
    *out = serve;
    if (add_event(&serve->wake, serve, -1, EV_TIMEOUT, on_wake, NULL) &&
        add_event(&serve->reap, serve, -1, EV_TIMEOUT, on_reap, NULL) &&
        add_event(&serve->sweep, serve, -1, EV_PERSIST, on_sweep, &every) &&
        add_event(&serve->acceptable, serve, options->listen_fd, EV_READ | EV_PERSIST, on_acceptable, NULL))
        return BASE_OK;
    worker_serve_stop(out);
    return base_error_set(error, BASE_NO_MEMORY, "data port: events");
}

static void free_event(struct event **event)
{
    if (*event)
        event_free(*event);
    *event = NULL;
}

static void stop_listening(struct worker_serve *serve)
{
    free_event(&serve->acceptable);
    if (serve->options.listen_fd >= 0)
        close(serve->options.listen_fd);
    serve->options.listen_fd = -1;
}

void worker_serve_stop(struct worker_serve **out)
{
    struct worker_serve *serve = *out;
    *out = NULL;
    if (!serve)
        return;
    stop_listening(serve);
    serve->pumping = true; /* nothing is carried out any more */
    while (serve->first) {
        struct connection *next = serve->first->next;
        worker_connection_free(serve->first);
        serve->first = next;
    }
    free_event(&serve->wake);
    free_event(&serve->sweep);
    free_event(&serve->reap);
    base_buffer_fini(&serve->payload);
    free(serve->by_index);
    free(serve);
}
