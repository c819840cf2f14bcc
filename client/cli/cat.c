/* SPDX-License-Identifier: Apache-2.0 */
/*
 * millrace cat: prepared rows as files, for tests and for outsiders who check us. Writes FIELD.npy for each field that the pipeline makes
 * (ragged fields: values in FIELD.npy, lengths in FIELD.lengths.npy) and a line for each row in rows.jsonl. What it writes is what the
 * wire carries: u8, NHWC, bad samples replaced.
 */
#include "client/cli/cli.h"
#include "client/cli/npy.h"

#include "client/include/millrace/millrace.h"
#include "scheduler/pipeline.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BATCH = 64 };

struct options {
    struct cli_common common;
    const char *transforms, *seed, *out;
    int64_t epoch, from, count, wait_ms;
    struct base_option_list options;
};

static const struct base_option table[] = {
    CLI_COMMON_ROWS,
    {"transforms", BASE_OPTION_TEXT, "imagenet_train", "NAME", "preset or pipeline text",
     offsetof(struct options, transforms), 0, 0},
    {"seed", BASE_OPTION_TEXT, NULL, "S", "of another stream than the dataset's own",
     offsetof(struct options, seed), 0, 0},
    {"epoch", BASE_OPTION_INT, "0", "E", "of the stream", offsetof(struct options, epoch), 0, UINT32_MAX},
    {"from", BASE_OPTION_INT, "0", "P", "first position", offsetof(struct options, from), 0, INT64_MAX},
    {"count", BASE_OPTION_INT, "-1", "N", "rows; -1: to the end of the epoch",
     offsetof(struct options, count), -1, INT64_MAX},
    {"option", BASE_OPTION_LIST, NULL, "KEY=VALUE", "of the pipeline", offsetof(struct options, options), 0,
     0},
    {"wait-ms", BASE_OPTION_INT, "60000", "MS", "longest wait for the next rows",
     offsetof(struct options, wait_ms), 1, INT32_MAX},
    {"out", BASE_OPTION_TEXT, NULL, "DIR", "folder to write to; it is made (required)",
     offsetof(struct options, out), 0, 0},
};
const struct base_options cli_cat_options = {"millrace cat",
                                             "DATASET --out DIR [options]",
                                             "Writes prepared rows of a dataset to DIR: FIELD.npy for each "
                                             "field and rows.jsonl, one line a row with epoch, position,\n"
                                             "item, used_item, path and label of used_item, status, cause, "
                                             "hash, and the draws: box [top, left, height, width], flip.",
                                             table,
                                             sizeof table / sizeof *table,
                                             1,
                                             1};

struct output {
    const struct options *options;
    struct mr_job *job;
    struct cli_npy *values[SCHEDULER_PIPELINE_FIELDS], *lengths[SCHEDULER_PIPELINE_FIELDS];
    int field_count;
    FILE *rows;
    char rows_part[PATH_MAX], rows_path[PATH_MAX];
    uint64_t written;
};

/* ---- fields ---- */

static const char *descr_of(enum mr_dtype dtype)
{
    switch (dtype) {
    case MR_U8:
        return "|u1";
    case MR_I32:
        return "<i4";
    case MR_I64:
        return "<i8";
    case MR_F32:
        return "<f4";
    case MR_F16:
        return "<f2";
    case MR_BF16:
        return "<V2";
    }
    return "|u1";
}

static enum base_code open_field(struct output *out, int index, const struct mr_field *field,
                                 struct base_error *error)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/%s.npy", PATH_MAX - 64, out->options->out, field->name);
    int rank = field->offsets ? 0 : field->rank - 1;
    enum base_code code =
        cli_npy_create(&out->values[index], path, descr_of(field->dtype), field->dims + 1, rank, error);
    if (code != BASE_OK || !field->offsets)
        return code;
    snprintf(path, sizeof path, "%.*s/%s.lengths.npy", PATH_MAX - 64, out->options->out, field->name);
    return cli_npy_create(&out->lengths[index], path, "<i8", NULL, 0, error);
}

