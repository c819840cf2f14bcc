/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/transform/resize.h"

#include <stdlib.h>
#include <string.h>

enum {
    SLACK_BYTES = 64,
    SLACK_ROWS = 3,
    KEPT_BYTES =
        16 << 20, /* of scratch, from image to image: one giant must not stay in every thread's memory */
};

struct transform_resize {
    const struct transform_kernel *kernel;
    struct transform_axis horizontal, vertical;
    bool vertical_first;
    /* Between the passes: rows of the output's width, or (vertical first) the source rows as they came. */
    uint8_t *kept;
    size_t kept_capacity, kept_pitch, kept_bytes;
    uint8_t *line; /* vertical first: one row between the passes */
    size_t line_capacity;
    int32_t fed, made; /* rows fed, output rows made */
    uint8_t *out;      /* first pixel that is not padding */
    size_t out_pitch;
};

enum base_code transform_resize_create(struct transform_resize **resize,
                                       const struct transform_kernel *kernel, struct base_error *error)
{
    struct transform_resize *made = calloc(1, sizeof *made);
    if (!made)
        return base_error_set(error, BASE_NO_MEMORY, "resize: out of memory");
    made->kernel = kernel ? kernel : transform_kernel_best();
    *resize = made;
    return BASE_OK;
}

void transform_resize_destroy(struct transform_resize *resize)
{
    if (!resize)
        return;
    transform_axis_fini(&resize->horizontal);
    transform_axis_fini(&resize->vertical);
    free(resize->kept);
    free(resize->line);
    free(resize);
}

static bool reserve(uint8_t **bytes, size_t *capacity, size_t need)
{
    bool rare = *capacity > KEPT_BYTES && need <= KEPT_BYTES;
    if (need <= *capacity && !rare)
        return true;
    free(*bytes);
    *bytes = calloc(1, need); /* zeroed, for the bytes that kernels read with weight zero */
    *capacity = *bytes ? need : 0;
    return *bytes;
}

/* Pillow 13 takes the vertical pass first when the height shrinks by more than twice what the width does. */
static bool is_vertical_first(const struct transform_resize_plan *plan)
{
    int64_t rows = (int64_t)plan->input_height - plan->output_height;
    int64_t columns = (int64_t)plan->input_width - plan->output_width;
    return plan->order == TRANSFORM_ORDER_PILLOW13 && rows > 0 && rows > 2 * columns;
}

/* The part of the window [at, at + size) inside [0, length). */
static void clip(int32_t at, int32_t size, int32_t length, int32_t *first, int32_t *count)
{
    int64_t end = (int64_t)at + size;
    *first = at < 0 ? 0 : at;
    end = end > length ? length : end;
    *count = end > *first ? (int32_t)(end - *first) : 0;
}

static enum base_code plan_axes(struct transform_resize *resize, const struct transform_resize_plan *plan,
                                struct base_error *error)
{
    struct transform_axis_plan x = {.filter = plan->filter,
                                    .input = plan->input_width,
                                    .output = plan->output_width,
                                    .reverse = plan->flip};
    struct transform_axis_plan y = {
        .filter = plan->filter, .input = plan->input_height, .output = plan->output_height};
    clip(plan->window.left, plan->window.width, plan->output_width, &x.first, &x.count);
    clip(plan->window.top, plan->window.height, plan->output_height, &y.first, &y.count);
    enum base_code code = transform_axis_plan(&resize->horizontal, &x, error);
    if (code == BASE_OK)
        code = transform_axis_plan(&resize->vertical, &y, error);
    if (code != BASE_OK)
        return code;
    int32_t pad_before = x.first - plan->window.left;
    int32_t pad_after = plan->window.width - x.count - pad_before;
    resize->out += (size_t)(y.first - plan->window.top) * resize->out_pitch;
    resize->out += 3 * (size_t)(plan->flip ? pad_after : pad_before);
    return BASE_OK;
}

enum base_code transform_resize_begin(struct transform_resize *resize,
                                      const struct transform_resize_plan *plan, uint8_t *out,
                                      struct transform_resize_needs *needs, struct base_error *error)
{
    resize->out = out;
    resize->out_pitch = 3 * (size_t)plan->window.width;
    resize->vertical_first = is_vertical_first(plan);
    resize->fed = resize->made = 0;
    enum base_code code = plan_axes(resize, plan, error);
    if (code != BASE_OK)
        return code;
    const struct transform_axis *x = &resize->horizontal, *y = &resize->vertical;
    if (x->count < plan->window.width || y->count < plan->window.height)
        memset(out, 0, resize->out_pitch * plan->window.height);
    *needs = (struct transform_resize_needs){0};
    if (x->count == 0 || y->count == 0)
        return BASE_OK;
    *needs = (struct transform_resize_needs){y->low, y->high, x->low, x->high};
    resize->kept_bytes = 3 * (size_t)(resize->vertical_first ? x->high - x->low : x->count);
    resize->kept_pitch = (resize->kept_bytes + SLACK_BYTES) & ~(size_t)(SLACK_BYTES - 1);
    size_t rows = (size_t)(y->high - y->low) + SLACK_ROWS;
    if ((resize->kernel->prepare && !resize->kernel->prepare(&resize->horizontal)) ||
        !reserve(&resize->kept, &resize->kept_capacity, rows * resize->kept_pitch + SLACK_BYTES) ||
        !reserve(&resize->line, &resize->line_capacity, resize->kept_pitch + SLACK_BYTES))
        return base_error_set(error, BASE_NO_MEMORY, "resize of %d x %d: out of memory", plan->input_width,
                              plan->input_height);
    return BASE_OK;
}

/* Makes the output rows whose sources are all here. */
static void make_rows(struct transform_resize *resize)
{
    const struct transform_axis *y = &resize->vertical;
    struct transform_kernel_rows rows = {
        .from = resize->kept, .from_pitch = resize->kept_pitch, .to_pitch = resize->out_pitch, .rows = 1};
    for (; resize->made < y->count && y->start[resize->made] + y->taps[resize->made] <= resize->fed;
         resize->made++) {
        uint8_t *out = resize->out + (size_t)resize->made * resize->out_pitch;
        rows.to = resize->vertical_first ? resize->line : out;
        resize->kernel->vertical(y, resize->made, &rows, resize->kept_bytes);
        if (resize->vertical_first)
            resize->kernel->horizontal(
                &resize->horizontal,
                &(struct transform_kernel_rows){
                    .from = resize->line, .to = out, .to_pitch = resize->out_pitch, .rows = 1});
    }
}

void transform_resize_feed(struct transform_resize *resize, const uint8_t *pixels, size_t pitch, int rows)
{
    uint8_t *kept = resize->kept + (size_t)resize->fed * resize->kept_pitch;
    if (resize->vertical_first) {
        for (int i = 0; i < rows; i++)
            memcpy(kept + i * resize->kept_pitch, pixels + i * pitch, resize->kept_bytes);
    } else {
        struct transform_kernel_rows all = {
            .from = pixels, .from_pitch = pitch, .to = kept, .to_pitch = resize->kept_pitch, .rows = rows};
        resize->kernel->horizontal(&resize->horizontal, &all);
    }
    resize->fed += rows;
    make_rows(resize);
}
