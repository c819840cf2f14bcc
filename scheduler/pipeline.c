/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text to pipeline in four steps: expand a preset, read sections and ops, apply options, then check the whole
 * (order of ops, a known output size, a dtype that can be normalised) and derive fields, row and block size.
 * The grammar is in the header, the ops are table rows in ops.c. Everything that enters is bounded: 4096
 * bytes of text, 16 ops, 8 arguments.
 */
#include "scheduler/pipeline.h"

#include "scheduler/number.h"
#include "scheduler/ops.h"

#include <stdio.h>
#include <string.h>

#define BLOCK_BYTES_MAX (UINT64_C(2) << 20)
#define BLOCK_ROWS_MAX 256
#define SHOWN_MAX 40 /* of outside text, quoted in an error */

static const char *const section_names[SCHEDULER_SECTIONS] = {"sample", "finish", "batch"};

static const struct {
    const char *name, *text;
} presets[] = {
    {"imagenet_train", "sample: Decode RandomResizedCrop(size=224) RandomHorizontalFlip(p=0.5)"
                       "| finish: ToDtype(dtype=float32) Normalize Layout(order=NCHW)"},
    {"imagenet_eval", "sample: Decode Resize(size=256) CenterCrop(size=224)"
                      "| finish: ToDtype(dtype=float32) Normalize Layout(order=NCHW)"},
};

size_t scheduler_dtype_bytes(enum scheduler_dtype dtype)
{
    static const size_t bytes[] = {[SCHEDULER_U8] = 1,  [SCHEDULER_I32] = 4, [SCHEDULER_I64] = 8,
                                   [SCHEDULER_F32] = 4, [SCHEDULER_F16] = 2, [SCHEDULER_BF16] = 2};
    return (size_t)dtype < sizeof bytes / sizeof *bytes ? bytes[dtype] : 0;
}

static struct scheduler_op *section_ops(struct scheduler_pipeline *pipeline, enum scheduler_section section,
                                        int **count)
{
    switch (section) {
    case SCHEDULER_SAMPLE:
        *count = &pipeline->sample_count;
        return pipeline->sample;
    case SCHEDULER_FINISH:
        *count = &pipeline->finish_count;
        return pipeline->finish;
    default:
        *count = &pipeline->batch_count;
        return pipeline->batch;
    }
}

/* ---- reading ---- */

struct cursor {
    const char *text;
    size_t size, at;
};

struct word {
    const char *text;
    size_t size, at; /* at: where it stands in the whole text */
};

#define SHOWN(word) (int)((word).size > SHOWN_MAX ? SHOWN_MAX : (word).size), (word).text

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static char peek(struct cursor *in)
{
    while (in->at < in->size && is_space(in->text[in->at]))
        in->at++;
    return in->at < in->size ? in->text[in->at] : 0;
}

static bool take(struct cursor *in, char c)
{
    if (peek(in) != c)
        return false;
    in->at++;
    return true;
}

static struct word take_word(struct cursor *in, const char *more)
{
    peek(in);
    struct word word = {in->text + in->at, 0, in->at};
    while (in->at < in->size && (is_word(in->text[in->at]) || strchr(more, in->text[in->at])))
        in->at++;
    word.size = in->at - word.at;
    return word;
}

static enum base_code expected(struct cursor *in, const char *what, struct base_error *error)
{
    unsigned char c = (unsigned char)peek(in);
    if (in->at >= in->size)
        return base_error_set(error, BASE_INVALID, "pipeline, offset %zu: the text ends, expected %s", in->at,
                              what);
    if (c > ' ' && c < 127)
        return base_error_set(error, BASE_INVALID, "pipeline, offset %zu: '%c', expected %s", in->at, c,
                              what);
    return base_error_set(error, BASE_INVALID, "pipeline, offset %zu: byte 0x%02x, expected %s", in->at, c,
                          what);
}

static enum base_code at_offset(enum base_code code, size_t at, struct base_error *error)
{
    return base_error_prefix(error, code, "pipeline, offset %zu", at);
}

