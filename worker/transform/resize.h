/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pillow's resize of RGB u8, exact: horizontal pass, then vertical, each rounded to u8 (or the other way
 * round, as Pillow 13 does for some shapes). Fed with source rows in order; computes only what the window
 * needs, and only from the rows and columns that it names after begin. Keeps its memory from image to image.
 */
#ifndef WORKER_TRANSFORM_RESIZE_H
#define WORKER_TRANSFORM_RESIZE_H

#include "worker/transform/axis.h"
#include "worker/transform/crop.h"
#include "worker/transform/kernel.h"

enum transform_order { TRANSFORM_ORDER_CLASSIC, TRANSFORM_ORDER_PILLOW13 };

struct transform_resize_plan {
    enum transform_filter filter;
    enum transform_order order;
    int32_t input_width, input_height;   /* the crop */
    int32_t output_width, output_height; /* what it is resized to; equal to the input: nothing to resize */
    struct transform_box window;         /* of the output that is wanted; outside of it: zeros */
    bool flip;                           /* left to right, after all */
};

/* Rows [top, bottom) and columns [left, right) of the input that the window needs; empty when it lies
 * outside. */
struct transform_resize_needs {
    int32_t top, bottom, left, right;
};

struct transform_resize;

/* `kernel` NULL: the best one here. */
enum base_code transform_resize_create(struct transform_resize **resize,
                                       const struct transform_kernel *kernel, struct base_error *error);
void transform_resize_destroy(struct transform_resize *resize);

/* `out` gets window.height x window.width x 3 bytes, all of them written by the time the last needed row was
 * fed. */
enum base_code transform_resize_begin(struct transform_resize *resize,
                                      const struct transform_resize_plan *plan, uint8_t *out,
                                      struct transform_resize_needs *needs, struct base_error *error);
/* The next rows, from needs.top on; `pixels` is at column needs.left; 64 bytes after the last row's end may
 * be read. */
void transform_resize_feed(struct transform_resize *resize, const uint8_t *pixels, size_t pitch, int rows);

#endif
