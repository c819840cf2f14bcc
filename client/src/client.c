/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/client.h"

#include "base/log.h"
#include "client/src/error.h"
#include "proto/rpc/token.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool client_usable(const struct mr_client *client)
{
    return client->pid == getpid();
}

/* A library is silent unless it is asked. */
static void start_log(void)
{
    static const struct {
        const char *name;
        enum base_log_level level;
    } levels[] = {{"debug", BASE_LOG_DEBUG}, {"info", BASE_LOG_INFO}, {"error", BASE_LOG_ERROR}};
    const char *wanted = getenv("MILLRACE_LOG");
    enum base_log_level level = BASE_LOG_WARN;
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (wanted && strcmp(wanted, levels[i].name) == 0)
            level = levels[i].level;
    if (wanted && *wanted)
        base_log_start("client", STDERR_FILENO, level);
    else
        base_log_start("client", -1, (enum base_log_level)(BASE_LOG_ERROR + 1));
}

static const char *choose(const char *given, const char *variable, const char *standard)
{
    const char *from_environment = getenv(variable);
    if (given)
        return given;
    return from_environment && *from_environment ? from_environment : standard;
}

static enum base_code set_up(struct mr_client *client, const struct mr_client_options *options,
                             struct base_error *error)
{
    const char *server = choose(options ? options->server : NULL, "MILLRACE_SERVER", "127.0.0.1:7070");
    const char *secret = choose(options ? options->secret_file : NULL, "MILLRACE_SECRET_FILE", NULL);
    char host[256];
    uint16_t port;
    enum base_code code = base_address_parse(server, host, &port, error);
    if (code != BASE_OK)
        return base_error_prefix(error, code, "server");
    snprintf(client->server, sizeof client->server, "%s", server);
    if (secret) {
        code = rpc_token_read_key(secret, client->key, sizeof client->key, error);
        if (code != BASE_OK)
            return code;
    }
    code = client_loop_start(&client->loop, error);
    if (code != BASE_OK)
        return code;
    struct rpc_channel_options channel = {
        .target = client->server,
        .token_key = client->key[0] ? client->key : NULL,
        .mailbox = client_loop_mailbox(client->loop),
    };
    return rpc_channel_open(&client->channel, &channel, error);
}

static void tear_down(struct mr_client *client)
{
    rpc_channel_close(&client->channel);
    client_loop_stop(&client->loop);
    rpc_stop();
    free(client);
}

enum mr_code mr_client_open(struct mr_client **out, const struct mr_client_options *options,
                            struct mr_error *error)
{
    struct base_error why;
    if (options && options->size < sizeof *options)
        return client_error_set(error, BASE_INVALID, "client: options.size is %zu, not %zu", options->size,
                                sizeof *options);
    struct mr_client *client = calloc(1, sizeof *client);
    if (!client)
        return client_error_set(error, BASE_NO_MEMORY, "no memory for a client");
    client->pid = getpid();
    start_log();
    rpc_start();
    if (!rpc_usable()) {
        free(client);
        return client_error_set(error, BASE_CLOSED,
                                "client: its parent process used one, and nothing of it survives a fork: "
                                "spawn the process");
    }
    enum base_code code = set_up(client, options, &why);
    if (code != BASE_OK) {
        tear_down(client);
        return client_error_pass(error, code, &why);
    }
    *out = client;
    return MR_OK;
}

enum mr_code mr_client_close(struct mr_client **client)
{
    if (!client || !*client)
        return MR_OK;
    if (!client_usable(*client)) { /* the parent's threads and sockets: not ours to end */
        *client = NULL;
        return MR_OK;
    }
    if (atomic_load(&(*client)->jobs) > 0)
        return MR_BUSY;
    tear_down(*client);
    *client = NULL;
    return MR_OK;
}