/* key=value; `seen` has a bit for each argument met. */
static enum base_code read_arg(struct cursor *in, struct scheduler_op *op, unsigned *seen,
                               struct base_error *error)
{
    char known[200];
    const char *name = scheduler_op_name(op->kind);
    struct word key = take_word(in, "");
    if (key.size == 0)
        return expected(in, "an argument's name", error);
    int arg = scheduler_ops_find_arg(op->kind, key.text, key.size);
    if (arg < 0)
        return base_error_set(error, BASE_INVALID, "pipeline, offset %zu: %s has no argument '%.*s', but %s",
                              key.at, name, SHOWN(key), scheduler_ops_args(op->kind, known, sizeof known));
    if (*seen & 1u << arg)
        return base_error_set(error, BASE_INVALID, "pipeline, offset %zu: %s: '%.*s' is given twice", key.at,
                              name, SHOWN(key));
    *seen |= 1u << arg;
    if (!take(in, '='))
        return expected(in, "'=' after an argument's name", error);
    struct word value = take_word(in, "+-.");
    if (value.size == 0)
        return expected(in, "a value", error);
    enum base_code code = scheduler_ops_set(op, arg, value.text, value.size, error);
    return code ? at_offset(code, value.at, error) : BASE_OK;
}

static enum base_code read_args(struct cursor *in, struct scheduler_op *op, unsigned *seen,
                                struct base_error *error)
{
    if (!take(in, '(') || take(in, ')'))
        return BASE_OK;
    for (;;) {
        enum base_code code = read_arg(in, op, seen, error);
        if (code)
            return code;
        if (take(in, ')'))
            return BASE_OK;
        if (!take(in, ','))
            return expected(in, "',' or ')'", error);
    }
}

static enum base_code read_version(struct cursor *in, const struct scheduler_op *op, struct base_error *error)
{
    if (!take(in, '@'))
        return BASE_OK;
    struct word version = take_word(in, "");
    double number = 0;
    if (!scheduler_number_parse(version.text, version.size, &number) || number < 1 || number > UINT16_MAX ||
        number != (uint16_t)number)
        return base_error_set(error, BASE_INVALID, "pipeline, offset %zu: %s: '@' needs a version number",
                              version.at, scheduler_op_name(op->kind));
    if (number != op->version)
        return base_error_set(error, BASE_UNSUPPORTED,
                              "pipeline, offset %zu: %s: version %.*s is not in this build, which has %u",
                              version.at, scheduler_op_name(op->kind), SHOWN(version), op->version);
    return BASE_OK;
}

static enum base_code read_op(struct cursor *in, enum scheduler_section section, struct scheduler_op *op,
                              struct base_error *error)
{
    char known[256];
    unsigned seen = 0;
    struct word name = take_word(in, "");
    if (name.size == 0)
        return expected(in, "an op's name", error);
    enum scheduler_op_kind kind = scheduler_ops_find(name.text, name.size);
    if (kind == SCHEDULER_OP_KINDS)
        return base_error_set(
            error, BASE_INVALID, "pipeline, offset %zu: no op is named '%.*s'; section %s has %s", name.at,
            SHOWN(name), section_names[section], scheduler_ops_names(section, known, sizeof known));
    const struct scheduler_op_row *row = scheduler_ops_row(kind);
    if (row->section != section)
        return base_error_set(error, BASE_INVALID, "pipeline, offset %zu: %s belongs in section %s, not %s",
                              name.at, row->name, section_names[row->section], section_names[section]);
    scheduler_ops_init(op, kind);
    enum base_code code = read_version(in, op, error);
    if (!code)
        code = read_args(in, op, &seen, error);
    if (code)
        return code;
    for (int i = 0; row->args[i].key; i++)
        if (row->args[i].required && !(seen & 1u << i))
            return base_error_set(error, BASE_INVALID, "pipeline, offset %zu: %s needs %s=, as in %s(%s=%g)",
                                  name.at, row->name, row->args[i].key, row->name, row->args[i].key,
                                  row->args[i].standard);
    return BASE_OK;
}

