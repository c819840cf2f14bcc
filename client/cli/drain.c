/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cli.h"

#include <stdio.h>
#include <string.h>

static const struct base_option table[] = {CLI_COMMON_ROWS};
const struct base_options cli_drain_options = {"millrace drain",
                                               "WORKER [options]",
                                               "Takes a worker out of service: it makes nothing new, hands "
                                               "on what it has, and may then be stopped. WORKER is its\n"
                                               "number or its address in `millrace workers`.",
                                               table,
                                               sizeof table / sizeof *table,
                                               1,
                                               1};

/* The number of the worker at `address`. */
static enum base_code find(const struct cli_common *options, const char *address, uint64_t *worker,
                           struct base_error *error)
{
    ProtobufCMessage *reply = NULL;
    Millrace__V1__WorkersRequest request = MILLRACE__V1__WORKERS_REQUEST__INIT;
    enum base_code code = cli_call(options,
                                   &(struct rpc_request){&millrace__v1__cluster__descriptor, "Workers",
                                                         &request.base, options->timeout_ms},
                                   &reply, error);
    if (code != BASE_OK)
        return code;
    const Millrace__V1__WorkersReply *workers = (const Millrace__V1__WorkersReply *)reply;
    *worker = 0;
    for (size_t i = 0; i < workers->n_workers; i++) {
        const Millrace__V1__Endpoint *endpoint = workers->workers[i]->endpoint;
        for (size_t j = 0; endpoint && j < endpoint->n_addresses; j++)
            if (strcmp(endpoint->addresses[j], address) == 0)
                *worker = endpoint->worker;
    }
    cli_free(reply);
    return *worker ? BASE_OK : base_error_set(error, BASE_NOT_FOUND, "no worker has the address %s", address);
}

static enum base_code drain(const struct cli_common *options, const char *text, struct base_error *error)
{
    Millrace__V1__DrainRequest request = MILLRACE__V1__DRAIN_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    enum base_code code = BASE_OK;
    if (strchr(text, ':'))
        code = find(options, text, &request.worker, error);
    else if (cli_number(text, &request.worker) != BASE_OK)
        code = base_error_set(error, BASE_INVALID, "\"%s\" is not a worker's number or address", text);
    if (code == BASE_OK)
        code = cli_call(options,
                        &(struct rpc_request){&millrace__v1__cluster__descriptor, "Drain", &request.base,
                                              options->timeout_ms},
                        &reply, error);
    if (code == BASE_OK && options->json)
        cli_print_json(reply);
    else if (code == BASE_OK)
        printf("worker %s drains\n", text);
    cli_free(reply);
    return code;
}

int cli_drain(int argc, char **argv)
{
    struct cli_common options;
    struct base_options_rest rest;
    struct base_error error;
    int status;
    if (!cli_parse(&cli_drain_options, argc, argv, &options, &rest, &status))
        return status;
    if (drain(&options, rest.positional[0], &error) == BASE_OK)
        return CLI_EXIT_OK;
    status = cli_fail("millrace drain", options.json, &error);
    return error.code == BASE_INVALID ? CLI_EXIT_USAGE : status;
}
