/* SPDX-License-Identifier: Apache-2.0 */
/* Where to cut: RandomResizedCrop's box and CenterCrop's window, by torchvision's rules. Pure. */
#ifndef WORKER_TRANSFORM_CROP_H
#define WORKER_TRANSFORM_CROP_H

#include <stdint.h>

struct transform_box {
    int32_t top, left, height, width;
};

struct transform_crop_range {
    double scale_min, scale_max;         /* of the image's area */
    double ratio_min, ratio_max;         /* width / height */
    double log_ratio_min, log_ratio_max; /* base_math_log of them, taken once */
};

/*
 * The box of RandomResizedCrop in an image of width x height. Draws of op `op` for `sample_key` and `view`
 * (base/philox.h): try t = 0..9: base_philox_draw(op, t, view): double 0 gives the area, double 1 the logarithm of
 * the ratio; top and left: base_philox_below(domain op, index 2 * view and 2 * view + 1) in [0, H-h] and [0, W-w].
 */
struct transform_box transform_crop_random(const struct transform_crop_range *range, int32_t width,
                                           int32_t height, uint64_t sample_key, uint32_t op, uint32_t view);

/* First pixel of a window of `size` in the middle of `length`: int(round((length - size) / 2.0)) when it
 * fits, else minus the padding torchvision puts before ((size - length) // 2). */
int32_t transform_crop_center(int32_t length, int32_t size);

/* The longer side when the shorter becomes `size`: int(size * longer / shorter). */
int64_t transform_crop_longer(int64_t size, int64_t longer, int64_t shorter);

#endif