static enum base_code read_section(struct cursor *in, struct scheduler_pipeline *pipeline, unsigned *seen,
                                   struct base_error *error)
{
    struct word name = take_word(in, "");
    int section = 0;
    while (section < SCHEDULER_SECTIONS && (strlen(section_names[section]) != name.size ||
                                            memcmp(section_names[section], name.text, name.size) != 0))
        section++;
    if (section == SCHEDULER_SECTIONS)
        return base_error_set(error, BASE_INVALID,
                              "pipeline, offset %zu: '%.*s' is no preset (imagenet_train, imagenet_eval), "
                              "and no section (sample, "
                              "finish, batch)",
                              name.at, SHOWN(name));
    if (*seen & 1u << section)
        return base_error_set(error, BASE_INVALID, "pipeline, offset %zu: section %s is given twice", name.at,
                              section_names[section]);
    *seen |= 1u << section;
    if (!take(in, ':'))
        return expected(in, "':' after a section's name", error);
    int *count = NULL;
    struct scheduler_op *ops = section_ops(pipeline, (enum scheduler_section)section, &count);
    while (peek(in) && peek(in) != '|') {
        if (*count == SCHEDULER_PIPELINE_OPS)
            return base_error_set(error, BASE_TOO_LARGE,
                                  "pipeline, offset %zu: more than %d ops in section %s", in->at,
                                  SCHEDULER_PIPELINE_OPS, section_names[section]);
        enum base_code code = read_op(in, (enum scheduler_section)section, &ops[*count], error);
        if (code)
            return code;
        ++*count;
    }
    return BASE_OK;
}

static enum base_code read_text(const char *text, size_t size, struct scheduler_pipeline *pipeline,
                                struct base_error *error)
{
    struct cursor in = {text, size, 0};
    struct word first = take_word(&in, "");
    if (!peek(&in) && in.at == size)
        for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++)
            if (strlen(presets[i].name) == first.size && memcmp(presets[i].name, first.text, first.size) == 0)
                in.text = presets[i].text, in.size = strlen(presets[i].text);
    in.at = 0;
    unsigned seen = 0;
    for (;;) {
        enum base_code code = read_section(&in, pipeline, &seen, error);
        if (code)
            return code;
        if (in.at >= in.size)
            return BASE_OK;
        if (!take(&in, '|'))
            return expected(&in, "'|' or the end", error);
    }
}

/* ---- options ---- */

/* Options that add an op to section sample: its first argument is their value. */
static const struct {
    const char *key;
    enum scheduler_op_kind kind;
    const char *without; /* the value that means: no such op. NULL: none */
} added[] = {{"keep_encoded", SCHEDULER_OP_ENCODED, NULL},
             {"views", SCHEDULER_OP_VIEWS, "1"},
             {"mask", SCHEDULER_OP_MASK, NULL}};

/* Gives that op its value, and a place before those of higher rank if it does not stand there yet. */
static enum base_code set_added(struct scheduler_pipeline *pipeline, int option, const char *value,
                                struct base_error *error)
{
    enum scheduler_op_kind kind = added[option].kind;
    struct scheduler_op made, *op = pipeline->sample, *end = op + pipeline->sample_count;
    while (op < end && scheduler_ops_row(op->kind)->rank < scheduler_ops_row(kind)->rank)
        op++;
    bool there = op < end && op->kind == kind;
    if (added[option].without && strcmp(value, added[option].without) == 0) {
        if (there) {
            memmove(op, op + 1, (size_t)(end - op - 1) * sizeof *op);
            memset(end - 1, 0, sizeof *op);
            pipeline->sample_count--;
        }
        return BASE_OK;
    }
    scheduler_ops_init(&made, kind);
    enum base_code code = scheduler_ops_set(&made, 0, value, strlen(value), error);
    if (code)
        return base_error_prefix(error, code, "option %s", added[option].key);
    if (!there && pipeline->sample_count == SCHEDULER_PIPELINE_OPS)
        return base_error_set(error, BASE_TOO_LARGE, "option %s: more than %d ops in section sample",
                              added[option].key, SCHEDULER_PIPELINE_OPS);
    if (!there) {
        memmove(op + 1, op, (size_t)(end - op) * sizeof *op);
        pipeline->sample_count++;
    }
    *op = made;
    return BASE_OK;
}

