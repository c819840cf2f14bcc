/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's HTTP port, read only, on libevent's evhttp: GET and HEAD of a table of paths. Loop thread
 * only. Requests are limited in header and body size and in time, connections in number: those over it wait in the kernel's queue
 * until one ends (an idle one after 10 s).
 */
#ifndef SERVER_HTTP_HTTP_H
#define SERVER_HTTP_HTTP_H

#include "base/buffer.h"
#include "base/error.h"
#include "base/metrics.h"

#include <event2/event.h>
#include <stdbool.h>

struct http;

struct http_route {
    const char *path; /* "/metrics" */
    const char *content_type;
    /* Fills the body; returns the status (200, 503, ...). */
    int (*answer)(void *context, struct base_buffer *body);
    bool guarded; /* asks `allowed` first */
};

struct http_options {
    const char *address;
    const struct http_route *routes;
    int count;
    void *context;
    /* Whether a request with this bearer token ("" without one) may see guarded paths; NULL: everyone may. */
    bool (*allowed)(void *context, const char *token);
    int connections_max;
    struct base_metric *connections, *full; /* how many there are; how often there were as many as may be */
};

enum base_code http_start(struct http **http, struct event_base *loop, const struct http_options *options,
                          struct base_error *error);
void http_stop(struct http **http);
const char *http_address(const struct http *http); /* with the real port */

#endif
