/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PNG by libpng, brought to RGB u8 as Pillow does: palettes and small depths expanded, alpha and tRNS
 * dropped, the high byte of 16-bit samples, but 16-bit gray clipped to 255 (Pillow holds it as 32-bit
 * integers and clips). Gamma and profiles are not applied; ancillary chunks are skipped unread, so that a
 * damaged text chunk decides nothing.
 */
#include "worker/decode/decoder.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

struct png {
    png_structp png;
    png_infop info;
    jmp_buf failed;
    char text[256];
    const uint8_t *bytes;
    size_t size, at;
    bool starved, memory_out, warned, gray16, interlaced, mask;
    struct decode_region region;
    uint32_t width, height, row; /* row: the next to come */
    size_t row_bytes, pitch, channels;
    struct decode_scratch rows, raw; /* raw: one 16-bit gray row, or a whole interlaced image */
};

static void on_error(png_structp png, png_const_charp text)
{
    struct png *self = png_get_error_ptr(png);
    snprintf(self->text, sizeof self->text, "%s", text);
    longjmp(self->failed, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)text;
    struct png *self = png_get_error_ptr(png);
    self->warned = true;
}

static png_voidp on_malloc(png_structp png, png_alloc_size_t size)
{
    struct png *self = png_get_mem_ptr(png);
    void *memory = malloc(size);
    if (!memory)
        self->memory_out = true;
    return memory;
}

static void on_free(png_structp png, png_voidp memory)
{
    (void)png;
    free(memory);
}

static void on_read(png_structp png, png_bytep into, size_t size)
{
    struct png *self = png_get_io_ptr(png);
    if (size > self->size - self->at) {
        self->starved = true;
        png_error(png, "the bytes end too early");
    }
    memcpy(into, self->bytes + self->at, size);
    self->at += size;
}

static enum base_code create(void **state, struct base_error *error)
{
    *state = calloc(1, sizeof(struct png));
    return *state ? BASE_OK : base_error_set(error, BASE_NO_MEMORY, "PNG decoder: out of memory");
}

static void close_png(void *state)
{
    struct png *self = state;
    png_destroy_read_struct(&self->png, &self->info, NULL);
}

static void destroy(void *state)
{
    struct png *self = state;
    if (!self)
        return;
    close_png(self);
    free(self->rows.bytes);
    free(self->raw.bytes);
    free(self);
}

static enum base_code failure(const struct png *self, enum decode_cause otherwise, enum decode_cause *cause,
                              struct base_error *error)
{
    if (self->memory_out)
        return base_error_set(error, BASE_NO_MEMORY, "PNG: %s", self->text);
    *cause = self->starved ? DECODE_TRUNCATED : otherwise;
    return base_error_set(error, BASE_BAD_SAMPLE, "PNG: %s", self->text);
}

