/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/transform/crop.h"

#include "base/math.h"
#include "base/philox.h"

#include <math.h>

enum { TRIES = 10 };

static int32_t clamp_side(int64_t side, int32_t most)
{
    return side < 1 ? 1 : side > most ? most : (int32_t)side;
}

static double between(double low, double high, double u)
{
    return low + (high - low) * u;
}

/* The centre crop that the ratio allows: torchvision's answer when ten tries fail. */
static struct transform_box fallback(const struct transform_crop_range *range, int32_t width, int32_t height)
{
    double ratio = (double)width / (double)height;
    struct transform_box box = {.width = width, .height = height};
    if (ratio < range->ratio_min)
        box.height = clamp_side(base_math_round(width / range->ratio_min), height);
    else if (ratio > range->ratio_max)
        box.width = clamp_side(base_math_round(height * range->ratio_max), width);
    box.top = (height - box.height) / 2;
    box.left = (width - box.width) / 2;
    return box;
}

struct transform_box transform_crop_random(const struct transform_crop_range *range, int32_t width,
                                           int32_t height, uint64_t sample_key, uint32_t op, uint32_t view)
{
    double area = (double)width * (double)height;
    for (uint32_t t = 0; t < TRIES; t++) {
        struct base_philox draw = base_philox_draw(sample_key, op, t, view);
        double target = area * between(range->scale_min, range->scale_max, base_philox_double(draw, 0));
        double ratio =
            base_math_exp(between(range->log_ratio_min, range->log_ratio_max, base_philox_double(draw, 1)));
        /* sqrt is exact to the last bit by IEEE 754. */
        double w = sqrt(target * ratio), h = sqrt(target / ratio);
        if (!(w < 1e9 && h < 1e9))
            continue;
        struct transform_box box = {.width = (int32_t)base_math_round(w),
                                    .height = (int32_t)base_math_round(h)};
        if (box.width < 1 || box.width > width || box.height < 1 || box.height > height)
            continue;
        uint64_t index = 2 * (uint64_t)view;
        box.top = (int32_t)base_philox_below(sample_key, op, index, (uint64_t)(height - box.height) + 1);
        box.left = (int32_t)base_philox_below(sample_key, op, index + 1, (uint64_t)(width - box.width) + 1);
        return box;
    }
    return fallback(range, width, height);
}

int32_t transform_crop_center(int32_t length, int32_t size)
{
    return size > length ? -((size - length) / 2) : (int32_t)base_math_round((length - size) / 2.0);
}

int64_t transform_crop_longer(int64_t size, int64_t longer, int64_t shorter)
{
    return (int64_t)((double)(size * longer) / (double)shorter);
}
