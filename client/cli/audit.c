/* SPDX-License-Identifier: Apache-2.0 */
/* millrace audit: the proof's results as a table for people or JSON for programs. Asks no server. */
#include "client/cli/cli.h"
#include "client/cli/proof.h"

#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct options {
    bool json, complete;
};

static const struct base_option table[] = {
    {"complete", BASE_OPTION_BOOL, NULL, NULL, "an epoch that is not finished is a violation, too",
     offsetof(struct options, complete), 0, 0},
    {"json", BASE_OPTION_BOOL, NULL, NULL, "print JSON", offsetof(struct options, json), 0, 0},
};
const struct base_options cli_audit_options = {
    "millrace audit",
    "LEDGER... [options]",
    "Proves from ledgers (of ranks, restarts, replicas, several jobs; a folder stands for its *.ledger) that "
    "each job was handed every "
    "position "
    "of each epoch\n"
    "exactly once along its saved cursors, all ranks the same steps, and one content for one position of a "
    "stream whatever the job.\n"
    "Exit code 6 when that is not so.",
    table,
    sizeof table / sizeof *table,
    1,
    BASE_OPTIONS_LIST_MAX};

static const char *const states[] = {"complete", "incomplete", "abandoned", "VIOLATED"};

static void print_table(const struct cli_proof *proof)
{
    static const char *const titles[] = {"JOB",        ">EPOCH",     ">STREAM EPOCH", ">POSITIONS",
                                         ">DELIVERED", ">AGAIN",     ">SKIPPED",      ">MISSING",
                                         ">DOUBLED",   ">DIFFERING", "STATE",         NULL};
    struct cli_table out;
    cli_table_begin(&out, titles);
    for (size_t i = 0; i < proof->epoch_count; i++) {
        const struct cli_proof_epoch *epoch = &proof->epochs[i];
        const uint64_t numbers[] = {
            epoch->job_epoch, epoch->stream_epoch, proof->groups[epoch->group].is.items,
            epoch->delivered, epoch->again,        epoch->skipped,
            epoch->missing,   epoch->doubled,      epoch->differing};
        cli_table_cell(&out, "%s", proof->groups[epoch->group].is.job);
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
            cli_table_cell(&out, "%" PRIu64, numbers[n]);
        cli_table_cell(&out, "%s", states[epoch->state]);
    }
    cli_table_print(&out, 0);
    for (int i = 0; i < proof->word_count; i++) {
        char clean[CLI_PROOF_WORDS_CHARS];
        printf("%s\n", cli_clean(proof->words[i], clean, sizeof clean));
    }
    if (proof->violations > (uint64_t)proof->word_count)
        printf("and %" PRIu64 " more\n", proof->violations - (uint64_t)proof->word_count);
    printf("%s: %zu start%s, %" PRIu64 " batches", proof->violations ? "VIOLATED" : "proven",
           proof->start_count, proof->start_count == 1 ? "" : "s", proof->batches);
    if (proof->torn)
        printf(", %" PRIu64 " torn at the end (killed while writing)", proof->torn);
    printf("\n");
}

static void print_epoch(struct base_json *json, const struct cli_proof *proof,
                        const struct cli_proof_epoch *epoch)
{
    base_json_object(json, NULL);
    base_json_text(json, "job", proof->groups[epoch->group].is.job);
    base_json_uint(json, "epoch", epoch->job_epoch);
    base_json_uint(json, "stream_epoch", epoch->stream_epoch);
    base_json_uint(json, "positions", proof->groups[epoch->group].is.items);
    base_json_uint(json, "delivered", epoch->delivered);
    base_json_uint(json, "again", epoch->again);
    base_json_uint(json, "skipped", epoch->skipped);
    base_json_uint(json, "abandoned", epoch->abandoned);
    base_json_uint(json, "missing", epoch->missing);
    base_json_uint(json, "doubled", epoch->doubled);
    base_json_uint(json, "differing", epoch->differing);
    base_json_uint(json, "uneven_steps", epoch->uneven);
    base_json_text(json, "state", epoch->state == CLI_PROOF_VIOLATED ? "violated" : states[epoch->state]);
    base_json_object_end(json);
}

static void print_json(const struct cli_proof *proof)
{
    struct base_buffer out;
    struct base_json json;
    base_buffer_init(&out);
    base_json_begin(&json, &out);
    base_json_object(&json, NULL);
    base_json_bool(&json, "proven", proof->violations == 0);
    base_json_uint(&json, "starts", proof->start_count);
    base_json_uint(&json, "batches", proof->batches);
    base_json_uint(&json, "torn", proof->torn);
    base_json_array(&json, "epochs");
    for (size_t i = 0; i < proof->epoch_count; i++)
        print_epoch(&json, proof, &proof->epochs[i]);
    base_json_array_end(&json);
    base_json_uint(&json, "violations", proof->violations);
    base_json_array(&json, "first_violations");
    for (int i = 0; i < proof->word_count; i++)
        base_json_text(&json, NULL, proof->words[i]);
    base_json_array_end(&json);
    base_json_object_end(&json);
    cli_flush(&out);
}

/* The arguments, with what lies in those that are folders. */
static enum base_code find_ledgers(const struct base_options_rest *rest, glob_t *paths,
                                   struct base_error *error)
{
    for (int i = 0; i < rest->count; i++) {
        struct base_buffer pattern;
        struct stat about;
        bool folder = stat(rest->positional[i], &about) == 0 && S_ISDIR(about.st_mode);
        base_buffer_init(&pattern);
        for (const char *c = rest->positional[i]; *c; c++)
            base_buffer_printf(&pattern, "%s%c", strchr("*?[\\", *c) ? "\\" : "", *c);
        base_buffer_printf(&pattern, "%s", folder ? "/*.ledger" : "");
        const char *text = base_buffer_text(&pattern);
        int flags = (i > 0 ? GLOB_APPEND : 0) | (folder ? 0 : GLOB_NOCHECK),
            failed = text ? glob(text, flags, NULL, paths) : GLOB_NOSPACE;
        base_buffer_fini(&pattern);
        if (failed == GLOB_NOSPACE)
            return base_error_set(error, BASE_NO_MEMORY, "no memory for the names of ledgers");
        if (failed)
            return base_error_set(error, BASE_NOT_FOUND, "no *.ledger in %s", rest->positional[i]);
    }
    return BASE_OK;
}

int cli_audit(int argc, char **argv)
{
    struct options options;
    struct base_options_rest rest;
    struct base_error error;
    struct cli_proof proof;
    int status;
    if (!cli_parse(&cli_audit_options, argc, argv, &options, &rest, &status))
        return status;
    glob_t paths = {0};
    enum base_code code = find_ledgers(&rest, &paths, &error);
    if (code == BASE_OK)
        code = cli_proof_open(&proof, (const char *const *)paths.gl_pathv, paths.gl_pathc, &error);
    if (code == BASE_OK) {
        code = cli_proof_judge(&proof, options.complete, &error);
        if (code == BASE_OK && options.json)
            print_json(&proof);
        else if (code == BASE_OK)
            print_table(&proof);
        status = proof.violations ? CLI_EXIT_DIFFERENT : CLI_EXIT_OK;
        cli_proof_close(&proof);
    }
    globfree(&paths);
    return code == BASE_OK ? status : cli_fail("millrace audit", options.json, &error);
}
