/* SPDX-License-Identifier: Apache-2.0 */
/* The sample section made ready to run: what compile.c fills and pipeline.c reads. */
#ifndef WORKER_PIPELINE_COMPILED_H
#define WORKER_PIPELINE_COMPILED_H

#include "base/buffer.h"
#include "base/philox.h"
#include "scheduler/pipeline.h"
#include "worker/decode/image.h"
#include "worker/pipeline/pipeline.h"
#include "worker/transform/crop.h"
#include "worker/transform/nearest.h"
#include "worker/transform/resize.h"

/* Decode [Resize] (RandomResizedCrop | CenterCrop) [RandomHorizontalFlip] [Views] [Mask] [Encoded]; absent ops are -1
 * (index) or 0. */
struct pipeline {
    struct scheduler_pipeline parsed;
    uint64_t max_pixels;
    enum transform_filter filter;
    enum transform_order order;
    int random_crop_op, flip_op; /* index in the sample section: the op's number in its draws */
    struct transform_crop_range range;
    int32_t resize_size, size; /* shorter side before the crop (0: not resized); the row's height and width */
    double flip_probability;
    int image_field, label_field, box_field, flip_field, encoded_field,
        mask_field; /* index in the row; -1: not there */
    uint64_t encoded_max_bytes;
    size_t view_bytes; /* of the field image, one view */
    uint8_t mask_fill;
};

#define PIPELINE_MEMBERS                                                                                     \
    (PIPELINE_SIBLINGS * SCHEDULER_PIPELINE_VIEWS) /* views made of one decode, at most */

struct pipeline_scratch {
    struct decode_image *image;
    struct transform_resize *resize[PIPELINE_MEMBERS];
    struct transform_nearest *nearest[PIPELINE_MEMBERS];
};

struct pipeline_geometry {
    struct transform_box box; /* RandomResizedCrop's, in the decoded image; else the whole image */
    struct transform_resize_plan plan;
};

/* Refuses (BASE_UNSUPPORTED) op orders that this build cannot run. */
enum base_code pipeline_compile(struct pipeline *pipeline, const struct scheduler_pipeline *parsed,
                                struct base_error *error);

/* As pipeline_scratch_create, with one level of vector units (tests compare them). */
enum base_code pipeline_scratch_create_kernel(struct pipeline_scratch **scratch,
                                              const struct transform_kernel *kernel,
                                              struct base_error *error);

#endif
