/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JPEG by libjpeg-turbo: slow integer DCT and fancy upsampling (its defaults), which is what Pillow gives,
 * bit for bit.
 *
 * The source suspends at the end of the bytes and invents no end marker, so that a truncated file is seen as
 * one. Errors jump back to the entry point. The decompressor is made anew for every image: one that is kept
 * would lend its tables to a later image that lacks them, and a row would depend on its neighbours.
 *
 * A region is decoded by itself only where that was proved equal to crop(whole)
 * (tests/unit/pipeline/region_test.c): one sequential Huffman scan, gray or 4:4:4, 4:2:2, 4:2:0. Any other
 * file is decoded from its first row to the last one needed.
 */
#include "worker/decode/decoder.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

enum {
    CONTEXT_PIXELS = 2, /* what fancy upsampling reads beside the region */
    SCANS_LEAST = 32,   /* always allowed; encoders make 10 to 20 */
    SCANS_MAX = 500,
};

/* A file of a few kB may ask for thousands of passes over a large image: what is allowed beyond SCANS_LEAST. */
static const uint64_t scan_pixels_max = UINT64_C(4000000000);

struct jpeg {
    struct jpeg_decompress_struct decompress;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    char text[JMSG_LENGTH_MAX];
    bool created, starved; /* starved: more bytes were asked for than there are */
    bool region_exact, cmyk;
    int scans_most;
    struct decode_region region;
    uint32_t row_left; /* column of a decoded row's first pixel */
    size_t pitch;
    struct decode_scratch band;
};

static void on_error(j_common_ptr common)
{
    struct jpeg *jpeg = common->client_data;
    common->err->format_message(common, jpeg->text);
    longjmp(jpeg->failed, 1);
}

static void on_message(j_common_ptr common, int level)
{
    if (level < 0)
        common->err->num_warnings++;
}

static void on_progress(j_common_ptr common)
{
    struct jpeg *jpeg = common->client_data;
    if (jpeg->decompress.input_scan_number <= jpeg->scans_most)
        return;
    common->err->msg_code = JERR_BAD_PROGRESSION;
    snprintf(jpeg->text, sizeof jpeg->text, "more than %d scans", jpeg->scans_most);
    longjmp(jpeg->failed, 1);
}

static void source_nothing(j_decompress_ptr decompress)
{
    (void)decompress;
}

static boolean source_fill(j_decompress_ptr decompress)
{
    struct jpeg *jpeg = decompress->client_data;
    jpeg->starved = true;
    return FALSE;
}

static void source_skip(j_decompress_ptr decompress, long count)
{
    struct jpeg *jpeg = decompress->client_data;
    size_t skipped = count > 0 ? (size_t)count : 0;
    if (skipped > jpeg->source.bytes_in_buffer) {
        jpeg->starved = true;
        skipped = jpeg->source.bytes_in_buffer;
    }
    jpeg->source.next_input_byte += skipped;
    jpeg->source.bytes_in_buffer -= skipped;
}

static enum base_code create(void **state, struct base_error *error)
{
    *state = calloc(1, sizeof(struct jpeg));
    return *state ? BASE_OK : base_error_set(error, BASE_NO_MEMORY, "JPEG decoder: out of memory");
}

static void close_jpeg(void *state)
{
    struct jpeg *jpeg = state;
    if (jpeg->created)
        jpeg_destroy_decompress(&jpeg->decompress);
    jpeg->created = false;
}

static void destroy(void *state)
{
    struct jpeg *jpeg = state;
    if (!jpeg)
        return;
    close_jpeg(jpeg);
    free(jpeg->band.bytes);
    free(jpeg);
}

/* After a jump: the code and cause of libjpeg's message. */
static enum base_code failure(const struct jpeg *jpeg, enum decode_cause otherwise, enum decode_cause *cause,
                              struct base_error *error)
{
    switch (jpeg->errors.msg_code) {
    case JERR_OUT_OF_MEMORY:
        return base_error_set(error, BASE_NO_MEMORY, "JPEG: %s", jpeg->text);
    case JERR_BAD_PRECISION:
    case JERR_SOF_UNSUPPORTED:
    case JERR_ARITH_NOTIMPL:
        *cause = DECODE_UNSUPPORTED;
        break;
    case JERR_IMAGE_TOO_BIG:
        *cause = DECODE_PIXELS;
        break;
    default:
        *cause = otherwise;
    }
    return base_error_set(error, BASE_BAD_SAMPLE, "JPEG: %s", jpeg->text);
}

