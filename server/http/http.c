/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/http.h"

#include "base/address.h"
#include "base/json.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/http.h>
#include <event2/listener.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADERS_MAX_BYTES = 16384, BODY_MAX_BYTES = 0, TIMEOUT_S = 10, SWEEP_MS = 100 };

struct http {
    struct evhttp *server;
    struct http_options options; /* its address is not kept */
    char address[BASE_ADDRESS_CHARS];
    struct evconnlistener *listener; /* the server's */
    struct bufferevent **open;       /* connections_max; references */
    int connections;
    struct event *sweep;
};

static void send_body(struct evhttp_request *request, int status, const char *type,
                      const struct base_buffer *body)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    evhttp_add_header(headers, "Content-Type", type);
    evhttp_add_header(headers, "X-Content-Type-Options", "nosniff");
    evhttp_add_header(headers, "Cache-Control", "no-store");
    struct evbuffer *out = evbuffer_new();
    if (!out) {
        evhttp_send_error(request, 503, NULL);
        return;
    }
    if (evbuffer_add(out, body->bytes, body->size) == 0)
        evhttp_send_reply(request, status, NULL, out);
    else /* nothing rather than a part */
        evhttp_send_error(request, 503, NULL);
    evbuffer_free(out);
}

static void send_error(struct evhttp_request *request, int status, const char *text)
{
    struct base_buffer body;
    struct base_json json;
    base_buffer_init(&body);
    base_json_begin(&json, &body);
    base_json_object(&json, NULL);
    base_json_text(&json, "error", text);
    base_json_object_end(&json);
    base_buffer_put(&body, "\n", 1);
    if (body.failed)
        evhttp_send_error(request, status, NULL);
    else
        send_body(request, status, "application/json", &body);
    base_buffer_fini(&body);
}

static const struct http_route *find(const struct http *http, const char *path)
{
    for (int i = 0; path && i < http->options.count; i++) {
        if (!strcmp(http->options.routes[i].path, path))
            return &http->options.routes[i];
    }
    return NULL;
}

static bool is_allowed(const struct http *http, struct evhttp_request *request)
{
    static const char scheme[] = "Bearer ";
    const char *given = evhttp_find_header(evhttp_request_get_input_headers(request), "Authorization");
    bool bearer = given && !strncmp(given, scheme, sizeof scheme - 1);
    return !http->options.allowed ||
           http->options.allowed(http->options.context, bearer ? given + sizeof scheme - 1 : "");
}

static void on_request(struct evhttp_request *request, void *context)
{
    struct http *http = context;
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(request);
    const struct http_route *route = find(http, uri ? evhttp_uri_get_path(uri) : NULL);
    if (!route) {
        send_error(request, 404,
                   "no such path; there are /livez, /readyz, /metrics and /api/v1/{jobs,workers,datasets}");
        return;
    }
    if (route->guarded && !is_allowed(http, request)) {
        send_error(request, 401,
                   "this path needs 'Authorization: Bearer TOKEN' with a token of the cluster's secret");
        return;
    }
    struct base_buffer body;
    base_buffer_init(&body);
    int status = route->answer(http->options.context, &body);
    if (body.failed)
        send_error(request, 503, "no memory");
    else
        send_body(request, status, route->content_type, &body);
    base_buffer_fini(&body);
}

/* ---- how many there are ---- */

/* evhttp does not say that a connection has ended, but takes its callbacks off. */
static bool has_ended(struct bufferevent *connection)
{
    bufferevent_data_cb read, write;
    bufferevent_event_cb event;
    void *context;
    bufferevent_getcb(connection, &read, &write, &event, &context);
    return !read && !write && !event;
}

static void drop_ended(struct http *http)
{
    int kept = 0;
    for (int i = 0; i < http->connections; i++) {
        if (has_ended(http->open[i]))
            bufferevent_decref(http->open[i]);
        else
            http->open[kept++] = http->open[i];
    }
    http->connections = kept;
    base_metric_set(http->options.connections, kept);
}

static void on_sweep(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    struct http *http = context;
    drop_ended(http);
    if (http->connections < http->options.connections_max)
        evconnlistener_enable(http->listener);
    if (http->connections > 0)
        event_add(http->sweep, &(struct timeval){0, SWEEP_MS * 1000});
}

static struct bufferevent *on_connection(struct event_base *loop, void *context)
{
    struct http *http = context;
    if (http->connections + 1 >= http->options.connections_max)
        drop_ended(http);
    struct bufferevent *connection = bufferevent_socket_new(loop, -1, BEV_OPT_CLOSE_ON_FREE);
    if (!connection || http->connections == http->options.connections_max)
        return connection; /* the listener was stopped too late for this one */
    bufferevent_incref(connection);
    http->open[http->connections++] = connection;
    base_metric_set(http->options.connections, http->connections);
    if (http->connections == http->options.connections_max) {
        base_metric_add(http->options.full, 1);
        evconnlistener_disable(http->listener);
    }
    event_add(http->sweep, &(struct timeval){0, SWEEP_MS * 1000});
    return connection;
}

static enum base_code bind_to(struct http *http, const char *address, struct base_error *error)
{
    int fd;
    enum base_code code = base_address_listen(address, &fd, error);
    if (code)
        return base_error_prefix(error, code, "HTTP port");
    code = base_address_local(fd, http->address, sizeof http->address, error);
    struct evhttp_bound_socket *bound = code ? NULL : evhttp_accept_socket_with_handle(http->server, fd);
    if (bound)
        http->listener = evhttp_bound_socket_get_listener(bound);
    else if (!code)
        code = base_error_set(error, BASE_NO_MEMORY, "HTTP port %s: no memory", address);
    if (code)
        close(fd);
    return code;
}

enum base_code http_start(struct http **out, struct event_base *loop, const struct http_options *options,
                          struct base_error *error)
{
    struct http *http = calloc(1, sizeof *http);
    if (http) {
        http->options = *options;
        http->open = calloc((size_t)options->connections_max, sizeof(struct bufferevent *));
        http->sweep = evtimer_new(loop, on_sweep, http);
        http->server = evhttp_new(loop);
    }
    if (!http || !http->open || !http->sweep || !http->server) {
        http_stop(&http);
        return base_error_set(error, BASE_NO_MEMORY, "HTTP port %s: no memory", options->address);
    }
    evhttp_set_allowed_methods(http->server, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    evhttp_set_max_headers_size(http->server, HEADERS_MAX_BYTES);
    evhttp_set_max_body_size(http->server, BODY_MAX_BYTES);
    evhttp_set_timeout(http->server, TIMEOUT_S);
    evhttp_set_gencb(http->server, on_request, http);
    evhttp_set_bevcb(http->server, on_connection, http);
    enum base_code code = bind_to(http, options->address, error);
    if (code) {
        http_stop(&http);
        return code;
    }
    *out = http;
    return BASE_OK;
}

void http_stop(struct http **pointer)
{
    struct http *http = *pointer;
    *pointer = NULL;
    if (!http)
        return;
    if (http->server)
        evhttp_free(http->server);
    for (int i = 0; i < http->connections; i++)
        bufferevent_decref(http->open[i]);
    base_metric_set(http->options.connections, 0);
    if (http->sweep)
        event_free(http->sweep);
    free(http->open);
    free(http);
}

const char *http_address(const struct http *http)
{
    return http->address;
}
