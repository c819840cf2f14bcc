/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/pipeline/masks.h"

/* What each needs of a band: rows of its crop. */
static void feed(struct pipeline_scratch *scratch, const struct pipeline_masks *masks,
                 const struct decode_band *band)
{
    int32_t top = (int32_t)band->top, bottom = top + (int32_t)band->rows;
    for (int i = 0; i < masks->count; i++) {
        const struct transform_box *box = &masks->wanted[i].geometry->box;
        int32_t end = box->top + box->height, from = box->top > top ? box->top : top,
                to = end < bottom ? end : bottom;
        if (from < to)
            transform_nearest_feed(scratch->nearest[i],
                                   band->pixels + (size_t)(from - top) * band->pitch + box->left, band->pitch,
                                   from - box->top, to - from);
    }
}

/* All of it, each time: damage below the crop must not depend on the draws. */
static enum base_code stream(struct pipeline_scratch *scratch, const struct pipeline_masks *masks,
                             struct base_error *error)
{
    struct decode_region region = {.right = masks->width, .bottom = masks->height, .whole = true};
    struct decode_band band = {0};
    bool warned;
    enum base_code code = decode_image_begin(scratch->image, &region, error);
    for (int i = 0; i < masks->count && code == BASE_OK; i++)
        code = transform_nearest_begin(scratch->nearest[i], &masks->wanted[i].geometry->plan,
                                       masks->wanted[i].fill, masks->wanted[i].out, error);
    while (code == BASE_OK) {
        code = decode_image_read(scratch->image, &band, error);
        if (code != BASE_OK || band.rows == 0)
            break;
        feed(scratch, masks, &band);
    }
    return code == BASE_OK ? decode_image_end(scratch->image, &warned, error) : code;
}

enum base_code pipeline_masks_run(struct pipeline_scratch *scratch, const struct pipeline_masks *masks,
                                  struct base_error *error)
{
    struct decode_info info = {0};
    if (!masks->bytes)
        return base_error_set(error, BASE_BAD_SAMPLE, "there is no mask");
    enum base_code code =
        decode_image_open_mask(scratch->image, masks->bytes, masks->size, masks->max_pixels, &info, error);
    if (code == BASE_OK && (info.width != masks->width || info.height != masks->height))
        code = base_error_set(error, BASE_BAD_SAMPLE, "%u x %u, but its image is %u x %u", info.width,
                              info.height, masks->width, masks->height);
    if (code == BASE_OK)
        code = stream(scratch, masks, error);
    decode_image_close(scratch->image);
    return code == BASE_BAD_SAMPLE ? base_error_prefix(error, code, "mask") : code;
}
