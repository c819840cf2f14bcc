/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/channel.h"

#include "base/address.h"
#include "proto/rpc/args.h"

#include <grpc/grpc_security.h>
#include <stdlib.h>
#include <string.h>

#define BACKOFF_FIRST_MS 100
#define BACKOFF_MAX_MS 2000
#define CONNECT_TIMEOUT_MS 2000
#define RESOLVE_INTERVAL_MS 1000

static grpc_channel *make_grpc_channel(const char *target)
{
    struct rpc_args args;
    rpc_args_init(&args);
    rpc_args_add(&args, GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    rpc_args_add(&args, GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    rpc_args_add(&args, GRPC_ARG_ENABLE_RETRIES,
                 0); /* whether a call may be sent twice is the caller's to say */
    rpc_args_add(&args, GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    rpc_args_add(&args, GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, BACKOFF_FIRST_MS);
    rpc_args_add(&args, GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, BACKOFF_MAX_MS);
    rpc_args_add(&args, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, CONNECT_TIMEOUT_MS); /* named so, and is this */
    rpc_args_add(&args, GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, RESOLVE_INTERVAL_MS);
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(target, credentials, &args.list);
    grpc_channel_credentials_release(credentials);
    return channel;
}

static void free_channel(struct rpc_channel *channel)
{
    if (channel->token_key)
        explicit_bzero(channel->token_key, strlen(channel->token_key));
    free(channel->token_key);
    free(channel->target);
    pthread_mutex_destroy(&channel->lock);
    free(channel);
}

/* Memory only: what free_channel frees. */
static struct rpc_channel *make_channel(const struct rpc_channel_options *options)
{
    struct rpc_channel *channel = calloc(1, sizeof *channel);
    if (!channel)
        return NULL;
    pthread_mutex_init(&channel->lock, NULL);
    channel->mailbox = options->mailbox;
    channel->wait_for_ready = options->wait_for_ready;
    channel->target = strdup(options->target);
    channel->token_key = options->token_key ? strdup(options->token_key) : NULL;
    if (channel->target && (channel->token_key || !options->token_key))
        return channel;
    free_channel(channel);
    return NULL;
}

enum base_code rpc_channel_open(struct rpc_channel **out, const struct rpc_channel_options *options,
                                struct base_error *error)
{
    *out = NULL;
    if (!rpc_usable())
        return base_error_set(error, BASE_CLOSED, "gRPC is not started in this process");
    char host[256];
    uint16_t port;
    enum base_code bad = base_address_parse(options->target, host, &port, error);
    if (bad != BASE_OK) /* gRPC would look for such a name */
        return base_error_prefix(error, bad, "server");
    struct rpc_channel *channel = make_channel(options);
    if (!channel)
        return base_error_set(error, BASE_NO_MEMORY, "gRPC channel to %s: no memory", options->target);
    enum base_code code = rpc_queue_start(&channel->queue, error);
    if (code) {
        free_channel(channel);
        return code;
    }
    channel->grpc = make_grpc_channel(options->target);
    *out = channel;
    return BASE_OK;
}

void rpc_channel_renew(struct rpc_channel *channel, uint64_t connection)
{
    grpc_channel *silent = NULL;
    pthread_mutex_lock(&channel->lock);
    if (!channel->closing && channel->connection == connection) {
        silent = channel->grpc;
        channel->grpc = make_grpc_channel(channel->target);
        channel->connection++;
    }
    pthread_mutex_unlock(&channel->lock);
    if (silent)
        grpc_channel_destroy(silent);
}

void rpc_channel_close(struct rpc_channel **pointer)
{
    struct rpc_channel *channel = *pointer;
    *pointer = NULL;
    if (!channel)
        return;
    if (rpc_usable()) { /* else a forked child: threads and sockets are its parent's */
        pthread_mutex_lock(&channel->lock);
        channel->closing = true;
        rpc_invocations_cancel(channel->invocations);
        pthread_mutex_unlock(&channel->lock);
        rpc_queue_stop(&channel->queue);
        grpc_channel_destroy(channel->grpc);
    }
    free_channel(channel);
}
