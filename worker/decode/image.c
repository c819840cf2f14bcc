/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/decode/image.h"

#include "worker/decode/decoder.h"
#include "worker/decode/sniff.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct decode_decoder *const decoders[] = {&decode_jpeg, &decode_png};
enum {
    DECODERS = sizeof decoders / sizeof decoders[0],
    KEPT_BYTES =
        16 << 20, /* of scratch, from image to image: one giant must not stay in every thread's memory */
};

struct decode_image {
    void *state[DECODERS];
    int opened; /* index of the decoder in use, or -1 */
    enum decode_cause cause;
};

bool decode_scratch_reserve(struct decode_scratch *scratch, size_t size)
{
    bool rare = scratch->capacity > KEPT_BYTES && size <= KEPT_BYTES;
    if (scratch->capacity >= size && !rare)
        return true;
    free(scratch->bytes);
    /* Zeroed: kernels may read the slack, with weight zero. */
    scratch->bytes = calloc(1, size);
    scratch->capacity = scratch->bytes ? size : 0;
    return scratch->bytes;
}

enum base_code decode_check_pixels(const struct decode_input *input, const struct decode_info *info,
                                   enum decode_cause *cause, struct base_error *error)
{
    if ((uint64_t)info->width * info->height <= input->max_pixels)
        return BASE_OK;
    *cause = DECODE_PIXELS;
    return base_error_set(error, BASE_BAD_SAMPLE,
                          "%s of %" PRIu32 " x %" PRIu32 " is over the cap of %" PRIu64 " pixels",
                          info->format, info->width, info->height, input->max_pixels);
}

enum base_code decode_image_create(struct decode_image **image, struct base_error *error)
{
    enum base_code code = BASE_OK;
    struct decode_image *made = calloc(1, sizeof *made);
    if (!made)
        return base_error_set(error, BASE_NO_MEMORY, "image decoder: out of memory");
    made->opened = -1;
    for (int i = 0; i < DECODERS && code == BASE_OK; i++)
        code = decoders[i]->create(&made->state[i], error);
    if (code != BASE_OK) {
        decode_image_destroy(made);
        return code;
    }
    *image = made;
    return BASE_OK;
}

void decode_image_destroy(struct decode_image *image)
{
    if (!image)
        return;
    decode_image_close(image);
    for (int i = 0; i < DECODERS; i++)
        decoders[i]->destroy(image->state[i]);
    free(image);
}

static enum base_code refuse(struct decode_image *image, enum decode_cause cause, struct base_error *error,
                             const char *format)
{
    image->cause = cause;
    switch (cause) {
    case DECODE_EMPTY:
        return base_error_set(error, BASE_BAD_SAMPLE, "the file is empty");
    case DECODE_UNSUPPORTED:
        return base_error_set(error, BASE_BAD_SAMPLE, "%s is not supported", format);
    default:
        return base_error_set(error, BASE_BAD_SAMPLE, "no image format is known by these bytes");
    }
}

static enum base_code open_input(struct decode_image *image, const struct decode_input *input,
                                 struct decode_info *info, struct base_error *error)
{
    decode_image_close(image);
    if (input->size == 0)
        return refuse(image, DECODE_EMPTY, error, NULL);
    const char *name = decode_sniff_name(input->bytes, input->size);
    if (!name)
        return refuse(image, DECODE_FORMAT, error, NULL);
    for (int i = 0; i < DECODERS; i++) {
        if (strcmp(decoders[i]->name, name) != 0 || (input->mask && decoders[i] != &decode_png))
            continue;
        image->opened = i;
        *info = (struct decode_info){.format = decoders[i]->name};
        return decoders[i]->open(image->state[i], input, info, &image->cause, error);
    }
    return refuse(image, DECODE_UNSUPPORTED, error, name);
}

enum base_code decode_image_open(struct decode_image *image, const uint8_t *bytes, size_t size,
                                 uint64_t max_pixels, struct decode_info *info, struct base_error *error)
{
    return open_input(image, &(struct decode_input){bytes, size, max_pixels, false}, info, error);
}

enum base_code decode_image_open_mask(struct decode_image *image, const uint8_t *bytes, size_t size,
                                      uint64_t max_pixels, struct decode_info *info, struct base_error *error)
{
    return open_input(image, &(struct decode_input){bytes, size, max_pixels, true}, info, error);
}

enum base_code decode_image_begin(struct decode_image *image, const struct decode_region *region,
                                  struct base_error *error)
{
    return decoders[image->opened]->begin(image->state[image->opened], region, &image->cause, error);
}

enum base_code decode_image_read(struct decode_image *image, struct decode_band *band,
                                 struct base_error *error)
{
    return decoders[image->opened]->read(image->state[image->opened], band, &image->cause, error);
}

enum base_code decode_image_end(struct decode_image *image, bool *warned, struct base_error *error)
{
    return decoders[image->opened]->end(image->state[image->opened], warned, &image->cause, error);
}

void decode_image_close(struct decode_image *image)
{
    if (image->opened >= 0)
        decoders[image->opened]->close(image->state[image->opened]);
    image->opened = -1;
    image->cause = DECODE_FINE;
}

enum decode_cause decode_image_cause(const struct decode_image *image)
{
    return image->cause;
}
