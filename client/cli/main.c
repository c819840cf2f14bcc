/* SPDX-License-Identifier: Apache-2.0 */
/* The `millrace` command: picks a subcommand from the table. */
#include "client/cli/cli.h"

#include "client/include/millrace/millrace.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const char *const dataset_verbs[] = {"add", "list", "show", "verify", "rm", NULL};

const struct cli_command cli_commands[] = {
    {"up", "run a server and workers on this machine", cli_up, &cli_up_options, NULL},
    {"dataset", "add, list, show, verify, rm: registered datasets", cli_dataset, &cli_dataset_options,
     dataset_verbs},
    {"run", "stream a dataset without training: rates, stalls, what was shared", cli_run, &cli_run_options,
     NULL},
    {"cat", "write prepared rows to files (npy and JSON lines)", cli_cat, &cli_cat_options, NULL},
    {"audit", "prove from ledgers that every position came exactly once", cli_audit, &cli_audit_options,
     NULL},
    {"bench", "measure preparation and transport on this machine", cli_bench, &cli_bench_options, NULL},
    {"jobs", "list jobs", cli_jobs, &cli_jobs_options, NULL},
    {"workers", "list workers", cli_workers, &cli_workers_options, NULL},
    {"drain", "take a worker out of service without loss", cli_drain, &cli_drain_options, NULL},
    {"completion", "print completion for bash: source <(millrace completion)", cli_completion, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static void help(FILE *out)
{
    fputs("Usage: millrace COMMAND [options]\n\n"
          "Millrace prepares minibatches on idle CPU servers and streams them to trainers.\n\nCommands:\n",
          out);
    for (const struct cli_command *command = cli_commands; command->name; command++)
        fprintf(out, "  %-11s %s\n", command->name, command->summary);
    fputs("\n`millrace COMMAND --help` tells more; `millrace --version` prints the version.\n\n"
          "Exit codes: 0 done; 1 failed; 2 wrong usage; 3 not found; 4 unavailable or too late: try again;\n"
          "  5 refused; 6 verify or audit found differences; 128 + N ended by signal N.\n"
          "Environment: MILLRACE_SERVER (127.0.0.1:7070), MILLRACE_SECRET_FILE; any --some-name "
          "from MILLRACE_SOME_NAME.\n",
          out);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        help(stdout);
        return CLI_EXIT_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("millrace %s\n", mr_version());
        return CLI_EXIT_OK;
    }
    for (const struct cli_command *command = cli_commands; command->name; command++)
        if (strcmp(command->name, name) == 0)
            return command->run(argc - 1, argv + 1);
    if (*name)
        fprintf(stderr, "millrace: no command \"%s\"; millrace --help lists them\n", name);
    else
        help(stderr);
    return CLI_EXIT_USAGE;
}
