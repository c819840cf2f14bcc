/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static const struct base_option table[] = {CLI_COMMON_ROWS};
const struct base_options cli_drain_options = {"millrace drain",
                                               "WORKER [options]",
                                               "Takes a worker out of service: it makes nothing new, hands "
                                               "on what it has, and may then be stopped. WORKER is its\n"
                                               "number in `millrace workers`.",
                                               table,
                                               sizeof table / sizeof *table,
                                               1,
                                               1};

int cli_drain(int argc, char **argv)
{
    struct cli_common options;
    struct base_options_rest rest;
    struct base_error error;
    int status;
    if (!cli_parse(&cli_drain_options, argc, argv, &options, &rest, &status))
        return status;
    char *end;
    errno = 0;
    uint64_t worker = strtoull(rest.positional[0], &end, 10);
    if (*end || errno || worker == 0 || rest.positional[0][0] == '-') {
        fprintf(stderr, "millrace drain: \"%s\" is not a worker's number; `millrace workers` lists them\n",
                rest.positional[0]);
        return CLI_EXIT_USAGE;
    }
    ProtobufCMessage *reply = NULL;
    Millrace__V1__DrainRequest request = MILLRACE__V1__DRAIN_REQUEST__INIT;
    request.worker = worker;
    if (cli_call(&options, &millrace__v1__cluster__descriptor, "Drain", &request.base, options.timeout_ms,
                 &reply, &error) != BASE_OK)
        return cli_fail("millrace drain", options.json, &error);
    if (options.json)
        cli_print_json(reply);
    else
        printf("worker %llu drains\n", (unsigned long long)worker);
    cli_free(reply);
    return CLI_EXIT_OK;
}
