/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 1. known bad, or longer than its field allows: refused, nothing decoded
 * 2. header: format, size, pixel cap
 * 3. geometry: the ops become one plan (crop, resize, window, flip), random ones by draws of the sample's key
 * 4. rows stream from the decoder through the resize into the row; the region alone when the item is known to
 * be good
 * 5. the verdict: what the decoder said; label, box and flip beside the image
 */
#include "worker/pipeline/pipeline.h"

#include "worker/pipeline/compiled.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)TRANSFORM_BILINEAR == (int)SCHEDULER_BILINEAR &&
                   (int)TRANSFORM_BICUBIC == (int)SCHEDULER_BICUBIC &&
                   (int)TRANSFORM_LANCZOS == (int)SCHEDULER_LANCZOS,
               "filters are the same numbers");
_Static_assert((int)TRANSFORM_ORDER_CLASSIC == (int)SCHEDULER_ORDER_CLASSIC &&
                   (int)TRANSFORM_ORDER_PILLOW13 == (int)SCHEDULER_ORDER_PILLOW13,
               "resize orders are the same numbers");

struct pipeline_scratch {
    struct decode_image *image;
    struct transform_resize *resize;
};

bool pipeline_verdict_is_bad(enum pipeline_verdict verdict)
{
    return verdict >= PIPELINE_BAD_EMPTY;
}

/* Bad for every pipeline. Caps and field sizes are this one's own: cheap to judge anew, and wrong to take from another. */
bool pipeline_verdict_is_final(enum pipeline_verdict verdict)
{
    return pipeline_verdict_is_bad(verdict) && verdict != PIPELINE_BAD_PIXELS &&
           verdict != PIPELINE_BAD_ROW_BYTES;
}

const char *pipeline_verdict_name(enum pipeline_verdict verdict)
{
    switch (verdict) {
    case PIPELINE_UNKNOWN:
        return "unknown";
    case PIPELINE_GOOD:
        return "good";
    case PIPELINE_WARNED:
        return "warned";
    case PIPELINE_BAD_EMPTY:
        return "bad_empty";
    case PIPELINE_BAD_FORMAT:
        return "bad_format";
    case PIPELINE_BAD_UNSUPPORTED:
        return "bad_unsupported";
    case PIPELINE_BAD_PIXELS:
        return "bad_pixels";
    case PIPELINE_BAD_HEADER:
        return "bad_header";
    case PIPELINE_BAD_DATA:
        return "bad_data";
    case PIPELINE_BAD_TRUNCATED:
        return "bad_truncated";
    case PIPELINE_BAD_ROW_BYTES:
        return "bad_row_bytes";
    }
    return "unknown";
}

static enum pipeline_verdict verdict_of(enum decode_cause cause)
{
    switch (cause) {
    case DECODE_EMPTY:
        return PIPELINE_BAD_EMPTY;
    case DECODE_FORMAT:
        return PIPELINE_BAD_FORMAT;
    case DECODE_UNSUPPORTED:
        return PIPELINE_BAD_UNSUPPORTED;
    case DECODE_PIXELS:
        return PIPELINE_BAD_PIXELS;
    case DECODE_HEADER:
        return PIPELINE_BAD_HEADER;
    case DECODE_TRUNCATED:
        return PIPELINE_BAD_TRUNCATED;
    case DECODE_FINE:
    case DECODE_DATA:
        break;
    }
    return PIPELINE_BAD_DATA;
}

enum base_code pipeline_create(struct pipeline **pipeline, const struct scheduler_pipeline *parsed,
                               struct base_error *error)
{
    struct pipeline *made = calloc(1, sizeof *made);
    if (!made)
        return base_error_set(error, BASE_NO_MEMORY, "pipeline: out of memory");
    enum base_code code = pipeline_compile(made, parsed, error);
    if (code != BASE_OK) {
        free(made);
        return code;
    }
    *pipeline = made;
    return BASE_OK;
}

void pipeline_destroy(struct pipeline *pipeline)
{
    free(pipeline);
}