static enum base_code apply_option(struct scheduler_pipeline *pipeline, const char *option,
                                   struct base_error *error)
{
    const char *equals = option ? strchr(option, '=') : NULL;
    if (!equals || equals == option || strlen(option) > SCHEDULER_PIPELINE_TEXT_BYTES)
        return base_error_set(error, BASE_INVALID, "option '%.*s': not KEY=VALUE", SHOWN_MAX,
                              option ? option : "");
    size_t key_size = (size_t)(equals - option);
    for (size_t i = 0; i < sizeof added / sizeof added[0]; i++)
        if (key_size == strlen(added[i].key) && memcmp(option, added[i].key, key_size) == 0)
            return set_added(pipeline, (int)i, equals + 1, error);
    bool met = false;
    for (int s = 0; s < SCHEDULER_SECTIONS; s++) {
        int *count = NULL;
        struct scheduler_op *ops = section_ops(pipeline, (enum scheduler_section)s, &count);
        for (int i = 0; i < *count; i++) {
            int arg = scheduler_ops_find_arg(ops[i].kind, option, key_size);
            if (arg < 0)
                continue;
            met = true;
            enum base_code code = scheduler_ops_set(&ops[i], arg, equals + 1, strlen(equals + 1), error);
            if (code)
                return base_error_prefix(error, code, "option");
        }
    }
    if (!met)
        return base_error_set(error, BASE_INVALID, "option '%.*s': no op of this pipeline has that argument",
                              (int)(key_size > SHOWN_MAX ? SHOWN_MAX : key_size), option);
    return BASE_OK;
}

/* ---- the whole ---- */

static enum base_code check_order(const struct scheduler_op *ops, int count, struct base_error *error)
{
    for (int i = 0; i < count; i++) {
        enum base_code code = scheduler_ops_check(&ops[i], error);
        if (code)
            return base_error_prefix(error, code, "pipeline");
        if (i == 0)
            continue;
        const struct scheduler_op_row *row = scheduler_ops_row(ops[i].kind);
        const struct scheduler_op_row *before = scheduler_ops_row(ops[i - 1].kind);
        if (row->rank <= before->rank)
            return base_error_set(error, BASE_INVALID,
                                  "pipeline, op %d of section %s: %s cannot stand after %s", i,
                                  section_names[row->section], row->name, before->name);
    }
    return BASE_OK;
}

static const struct scheduler_op *find_op(const struct scheduler_op *ops, int count,
                                          enum scheduler_op_kind kind)
{
    for (int i = 0; i < count; i++)
        if (ops[i].kind == kind)
            return &ops[i];
    return NULL;
}

static enum base_code check_sample(const struct scheduler_pipeline *pipeline, int64_t *side,
                                   struct base_error *error)
{
    const struct scheduler_op *ops = pipeline->sample;
    int count = pipeline->sample_count;
    enum base_code code = check_order(ops, count, error);
    if (code)
        return code;
    if (count == 0 || ops[0].kind != SCHEDULER_OP_DECODE)
        return base_error_set(error, BASE_INVALID, "pipeline: section sample must begin with Decode");
    const struct scheduler_op *crop = find_op(ops, count, SCHEDULER_OP_RANDOM_RESIZED_CROP);
    if (crop && find_op(ops, count, SCHEDULER_OP_RESIZE))
        return base_error_set(error, BASE_INVALID,
                              "pipeline: section sample: RandomResizedCrop cannot stand after Resize");
    if (!crop)
        crop = find_op(ops, count, SCHEDULER_OP_CENTER_CROP);
    if (!crop)
        return base_error_set(error, BASE_INVALID,
                              "pipeline: section sample does not fix the size of its images: it needs "
                              "RandomResizedCrop or CenterCrop");
    *side = (int64_t)scheduler_op_arg(crop, "size");
    return BASE_OK;
}

