/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the subcommands of `millrace` share: the table of them, exit codes, calls to the server, tables for people and JSON for
 * programs. Results go to stdout, everything else to stderr.
 */
#ifndef CLIENT_CLI_CLI_H
#define CLIENT_CLI_CLI_H

#include "base/buffer.h"
#include "base/error.h"
#include "base/json.h"
#include "base/options.h"
#include "proto/rpc/rpc.h"
#include "proto/schema/millrace.pb-c.h"

enum cli_exit {
    CLI_EXIT_OK = 0,
    CLI_EXIT_FAILED = 1,
    CLI_EXIT_USAGE = 2,
    CLI_EXIT_NOT_FOUND = 3,
    CLI_EXIT_UNAVAILABLE = 4, /* no answer, or not in time: the same command may succeed later */
    CLI_EXIT_REFUSED = 5,
    CLI_EXIT_DIFFERENT = 6, /* verify: files are not what they were; audit: a violation */
    CLI_EXIT_SIGNAL = 128,  /* + the signal's number */
};

/* ---- commands ---- */

struct cli_command {
    const char *name;
    const char *summary;                /* one line */
    int (*run)(int argc, char **argv);  /* argv[0] is the subcommand's name; an exit code */
    const struct base_options *options; /* for completion */
    const char *const *verbs;           /* of `dataset`: NULL-terminated */
};
extern const struct cli_command cli_commands[]; /* ends with a NULL name; in main.c */

int cli_up(int argc, char **argv);
int cli_dataset(int argc, char **argv);
int cli_jobs(int argc, char **argv);
int cli_workers(int argc, char **argv);
int cli_drain(int argc, char **argv);
int cli_cat(int argc, char **argv);
int cli_run(int argc, char **argv);
int cli_audit(int argc, char **argv);
int cli_completion(int argc, char **argv);
int cli_bench(int argc, char **argv);
extern const struct base_options cli_up_options, cli_dataset_options, cli_jobs_options, cli_workers_options,
    cli_drain_options, cli_audit_options, cli_cat_options, cli_run_options, cli_bench_options;

/* ---- options that every command has ---- */

struct cli_common { /* first member of a command's own struct */
    const char *server, *secret_file;
    int64_t timeout_ms;
    bool json;
};
#define CLI_COMMON_ROWS                                                                                      \
    {"server",                                                                                               \
     BASE_OPTION_TEXT,                                                                                       \
     "127.0.0.1:7070",                                                                                       \
     "HOST:PORT",                                                                                            \
     "the server's control port",                                                                            \
     offsetof(struct cli_common, server),                                                                    \
     0,                                                                                                      \
     0},                                                                                                     \
        {"secret-file",                                                                                      \
         BASE_OPTION_TEXT,                                                                                   \
         NULL,                                                                                               \
         "FILE",                                                                                             \
         "the cluster's secret",                                                                             \
         offsetof(struct cli_common, secret_file),                                                           \
         0,                                                                                                  \
         0},                                                                                                 \
        {"timeout-ms",                                                                                       \
         BASE_OPTION_INT,                                                                                    \
         "10000",                                                                                            \
         "MS",                                                                                               \
         "longest wait for an answer of the server",                                                         \
         offsetof(struct cli_common, timeout_ms),                                                            \
         1,                                                                                                  \
         INT32_MAX},                                                                                         \
    {                                                                                                        \
        "json", BASE_OPTION_BOOL, NULL, NULL, "print JSON", offsetof(struct cli_common, json), 0, 0          \
    }

/* Parses; on --help prints it. True: go on. False: return *status. */
bool cli_parse(const struct base_options *options, int argc, char **argv, void *into,
               struct base_options_rest *rest, int *status);

/* Says what failed and returns the exit code for it. */
int cli_fail(const char *command, bool json, const struct base_error *error);

/* A 64-bit number in decimal; INVALID otherwise. */
enum base_code cli_number(const char *text, uint64_t *number);

/* ---- calls ---- */

/* One call, waited for. *reply: cli_free. */
enum base_code cli_call(const struct cli_common *common, const struct rpc_request *request,
                        ProtobufCMessage **reply, struct base_error *error);
void cli_free(ProtobufCMessage *reply);

/* ---- output ---- */

void cli_print_json(const ProtobufCMessage *message);
void cli_flush(struct base_buffer *buffer); /* writes it to stdout with a newline, and frees it */

/* Text from outside with control bytes made visible, so that names cannot move a terminal's cursor. */
const char *cli_clean(const char *text, char *out, size_t out_bytes);
const char *cli_bytes(uint64_t bytes, char out[32]); /* "45.2 MB" */

enum { CLI_COLUMNS_MAX = 12 };
struct cli_table {
    const char *const
        *titles; /* a title that begins with '>' is of a column set to the right; NULL-terminated */
    struct base_buffer cells; /* terminated texts, row by row */
    int rows_cells;           /* cells so far */
};
void cli_table_begin(struct cli_table *table, const char *const *titles);
void cli_table_cell(struct cli_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints and frees; nothing but the titles when there are no rows. `omitted`: rows that the server left out. */
void cli_table_print(struct cli_table *table, uint32_t omitted);

#endif
