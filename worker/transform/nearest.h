/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pillow's NEAREST of one byte a pixel, exact: crop(box).resize(size, NEAREST), for masks, by the plan of the image beside it. Fed with
 * the crop's rows in order. Keeps its memory from mask to mask.
 */
#ifndef WORKER_TRANSFORM_NEAREST_H
#define WORKER_TRANSFORM_NEAREST_H

#include "worker/transform/resize.h"

struct transform_nearest;

enum base_code transform_nearest_create(struct transform_nearest **nearest, struct base_error *error);
void transform_nearest_destroy(struct transform_nearest *nearest);

/* `out` gets window.height x window.width bytes: `fill` outside of what is resized, the rest when the last row was fed. The plan's
 * filter and order mean nothing here. */
enum base_code transform_nearest_begin(struct transform_nearest *nearest,
                                       const struct transform_resize_plan *plan, uint8_t fill, uint8_t *out,
                                       struct base_error *error);
/* Rows [top, top + rows) of the crop, from its column 0 on. */
void transform_nearest_feed(struct transform_nearest *nearest, const uint8_t *pixels, size_t pitch,
                            int32_t top, int32_t rows);

#endif
