/* SPDX-License-Identifier: Apache-2.0 */
/* What image.c and the formats' files share: one decoder a format, called in the order of decode/image.h. */
#ifndef WORKER_DECODE_DECODER_H
#define WORKER_DECODE_DECODER_H

#include "worker/decode/image.h"

/* Bytes kept from image to image; what a giant needed is given back at the next one. */
struct decode_scratch {
    uint8_t *bytes;
    size_t capacity;
};
/* False when memory is out. Content is not kept. */
bool decode_scratch_reserve(struct decode_scratch *scratch, size_t size);

struct decode_input {
    const uint8_t *bytes;
    size_t size;
    uint64_t max_pixels;
    bool mask; /* rows of one byte a pixel: decode_image_open_mask */
};

/* `state` is the decoder's own; a function that returns BASE_BAD_SAMPLE has set *cause. */
struct decode_decoder {
    const char *name;
    enum base_code (*create)(void **state, struct base_error *error);
    void (*destroy)(void *state);
    enum base_code (*open)(void *state, const struct decode_input *input, struct decode_info *info,
                           enum decode_cause *cause, struct base_error *error);
    enum base_code (*begin)(void *state, const struct decode_region *region, enum decode_cause *cause,
                            struct base_error *error);
    enum base_code (*read)(void *state, struct decode_band *band, enum decode_cause *cause,
                           struct base_error *error);
    enum base_code (*end)(void *state, bool *warned, enum decode_cause *cause, struct base_error *error);
    void (*close)(void *state);
};

extern const struct decode_decoder decode_jpeg, decode_png;

/* BASE_OK, or BASE_BAD_SAMPLE with DECODE_PIXELS. */
enum base_code decode_check_pixels(const struct decode_input *input, const struct decode_info *info,
                                   enum decode_cause *cause, struct base_error *error);

#endif
