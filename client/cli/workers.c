/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cli.h"

#include <stdio.h>

static const struct base_option table[] = {CLI_COMMON_ROWS};
const struct base_options cli_workers_options = {
    "millrace workers",
    "[options]",
    "Lists workers: their state, what they offer and what they have made. CORES are prep threads; STAGING is "
    "memory for\n"
    "prepared rows; BLOCKS and ITEMS were made since the worker began; BUSY is the part of its places for "
    "blocks in the\n"
    "making that is in use, QUEUE how long a block waits for one; SILENT is the time since the server heard "
    "of it: lost after 10 s.",
    table,
    sizeof table / sizeof *table,
    0,
    0};

static void print_workers(const Millrace__V1__WorkersReply *reply)
{
    static const char *const titles[] = {"WORKER", "ADDRESS", "STATE",  ">CORES",  ">STAGING", ">BLOCKS",
                                         ">ITEMS", ">BUSY",   ">QUEUE", ">SILENT", NULL};
    struct cli_table out;
    char bytes[32];
    cli_table_begin(&out, titles);
    for (size_t i = 0; i < reply->n_workers; i++) {
        const Millrace__V1__WorkerInfo *worker = reply->workers[i];
        const Millrace__V1__Endpoint *endpoint = worker->endpoint;
        cli_table_cell(&out, "%llu", endpoint ? (unsigned long long)endpoint->worker : 0);
        cli_table_cell(&out, "%s", endpoint && endpoint->n_addresses ? endpoint->addresses[0] : "-");
        cli_table_cell(&out, "%s", worker->state);
        cli_table_cell(&out, "%u", worker->cores);
        cli_table_cell(&out, "%s", cli_bytes(worker->staging_bytes, bytes));
        cli_table_cell(&out, "%llu", (unsigned long long)worker->blocks_made);
        cli_table_cell(&out, "%llu", (unsigned long long)worker->rows_made);
        cli_table_cell(&out, "%.0f%%", 100 * worker->busy);
        cli_table_cell(&out, "%.0f ms", worker->queue_ms);
        cli_table_cell(&out, "%.1f s", (double)worker->silent_ms / 1000);
    }
    cli_table_print(&out, reply->omitted);
}

int cli_workers(int argc, char **argv)
{
    struct cli_common options;
    struct base_options_rest rest;
    struct base_error error;
    int status;
    if (!cli_parse(&cli_workers_options, argc, argv, &options, &rest, &status))
        return status;
    ProtobufCMessage *reply = NULL;
    Millrace__V1__WorkersRequest request = MILLRACE__V1__WORKERS_REQUEST__INIT;
    if (cli_call(&options,
                 &(struct rpc_request){&millrace__v1__cluster__descriptor, "Workers", &request.base,
                                       options.timeout_ms},
                 &reply, &error) != BASE_OK)
        return cli_fail("millrace workers", options.json, &error);
    if (options.json)
        cli_print_json(reply);
    else
        print_workers((const Millrace__V1__WorkersReply *)reply);
    cli_free(reply);
    return CLI_EXIT_OK;
}
