/* SPDX-License-Identifier: Apache-2.0 */
/* The mask of an item, cut and resized as its image was in each of several rows and views. */
#ifndef WORKER_PIPELINE_MASKS_H
#define WORKER_PIPELINE_MASKS_H

#include "worker/pipeline/compiled.h"

struct pipeline_masks {
    const uint8_t *bytes; /* the file; NULL: there is none */
    size_t size;
    uint64_t max_pixels;
    uint32_t width, height; /* of the image */
    struct {
        const struct pipeline_geometry *geometry;
        uint8_t *out, fill;
    } wanted[PIPELINE_MEMBERS];
    int count;
};

/* BASE_BAD_SAMPLE: the mask cannot be decoded, or is not as large as the image. */
enum base_code pipeline_masks_run(struct pipeline_scratch *scratch, const struct pipeline_masks *masks,
                                  struct base_error *error);

#endif
