/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cli.h"

#include "base/clock.h"
#include "base/hash.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A call is answered in this time at most, so that waiting for long is many calls. */
enum { WAIT_SLICE_MS = 20000, POLL_US = 100000, SPREAD_MS = 3000 };

struct options {
    struct cli_common common;
    int64_t wait_ms;
    const char *masks;
    bool skipped, bad;
};

static const struct base_option table[] = {
    CLI_COMMON_ROWS,
    {"wait-ms", BASE_OPTION_INT, "3600000", "MS",
     "add, verify: longest wait until it is done; 0: do not wait", offsetof(struct options, wait_ms), 0,
     INT32_MAX},
    {"masks", BASE_OPTION_TEXT, NULL, "FOLDER",
     "add: each item has a mask there, by the same name but the suffix .png (the pipeline's op Mask makes "
     "the field)",
     offsetof(struct options, masks), 0, 0},
    {"skipped", BASE_OPTION_BOOL, NULL, NULL, "show: list the files left out",
     offsetof(struct options, skipped), 0, 0},
    {"bad", BASE_OPTION_BOOL, NULL, NULL, "show: list the samples found bad", offsetof(struct options, bad),
     0, 0},
};
const struct base_options cli_dataset_options = {
    "millrace dataset",
    "add NAME PATH | list | show NAME | verify NAME | rm NAME",
    "add: registers a folder with one subfolder for each class, beneath a data root of the workers, and "
    "waits until it is\n"
    "indexed. list, show: what is registered. verify: compares the files with what was indexed. rm: forgets "
    "it; files stay.",
    table,
    sizeof table / sizeof *table,
    1,
    3};

static const ProtobufCServiceDescriptor *const service = &millrace__v1__datasets__descriptor;

static const char *short_version(const ProtobufCBinaryData *version, char out[16])
{
    snprintf(out, 16, "-");
    if (version->len >= 6)
        base_hash_to_hex(version->data, 6, out);
    return out;
}

static const char *plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

/* ---- add ---- */

static enum base_code show(const struct options *options, const char *name, Millrace__V1__DatasetInfo **info,
                           struct base_error *error)
{
    Millrace__V1__DatasetName request = MILLRACE__V1__DATASET_NAME__INIT;
    request.name = (char *)(uintptr_t)name;
    return cli_call(&options->common,
                    &(struct rpc_request){service, "Show", &request.base, options->common.timeout_ms},
                    (ProtobufCMessage **)info, error);
}

/* Nothing is being indexed: not even another version of what is ready. */
static bool ended(const Millrace__V1__DatasetInfo *info)
{
    return strcmp(info->state, "indexing") != 0 && !info->indexing;
}

/* Workers that could serve it. */
static uint32_t ready_workers(const struct options *options)
{
    ProtobufCMessage *reply = NULL;
    Millrace__V1__WorkersRequest request = MILLRACE__V1__WORKERS_REQUEST__INIT;
    uint32_t ready = 0;
    if (cli_call(&options->common,
                 &(struct rpc_request){&millrace__v1__cluster__descriptor, "Workers", &request.base,
                                       options->common.timeout_ms},
                 &reply, NULL) != BASE_OK)
        return 0;
    const Millrace__V1__WorkersReply *workers = (const Millrace__V1__WorkersReply *)reply;
    for (size_t i = 0; i < workers->n_workers; i++)
        ready += strcmp(workers->workers[i]->state, "ready") == 0;
    cli_free(reply);
    return ready;
}

/* Looks again until indexing ended and so many workers can serve it, or until the deadline. */
static enum base_code look_until(const struct options *options, const char *name, int64_t deadline_ns,
                                 uint32_t workers, Millrace__V1__DatasetInfo **info, struct base_error *error)
{
    enum base_code code = BASE_OK;
    while (code == BASE_OK && base_clock_now_ns() < deadline_ns) {
        if (ended(*info) && (*info)->eligible_workers >= workers)
            break;
        cli_free(&(*info)->base);
        *info = NULL;
        usleep(POLL_US);
        code = show(options, name, info, error);
    }
    return code;
}

