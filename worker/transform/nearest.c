/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/transform/nearest.h"

#include <stdlib.h>
#include <string.h>

struct transform_nearest {
    int32_t *from; /* for each row of the window, then for each column: the crop's; -1: outside */
    size_t capacity;
    int32_t height, width, next; /* next: the first row of the window that is not made */
    uint8_t *out;
};

enum base_code transform_nearest_create(struct transform_nearest **nearest, struct base_error *error)
{
    *nearest = calloc(1, sizeof **nearest);
    return *nearest ? BASE_OK : base_error_set(error, BASE_NO_MEMORY, "resize of masks: out of memory");
}

void transform_nearest_destroy(struct transform_nearest *nearest)
{
    if (!nearest)
        return;
    free(nearest->from);
    free(nearest);
}

/* Outputs first .. first + count - 1 of `output`. Positions are summed up as Pillow does (src/libImaging/Geometry.c,
 * ImagingScaleAffine): a product would be another pixel now and then. */
static void choose(int32_t input, int32_t output, int32_t first, int32_t count, int32_t *from)
{
    double step = (double)input / output, at = step * 0.5;
    for (int32_t i = 0; i < count; i++)
        from[i] = -1;
    for (int32_t i = 0; i < output && i - first < count; i++, at += step)
        if (i >= first && at < input)
            from[i - first] = (int32_t)at;
}

static void reverse(int32_t *values, int32_t count)
{
    for (int32_t i = 0; i < count / 2; i++) {
        int32_t value = values[i];
        values[i] = values[count - 1 - i];
        values[count - 1 - i] = value;
    }
}

enum base_code transform_nearest_begin(struct transform_nearest *nearest,
                                       const struct transform_resize_plan *plan, uint8_t fill, uint8_t *out,
                                       struct base_error *error)
{
    const struct transform_box *window = &plan->window;
    size_t need = (size_t)window->height + (size_t)window->width;
    if (nearest->capacity < need) {
        free(nearest->from);
        nearest->from = malloc(need * sizeof *nearest->from);
        nearest->capacity = nearest->from ? need : 0;
    }
    if (!nearest->from)
        return base_error_set(error, BASE_NO_MEMORY, "resize of a mask: out of memory");
    int32_t *columns = nearest->from + window->height;
    choose(plan->input_height, plan->output_height, window->top, window->height, nearest->from);
    choose(plan->input_width, plan->output_width, window->left, window->width, columns);
    if (plan->flip)
        reverse(columns, window->width);
    nearest->height = window->height;
    nearest->width = window->width;
    nearest->next = 0;
    nearest->out = out;
    memset(out, fill, (size_t)window->height * (size_t)window->width);
    return BASE_OK;
}

void transform_nearest_feed(struct transform_nearest *nearest, const uint8_t *pixels, size_t pitch,
                            int32_t top, int32_t rows)
{
    const int32_t *columns = nearest->from + nearest->height;
    for (; nearest->next < nearest->height && nearest->from[nearest->next] < top + rows; nearest->next++) {
        int32_t row = nearest->from[nearest->next] - top;
        if (row < 0)
            continue;
        const uint8_t *from = pixels + (size_t)row * pitch;
        uint8_t *to = nearest->out + (size_t)nearest->next * (size_t)nearest->width;
        for (int32_t x = 0; x < nearest->width; x++)
            if (columns[x] >= 0)
                to[x] = from[columns[x]];
    }
}