enum base_code pipeline_scratch_create_kernel(struct pipeline_scratch **scratch,
                                              const struct transform_kernel *kernel, struct base_error *error)
{
    struct pipeline_scratch *made = calloc(1, sizeof *made);
    if (!made)
        return base_error_set(error, BASE_NO_MEMORY, "prep scratch: out of memory");
    enum base_code code = decode_image_create(&made->image, error);
    if (code == BASE_OK)
        code = transform_resize_create(&made->resize, kernel, error);
    if (code != BASE_OK) {
        pipeline_scratch_destroy(made);
        return code;
    }
    *scratch = made;
    return BASE_OK;
}

enum base_code pipeline_scratch_create(struct pipeline_scratch **scratch, struct base_error *error)
{
    return pipeline_scratch_create_kernel(scratch, NULL, error);
}

void pipeline_scratch_destroy(struct pipeline_scratch *scratch)
{
    if (!scratch)
        return;
    decode_image_destroy(scratch->image);
    transform_resize_destroy(scratch->resize);
    free(scratch);
}

/* The ops of this sample as one plan. BASE_BAD_SAMPLE only if a resized side passes 31 bits. */
static enum base_code draw_geometry(const struct pipeline *pipeline, const struct decode_info *info,
                                    uint64_t sample_key, struct pipeline_geometry *geometry,
                                    struct base_error *error)
{
    struct transform_resize_plan *plan = &geometry->plan;
    int32_t width = (int32_t)info->width, height = (int32_t)info->height;
    *geometry = (struct pipeline_geometry){.box = {.height = height, .width = width}};
    plan->filter = pipeline->filter;
    plan->order = pipeline->order;
    if (pipeline->random_crop_op >= 0)
        geometry->box = transform_crop_random(&pipeline->range, width, height, sample_key,
                                              (uint32_t)pipeline->random_crop_op);
    int64_t out_width = plan->input_width = geometry->box.width;
    int64_t out_height = plan->input_height = geometry->box.height;
    if (pipeline->random_crop_op >= 0) {
        out_width = out_height = pipeline->size;
    } else if (pipeline->resize_size > 0) {
        bool wide = out_width > out_height;
        int64_t longer = transform_crop_longer(pipeline->resize_size, wide ? out_width : out_height,
                                               wide ? out_height : out_width);
        out_width = wide ? longer : pipeline->resize_size;
        out_height = wide ? pipeline->resize_size : longer;
    }
    if (out_width > INT32_MAX || out_height > INT32_MAX)
        return base_error_set(error, BASE_BAD_SAMPLE, "%s of %d x %d cannot be resized: too narrow",
                              info->format, width, height);
    plan->output_width = (int32_t)out_width;
    plan->output_height = (int32_t)out_height;
    plan->window = (struct transform_box){.top = transform_crop_center(plan->output_height, pipeline->size),
                                          .left = transform_crop_center(plan->output_width, pipeline->size),
                                          .height = pipeline->size,
                                          .width = pipeline->size};
    if (pipeline->flip_op >= 0) {
        struct base_philox draw = base_philox_draw(sample_key, (uint32_t)pipeline->flip_op, 0, 0);
        plan->flip = base_philox_double(draw, 0) < pipeline->flip_probability;
    }
    return BASE_OK;
}

/* Streams the image's rows through the resize. */
static enum base_code stream_rows(struct pipeline_scratch *scratch, const struct pipeline_geometry *geometry,
                                  bool whole, uint8_t *out, struct base_error *error)
{
    struct transform_resize_needs needs;
    enum base_code code = transform_resize_begin(scratch->resize, &geometry->plan, out, &needs, error);
    if (code != BASE_OK)
        return code;
    struct decode_region region = {.left = (uint32_t)(geometry->box.left + needs.left),
                                   .right = (uint32_t)(geometry->box.left + needs.right),
                                   .top = (uint32_t)(geometry->box.top + needs.top),
                                   .bottom = (uint32_t)(geometry->box.top + needs.bottom),
                                   .whole = whole};
    code = decode_image_begin(scratch->image, &region, error);
    struct decode_band band = {0};
    while (code == BASE_OK) {
        code = decode_image_read(scratch->image, &band, error);
        if (code != BASE_OK || band.rows == 0)
            break;
        transform_resize_feed(scratch->resize, band.pixels, band.pitch, (int)band.rows);
    }
    return code;
}