static enum base_code add_ragged(struct output *out, int index, const struct mr_field *field, uint64_t rows,
                                 struct base_error *error)
{
    size_t element = mr_dtype_bytes(field->dtype);
    const uint8_t *data = field->data;
    int64_t first = field->offsets[0], values = field->offsets[rows] - first;
    enum base_code code = cli_npy_add(out->values[index], data + (size_t)first * element,
                                      (size_t)values * element, (uint64_t)values, error);
    for (uint64_t i = 0; code == BASE_OK && i < rows; i++) {
        int64_t length = field->offsets[i + 1] - field->offsets[i];
        code = cli_npy_add(out->lengths[index], &length, sizeof length, 1, error);
    }
    return code;
}

static enum base_code add_fields(struct output *out, const struct mr_batch *batch, uint64_t rows,
                                 struct base_error *error)
{
    enum base_code code = BASE_OK;
    for (int i = 0; code == BASE_OK && i < batch->field_count; i++) {
        const struct mr_field *field = &batch->fields[i];
        if (out->written == 0)
            code = open_field(out, i, field, error);
        out->field_count = batch->field_count;
        if (code == BASE_OK && field->offsets)
            code = add_ragged(out, i, field, rows, error);
        else if (code == BASE_OK)
            code = cli_npy_add(out->values[i], field->data, field->bytes / batch->rows * rows, rows, error);
    }
    return code;
}

/* ---- rows ---- */

/* Value `at` of a fixed field of draws: those of dims [dim, rank) are an array each; no array for one value alone. */
static void put_draw(struct base_json *json, const char *key, const struct mr_field *field, int dim,
                     uint64_t at)
{
    if (dim == field->rank) {
        if (field->dtype == MR_I32)
            base_json_int(json, key, ((const int32_t *)field->data)[at]);
        else
            base_json_uint(json, key, ((const uint8_t *)field->data)[at]);
        return;
    }
    base_json_array(json, key);
    for (uint64_t i = 0; i < (uint64_t)field->dims[dim]; i++)
        put_draw(json, NULL, field, dim + 1, at * (uint64_t)field->dims[dim] + i);
    base_json_array_end(json);
}

/* The draws of row `i`, null where they are not sent. */
static void put_draws(struct base_json *json, const struct mr_batch *batch, uint64_t i)
{
    static const char *const names[] = {"box", "flip"};
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        const struct mr_field *field = mr_batch_field(batch, names[n]);
        if (field)
            put_draw(json, names[n], field, 1, i);
        else
            base_json_text(json, names[n], NULL);
    }
}

static enum base_code add_row(struct output *out, const struct mr_batch *batch, uint64_t i,
                              struct base_error *error)
{
    static const char *const statuses[] = {"ok", "substituted", "bad"};
    static struct mr_item item;
    const struct mr_row *row = &batch->row[i];
    struct mr_error cause;
    char hash[17];
    if (mr_job_item(out->job, row->used_item, &item, out->options->common.timeout_ms, &cause) != MR_OK)
        return base_error_set(error, (enum base_code)cause.code, "%s", cause.text);
    struct base_buffer line;
    struct base_json json;
    base_buffer_init(&line);
    base_json_begin(&json, &line);
    base_json_object(&json, NULL);
    base_json_uint(&json, "epoch", batch->stream_epoch);
    base_json_uint(&json, "position", row->position);
    base_json_uint(&json, "item", row->item);
    base_json_uint(&json, "used_item", row->used_item);
    base_json_text(&json, "path", item.name);
    base_json_int(&json, "label", item.label);
    base_json_text(&json, "status", row->status <= MR_ROW_BAD ? statuses[row->status] : "unknown");
    base_json_text(&json, "cause", row->cause ? mr_cause_name(row->cause) : NULL);
    snprintf(hash, sizeof hash, "%016" PRIx64, row->hash);
    base_json_text(&json, "hash", hash);
    put_draws(&json, batch, i);
    base_json_object_end(&json);
    base_buffer_put_u8(&line, '\n');
    bool written = !line.failed && fwrite(line.bytes, 1, line.size, out->rows) == line.size;
    base_buffer_fini(&line);
    return written ? BASE_OK : base_error_errno(error, errno, "%s", out->rows_path);
}

