/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is computed, one pixel and one label at a time: the same source for the host and for CUDA, so that what is proved on a
 * CPU holds on a GPU. All is + and * of float32, which IEEE 754 fixes (no contraction: -ffp-contract=off, --fmad=false): both
 * backends give the same bits.
 *
 * A channel has 256 values, so each is normalised and rounded once, on the host; a pixel looks up its bits. Only MixUp has to
 * compute, from the values before rounding.
 */
#ifndef GPU_INGEST_KERNELS_H
#define GPU_INGEST_KERNELS_H

#include "client/include/millrace/millrace.h"

#include <string.h>

#ifdef __CUDACC__
#define INGEST_BOTH __host__ __device__ static inline
#else
#define INGEST_BOTH static inline
#endif

#define INGEST_CHANNELS 3

struct ingest_tables {
    float values[INGEST_CHANNELS][256];
    uint32_t bits[INGEST_CHANNELS][256]; /* rounded to the dtype */
};

/* One batch. Pointers are of the memory that the code runs on. */
struct ingest_work {
    const struct ingest_tables *tables;
    const uint8_t *in; /* rows * height * width * 3 */
    void *image;
    const int64_t *labels;           /* NULL: not sent */
    void *label;                     /* i64, with `classes` f32 */
    const struct mr_row_draw *draws; /* NULL: nothing is erased or mixed */
    struct mr_batch_draw draw;
    uint32_t rows, height, width;
    uint32_t classes; /* 0: labels stay as they are */
    enum mr_dtype dtype;
    int channels_first;
};

/* ---- rounding: to nearest, ties to even ---- */

INGEST_BOTH uint32_t ingest_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The `drop` low bits go; a carry runs into the exponent, as it should. */
INGEST_BOTH uint32_t ingest_round_off(uint32_t bits, int drop)
{
    return (bits + ((1u << (drop - 1)) - 1) + (bits >> drop & 1)) >> drop;
}

INGEST_BOTH uint32_t ingest_bf16(float value)
{
    uint32_t bits = ingest_float_bits(value);
    return value != value ? bits >> 16 | 0x40 : ingest_round_off(bits, 16);
}