static enum base_code truncated(const struct jpeg *jpeg, enum decode_cause *cause, struct base_error *error)
{
    *cause = DECODE_TRUNCATED;
    if (jpeg->decompress.output_scanline == 0)
        return base_error_set(error, BASE_BAD_SAMPLE, "JPEG: the bytes end before the first row");
    return base_error_set(error, BASE_BAD_SAMPLE, "JPEG: the bytes end at row %u of %u",
                          jpeg->decompress.output_scanline, jpeg->decompress.output_height);
}

static void begin_decompress(struct jpeg *jpeg, const struct decode_input *input)
{
    jpeg->decompress.err = jpeg_std_error(&jpeg->errors);
    jpeg->errors.error_exit = on_error;
    jpeg->errors.emit_message = on_message;
    jpeg->decompress.client_data = jpeg;
    jpeg_create_decompress(&jpeg->decompress);
    jpeg->source = (struct jpeg_source_mgr){.next_input_byte = input->bytes,
                                            .bytes_in_buffer = input->size,
                                            .init_source = source_nothing,
                                            .fill_input_buffer = source_fill,
                                            .skip_input_data = source_skip,
                                            .resync_to_restart = jpeg_resync_to_restart,
                                            .term_source = source_nothing};
    jpeg->progress.progress_monitor = on_progress;
    jpeg->decompress.src = &jpeg->source;
    jpeg->decompress.progress = &jpeg->progress;
}

/* True for the files whose regions were proved exact. */
static bool region_is_exact(struct jpeg_decompress_struct *d)
{
    if (d->progressive_mode || d->arith_code || jpeg_has_multiple_scans(d))
        return false;
    const jpeg_component_info *c = d->comp_info;
    if (d->num_components == 1)
        return c[0].h_samp_factor == 1 && c[0].v_samp_factor == 1;
    if (d->num_components != 3)
        return false;
    for (int i = 1; i < 3; i++)
        if (c[i].h_samp_factor != 1 || c[i].v_samp_factor != 1)
            return false;
    int luma = 10 * c[0].h_samp_factor + c[0].v_samp_factor;
    return luma == 11 || luma == 21 || luma == 22;
}

static int scans_allowed(uint64_t pixels)
{
    uint64_t scans = scan_pixels_max / (pixels > 0 ? pixels : 1);
    return scans < SCANS_LEAST ? SCANS_LEAST : scans > SCANS_MAX ? SCANS_MAX : (int)scans;
}

static enum base_code open_jpeg(void *state, const struct decode_input *input, struct decode_info *info,
                                enum decode_cause *cause, struct base_error *error)
{
    struct jpeg *jpeg = state;
    struct jpeg_decompress_struct *d = &jpeg->decompress;
    jpeg->starved = false;
    jpeg->created = true;
    memset(d, 0, sizeof *d);
    if (setjmp(jpeg->failed))
        return failure(jpeg, DECODE_HEADER, cause, error);
    begin_decompress(jpeg, input);
    if (jpeg_read_header(d, TRUE) == JPEG_SUSPENDED)
        return truncated(jpeg, cause, error);
    info->width = d->image_width;
    info->height = d->image_height;
    jpeg->scans_most = scans_allowed((uint64_t)d->image_width * d->image_height);
    if (d->num_components != 1 && d->num_components != 3 && d->num_components != 4) {
        *cause = DECODE_UNSUPPORTED;
        return base_error_set(error, BASE_BAD_SAMPLE, "JPEG of %d components is not supported",
                              d->num_components);
    }
    return decode_check_pixels(input, info, cause, error);
}

/* Narrows the decoder to the region's columns and context, and goes to its first row. */
static void enter_region(struct jpeg *jpeg)
{
    struct jpeg_decompress_struct *d = &jpeg->decompress;
    const struct decode_region *region = &jpeg->region;
    JDIMENSION left = region->left > CONTEXT_PIXELS ? region->left - CONTEXT_PIXELS : 0;
    JDIMENSION right =
        region->right + CONTEXT_PIXELS < d->output_width ? region->right + CONTEXT_PIXELS : d->output_width;
    JDIMENSION width = right - left;
    if (width < d->output_width)
        jpeg_crop_scanline(d, &left, &width);
    jpeg->row_left = left;
    if (region->top > 0)
        jpeg_skip_scanlines(d, region->top);
}