static enum base_code add_batch(struct output *out, const struct mr_batch *batch, uint64_t wanted,
                                struct base_error *error)
{
    uint64_t rows = batch->rows < wanted ? batch->rows : wanted;
    enum base_code code = batch->rows > 0 ? add_fields(out, batch, rows, error) : BASE_OK;
    for (uint64_t i = 0; code == BASE_OK && i < rows; i++)
        code = add_row(out, batch, i, error);
    out->written += rows;
    return code;
}

/* ---- interrupted ---- */

static struct output *interrupted; /* what the handler removes */

static void remove_parts(int number)
{
    for (int i = 0; i < SCHEDULER_PIPELINE_FIELDS; i++) {
        cli_npy_unlink(interrupted->values[i]);
        cli_npy_unlink(interrupted->lengths[i]);
    }
    unlink(interrupted->rows_part);
    raise(number); /* once more, now as if there were no handler */
}

/* No half of an answer stays behind. A script's background job ignores SIGINT, and goes on to. */
static void take_signals(struct output *out)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction take = {.sa_handler = remove_parts, .sa_flags = (int)SA_RESETHAND}, before;
    interrupted = out;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &take, NULL);
}

/* ---- the whole ---- */

static enum base_code open_out(struct output *out, struct base_error *error)
{
    const char *folder = out->options->out;
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s/", folder);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(part, 0755) != 0 && errno != EEXIST)
            return base_error_errno(error, errno, "%s", part);
        *slash = '/';
    }
    snprintf(out->rows_path, sizeof out->rows_path, "%.*s/rows.jsonl", PATH_MAX - 64, folder);
    snprintf(out->rows_part, sizeof out->rows_part, "%.*s/rows.jsonl.part", PATH_MAX - 64, folder);
    take_signals(out);
    out->rows = fopen(out->rows_part, "we");
    return out->rows ? BASE_OK : base_error_errno(error, errno, "%s", out->rows_part);
}

/* rows.jsonl appears last: where it is, all is. */
static enum base_code finish_out(struct output *out, struct base_error *error)
{
    enum base_code code = BASE_OK;
    unlink(out->rows_path); /* of an earlier cat to this folder */
    for (int i = 0; code == BASE_OK && i < out->field_count; i++) {
        code = cli_npy_finish(out->values[i], error);
        if (code == BASE_OK && out->lengths[i])
            code = cli_npy_finish(out->lengths[i], error);
    }
    FILE *rows = out->rows;
    out->rows = NULL;
    if (fclose(rows) != 0 && code == BASE_OK)
        code = base_error_errno(error, errno, "%s", out->rows_path);
    if (code == BASE_OK && rename(out->rows_part, out->rows_path) != 0)
        code = base_error_errno(error, errno, "%s", out->rows_path);
    return code;
}

static void close_out(struct output *out)
{
    for (int i = 0; i < SCHEDULER_PIPELINE_FIELDS; i++) {
        cli_npy_destroy(out->values[i]);
        cli_npy_destroy(out->lengths[i]);
    }
    if (out->rows)
        fclose(out->rows);
    if (out->rows_part[0])
        unlink(out->rows_part);
}

