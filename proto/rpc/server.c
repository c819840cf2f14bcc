/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server's life:
 *   1. start: a completion queue with its thread, every method of every service registered, the port bound;
 *   2. some requests of each method are armed, and of one that stands for all unknown methods (they would
 * hang otherwise);
 *   3. calls arrive on the thread (call.c), which arms the next request first;
 *   4. stop: health says NOT_SERVING and ends its watches, gRPC refuses new calls, those running have the
 * grace period;
 *   5. what is left is cancelled, the calls' holders keep only memory, the thread runs the last tags and
 * ends. Limits: 1 MB a message, 4096 calls a connection, 8 KB of metadata (args.c), 1 GiB for all that gRPC buffers. Plain text; tokens when a
 * key is given.
 */
#include "proto/rpc/server.h"

#include "base/address.h"
#include "base/clock.h"
#include "proto/rpc/args.h"
#include "proto/rpc/health.h"

#include <errno.h>
#include <grpc/grpc_security.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ARMED_PER_METHOD 4
#define CALLS_PER_CONNECTION 4096
#define HANDSHAKE_TIMEOUT_MS 10000
#define MEMORY_MAX_BYTES ((size_t)1 << 30) /* 20,000 parked calls take 260 MB */

struct rpc_server {
    grpc_server *grpc;
    struct rpc_queue queue;
    struct base_mailbox *mailbox;
    char *token_key;
    char address[BASE_ADDRESS_CHARS];

    struct rpc_method *methods; /* the last one stands for unknown methods */
    int method_count;
    const ProtobufCServiceDescriptor **services;
    int service_count;

    atomic_bool serving, stopping;
    struct rpc_tag down;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct rpc_call *calls;
    bool is_down;      /* gRPC's shutdown is complete */
    bool calls_closed; /* calls that still arrive are dropped */
};

/* ---- what calls need ---- */

bool rpc_server_request(struct rpc_server *server, struct rpc_call *call)
{
    const struct rpc_method *method = call->method;
    grpc_completion_queue *queue = server->queue.queue;
    if (rpc_server_is_stopping(server))
        return false;
    rpc_tag_hand(&call->arrived);
    grpc_call_error result = method->descriptor
                                 ? grpc_server_request_registered_call(
                                       server->grpc, method->registration, &call->grpc, &call->deadline,
                                       &call->metadata, &call->request_bytes, queue, queue, &call->arrived)
                                 : grpc_server_request_call(server->grpc, &call->grpc, &call->details,
                                                            &call->metadata, queue, queue, &call->arrived);
    return result == GRPC_CALL_OK;
}

bool rpc_server_link(struct rpc_server *server, struct rpc_call *call)
{
    pthread_mutex_lock(&server->lock);
    bool open = !server->calls_closed;
    if (open) {
        call->next = server->calls;
        call->link = &server->calls;
        if (call->next)
            call->next->link = &call->next;
        server->calls = call;
    }
    pthread_mutex_unlock(&server->lock);
    return open;
}

static void unlink_locked(struct rpc_call *call)
{
    if (!call->link)
        return;
    *call->link = call->next;
    if (call->next)
        call->next->link = call->link;
    call->link = NULL;
}

void rpc_server_unlink(struct rpc_server *server, struct rpc_call *call)
{
    pthread_mutex_lock(&server->lock);
    unlink_locked(call);
    pthread_mutex_unlock(&server->lock);
}

const char *rpc_server_token_key(const struct rpc_server *server)
{
    return server->token_key;
}

struct base_mailbox *rpc_server_mailbox(const struct rpc_server *server)
{
    return server->mailbox;
}

bool rpc_server_is_stopping(const struct rpc_server *server)
{
    return atomic_load(&server->stopping);
}

bool rpc_server_is_serving(const struct rpc_server *server)
{
    return atomic_load(&server->serving) && !rpc_server_is_stopping(server);
}

bool rpc_server_has_service(const struct rpc_server *server, const char *name)
{
    bool has = !*name;
    for (int i = 0; i < server->service_count && !has; i++)
        has = !strcmp(server->services[i]->name, name);
    return has;
}

/* ---- start ---- */

