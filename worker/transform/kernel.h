/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two passes of a resize over RGB u8, once for each level of the processor's vector units. All levels
 * give the same bits: sums are integers modulo 2^32, and the true sum fits 32 bits.
 */
#ifndef WORKER_TRANSFORM_KERNEL_H
#define WORKER_TRANSFORM_KERNEL_H

#include "worker/transform/axis.h"

/* Rows of source pixels (from axis->low on) to rows of axis->count pixels. */
struct transform_kernel_rows {
    const uint8_t *from; /* 64 bytes after the last row's end may be read */
    size_t from_pitch;
    uint8_t *to;
    size_t to_pitch;
    int rows;
};

struct transform_kernel {
    const char *name;
    bool (*available)(void);
    bool (*prepare)(struct transform_axis
                        *axis); /* of a horizontal axis, after its plan; false: no memory. NULL: nothing */
    void (*horizontal)(const struct transform_axis *axis, const struct transform_kernel_rows *rows);
    /* Output row i from rows of `bytes` bytes; `from` is the row axis->low. The row after the last may be
     * read. */
    void (*vertical)(const struct transform_axis *axis, int32_t i, const struct transform_kernel_rows *rows,
                     size_t bytes);
};

/* Best first; the last one is plain C and always there. */
extern const struct transform_kernel *const transform_kernels[];
extern const int transform_kernel_count;
extern const struct transform_kernel transform_kernel_plain, transform_kernel_avx2, transform_kernel_avx512;
const struct transform_kernel *transform_kernel_best(void);

static inline uint8_t transform_kernel_clip(int32_t sum)
{
    int32_t value = sum >> TRANSFORM_WEIGHT_BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

#endif