/* Every field that the pipeline makes. */
static enum base_code open_job(struct output *out, struct mr_client *client, const char *dataset,
                               struct base_error *error)
{
    const struct options *o = out->options;
    static struct scheduler_pipeline pipeline;
    const char *fields[SCHEDULER_PIPELINE_FIELDS + 1] = {NULL}, *keys[BASE_OPTIONS_LIST_MAX + 1] = {NULL};
    enum base_code code =
        scheduler_pipeline_parse(o->transforms, o->options.values, o->options.count, &pipeline, error);
    if (code != BASE_OK)
        return code;
    for (int i = 0; i < pipeline.field_count; i++)
        fields[i] = pipeline.fields[i].name;
    memcpy(keys, o->options.values, (size_t)o->options.count * sizeof *keys);
    uint64_t seed = 0;
    if (o->seed)
        cli_number(o->seed, &seed);
    uint32_t epoch = (uint32_t)o->epoch,
             batch = o->count > 0 && o->count < BATCH ? (uint32_t)o->count : BATCH;
    struct mr_job_options what = {.size = sizeof what,
                                  .dataset = dataset,
                                  .pipeline = o->transforms,
                                  .options = keys,
                                  .fields = fields,
                                  .seed = o->seed ? &seed : NULL,
                                  .tail = MR_TAIL_EXACT,
                                  .on_bad = MR_ON_BAD_REPLACE,
                                  .batch = batch,
                                  .epochs = 1,
                                  .start_epoch = &epoch,
                                  .start_position = (uint64_t)o->from};
    struct mr_error cause;
    if (mr_job_open(&out->job, client, &what, o->wait_ms, &cause) != MR_OK)
        return base_error_set(error, (enum base_code)cause.code, "%s", cause.text);
    struct mr_job_info info = {.size = sizeof info};
    mr_job_info(out->job, &info, NULL);
    if ((uint64_t)o->from >= info.items && o->count != 0)
        return base_error_set(error, BASE_INVALID,
                              "--from %" PRId64 ": an epoch of %s has %" PRIu64 " positions", o->from,
                              dataset, info.items);
    return BASE_OK;
}

static enum base_code copy(struct output *out, struct base_error *error)
{
    uint64_t wanted = out->options->count < 0 ? UINT64_MAX : (uint64_t)out->options->count;
    enum base_code code = BASE_OK;
    while (code == BASE_OK && out->written < wanted) {
        struct mr_batch *batch;
        struct mr_error cause;
        enum mr_code got = mr_job_next(out->job, &batch, out->options->wait_ms, &cause);
        if (got == MR_END)
            break;
        if (got != MR_OK)
            return base_error_set(error, (enum base_code)cause.code, "%s", cause.text);
        code = add_batch(out, batch, wanted - out->written, error);
        mr_batch_release(batch);
    }
    return code == BASE_OK ? finish_out(out, error) : code;
}

static int finish(const struct options *options, const struct output *out)
{
    if (options->common.json) {
        struct base_buffer text;
        struct base_json json;
        base_buffer_init(&text);
        base_json_begin(&json, &text);
        base_json_object(&json, NULL);
        base_json_uint(&json, "rows", out->written);
        base_json_text(&json, "out", options->out);
        base_json_object_end(&json);
        cli_flush(&text);
    } else {
        printf("%" PRIu64 " row%s in %s\n", out->written, out->written == 1 ? "" : "s", options->out);
    }
    return CLI_EXIT_OK;
}

int cli_cat(int argc, char **argv)
{
    static struct options options;
    struct base_options_rest rest;
    struct base_error error;
    int status;
    if (!cli_parse(&cli_cat_options, argc, argv, &options, &rest, &status))
        return status;
    uint64_t seed;
    if (!options.out || (options.seed && cli_number(options.seed, &seed) != BASE_OK)) {
        fputs(options.out ? "millrace cat: --seed is not a number of 64 bits\n"
                          : "millrace cat: --out DIR is missing\n",
              stderr);
        return CLI_EXIT_USAGE;
    }
    static struct output out;
    out.options = &options;
    struct mr_client *client = NULL;
    struct mr_error cause;
    struct mr_client_options where = {
        .size = sizeof where, .server = options.common.server, .secret_file = options.common.secret_file};
    enum base_code code = BASE_OK;
    if (mr_client_open(&client, &where, &cause) != MR_OK)
        code = base_error_set(&error, (enum base_code)cause.code, "%s", cause.text);
    if (code == BASE_OK)
        code = open_job(&out, client, rest.positional[0], &error);
    if (code == BASE_OK)
        code = open_out(&out, &error);
    if (code == BASE_OK)
        code = copy(&out, &error);
    close_out(&out);
    mr_job_close(&out.job);
    if (client)
        mr_client_close(&client);
    return code == BASE_OK ? finish(&options, &out) : cli_fail("millrace cat", options.common.json, &error);
}
