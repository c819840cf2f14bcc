/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One axis of Pillow's antialiased resize: which input pixels make an output pixel, and with which weights.
 * The doubles and their order are Pillow's (src/libImaging/Resample.c, precompute_coeffs), weights rounded to
 * 22-bit integers.
 */
#ifndef WORKER_TRANSFORM_AXIS_H
#define WORKER_TRANSFORM_AXIS_H

#include "base/error.h"

#include <stddef.h>

enum transform_filter { TRANSFORM_BILINEAR, TRANSFORM_BICUBIC, TRANSFORM_LANCZOS };

#define TRANSFORM_WEIGHT_BITS 22
#define TRANSFORM_TAP_GROUP 4 /* weights of an output pixel are padded with zeros to a multiple of this */

/* Output i = sum over t < taps of weight[i * stride + t] * input[start[i] + t], for i < count. */
struct transform_axis {
    int32_t count, stride;
    int32_t low, high;      /* input pixels used: [low, high) */
    int32_t *start, *taps;  /* start is relative to low; taps unpadded */
    int32_t *weight;        /* count * stride */
    int16_t *upper, *lower; /* weight == upper * 2048 + lower, 0 <= lower < 2048: for 16-bit multiplies */
    double *work;           /* one output's weights before rounding */
    void *memory;           /* all of the above */
    size_t capacity;
    void *table; /* a kernel's own form of the weights */
    size_t table_capacity;
};

struct transform_axis_plan {
    enum transform_filter filter;
    int32_t input, output; /* pixels before and after the resize */
    int32_t first, count;  /* outputs wanted: first .. first + count - 1 */
    bool reverse;          /* last output first (a flip) */
};

/* The axis keeps its memory from plan to plan; start from zeros, end with fini. */
enum base_code transform_axis_plan(struct transform_axis *axis, const struct transform_axis_plan *plan,
                                   struct base_error *error);
void transform_axis_fini(struct transform_axis *axis);

#endif
