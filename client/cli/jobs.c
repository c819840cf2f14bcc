/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cli.h"

#include <stdio.h>
#include <string.h>

enum { WEIGHT = 11 }; /* the last column, shown when a job has one */

static const struct base_option table[] = {CLI_COMMON_ROWS};
const struct base_options cli_jobs_options = {
    "millrace jobs",
    "[options]",
    "Lists jobs: where each is, how fast it goes, and, in words, what it shares with whom or waits for.\n"
    "EPOCH and POSITION are the stream's, where the next step begins; ROWS what was handed over since the "
    "job began; STALL\n"
    "the part of its time that it waited for a batch. WEIGHT is shown when a job has one; ended jobs for an "
    "hour.",
    table,
    sizeof table / sizeof *table,
    0,
    0};

/* Most jobs have none to speak of. */
static bool any_weight(const Millrace__V1__JobsReply *reply)
{
    for (size_t i = 0; i < reply->n_jobs; i++)
        if (reply->jobs[i]->weight != 1)
            return true;
    return false;
}

static void print_jobs(const Millrace__V1__JobsReply *reply)
{
    const char *titles[] = {"JOB",       "DATASET", "STATE",   ">RANKS", ">BATCH",  "TAIL", ">EPOCH",
                            ">POSITION", ">ROWS",   ">ROWS/S", ">STALL", ">WEIGHT", NULL};
    struct cli_table out;
    bool weights = any_weight(reply);
    if (!weights)
        titles[WEIGHT] = NULL;
    cli_table_begin(&out, titles);
    for (size_t i = 0; i < reply->n_jobs; i++) {
        const Millrace__V1__JobInfo *job = reply->jobs[i];
        cli_table_cell(&out, "%s", job->job);
        cli_table_cell(&out, "%s", job->dataset);
        cli_table_cell(&out, "%s", job->state);
        cli_table_cell(&out, "%u/%u", job->ranks_live, job->world);
        cli_table_cell(&out, "%u", job->batch);
        cli_table_cell(&out, "%s", job->tail);
        cli_table_cell(&out, "%u", job->at ? job->at->epoch : 0);
        cli_table_cell(&out, "%llu", job->at ? (unsigned long long)job->at->position : 0);
        cli_table_cell(&out, "%llu", (unsigned long long)job->rows);
        cli_table_cell(&out, "%.0f", job->rows_per_s);
        cli_table_cell(&out, "%.1f%%", 100 * job->stall_share);
        if (weights)
            cli_table_cell(&out, "%g", job->weight);
    }
    cli_table_print(&out, reply->omitted);
    for (size_t i = 0; i < reply->n_jobs; i++) {
        char clean[1024];
        if (*reply->jobs[i]->reason && strcmp(reply->jobs[i]->state, "closed") != 0)
            printf("%s: %s\n", reply->jobs[i]->job, cli_clean(reply->jobs[i]->reason, clean, sizeof clean));
    }
}

int cli_jobs(int argc, char **argv)
{
    struct cli_common options;
    struct base_options_rest rest;
    struct base_error error;
    int status;
    if (!cli_parse(&cli_jobs_options, argc, argv, &options, &rest, &status))
        return status;
    ProtobufCMessage *reply = NULL;
    Millrace__V1__JobsRequest request = MILLRACE__V1__JOBS_REQUEST__INIT;
    if (cli_call(
            &options,
            &(struct rpc_request){&millrace__v1__jobs__descriptor, "List", &request.base, options.timeout_ms},
            &reply, &error) != BASE_OK)
        return cli_fail("millrace jobs", options.json, &error);
    if (options.json)
        cli_print_json(reply);
    else
        print_jobs((const Millrace__V1__JobsReply *)reply);
    cli_free(reply);
    return CLI_EXIT_OK;
}
