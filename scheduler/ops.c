/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/ops.h"

#include "scheduler/number.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SIDE_MAX 4096
#define ENCODED_MAX_BYTES 67108864

static const char *const exif_words[] = {"ignore", NULL};
static const char *const filter_words[] = {"bilinear", "bicubic", "lanczos",
                                           NULL}; /* enum scheduler_filter */
static const char *const resize_order_words[] = {"classic", "pillow13",
                                                 NULL}; /* enum scheduler_resize_order */
static const char *const dtype_words[] = {"uint8", "float32", "float16", "bfloat16", NULL};
static const char *const layout_words[] = {"NHWC", "NCHW", NULL};

#define INTEGER(key, least, most, standard)                                                                  \
    {                                                                                                        \
        key, SCHEDULER_ARG_INTEGER, false, least, most, standard, NULL                                       \
    }
#define NEEDED(key, least, most, standard)                                                                   \
    {                                                                                                        \
        key, SCHEDULER_ARG_INTEGER, true, least, most, standard, NULL                                        \
    }
#define REAL(key, least, most, standard)                                                                     \
    {                                                                                                        \
        key, SCHEDULER_ARG_REAL, false, least, most, standard, NULL                                          \
    }
#define WORD(key, words, standard)                                                                           \
    {                                                                                                        \
        key, SCHEDULER_ARG_WORD, false, 0, 0, standard, words                                                \
    }
#define END                                                                                                  \
    {                                                                                                        \
        NULL, SCHEDULER_ARG_WORD, false, 0, 0, 0, NULL                                                       \
    }

static const struct scheduler_arg_row decode_args[] = {WORD("exif", exif_words, 0),
                                                       INTEGER("max_pixels", 1, 2147483647, 134217728), END};
static const struct scheduler_arg_row crop_args[] = {NEEDED("size", 1, SIDE_MAX, 224),
                                                     REAL("scale_min", 1e-6, 1, 0.08),
                                                     REAL("scale_max", 1e-6, 1, 1),
                                                     REAL("ratio_min", 0.01, 100, 3. / 4),
                                                     REAL("ratio_max", 0.01, 100, 4. / 3),
                                                     WORD("filter", filter_words, 0),
                                                     WORD("resize_order", resize_order_words, 0),
                                                     END};
static const struct scheduler_arg_row resize_args[] = {NEEDED("size", 1, SIDE_MAX, 256),
                                                       WORD("filter", filter_words, 0),
                                                       WORD("resize_order", resize_order_words, 0), END};
static const struct scheduler_arg_row center_args[] = {NEEDED("size", 1, SIDE_MAX, 224), END};
static const struct scheduler_arg_row flip_args[] = {REAL("p", 0, 1, 0.5), END};
static const struct scheduler_arg_row views_args[] = {NEEDED("count", 2, SCHEDULER_PIPELINE_VIEWS, 2), END};
static const struct scheduler_arg_row mask_args[] = {INTEGER("fill", 0, 255, 0), END};
static const struct scheduler_arg_row encoded_args[] = {NEEDED("max_bytes", 1, ENCODED_MAX_BYTES, 1048576),
                                                        END};
static const struct scheduler_arg_row dtype_args[] = {WORD("dtype", dtype_words, 1), END};
static const struct scheduler_arg_row normalize_args[] = {REAL("mean0", -1000, 1000, 0.485),
                                                          REAL("mean1", -1000, 1000, 0.456),
                                                          REAL("mean2", -1000, 1000, 0.406),
                                                          REAL("std0", 1e-6, 1000, 0.229),
                                                          REAL("std1", 1e-6, 1000, 0.224),
                                                          REAL("std2", 1e-6, 1000, 0.225),
                                                          END};
static const struct scheduler_arg_row layout_args[] = {WORD("order", layout_words, 1), END};
static const struct scheduler_arg_row erasing_args[] = {REAL("p", 0, 1, 0.5),
                                                        REAL("scale_min", 1e-6, 1, 0.02),
                                                        REAL("scale_max", 1e-6, 1, 0.33),
                                                        REAL("ratio_min", 0.01, 100, 0.3),
                                                        REAL("ratio_max", 0.01, 100, 3.3),
                                                        END};
static const struct scheduler_arg_row mix_args[] = {REAL("p", 0, 1, 1), REAL("alpha", 1, 1, 1), END};

static const struct scheduler_op_row rows[SCHEDULER_OP_KINDS] = {
    [SCHEDULER_OP_DECODE] = {"Decode", 1, SCHEDULER_SAMPLE, 1, false, decode_args},
    [SCHEDULER_OP_RESIZE] = {"Resize", 1, SCHEDULER_SAMPLE, 2, false, resize_args},
    [SCHEDULER_OP_RANDOM_RESIZED_CROP] = {"RandomResizedCrop", 1, SCHEDULER_SAMPLE, 3, true, crop_args},
    [SCHEDULER_OP_CENTER_CROP] = {"CenterCrop", 1, SCHEDULER_SAMPLE, 3, false, center_args},
    [SCHEDULER_OP_RANDOM_HORIZONTAL_FLIP] = {"RandomHorizontalFlip", 1, SCHEDULER_SAMPLE, 4, true, flip_args},
    [SCHEDULER_OP_VIEWS] = {"Views", 1, SCHEDULER_SAMPLE, 5, false, views_args},
    [SCHEDULER_OP_MASK] = {"Mask", 1, SCHEDULER_SAMPLE, 6, false, mask_args},
    [SCHEDULER_OP_ENCODED] = {"Encoded", 1, SCHEDULER_SAMPLE, 7, false, encoded_args},
    [SCHEDULER_OP_TO_DTYPE] = {"ToDtype", 1, SCHEDULER_FINISH, 1, false, dtype_args},
    [SCHEDULER_OP_NORMALIZE] = {"Normalize", 1, SCHEDULER_FINISH, 2, false, normalize_args},
    [SCHEDULER_OP_LAYOUT] = {"Layout", 1, SCHEDULER_FINISH, 3, false, layout_args},
    [SCHEDULER_OP_RANDOM_ERASING] = {"RandomErasing", 1, SCHEDULER_BATCH, 1, true, erasing_args},
    [SCHEDULER_OP_MIX_UP] = {"MixUp", 1, SCHEDULER_BATCH, 2, true, mix_args},
    [SCHEDULER_OP_CUT_MIX] = {"CutMix", 1, SCHEDULER_BATCH, 3, true, mix_args},
};

