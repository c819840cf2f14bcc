/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/transform/kernel.h"

enum { HALF = 1 << (TRANSFORM_WEIGHT_BITS - 1) };

static void horizontal(const struct transform_axis *axis, const struct transform_kernel_rows *rows)
{
    for (int row = 0; row < rows->rows; row++) {
        const uint8_t *from = rows->from + row * rows->from_pitch;
        uint8_t *to = rows->to + row * rows->to_pitch;
        for (int32_t i = 0; i < axis->count; i++, to += 3) {
            const int32_t *weight = axis->weight + (size_t)i * axis->stride;
            const uint8_t *pixel = from + 3 * (size_t)axis->start[i];
            int32_t r = HALF, g = HALF, b = HALF;
            for (int32_t t = 0; t < axis->taps[i]; t++, pixel += 3) {
                r += pixel[0] * weight[t];
                g += pixel[1] * weight[t];
                b += pixel[2] * weight[t];
            }
            to[0] = transform_kernel_clip(r);
            to[1] = transform_kernel_clip(g);
            to[2] = transform_kernel_clip(b);
        }
    }
}

static void vertical(const struct transform_axis *axis, int32_t i, const struct transform_kernel_rows *rows,
                     size_t bytes)
{
    const int32_t *weight = axis->weight + (size_t)i * axis->stride;
    const uint8_t *from = rows->from + axis->start[i] * rows->from_pitch;
    for (size_t x = 0; x < bytes; x++) {
        int32_t sum = HALF;
        for (int32_t t = 0; t < axis->taps[i]; t++)
            sum += from[t * rows->from_pitch + x] * weight[t];
        rows->to[x] = transform_kernel_clip(sum);
    }
}

static bool always(void)
{
    return true;
}

const struct transform_kernel transform_kernel_plain = {"plain", always, NULL, horizontal, vertical};

const struct transform_kernel *const transform_kernels[] = {
#if defined(__x86_64__)
    &transform_kernel_avx512,
    &transform_kernel_avx2,
#endif
    &transform_kernel_plain,
};
const int transform_kernel_count = sizeof transform_kernels / sizeof transform_kernels[0];

const struct transform_kernel *transform_kernel_best(void)
{
    for (int i = 0; i < transform_kernel_count; i++)
        if (transform_kernels[i]->available())
            return transform_kernels[i];
    return &transform_kernel_plain;
}