struct attempt {
    const struct pipeline_input *input;
    bool whole;
    uint8_t *out;
    struct pipeline_geometry *geometry;
    bool warned;
    enum pipeline_verdict bad; /* with BASE_BAD_SAMPLE */
};

static enum base_code decode_and_resize(const struct pipeline *pipeline, struct pipeline_scratch *scratch,
                                        struct attempt *attempt, struct base_error *error)
{
    struct decode_info info;
    const struct pipeline_input *input = attempt->input;
    attempt->bad = PIPELINE_UNKNOWN;
    enum base_code code =
        decode_image_open(scratch->image, input->bytes, input->size, pipeline->max_pixels, &info, error);
    if (code != BASE_OK)
        goto cleanup;
    code = draw_geometry(pipeline, &info, input->sample_key, attempt->geometry, error);
    if (code != BASE_OK) {
        attempt->bad = PIPELINE_BAD_PIXELS;
        goto cleanup;
    }
    code = stream_rows(scratch, attempt->geometry, attempt->whole, attempt->out, error);
    if (code == BASE_OK)
        code = decode_image_end(scratch->image, &attempt->warned, error);
cleanup:
    if (code == BASE_BAD_SAMPLE && attempt->bad == PIPELINE_UNKNOWN)
        attempt->bad = verdict_of(decode_image_cause(scratch->image));
    decode_image_close(scratch->image);
    return code;
}

static void put_draws(const struct pipeline *pipeline, const struct pipeline_input *input,
                      const struct pipeline_geometry *geometry, struct pipeline_row *row)
{
    const struct transform_box *box = &geometry->box;
    if (pipeline->label_field >= 0)
        base_set_u64(row->field[pipeline->label_field], (uint64_t)input->label);
    if (pipeline->flip_field >= 0)
        row->field[pipeline->flip_field][0] = geometry->plan.flip;
    if (pipeline->box_field >= 0) {
        uint8_t *at = row->field[pipeline->box_field];
        base_set_u32(at, (uint32_t)box->top);
        base_set_u32(at + 4, (uint32_t)box->left);
        base_set_u32(at + 8, (uint32_t)box->height);
        base_set_u32(at + 12, (uint32_t)box->width);
    }
    if (pipeline->encoded_field >= 0) {
        memcpy(row->field[pipeline->encoded_field], input->bytes, input->size);
        row->ragged_length[pipeline->encoded_field] = (uint32_t)input->size;
    }
}

enum base_code pipeline_run(const struct pipeline *pipeline, struct pipeline_scratch *scratch,
                            const struct pipeline_input *input, struct pipeline_row *row,
                            enum pipeline_verdict *verdict, struct base_error *error)
{
    if (pipeline_verdict_is_final(input->known)) {
        *verdict = input->known;
        return base_error_set(error, BASE_BAD_SAMPLE, "%s, as found before",
                              pipeline_verdict_name(input->known));
    }
    if (pipeline->encoded_field >= 0 && input->size > pipeline->encoded_max_bytes) {
        *verdict = PIPELINE_BAD_ROW_BYTES;
        return base_error_set(error, BASE_BAD_SAMPLE, "%zu bytes are over the field's largest of %" PRIu64,
                              input->size, pipeline->encoded_max_bytes);
    }
    struct pipeline_geometry geometry;
    struct attempt attempt = {.input = input,
                              .whole = input->known != PIPELINE_GOOD,
                              .out = row->field[pipeline->image_field],
                              .geometry = &geometry};
    enum base_code code = decode_and_resize(pipeline, scratch, &attempt, error);
    /* Bytes that were good and are not: they changed, or the verdict is another file's. Judge them anew. */
    if (!attempt.whole && (code == BASE_BAD_SAMPLE || (code == BASE_OK && attempt.warned))) {
        attempt.whole = true;
        code = decode_and_resize(pipeline, scratch, &attempt, error);
    }
    *verdict = code == BASE_BAD_SAMPLE ? attempt.bad
               : code != BASE_OK       ? PIPELINE_UNKNOWN
               : attempt.warned        ? PIPELINE_WARNED
                                       : PIPELINE_GOOD;
    if (code == BASE_OK)
        put_draws(pipeline, input, &geometry, row);
    return code;
}
