/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/http.h"

#include "base/address.h"
#include "base/json.h"

#include <event2/buffer.h>
#include <event2/http.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADERS_MAX_BYTES = 16384, BODY_MAX_BYTES = 0, TIMEOUT_S = 10 };

struct http {
    struct evhttp *server;
    struct http_options options; /* its address is not kept */
    char address[BASE_ADDRESS_CHARS];
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

static enum base_code bind_to(struct http *http, const char *address, struct base_error *error)
{
    int fd;
    enum base_code code = base_address_listen(address, &fd, error);
    if (code)
        return base_error_prefix(error, code, "HTTP port");
    code = base_address_local(fd, http->address, sizeof http->address, error);
    if (!code && !evhttp_accept_socket_with_handle(http->server, fd))
        code = base_error_set(error, BASE_NO_MEMORY, "HTTP port %s: no memory", address);
    if (code)
        close(fd);
    return code;
}

enum base_code http_start(struct http **out, struct event_base *loop, const struct http_options *options,
                          struct base_error *error)
{
    struct http *http = calloc(1, sizeof *http);
    if (!http || !(http->server = evhttp_new(loop))) {
        free(http);
        return base_error_set(error, BASE_NO_MEMORY, "HTTP port %s: no memory", options->address);
    }
    http->options = *options;
    evhttp_set_allowed_methods(http->server, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    evhttp_set_max_headers_size(http->server, HEADERS_MAX_BYTES);
    evhttp_set_max_body_size(http->server, BODY_MAX_BYTES);
    evhttp_set_timeout(http->server, TIMEOUT_S);
    evhttp_set_gencb(http->server, on_request, http);
    enum base_code code = bind_to(http, options->address, error);
    if (code) {
        http_stop(&http);
        return code;
    }
    *out = http;
    return BASE_OK;
}

void http_stop(struct http **http)
{
    if (!*http)
        return;
    evhttp_free((*http)->server);
    free(*http);
    *http = NULL;
}

const char *http_address(const struct http *http)
{
    return http->address;
}
