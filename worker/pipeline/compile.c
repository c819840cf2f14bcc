/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/pipeline/compiled.h"

#include "base/math.h"

#include <string.h>

static int field_index(const struct scheduler_pipeline *parsed, const char *name)
{
    for (int i = 0; i < parsed->field_count; i++)
        if (strcmp(parsed->fields[i].name, name) == 0)
            return i;
    return -1;
}

static void take_resize(struct pipeline *pipeline, double filter, double order)
{
    pipeline->filter = (enum transform_filter)(int)filter;
    pipeline->order = (enum transform_order)(int)order;
}

/* Argument order: the comments of enum scheduler_op_kind. False for an op in a place where this build cannot
 * run it. */
static bool take_op(struct pipeline *pipeline, const struct scheduler_op *op, int index)
{
    const double *args = op->args;
    bool sized = pipeline->size > 0;
    switch (op->kind) {
    case SCHEDULER_OP_DECODE:
        pipeline->max_pixels = (uint64_t)args[1];
        return index == 0;
    case SCHEDULER_OP_RANDOM_RESIZED_CROP:
        pipeline->range = (struct transform_crop_range){.scale_min = args[1],
                                                        .scale_max = args[2],
                                                        .ratio_min = args[3],
                                                        .ratio_max = args[4],
                                                        .log_ratio_min = base_math_log(args[3]),
                                                        .log_ratio_max = base_math_log(args[4])};
        take_resize(pipeline, args[5], args[6]);
        pipeline->size = (int32_t)args[0];
        pipeline->random_crop_op = index;
        return !sized && pipeline->resize_size == 0;
    case SCHEDULER_OP_RESIZE:
        take_resize(pipeline, args[1], args[2]);
        pipeline->resize_size = (int32_t)args[0];
        return !sized;
    case SCHEDULER_OP_CENTER_CROP:
        pipeline->size = (int32_t)args[0];
        return !sized;
    case SCHEDULER_OP_RANDOM_HORIZONTAL_FLIP:
        pipeline->flip_probability = args[0];
        pipeline->flip_op = index;
        return sized;
    case SCHEDULER_OP_VIEWS:
        return sized && (uint32_t)args[0] == pipeline->parsed.views;
    case SCHEDULER_OP_MASK:
        pipeline->mask_fill = (uint8_t)args[0];
        return sized;
    case SCHEDULER_OP_ENCODED:
        pipeline->encoded_max_bytes = (uint64_t)args[0];
        return true;
    default:
        return false;
    }
}

static enum base_code check_fields(struct pipeline *pipeline, struct base_error *error)
{
    const struct scheduler_pipeline *parsed = &pipeline->parsed;
    pipeline->image_field = field_index(parsed, "image");
    pipeline->label_field = field_index(parsed, "label");
    pipeline->box_field = field_index(parsed, "box");
    pipeline->flip_field = field_index(parsed, "flip");
    pipeline->encoded_field = field_index(parsed, "encoded");
    pipeline->mask_field = field_index(parsed, "mask");
    pipeline->view_bytes = 3 * (size_t)pipeline->size * (size_t)pipeline->size;
    uint64_t image_bytes = pipeline->view_bytes * parsed->views;
    if (pipeline->image_field < 0 || parsed->fields[pipeline->image_field].max_bytes != image_bytes)
        return base_error_set(error, BASE_INVALID, "pipeline: the field image must have %llu bytes",
                              (unsigned long long)image_bytes);
    if (pipeline->encoded_field >= 0) {
        uint64_t most = parsed->fields[pipeline->encoded_field].max_bytes;
        if (most < pipeline->encoded_max_bytes || pipeline->encoded_max_bytes == 0)
            pipeline->encoded_max_bytes = most;
    }
    return BASE_OK;
}

enum base_code pipeline_compile(struct pipeline *pipeline, const struct scheduler_pipeline *parsed,
                                struct base_error *error)
{
    *pipeline = (struct pipeline){.parsed = *parsed, .random_crop_op = -1, .flip_op = -1};
    for (int i = 0; i < parsed->sample_count; i++)
        if (parsed->sample[i].version != 1 || !take_op(pipeline, &parsed->sample[i], i))
            return base_error_set(error, BASE_UNSUPPORTED, "pipeline: sample op %d, %s@%u, cannot run there",
                                  i, scheduler_op_name(parsed->sample[i].kind), parsed->sample[i].version);
    if (pipeline->max_pixels == 0 || pipeline->size <= 0)
        return base_error_set(error, BASE_UNSUPPORTED,
                              "pipeline: the sample section must decode and end with a size");
    return check_fields(pipeline, error);
}