static void add_service(struct rpc_server *server, const struct rpc_service *service, bool own)
{
    for (unsigned i = 0; i < service->descriptor->n_methods; i++)
        server->methods[server->method_count++] =
            (struct rpc_method){.descriptor = &service->descriptor->methods[i],
                                .handler = service->handlers[i],
                                .context = service->context,
                                .is_open = own,
                                .is_inline = own};
    server->services[server->service_count++] = service->descriptor;
}

/* The tables of services and methods; health and the unknown method come last. False without memory. */
static bool make_methods(struct rpc_server *server, const struct rpc_server_options *options)
{
    size_t services = (size_t)options->service_count + 1, methods = RPC_HEALTH_METHODS + 1;
    for (int i = 0; i < options->service_count; i++)
        methods += options->services[i].descriptor->n_methods;
    server->methods = calloc(methods, sizeof *server->methods);
    server->services = calloc(services, sizeof(const ProtobufCServiceDescriptor *));
    if (!server->methods || !server->services)
        return false;
    for (int i = 0; i < options->service_count; i++)
        add_service(server, &options->services[i], false);
    struct rpc_service health = {rpc_health_service, rpc_health_handlers, server};
    add_service(server, &health, true);
    server->method_count++;
    return true;
}

static enum base_code register_methods(struct rpc_server *server, struct base_error *error)
{
    struct rpc_method *method = server->methods;
    for (int s = 0; s < server->service_count; s++)
        for (unsigned i = 0; i < server->services[s]->n_methods; i++, method++) {
            char path[512];
            snprintf(path, sizeof path, "/%s/%s", server->services[s]->name, method->descriptor->name);
            method->registration = grpc_server_register_method(server->grpc, path, NULL,
                                                               GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
            if (!method->registration)
                return base_error_set(error, BASE_INVALID, "gRPC method %s: registered twice", path);
        }
    return BASE_OK;
}

/* gRPC says only that it failed: trying to listen says why. */
static enum base_code explain_bind(const char *address, struct base_error *error)
{
    int fd = -1;
    enum base_code code = base_address_listen(address, &fd, error);
    if (code)
        return code;
    close(fd);
    return base_error_set(error, BASE_UNAVAILABLE, "gRPC server cannot listen on %s", address);
}

static enum base_code bind_port(struct rpc_server *server, const char *address, struct base_error *error)
{
    char host[256];
    uint16_t port;
    enum base_code code = base_address_parse(address, host, &port, error);
    if (code)
        return code;
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    int bound = grpc_server_add_http2_port(server->grpc, address, credentials);
    grpc_server_credentials_release(credentials);
    if (!bound)
        return explain_bind(address, error);
    snprintf(server->address, sizeof server->address, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, bound);
    return BASE_OK;
}

static grpc_server *make_grpc_server(grpc_completion_queue *queue, size_t memory_max_bytes)
{
    grpc_resource_quota *quota = grpc_resource_quota_create("millrace");
    grpc_resource_quota_resize(quota, memory_max_bytes ? memory_max_bytes : MEMORY_MAX_BYTES);
    struct rpc_args args;
    rpc_args_init(&args);
    rpc_args_add(&args, GRPC_ARG_ALLOW_REUSEPORT, 0); /* else two servers share a port, silently */
    rpc_args_add(&args, GRPC_ARG_MAX_CONCURRENT_STREAMS, CALLS_PER_CONNECTION);
    rpc_args_add(&args, "grpc.server_handshake_timeout_ms",
                 HANDSHAKE_TIMEOUT_MS); /* whoever connects and says nothing */
    rpc_args_add_pointer(&args, GRPC_ARG_RESOURCE_QUOTA, quota, grpc_resource_quota_arg_vtable());
    grpc_server *server =
        grpc_server_create(&args.list, NULL); /* holds the quota by a reference of its own */
    grpc_resource_quota_unref(quota);
    grpc_server_register_completion_queue(server, queue, NULL);
    return server;
}

static void free_server(struct rpc_server *server)
{
    if (server->token_key)
        explicit_bzero(server->token_key, strlen(server->token_key));
    free(server->token_key);
    free(server->methods);
    free(server->services);
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

static void on_down(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct rpc_server *server =
        (struct rpc_server *)(void *)((char *)tag - offsetof(struct rpc_server, down));
    pthread_mutex_lock(&server->lock);
    server->is_down = true;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

/* Memory only: what free_server frees. NULL without memory. */
static struct rpc_server *make_server(const struct rpc_server_options *options)
{
    struct rpc_server *server = calloc(1, sizeof *server);
    if (!server)
        return NULL;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&server->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&server->lock, NULL);
    server->mailbox = options->mailbox;
    server->down.run = on_down;
    atomic_store(&server->serving, true);
    server->token_key = options->token_key ? strdup(options->token_key) : NULL;
    if (make_methods(server, options) && (server->token_key || !options->token_key))
        return server;
    free_server(server);
    return NULL;
}

enum base_code rpc_server_start(struct rpc_server **out, const struct rpc_server_options *options,
                                struct base_error *error)
{
    *out = NULL;
    if (!rpc_usable())
        return base_error_set(error, BASE_CLOSED, "gRPC is not started in this process");
    struct rpc_server *server = make_server(options);
    if (!server)
        return base_error_set(error, BASE_NO_MEMORY, "gRPC server %s: no memory", options->address);
    enum base_code code = rpc_queue_start(&server->queue, error);
    if (code) {
        free_server(server);
        return code;
    }
    server->grpc = make_grpc_server(server->queue.queue, options->memory_max_bytes);
    code = register_methods(server, error);
    if (!code)
        code = bind_port(server, options->address, error);
    if (code) {
        rpc_server_stop(&server, 0);
        return code;
    }
    grpc_server_start(server->grpc);
    bool armed = true;
    for (int i = 0; i < server->method_count && armed; i++)
        for (int k = 0; k < ARMED_PER_METHOD && armed; k++)
            armed = rpc_call_arm(server, &server->methods[i]);
    if (!armed) {
        rpc_server_stop(&server, 0);
        return base_error_set(error, BASE_NO_MEMORY, "gRPC server %s: no memory", options->address);
    }
    *out = server;
    return BASE_OK;
}

const char *rpc_server_address(const struct rpc_server *server)
{
    return server->address;
}

/* ---- health and stop ---- */

static void push_health(struct rpc_server *server, bool end)
{
    pthread_mutex_lock(&server->lock);
    for (struct rpc_call *call = server->calls; call; call = call->next) {
        pthread_mutex_lock(&call->lock);
        if (call->watch.active)
            rpc_health_push(call, end);
        pthread_mutex_unlock(&call->lock);
    }
    pthread_mutex_unlock(&server->lock);
}

void rpc_server_set_serving(struct rpc_server *server, bool serving)
{
    atomic_store(&server->serving, serving);
    push_health(server, false);
}

/* Whatever still runs is let go of: its holder's answer goes nowhere. */
static void kill_calls(struct rpc_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->calls_closed = true;
    while (server->calls) {
        struct rpc_call *call = server->calls;
        unlink_locked(call);
        rpc_call_kill(call);
    }
    pthread_mutex_unlock(&server->lock);
}

static bool wait_down(struct rpc_server *server, int64_t deadline_ns)
{
    struct timespec until = {.tv_sec = deadline_ns / BASE_NS_PER_S, .tv_nsec = deadline_ns % BASE_NS_PER_S};
    int result = 0;
    pthread_mutex_lock(&server->lock);
    while (!server->is_down && !result)
        result = pthread_cond_timedwait(&server->changed, &server->lock, &until);
    bool down = server->is_down;
    pthread_mutex_unlock(&server->lock);
    return down;
}

void rpc_server_stop(struct rpc_server **pointer, int64_t grace_ms)
{
    struct rpc_server *server = *pointer;
    *pointer = NULL;
    if (!server)
        return;
    if (!rpc_usable()) { /* a forked child: the threads and sockets are its parent's */
        free_server(server);
        return;
    }
    atomic_store(&server->stopping, true);
    push_health(server, true);
    rpc_tag_hand(&server->down);
    grpc_server_shutdown_and_notify(server->grpc, server->queue.queue, &server->down);
    if (!wait_down(server, base_clock_deadline_ns(grace_ms)))
        grpc_server_cancel_all_calls(server->grpc);
    kill_calls(server);
    while (!wait_down(server, base_clock_deadline_ns(1000)))
        grpc_server_cancel_all_calls(server->grpc);
    grpc_server_destroy(server->grpc);
    rpc_queue_stop(&server->queue);
    free_server(server);
}