INGEST_BOTH uint32_t ingest_f16(float value)
{
    uint32_t bits = ingest_float_bits(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    int exponent = (int)(rest >> 23) - 127 + 15;
    if (rest > 0x7f800000)
        return sign | 0x7e00 | (rest >> 13 & 0x3ff);
    if (exponent >= 31)
        return sign | 0x7c00;
    if (exponent > 0)
        return sign | ingest_round_off((uint32_t)exponent << 23 | (rest & 0x7fffff), 13);
    if (exponent < -10) /* below half of the smallest subnormal */
        return sign;
    return sign | ingest_round_off((rest & 0x7fffff) | 0x800000, 14 - exponent);
}

INGEST_BOTH uint32_t ingest_encode(enum mr_dtype dtype, float value)
{
    switch (dtype) {
    case MR_F32:
        return ingest_float_bits(value);
    case MR_F16:
        return ingest_f16(value);
    case MR_BF16:
        return ingest_bf16(value);
    default:
        return (uint32_t)value;
    }
}

/* In exactly this form: semantics of Normalize. */
INGEST_BOTH float ingest_normalize(uint32_t x, float mean, float std)
{
    return ((float)x / 255.0f - mean) / std;
}

/* ---- pixels ---- */

INGEST_BOTH void ingest_put(void *out, enum mr_dtype dtype, size_t at, uint32_t bits)
{
    if (dtype == MR_F32)
        ((uint32_t *)out)[at] = bits;
    else if (dtype == MR_U8)
        ((uint8_t *)out)[at] = (uint8_t)bits;
    else
        ((uint16_t *)out)[at] = (uint16_t)bits;
}

INGEST_BOTH void ingest_put_pixel(const struct ingest_work *work, enum mr_dtype dtype, int first,
                                  uint32_t row, uint32_t pixel, const uint32_t bits[INGEST_CHANNELS])
{
    size_t plane = (size_t)work->height * work->width, step = first ? plane : 1;
    size_t at = (size_t)row * plane * INGEST_CHANNELS + (first ? pixel : (size_t)pixel * INGEST_CHANNELS);
    for (int c = 0; c < INGEST_CHANNELS; c++)
        ingest_put(work->image, dtype, at + (size_t)c * step, bits[c]);
}

INGEST_BOTH const uint8_t *ingest_pixel_in(const struct ingest_work *work, uint32_t row, uint32_t pixel)
{
    return work->in + ((size_t)row * work->height * work->width + pixel) * INGEST_CHANNELS;
}

/* Finish ops alone. dtype and layout are parameters so that the host's loops have them as constants. */
INGEST_BOTH void ingest_pixel(const struct ingest_work *work, enum mr_dtype dtype, int first, uint32_t row,
                              uint32_t pixel)
{
    const uint8_t *in = ingest_pixel_in(work, row, pixel);
    uint32_t bits[INGEST_CHANNELS];
    for (int c = 0; c < INGEST_CHANNELS; c++)
        bits[c] = work->tables->bits[c][in[c]];
    ingest_put_pixel(work, dtype, first, row, pixel, bits);
}

INGEST_BOTH int ingest_within(struct mr_box box, int32_t y, int32_t x)
{
    return y >= box.top && y - box.top < box.height && x >= box.left && x - box.left < box.width;
}

/* Of one row: NULL where it is erased. */
INGEST_BOTH const uint8_t *ingest_source(const struct ingest_work *work, uint32_t row, uint32_t y, uint32_t x)
{
    if (ingest_within(work->draws[row].erased, (int32_t)y, (int32_t)x))
        return NULL;
    return ingest_pixel_in(work, row, y * work->width + x);
}

INGEST_BOTH uint32_t ingest_mixed(const struct ingest_work *work, enum mr_dtype dtype, int c,
                                  const uint8_t *own, const uint8_t *partner)
{
    float mine = own ? work->tables->values[c][own[c]] : 0;
    float theirs = partner ? work->tables->values[c][partner[c]] : 0;
    float made = mine * work->draw.share;
    return ingest_encode(dtype, made + theirs * work->draw.partner_share);
}

/* Finish and batch ops. */
INGEST_BOTH void ingest_pixel_drawn(const struct ingest_work *work, enum mr_dtype dtype, int first,
                                    uint32_t row, uint32_t y, uint32_t x)
{
    uint32_t partner = (uint32_t)work->draws[row].partner, bits[INGEST_CHANNELS];
    enum mr_mix mix = partner == row ? MR_MIX_NONE : work->draw.mix;
    int cut = mix == MR_MIX_CUT && ingest_within(work->draw.cut, (int32_t)y, (int32_t)x);
    const uint8_t *own = ingest_source(work, cut ? partner : row, y, x);
    const uint8_t *theirs = mix == MR_MIX_UP ? ingest_source(work, partner, y, x) : NULL;
    for (int c = 0; c < INGEST_CHANNELS; c++) {
        if (mix == MR_MIX_UP)
            bits[c] = ingest_mixed(work, dtype, c, own, theirs);
        else
            bits[c] = own ? work->tables->bits[c][own[c]] : 0;
    }
    ingest_put_pixel(work, dtype, first, row, y * work->width + x, bits);
}

/* ---- labels ---- */

INGEST_BOTH float ingest_one_hot(int64_t label, uint32_t at)
{
    return label == (int64_t)at ? 1.0f : 0.0f;
}

/* Value `at` of a row's label: of `classes`, or the only one. */
INGEST_BOTH void ingest_label(const struct ingest_work *work, uint32_t row, uint32_t at)
{
    if (work->classes == 0) {
        ((int64_t *)work->label)[row] = work->labels[row];
        return;
    }
    float made = ingest_one_hot(work->labels[row], at);
    uint32_t partner = (uint32_t)work->draws[row].partner;
    if (work->draw.mix != MR_MIX_NONE && partner != row) {
        made = made * work->draw.share;
        made = made + ingest_one_hot(work->labels[partner], at) * work->draw.partner_share;
    }
    ((float *)work->label)[(size_t)row * work->classes + at] = made;
}

#endif