/* Adds, waits until indexing ended, then a little until the workers that did not index it have its manifest, too. */
static enum base_code add(const struct options *options, const char *name, const char *path,
                          Millrace__V1__DatasetInfo **info, struct base_error *error)
{
    Millrace__V1__DatasetAdd request = MILLRACE__V1__DATASET_ADD__INIT;
    int64_t slice_ms = options->wait_ms < WAIT_SLICE_MS ? options->wait_ms : WAIT_SLICE_MS;
    int64_t deadline_ns = base_clock_deadline_ns(options->wait_ms);
    request.name = (char *)(uintptr_t)name;
    request.path = (char *)(uintptr_t)path;
    request.masks = (char *)(uintptr_t)(options->masks ? options->masks : "");
    request.wait_ms = (uint32_t)slice_ms;
    enum base_code code =
        cli_call(&options->common,
                 &(struct rpc_request){service, "Add", &request.base, options->common.timeout_ms + slice_ms},
                 (ProtobufCMessage **)info, error);
    if (code == BASE_OK)
        code = look_until(options, name, deadline_ns, 0, info, error);
    if (code != BASE_OK || strcmp((*info)->state, "ready") != 0 || options->wait_ms == 0)
        return code;
    int64_t spread_ns = base_clock_deadline_ns(SPREAD_MS);
    return look_until(options, name, spread_ns < deadline_ns ? spread_ns : deadline_ns,
                      ready_workers(options), info, error);
}

static void print_added(const Millrace__V1__DatasetInfo *info)
{
    char bytes[32], version[16];
    printf("%s: %llu item%s in %zu class%s, %s, version %s, on %u worker%s\n", info->name,
           (unsigned long long)info->items, plural(info->items), info->n_classes,
           info->n_classes == 1 ? "" : "es", cli_bytes(info->bytes, bytes),
           short_version(&info->version, version), info->eligible_workers, plural(info->eligible_workers));
    if (info->skipped > 0)
        printf("%llu file%s left out by suffix or place; `millrace dataset show %s --skipped` lists them\n",
               (unsigned long long)info->skipped, plural(info->skipped), info->name);
    for (size_t i = 0; i < info->n_worker_errors; i++)
        fprintf(stderr, "not served by %s\n", info->worker_errors[i]);
}

static void make_absolute(const char *given, char path[2 * PATH_MAX])
{
    char folder[PATH_MAX];
    if (given[0] == '/' || !getcwd(folder, sizeof folder))
        snprintf(path, 2 * PATH_MAX, "%s", given);
    else
        snprintf(path, 2 * PATH_MAX, "%s/%s", folder, given);
}

static int run_add(const struct options *given, const char *name, const char *given_path)
{
    char path[PATH_MAX * 2], masks[PATH_MAX * 2];
    struct options absolute = *given, *options = &absolute;
    struct base_error error;
    Millrace__V1__DatasetInfo *info = NULL;
    make_absolute(given_path, path);
    if (given->masks) {
        make_absolute(given->masks, masks);
        absolute.masks = masks;
    }
    enum base_code code = add(options, name, path, &info, &error);
    if (code == BASE_OK && ended(info) && (info->code || strcmp(info->state, "failed") == 0))
        code =
            base_error_set(&error, info->code ? (enum base_code)info->code : BASE_INVALID, "%s", info->error);
    else if (code == BASE_OK && !ended(info) && options->wait_ms > 0)
        code = base_error_set(&error, BASE_TIMEOUT, "%s is still being indexed", name);
    else if (code == BASE_OK && ended(info) && options->masks && strcmp(info->masks, options->masks) != 0)
        code = base_error_set(
            &error, BASE_UNSUPPORTED,
            "dataset %s was added without masks: the server is of a version that knows none", name);
    if (code == BASE_OK && options->common.json)
        cli_print_json(&info->base);
    else if (code == BASE_OK && !ended(info))
        printf("%s: indexing\n", name);
    else if (code == BASE_OK)
        print_added(info);
    if (info)
        cli_free(&info->base);
    return code == BASE_OK ? CLI_EXIT_OK : cli_fail("millrace dataset add", options->common.json, &error);
}