static enum base_code open_png(void *state, const struct decode_input *input, struct decode_info *info,
                               enum decode_cause *cause, struct base_error *error)
{
    struct png *self = state;
    self->starved = self->memory_out = self->warned = false;
    self->bytes = input->bytes;
    self->size = input->size;
    self->at = 0;
    snprintf(self->text, sizeof self->text, "out of memory");
    if (setjmp(self->failed))
        return failure(self, DECODE_HEADER, cause, error);
    self->png =
        png_create_read_struct_2(PNG_LIBPNG_VER_STRING, self, on_error, on_warning, self, on_malloc, on_free);
    self->info = self->png ? png_create_info_struct(self->png) : NULL;
    if (!self->info)
        return base_error_set(error, BASE_NO_MEMORY, "PNG: out of memory");
    png_set_read_fn(self->png, self, on_read);
    png_set_keep_unknown_chunks(self->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_read_info(self->png, self->info);
    info->width = self->width = png_get_image_width(self->png, self->info);
    info->height = self->height = png_get_image_height(self->png, self->info);
    self->mask = input->mask;
    self->channels = input->mask ? 1 : 3;
    int color = png_get_color_type(self->png, self->info), depth = png_get_bit_depth(self->png, self->info);
    if (self->mask && ((color != PNG_COLOR_TYPE_GRAY && color != PNG_COLOR_TYPE_PALETTE) || depth > 8)) {
        *cause = DECODE_UNSUPPORTED;
        return base_error_set(error, BASE_BAD_SAMPLE,
                              "PNG: neither gray nor palette of at most 8 bits, as a mask must be");
    }
    return decode_check_pixels(input, info, cause, error);
}

static void set_transforms(struct png *self)
{
    int color = png_get_color_type(self->png, self->info), depth = png_get_bit_depth(self->png, self->info);
    self->gray16 = color == PNG_COLOR_TYPE_GRAY && depth == 16;
    if (self->gray16)
        return;
    if (self->mask && (color == PNG_COLOR_TYPE_PALETTE || depth == 1)) {
        png_set_packing(self->png);
        return;
    }
    if (color == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(self->png);
    if (color == PNG_COLOR_TYPE_GRAY && depth < 8)
        png_set_expand_gray_1_2_4_to_8(self->png);
    if (self->mask)
        return;
    png_set_strip_16(self->png);
    png_set_strip_alpha(self->png);
    if (!(color & PNG_COLOR_MASK_COLOR))
        png_set_gray_to_rgb(self->png);
}

static bool reserve(struct png *self)
{
    size_t raw_rows = self->interlaced ? self->height : self->gray16;
    return decode_scratch_reserve(&self->rows, DECODE_BAND_ROWS * self->pitch + DECODE_SLACK_BYTES) &&
           decode_scratch_reserve(&self->raw, raw_rows * self->row_bytes + 1);
}

static enum base_code begin(void *state, const struct decode_region *region, enum decode_cause *cause,
                            struct base_error *error)
{
    struct png *self = state;
    self->region = *region;
    self->row = 0;
    if (setjmp(self->failed))
        return failure(self, DECODE_DATA, cause, error);
    set_transforms(self);
    int passes = png_set_interlace_handling(self->png);
    self->interlaced = passes > 1;
    png_read_update_info(self->png, self->info);
    self->row_bytes = png_get_rowbytes(self->png, self->info);
    self->pitch = self->channels * self->width;
    if (self->row_bytes != (self->gray16 ? 2 * (size_t)self->width : self->pitch))
        png_error(self->png, "unexpected row size");
    if (!reserve(self))
        return base_error_set(error, BASE_NO_MEMORY, "PNG rows of %zu bytes: out of memory", self->pitch);
    for (int pass = 0; self->interlaced && pass < passes; pass++)
        for (uint32_t y = 0; y < self->height; y++)
            png_read_row(self->png, self->raw.bytes + y * self->row_bytes, NULL);
    return BASE_OK;
}

static void convert_gray16(const uint8_t *from, uint8_t *to, size_t pixels)
{
    for (size_t i = 0; i < pixels; i++)
        memset(to + 3 * i, from[2 * i] ? 255 : from[2 * i + 1], 3);
}

static void next_row(struct png *self, uint8_t *into)
{
    const uint8_t *raw = self->raw.bytes;
    if (self->interlaced)
        raw += self->row * self->row_bytes;
    else
        png_read_row(self->png, self->gray16 ? self->raw.bytes : into, NULL);
    if (self->gray16)
        convert_gray16(raw, into, self->width);
    else if (self->interlaced)
        memcpy(into, raw, self->row_bytes);
    self->row++;
}

static enum base_code read_band(void *state, struct decode_band *band, enum decode_cause *cause,
                                struct base_error *error)
{
    struct png *self = state;
    *band = (struct decode_band){0};
    if (setjmp(self->failed))
        return failure(self, DECODE_DATA, cause, error);
    while (self->row < self->region.top)
        next_row(self, self->rows.bytes);
    band->top = self->row;
    band->pitch = self->pitch;
    band->pixels = self->rows.bytes + self->channels * self->region.left;
    while (self->row < self->region.bottom && band->rows < DECODE_BAND_ROWS) {
        next_row(self, self->rows.bytes + band->rows * self->pitch);
        band->rows++;
    }
    return BASE_OK;
}

static enum base_code end(void *state, bool *warned, enum decode_cause *cause, struct base_error *error)
{
    struct png *self = state;
    if (setjmp(self->failed))
        return failure(self, DECODE_DATA, cause, error);
    while (self->region.whole && self->row < self->height)
        next_row(self, self->rows.bytes);
    *warned = self->warned;
    return BASE_OK;
}

const struct decode_decoder decode_png = {
    .name = "PNG",
    .create = create,
    .destroy = destroy,
    .open = open_png,
    .begin = begin,
    .read = read_band,
    .end = end,
    .close = close_png,
};