static bool same(const char *name, const char *text, size_t size)
{
    return strlen(name) == size && memcmp(name, text, size) == 0;
}

const struct scheduler_op_row *scheduler_ops_row(enum scheduler_op_kind kind)
{
    return &rows[kind];
}

enum scheduler_op_kind scheduler_ops_find(const char *name, size_t size)
{
    int kind = 0;
    while (kind < SCHEDULER_OP_KINDS && !same(rows[kind].name, name, size))
        kind++;
    return (enum scheduler_op_kind)kind;
}

int scheduler_ops_find_arg(enum scheduler_op_kind kind, const char *key, size_t size)
{
    for (int i = 0; rows[kind].args[i].key; i++)
        if (same(rows[kind].args[i].key, key, size))
            return i;
    return -1;
}

static void append(char *text, size_t size, const char *word)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used ? ", " : "", word);
}

const char *scheduler_ops_names(enum scheduler_section section, char *text, size_t size)
{
    text[0] = 0;
    for (int kind = 0; kind < SCHEDULER_OP_KINDS; kind++)
        if (rows[kind].section == section)
            append(text, size, rows[kind].name);
    return text;
}

const char *scheduler_ops_args(enum scheduler_op_kind kind, char *text, size_t size)
{
    text[0] = 0;
    for (int i = 0; rows[kind].args[i].key; i++)
        append(text, size, rows[kind].args[i].key);
    return text[0] ? text : "none";
}

void scheduler_ops_init(struct scheduler_op *op, enum scheduler_op_kind kind)
{
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->version = rows[kind].version;
    for (int i = 0; rows[kind].args[i].key; i++)
        op->args[i] = rows[kind].args[i].standard;
}

static enum base_code set_word(struct scheduler_op *op, int arg, const char *value, size_t size,
                               struct base_error *error)
{
    const struct scheduler_arg_row *row = &rows[op->kind].args[arg];
    for (int i = 0; row->words[i]; i++) {
        if (same(row->words[i], value, size)) {
            op->args[arg] = i;
            return BASE_OK;
        }
    }
    char known[128] = "";
    for (int i = 0; row->words[i]; i++)
        append(known, sizeof known, row->words[i]);
    return base_error_set(error, BASE_INVALID, "%s: %s=%.*s: must be one of %s", rows[op->kind].name,
                          row->key, (int)(size > 40 ? 40 : size), value, known);
}

enum base_code scheduler_ops_set(struct scheduler_op *op, int arg, const char *value, size_t size,
                                 struct base_error *error)
{
    const struct scheduler_arg_row *row = &rows[op->kind].args[arg];
    int shown = (int)(size > 40 ? 40 : size);
    double number = 0;
    if (row->type == SCHEDULER_ARG_WORD)
        return set_word(op, arg, value, size, error);
    if (!scheduler_number_parse(value, size, &number))
        return base_error_set(error, BASE_INVALID, "%s: %s=%.*s: not a number", rows[op->kind].name, row->key,
                              shown, value);
    if (row->type == SCHEDULER_ARG_INTEGER && number != floor(number))
        return base_error_set(error, BASE_INVALID, "%s: %s=%.*s: must be a whole number", rows[op->kind].name,
                              row->key, shown, value);
    if (number < row->least || number > row->most) {
        char least[SCHEDULER_NUMBER_CHARS], most[SCHEDULER_NUMBER_CHARS];
        scheduler_number_print(row->least, least);
        scheduler_number_print(row->most, most);
        return base_error_set(error, BASE_INVALID, "%s: %s=%.*s: must be %s to %s", rows[op->kind].name,
                              row->key, shown, value, least, most);
    }
    op->args[arg] = number == 0 ? 0 : number; /* no -0 */
    return BASE_OK;
}

enum base_code scheduler_ops_check(const struct scheduler_op *op, struct base_error *error)
{
    if (op->kind != SCHEDULER_OP_RANDOM_RESIZED_CROP && op->kind != SCHEDULER_OP_RANDOM_ERASING)
        return BASE_OK;
    if (scheduler_op_arg(op, "scale_min") > scheduler_op_arg(op, "scale_max"))
        return base_error_set(error, BASE_INVALID, "%s: scale_min is over scale_max", rows[op->kind].name);
    if (scheduler_op_arg(op, "ratio_min") > scheduler_op_arg(op, "ratio_max"))
        return base_error_set(error, BASE_INVALID, "%s: ratio_min is over ratio_max", rows[op->kind].name);
    return BASE_OK;
}

double scheduler_op_arg(const struct scheduler_op *op, const char *key)
{
    int arg = scheduler_ops_find_arg(op->kind, key, strlen(key));
    return arg < 0 ? NAN : op->args[arg];
}

const char *scheduler_op_name(enum scheduler_op_kind kind)
{
    return (unsigned)kind < SCHEDULER_OP_KINDS ? rows[kind].name : "unknown";
}