/* ---- list, show ---- */

static void print_list(const Millrace__V1__DatasetsReply *reply)
{
    static const char *const titles[] = {"NAME", "STATE",   ">ITEMS", ">SIZE", ">WORKERS",
                                         ">BAD", "VERSION", "PATH",   NULL};
    struct cli_table out;
    char bytes[32], version[16];
    cli_table_begin(&out, titles);
    for (size_t i = 0; i < reply->n_datasets; i++) {
        const Millrace__V1__DatasetInfo *info = reply->datasets[i];
        cli_table_cell(&out, "%s", info->name);
        cli_table_cell(&out, "%s", info->state);
        cli_table_cell(&out, "%llu", (unsigned long long)info->items);
        cli_table_cell(&out, "%s", cli_bytes(info->bytes, bytes));
        cli_table_cell(&out, "%u", info->eligible_workers);
        cli_table_cell(&out, "%llu", (unsigned long long)info->bad_items);
        cli_table_cell(&out, "%s", short_version(&info->version, version));
        cli_table_cell(&out, "%s", info->path);
    }
    cli_table_print(&out, reply->omitted);
}

static int run_list(const struct options *options)
{
    struct base_error error;
    ProtobufCMessage *reply = NULL;
    Millrace__V1__DatasetsRequest request = MILLRACE__V1__DATASETS_REQUEST__INIT;
    enum base_code code = cli_call(
        &options->common, &(struct rpc_request){service, "List", &request.base, options->common.timeout_ms},
        &reply, &error);
    if (code != BASE_OK)
        return cli_fail("millrace dataset list", options->common.json, &error);
    if (options->common.json)
        cli_print_json(reply);
    else
        print_list((const Millrace__V1__DatasetsReply *)reply);
    cli_free(reply);
    return CLI_EXIT_OK;
}

static void print_lines(char *const *lines, size_t count, uint64_t all)
{
    char clean[4200];
    for (size_t i = 0; i < count; i++)
        printf("  %s\n", cli_clean(lines[i], clean, sizeof clean));
    if (all > count)
        printf("  ... and %llu more\n", (unsigned long long)(all - count));
}

static void print_info(const struct options *options, const Millrace__V1__DatasetInfo *info)
{
    char bytes[32], version[2 * BASE_SHA256_BYTES + 1] = "-", clean[4200];
    if (info->version.len == BASE_SHA256_BYTES)
        base_hash_to_hex(info->version.data, BASE_SHA256_BYTES, version);
    printf("name      %s\n", info->name);
    printf("path      %s\n", cli_clean(info->path, clean, sizeof clean));
    if (*info->masks)
        printf("masks     %s\n", cli_clean(info->masks, clean, sizeof clean));
    printf("state     %s%s%s\n", info->state, *info->error ? ": " : "",
           cli_clean(info->error, clean, sizeof clean));
    printf("version   %s\n", version);
    printf("items     %llu, %s\n", (unsigned long long)info->items, cli_bytes(info->bytes, bytes));
    printf("workers   %u\n", info->eligible_workers);
    printf("skipped   %llu\n", (unsigned long long)info->skipped);
    if (options->skipped)
        print_lines(info->skipped_names, info->n_skipped_names, info->skipped);
    printf("bad       %llu\n", (unsigned long long)info->bad_items);
    for (size_t i = 0; options->bad && i < info->n_bad; i++)
        printf("  %llu %s: %s\n", (unsigned long long)info->bad[i]->item,
               cli_clean(info->bad[i]->name, clean, sizeof clean), info->bad[i]->cause);
    if (options->bad && info->bad_items > info->n_bad)
        printf("  ... and %llu more\n", (unsigned long long)info->bad_items - info->n_bad);
    printf("classes   %zu\n", info->n_classes);
    print_lines(info->classes, info->n_classes < 10 ? info->n_classes : 10, info->n_classes);
    if (info->n_worker_errors > 0)
        printf("cannot serve it\n");
    print_lines(info->worker_errors, info->n_worker_errors, info->n_worker_errors);
}