static enum base_code begin(void *state, const struct decode_region *region, enum decode_cause *cause,
                            struct base_error *error)
{
    struct jpeg *jpeg = state;
    struct jpeg_decompress_struct *d = &jpeg->decompress;
    jpeg->region = *region;
    jpeg->row_left = 0;
    jpeg->cmyk = d->num_components == 4;
    jpeg->region_exact = region_is_exact(d);
    if (setjmp(jpeg->failed))
        return failure(jpeg, DECODE_DATA, cause, error);
    d->out_color_space = jpeg->cmyk ? JCS_CMYK : JCS_RGB;
    d->dct_method = JDCT_ISLOW;
    d->do_fancy_upsampling = TRUE;
    if (!jpeg_start_decompress(d))
        return truncated(jpeg, cause, error);
    if (!region->whole && jpeg->region_exact)
        enter_region(jpeg);
    jpeg->pitch = (size_t)d->output_width * d->output_components;
    if (!decode_scratch_reserve(&jpeg->band, jpeg->pitch * DECODE_BAND_ROWS + DECODE_SLACK_BYTES))
        return base_error_set(error, BASE_NO_MEMORY, "JPEG rows of %zu bytes: out of memory", jpeg->pitch);
    return BASE_OK;
}

/* Reads up to DECODE_BAND_ROWS rows before row `bottom` into the band; returns how many came before the bytes
 * ended. */
static uint32_t read_rows(struct jpeg *jpeg, uint32_t bottom)
{
    struct jpeg_decompress_struct *d = &jpeg->decompress;
    JSAMPROW rows[DECODE_BAND_ROWS];
    for (int i = 0; i < DECODE_BAND_ROWS; i++)
        rows[i] = jpeg->band.bytes + i * jpeg->pitch;
    uint32_t want = bottom - d->output_scanline, got = 0;
    if (want > DECODE_BAND_ROWS)
        want = DECODE_BAND_ROWS;
    while (got < want) {
        JDIMENSION some = jpeg_read_scanlines(d, rows + got, want - got);
        if (some == 0)
            break;
        got += some;
    }
    return got;
}

/* Adobe's inverted CMYK to RGB in place, as Pillow: with C, M, Y un-inverted, nk - MULDIV255(C, nk), nk = 255
 * - K. */
static void convert_cmyk(uint8_t *row, size_t pixels)
{
    for (size_t i = 0; i < pixels; i++) {
        unsigned nk = row[4 * i + 3];
        uint8_t rgb[3];
        for (int j = 0; j < 3; j++) {
            unsigned product = (255u - row[4 * i + j]) * nk + 128;
            rgb[j] = (uint8_t)(nk - (((product >> 8) + product) >> 8));
        }
        memcpy(row + 3 * i, rgb, sizeof rgb);
    }
}

static enum base_code read_band(void *state, struct decode_band *band, enum decode_cause *cause,
                                struct base_error *error)
{
    struct jpeg *jpeg = state;
    struct jpeg_decompress_struct *d = &jpeg->decompress;
    const struct decode_region *region = &jpeg->region;
    *band = (struct decode_band){0};
    if (setjmp(jpeg->failed))
        return failure(jpeg, DECODE_DATA, cause, error);
    while (d->output_scanline < region->top)
        if (read_rows(jpeg, region->top) == 0)
            return truncated(jpeg, cause, error);
    if (d->output_scanline >= region->bottom)
        return BASE_OK;
    uint32_t top = d->output_scanline;
    uint32_t rows = read_rows(jpeg, region->bottom);
    if (rows == 0)
        return truncated(jpeg, cause, error);
    if (jpeg->cmyk)
        for (uint32_t i = 0; i < rows; i++)
            convert_cmyk(jpeg->band.bytes + i * jpeg->pitch, d->output_width);
    *band = (struct decode_band){jpeg->band.bytes + 3 * (size_t)(region->left - jpeg->row_left), jpeg->pitch,
                                 top, rows};
    return BASE_OK;
}

static enum base_code end(void *state, bool *warned, enum decode_cause *cause, struct base_error *error)
{
    struct jpeg *jpeg = state;
    struct jpeg_decompress_struct *d = &jpeg->decompress;
    if (setjmp(jpeg->failed))
        return failure(jpeg, DECODE_DATA, cause, error);
    if (jpeg->region.whole) {
        while (d->output_scanline < d->output_height)
            if (read_rows(jpeg, d->output_height) == 0)
                return truncated(jpeg, cause, error);
        jpeg_finish_decompress(d);
    }
    *warned = jpeg->errors.num_warnings > 0 || jpeg->starved;
    return BASE_OK;
}

const struct decode_decoder decode_jpeg = {
    .name = "JPEG",
    .create = create,
    .destroy = destroy,
    .open = open_jpeg,
    .begin = begin,
    .read = read_band,
    .end = end,
    .close = close_jpeg,
};
