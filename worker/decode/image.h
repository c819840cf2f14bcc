/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An image's bytes to rows of RGB u8, as Pillow's Image.open(f).convert("RGB") gives them; the content
 * chooses the decoder. Streams: rows come in small bands, so a reader holds no whole image (interlaced PNG
 * and progressive JPEG excepted: at most 8 bytes a pixel, under the pixel cap).
 *
 *   open -> begin -> read ... read -> end -> close     (close at any point; open closes what was open)
 *
 * Outside data never ends the process: BASE_BAD_SAMPLE says that the bytes are at fault, decode_image_cause
 * how. BASE_NO_MEMORY decides nothing. A reader serves one thread and any number of images; nothing of one
 * image is left for the next.
 */
#ifndef WORKER_DECODE_IMAGE_H
#define WORKER_DECODE_IMAGE_H

#include "base/error.h"

#include <stddef.h>

enum decode_cause {
    DECODE_FINE,
    DECODE_EMPTY,       /* no bytes at all */
    DECODE_FORMAT,      /* no format known by its content */
    DECODE_UNSUPPORTED, /* a known format or variant that is not built; the text names it */
    DECODE_PIXELS,      /* over the pixel cap, by its header */
    DECODE_HEADER,      /* the decoder refused the header */
    DECODE_DATA,        /* the decoder failed in the data */
    DECODE_TRUNCATED,   /* bytes end before the last row */
};

struct decode_info {
    const char *format; /* "JPEG" */
    uint32_t width, height;
};

/* The pixels wanted: columns [left, right) of rows [top, bottom). whole: decode everything, for the verdict;
 * otherwise as little as gives the same bits. */
struct decode_region {
    uint32_t left, top, right, bottom;
    bool whole;
};

/* Rows top .. top + rows - 1 of the region; pixels is at (left, top). 64 bytes after the last row's end may
 * be read. */
struct decode_band {
    const uint8_t *pixels;
    size_t pitch;
    uint32_t top, rows;
};

#define DECODE_BAND_ROWS 16 /* of a band, at most */
#define DECODE_SLACK_BYTES 64

struct decode_image;

enum base_code decode_image_create(struct decode_image **image, struct base_error *error);
void decode_image_destroy(struct decode_image *image);

/* Reads the header. `bytes` must live until close. */
enum base_code decode_image_open(struct decode_image *image, const uint8_t *bytes, size_t size,
                                 uint64_t max_pixels, struct decode_info *info, struct base_error *error);
/* A mask: PNG, gray or palette, of at most 8 bits. Rows are one byte a pixel then, what Pillow's image holds: a palette's indices, gray
 * values (2 and 4 bits spread to 8), 0 and 1 of one bit. */
enum base_code decode_image_open_mask(struct decode_image *image, const uint8_t *bytes, size_t size,
                                      uint64_t max_pixels, struct decode_info *info,
                                      struct base_error *error);
/* The region must lie inside the image and hold a pixel. */
enum base_code decode_image_begin(struct decode_image *image, const struct decode_region *region,
                                  struct base_error *error);
/* The next band, valid until the next call; rows 0 after the last one. */
enum base_code decode_image_read(struct decode_image *image, struct decode_band *band,
                                 struct base_error *error);
/* With `whole`, decodes what is left. *warned: the decoder complained on the way. */
enum base_code decode_image_end(struct decode_image *image, bool *warned, struct base_error *error);
void decode_image_close(struct decode_image *image);

enum decode_cause decode_image_cause(const struct decode_image *image); /* of the last BASE_BAD_SAMPLE */

#endif
