/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is computed, of an image of a batch and of a label: the same source for the host and for CUDA, so that what is proved on a
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
    const uint8_t *in; /* rows * views * height * width * 3 */
    void *image;
    const int64_t *labels;           /* NULL: not sent */
    void *label;                     /* i64, with `classes` f32 */
    const struct mr_row_draw *draws; /* of each image, row * views + view; NULL: nothing is erased or mixed */
    struct mr_batch_draw draw;
    uint32_t rows, views, height, width;
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

/* Where an image's values go. */
struct ingest_out {
    void *image;
    size_t begin;          /* of the image */
    size_t pixel, channel; /* steps to the next one */
};

INGEST_BOTH struct ingest_out ingest_out(const struct ingest_work *work, int first, uint32_t image)
{
    size_t plane = (size_t)work->height * work->width;
    struct ingest_out out = {work->image, image * plane * INGEST_CHANNELS, 1, plane};
    if (!first) {
        out.pixel = INGEST_CHANNELS;
        out.channel = 1;
    }
    return out;
}

INGEST_BOTH const uint8_t *ingest_in(const struct ingest_work *work, uint32_t image)
{
    return work->in + (size_t)image * work->height * work->width * INGEST_CHANNELS;
}

/*
 * Finish ops alone, of every `stride`-th pixel of an image from `begin` on: a thread's share on a GPU, all of them on the host.
 * dtype and layout are parameters so that the host's loops have them as constants.
 */
INGEST_BOTH void ingest_image(const struct ingest_work *work, enum mr_dtype dtype, int first, uint32_t image,
                              uint32_t begin, uint32_t stride)
{
    const struct ingest_tables *tables = work->tables;
    struct ingest_out out = ingest_out(work, first, image);
    const uint8_t *in = ingest_in(work, image);
    uint32_t plane = work->height * work->width;
    for (uint32_t pixel = begin; pixel < plane; pixel += stride) {
        const uint8_t *from = in + (size_t)pixel * INGEST_CHANNELS;
        size_t at = out.begin + pixel * out.pixel;
        ingest_put(out.image, dtype, at, tables->bits[0][from[0]]);
        ingest_put(out.image, dtype, at + out.channel, tables->bits[1][from[1]]);
        ingest_put(out.image, dtype, at + 2 * out.channel, tables->bits[2][from[2]]);
    }
}

INGEST_BOTH int ingest_within(struct mr_box box, int32_t y, int32_t x)
{
    return (uint32_t)(y - box.top) < (uint32_t)box.height && (uint32_t)(x - box.left) < (uint32_t)box.width;
}

/* `from` NULL: erased. */
INGEST_BOTH float ingest_value(const struct ingest_tables *tables, const uint8_t *from, int c)
{
    return from ? tables->values[c][from[c]] : 0;
}

INGEST_BOTH uint32_t ingest_bits(const struct ingest_tables *tables, const uint8_t *from, int c)
{
    return from ? tables->bits[c][from[c]] : 0;
}

/* Finish and batch ops, likewise. */
INGEST_BOTH void ingest_image_drawn(const struct ingest_work *work, enum mr_dtype dtype, int first,
                                    uint32_t image, uint32_t begin, uint32_t stride)
{
    const struct ingest_tables *tables = work->tables;
    const struct mr_batch_draw draw = work->draw;
    const struct mr_row_draw own = work->draws[image], other = work->draws[own.partner];
    const uint8_t *own_in = ingest_in(work, image), *other_in = ingest_in(work, (uint32_t)own.partner);
    struct ingest_out out = ingest_out(work, first, image);
    enum mr_mix mix = own.partner == (int32_t)image ? MR_MIX_NONE : draw.mix;
    uint32_t plane = work->height * work->width;
    for (uint32_t pixel = begin; pixel < plane; pixel += stride) {
        int32_t y = (int32_t)(pixel / work->width), x = (int32_t)(pixel % work->width);
        size_t place = (size_t)pixel * INGEST_CHANNELS, at = out.begin + pixel * out.pixel;
        const uint8_t *mine = ingest_within(own.erased, y, x) ? NULL : own_in + place;
        const uint8_t *theirs = ingest_within(other.erased, y, x) ? NULL : other_in + place;
        if (mix == MR_MIX_CUT && ingest_within(draw.cut, y, x))
            mine = theirs;
        for (int c = 0; c < INGEST_CHANNELS; c++, at += out.channel) {
            uint32_t bits = ingest_bits(tables, mine, c);
            if (mix == MR_MIX_UP) {
                float made = ingest_value(tables, mine, c) * draw.share;
                bits = ingest_encode(dtype, made + ingest_value(tables, theirs, c) * draw.partner_share);
            }
            ingest_put(out.image, dtype, at, bits);
        }
    }
}

/* MixUp of two images of which nothing is erased. */
INGEST_BOTH void ingest_image_mixed(const struct ingest_work *work, enum mr_dtype dtype, int first,
                                    uint32_t image, uint32_t begin, uint32_t stride)
{
    const struct ingest_tables *tables = work->tables;
    const float share = work->draw.share, partner_share = work->draw.partner_share;
    const uint8_t *own_in = ingest_in(work, image);
    const uint8_t *other_in = ingest_in(work, (uint32_t)work->draws[image].partner);
    struct ingest_out out = ingest_out(work, first, image);
    uint32_t plane = work->height * work->width;
    for (uint32_t pixel = begin; pixel < plane; pixel += stride) {
        size_t place = (size_t)pixel * INGEST_CHANNELS, at = out.begin + pixel * out.pixel;
        for (int c = 0; c < INGEST_CHANNELS; c++, at += out.channel) {
            float mine = tables->values[c][own_in[place + (size_t)c]] * share;
            float theirs = tables->values[c][other_in[place + (size_t)c]] * partner_share;
            ingest_put(out.image, dtype, at, ingest_encode(dtype, mine + theirs));
        }
    }
}

/* An image, by the quickest of the three that does. */
INGEST_BOTH void ingest_any_image(const struct ingest_work *work, enum mr_dtype dtype, int first,
                                  uint32_t image, uint32_t begin, uint32_t stride)
{
    uint32_t partner = work->draws ? (uint32_t)work->draws[image].partner : image;
    int mixed = partner != image && work->draw.mix != MR_MIX_NONE;
    int erased = work->draws &&
                 (work->draws[image].erased.height > 0 || (mixed && work->draws[partner].erased.height > 0));
    if (!mixed && !erased)
        ingest_image(work, dtype, first, image, begin, stride);
    else if (!erased && work->draw.mix == MR_MIX_UP)
        ingest_image_mixed(work, dtype, first, image, begin, stride);
    else
        ingest_image_drawn(work, dtype, first, image, begin, stride);
}

INGEST_BOTH uint32_t ingest_images(const struct ingest_work *work)
{
    return work->rows * work->views;
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
    uint32_t partner = (uint32_t)work->draws[row * work->views].partner / work->views; /* of all its views */
    if (work->draw.mix != MR_MIX_NONE && partner != row) {
        made = made * work->draw.share;
        made = made + ingest_one_hot(work->labels[partner], at) * work->draw.partner_share;
    }
    ((float *)work->label)[(size_t)row * work->classes + at] = made;
}

#endif