static enum base_code check_views(struct scheduler_pipeline *pipeline, struct base_error *error)
{
    const struct scheduler_op *views = find_op(pipeline->sample, pipeline->sample_count, SCHEDULER_OP_VIEWS);
    for (int i = 0; i < pipeline->sample_count; i++)
        pipeline->uses_randomness |= scheduler_ops_row(pipeline->sample[i].kind)->random;
    pipeline->views = views ? (uint32_t)views->args[0] : 1;
    pipeline->mask = find_op(pipeline->sample, pipeline->sample_count, SCHEDULER_OP_MASK) != NULL;
    if (views && !pipeline->uses_randomness)
        return base_error_set(error, BASE_INVALID,
                              "pipeline: section sample: Views: no op draws, all views would be the same");
    return BASE_OK;
}

/* Normalize and the batch ops work on floats. */
static bool makes_floats(const struct scheduler_pipeline *pipeline)
{
    const struct scheduler_op *dtype =
        find_op(pipeline->finish, pipeline->finish_count, SCHEDULER_OP_TO_DTYPE);
    return dtype && scheduler_op_arg(dtype, "dtype") != 0;
}

static enum base_code check_finish(const struct scheduler_pipeline *pipeline, struct base_error *error)
{
    enum base_code code = check_order(pipeline->finish, pipeline->finish_count, error);
    if (code)
        return code;
    if (find_op(pipeline->finish, pipeline->finish_count, SCHEDULER_OP_NORMALIZE) && !makes_floats(pipeline))
        return base_error_set(
            error, BASE_INVALID,
            "pipeline: section finish: Normalize needs ToDtype with a float dtype before it");
    return BASE_OK;
}

static enum base_code check_batch(const struct scheduler_pipeline *pipeline, struct base_error *error)
{
    enum base_code code = check_order(pipeline->batch, pipeline->batch_count, error);
    if (code)
        return code;
    if (pipeline->batch_count > 0 && !makes_floats(pipeline))
        return base_error_set(
            error, BASE_INVALID,
            "pipeline: section batch: %s needs ToDtype with a float dtype in section finish",
            scheduler_op_name(pipeline->batch[0].kind));
    bool mixes = find_op(pipeline->batch, pipeline->batch_count, SCHEDULER_OP_MIX_UP) ||
                 find_op(pipeline->batch, pipeline->batch_count, SCHEDULER_OP_CUT_MIX);
    if (mixes && pipeline->mask)
        return base_error_set(error, BASE_INVALID,
                              "pipeline: section batch: MixUp and CutMix mix labels, not masks");
    return BASE_OK;
}

static void add_field(struct scheduler_pipeline *pipeline, const char *name, enum scheduler_dtype dtype,
                      int rank, const int64_t *dims)
{
    struct scheduler_field *field = &pipeline->fields[pipeline->field_count++];
    snprintf(field->name, sizeof field->name, "%s", name);
    field->dtype = dtype;
    field->rank = rank;
    field->max_bytes = scheduler_dtype_bytes(dtype);
    for (int i = 0; i < rank; i++) {
        field->dims[i] = dims[i];
        field->max_bytes *= (uint64_t)dims[i];
    }
    pipeline->row_bytes += field->max_bytes;
}

/* A field of one view's dims: fields of all views have one more in front. */
static void add_view_field(struct scheduler_pipeline *pipeline, const char *name, enum scheduler_dtype dtype,
                           int rank, const int64_t *dims)
{
    int64_t all[SCHEDULER_FIELD_DIMS] = {pipeline->views};
    int more = pipeline->views > 1;
    memcpy(all + more, dims, (size_t)rank * sizeof *dims);
    add_field(pipeline, name, dtype, rank + more, all);
}

