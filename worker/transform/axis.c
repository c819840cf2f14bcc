/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/transform/axis.h"

#include "base/math.h"

#include <stdlib.h>
#include <string.h>

static double bilinear(double x)
{
    x = x < 0 ? -x : x;
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double bicubic(double x)
{
    const double a = -0.5;
    x = x < 0 ? -x : x;
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

static double sinc(double x)
{
    if (x == 0.0)
        return 1.0;
    x = x * 0x1.921fb54442d18p+1;
    return base_math_sin(x) / x;
}

static double lanczos(double x)
{
    return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
}

static const struct {
    double (*value)(double x);
    double support;
} filters[] = {
    [TRANSFORM_BILINEAR] = {bilinear, 1.0},
    [TRANSFORM_BICUBIC] = {bicubic, 2.0},
    [TRANSFORM_LANCZOS] = {lanczos, 3.0},
};

static size_t aligned(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* Lays the arrays out in one piece of memory. */
static bool reserve(struct transform_axis *axis, int32_t count, int32_t stride)
{
    size_t ints = aligned((size_t)count * sizeof(int32_t));
    size_t weights = aligned((size_t)count * stride * sizeof(int32_t));
    size_t halves = aligned((size_t)count * stride * sizeof(int16_t));
    size_t work = aligned((size_t)stride * sizeof(double));
    size_t need = 2 * ints + weights + 2 * halves + work;
    if (need > axis->capacity) {
        free(axis->memory);
        axis->memory = aligned_alloc(64, need);
        axis->capacity = axis->memory ? need : 0;
        if (!axis->memory)
            return false;
    }
    char *at = axis->memory;
    axis->start = (int32_t *)at;
    axis->taps = (int32_t *)(at += ints);
    axis->weight = (int32_t *)(at += ints);
    axis->upper = (int16_t *)(at += weights);
    axis->lower = (int16_t *)(at += halves);
    axis->work = (double *)(at + halves);
    axis->count = count;
    axis->stride = stride;
    return true;
}

static void round_weights(struct transform_axis *axis, int32_t i, int32_t taps, double sum)
{
    int32_t *weight = axis->weight + (size_t)i * axis->stride;
    int16_t *upper = axis->upper + (size_t)i * axis->stride, *lower = axis->lower + (size_t)i * axis->stride;
    for (int32_t t = 0; t < axis->stride; t++) {
        double w = t < taps ? axis->work[t] : 0;
        if (sum != 0.0)
            w /= sum;
        w *= 1 << TRANSFORM_WEIGHT_BITS;
        weight[t] = w < 0 ? (int32_t)(-0.5 + w) : (int32_t)(0.5 + w);
        upper[t] = (int16_t)(weight[t] >> 11);
        lower[t] = (int16_t)(weight[t] & 2047);
    }
}

enum base_code transform_axis_plan(struct transform_axis *axis, const struct transform_axis_plan *plan,
                                   struct base_error *error)
{
    double scale = (double)plan->input / plan->output;
    double filter_scale = scale < 1.0 ? 1.0 : scale;
    double support = filters[plan->filter].support * filter_scale, shrink = 1.0 / filter_scale;
    double (*value)(double) = filters[plan->filter].value;
    /* Pillow's ceil(support) * 2 + 1, rounded up to whole groups */
    int32_t taps_most = ((int32_t)support + 1) * 2 + 1;
    int32_t stride = (taps_most + TRANSFORM_TAP_GROUP - 1) / TRANSFORM_TAP_GROUP * TRANSFORM_TAP_GROUP;
    if (!reserve(axis, plan->count, stride))
        return base_error_set(error, BASE_NO_MEMORY, "resize weights: out of memory");
    axis->low = plan->input;
    axis->high = 0;
    for (int32_t i = 0; i < plan->count; i++) {
        int32_t output = plan->first + (plan->reverse ? plan->count - 1 - i : i);
        double center = 0.0 + (output + 0.5) * scale;
        int32_t begin = (int32_t)(center - support + 0.5), end = (int32_t)(center + support + 0.5);
        begin = begin < 0 ? 0 : begin;
        end = end > plan->input ? plan->input : end;
        double sum = 0.0;
        for (int32_t x = 0; x < end - begin; x++)
            sum += axis->work[x] = value((x + begin - center + 0.5) * shrink);
        round_weights(axis, i, end - begin, sum);
        axis->start[i] = begin;
        axis->taps[i] = end - begin;
        axis->low = begin < axis->low ? begin : axis->low;
        axis->high = end > axis->high ? end : axis->high;
    }
    for (int32_t i = 0; i < plan->count; i++)
        axis->start[i] -= axis->low;
    return BASE_OK;
}

void transform_axis_fini(struct transform_axis *axis)
{
    free(axis->memory);
    free(axis->table);
    memset(axis, 0, sizeof *axis);
}