static int run_show(const struct options *options, const char *name)
{
    struct base_error error;
    Millrace__V1__DatasetInfo *info = NULL;
    if (show(options, name, &info, &error) != BASE_OK)
        return cli_fail("millrace dataset show", options->common.json, &error);
    if (options->common.json)
        cli_print_json(&info->base);
    else
        print_info(options, info);
    cli_free(&info->base);
    return CLI_EXIT_OK;
}

/* ---- verify, rm ---- */

static int run_verify(const struct options *options, const char *name)
{
    struct base_error error;
    Millrace__V1__VerifyReply *reply = NULL;
    Millrace__V1__DatasetName request = MILLRACE__V1__DATASET_NAME__INIT;
    request.name = (char *)(uintptr_t)name;
    request.wait_ms = (uint32_t)options->wait_ms;
    int64_t timeout_ms = options->common.timeout_ms + options->wait_ms;
    if (cli_call(&options->common, &(struct rpc_request){service, "Verify", &request.base, timeout_ms},
                 (ProtobufCMessage **)&reply, &error) != BASE_OK)
        return cli_fail("millrace dataset verify", options->common.json, &error);
    uint64_t changed = reply->changed;
    if (options->common.json) {
        cli_print_json(&reply->base);
    } else if (changed == 0) {
        printf("%s: all %llu items are as they were indexed\n", name, (unsigned long long)reply->items);
    } else {
        printf("%s: %llu file%s differ%s from what was indexed\n", name, (unsigned long long)changed,
               plural(changed), changed == 1 ? "s" : "");
        print_lines(reply->changed_names, reply->n_changed_names, changed);
    }
    cli_free(&reply->base);
    return changed == 0 ? CLI_EXIT_OK : CLI_EXIT_DIFFERENT;
}

static int run_rm(const struct options *options, const char *name)
{
    struct base_error error;
    ProtobufCMessage *reply = NULL;
    Millrace__V1__DatasetName request = MILLRACE__V1__DATASET_NAME__INIT;
    request.name = (char *)(uintptr_t)name;
    if (cli_call(&options->common,
                 &(struct rpc_request){service, "Remove", &request.base, options->common.timeout_ms}, &reply,
                 &error) != BASE_OK)
        return cli_fail("millrace dataset rm", options->common.json, &error);
    if (options->common.json)
        cli_print_json(reply);
    else
        printf("%s: removed; its files were not touched\n", name);
    cli_free(reply);
    return CLI_EXIT_OK;
}

int cli_dataset(int argc, char **argv)
{
    struct options options;
    struct base_options_rest rest;
    int status;
    if (!cli_parse(&cli_dataset_options, argc, argv, &options, &rest, &status))
        return status;
    const char *verb = rest.positional[0];
    if (strcmp(verb, "add") == 0 && rest.count == 3)
        return run_add(&options, rest.positional[1], rest.positional[2]);
    if (strcmp(verb, "list") == 0 && rest.count == 1)
        return run_list(&options);
    if (strcmp(verb, "show") == 0 && rest.count == 2)
        return run_show(&options, rest.positional[1]);
    if (strcmp(verb, "verify") == 0 && rest.count == 2)
        return run_verify(&options, rest.positional[1]);
    if (strcmp(verb, "rm") == 0 && rest.count == 2)
        return run_rm(&options, rest.positional[1]);
    fprintf(stderr, "millrace dataset: usage: millrace dataset %s\n", cli_dataset_options.usage);
    return CLI_EXIT_USAGE;
}