static void derive(struct scheduler_pipeline *pipeline, int64_t side)
{
    add_view_field(pipeline, "image", SCHEDULER_U8, 3, (int64_t[]){side, side, 3});
    add_field(pipeline, "label", SCHEDULER_I64, 0, NULL);
    add_view_field(pipeline, "box", SCHEDULER_I32, 1, (int64_t[]){4});
    add_view_field(pipeline, "flip", SCHEDULER_U8, 0, (int64_t[]){0});
    if (pipeline->mask)
        add_view_field(pipeline, "mask", SCHEDULER_U8, 2, (int64_t[]){side, side});
    const struct scheduler_op *encoded =
        find_op(pipeline->sample, pipeline->sample_count, SCHEDULER_OP_ENCODED);
    if (encoded) {
        add_field(pipeline, "encoded", SCHEDULER_U8, 1, (int64_t[]){(int64_t)encoded->args[0]});
        struct scheduler_field *field = &pipeline->fields[pipeline->field_count - 1];
        field->ragged = true;
        field->dims[0] = -1;
    }
    pipeline->shuffle = pipeline->uses_randomness;
    pipeline->block_rows = BLOCK_ROWS_MAX;
    while (pipeline->block_rows > 1 && pipeline->block_rows * pipeline->row_bytes > BLOCK_BYTES_MAX)
        pipeline->block_rows /= 2;
}

enum base_code scheduler_pipeline_parse(const char *text, const char *const *options, int count,
                                        struct scheduler_pipeline *pipeline, struct base_error *error)
{
    int64_t side = 0;
    memset(pipeline, 0, sizeof *pipeline);
    size_t size = strnlen(text, SCHEDULER_PIPELINE_TEXT_BYTES + 1);
    if (size > SCHEDULER_PIPELINE_TEXT_BYTES)
        return base_error_set(error, BASE_TOO_LARGE, "pipeline: text is over %d bytes",
                              SCHEDULER_PIPELINE_TEXT_BYTES);
    enum base_code code = read_text(text, size, pipeline, error);
    for (int i = 0; !code && i < count; i++)
        code = apply_option(pipeline, options[i], error);
    if (!code)
        code = check_sample(pipeline, &side, error);
    if (!code)
        code = check_views(pipeline, error);
    if (!code)
        code = check_finish(pipeline, error);
    if (!code)
        code = check_batch(pipeline, error);
    if (!code)
        derive(pipeline, side);
    return code;
}

/* ---- writing ---- */

struct out {
    char *text;
    size_t size, used; /* used counts what did not fit, too */
};

static void put(struct out *out, const char *text)
{
    size_t size = strlen(text);
    if (out->used + size < out->size)
        memcpy(out->text + out->used, text, size + 1);
    out->used += size;
}

static void put_op(struct out *out, const struct scheduler_op *op)
{
    const struct scheduler_op_row *row = scheduler_ops_row(op->kind);
    char number[SCHEDULER_NUMBER_CHARS];
    put(out, " ");
    put(out, row->name);
    put(out, "@");
    scheduler_number_print(op->version, number);
    put(out, number);
    put(out, "(");
    for (int i = 0; row->args[i].key; i++) {
        put(out, i ? "," : "");
        put(out, row->args[i].key);
        put(out, "=");
        scheduler_number_print(op->args[i], number);
        put(out, row->args[i].type == SCHEDULER_ARG_WORD ? row->args[i].words[(int)op->args[i]] : number);
    }
    put(out, ")");
}

enum base_code scheduler_pipeline_print(const struct scheduler_pipeline *pipeline, const char *section,
                                        char *text, size_t text_bytes, struct base_error *error)
{
    struct out out = {text, text_bytes, 0};
    struct scheduler_pipeline copy = *pipeline;
    bool met = false;
    for (int s = 0; s < SCHEDULER_SECTIONS; s++) {
        int *count = NULL;
        struct scheduler_op *ops = section_ops(&copy, (enum scheduler_section)s, &count);
        if (section && strcmp(section, section_names[s]) != 0)
            continue;
        put(&out, met ? " | " : "");
        met = true;
        put(&out, section_names[s]);
        put(&out, ":");
        for (int i = 0; i < *count; i++)
            put_op(&out, &ops[i]);
    }
    if (!met)
        return base_error_set(error, BASE_INVALID, "pipeline: no section is named '%.*s'", SHOWN_MAX,
                              section);
    if (out.used >= out.size)
        return base_error_set(error, BASE_TOO_LARGE, "pipeline: canonical text has %zu bytes, room for %zu",
                              out.used, out.size);
    return BASE_OK;
}
