/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/finish.h"

#include <string.h>

enum { CHANNELS = CLIENT_FINISH_CHANNELS };

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The `drop` low bits go, ties to even; a carry runs into the exponent, as it should. */
static uint32_t round_off(uint32_t bits, int drop)
{
    uint32_t odd = bits >> drop & 1, half = (UINT32_C(1) << (drop - 1)) - 1;
    return (bits + half + odd) >> drop;
}

uint16_t client_finish_bf16(float value)
{
    uint32_t bits = float_bits(value);
    if (value != value)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)round_off(bits, 16);
}

uint16_t client_finish_f16(float value)
{
    uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    int exponent = (int)(rest >> 23) - 127 + 15;
    if (rest > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (exponent >= 31)
        return (uint16_t)(sign | 0x7c00);
    if (exponent > 0)
        return (uint16_t)(sign | round_off((uint32_t)exponent << 23 | (rest & 0x7fffff), 13));
    if (exponent < -10) /* below half of the smallest subnormal */
        return (uint16_t)sign;
    return (uint16_t)(sign | round_off((rest & 0x7fffff) | 0x800000, 14 - exponent));
}

uint32_t client_finish_encode(enum mr_dtype dtype, float value)
{
    switch (dtype) {
    case MR_F32:
        return float_bits(value);
    case MR_F16:
        return client_finish_f16(value);
    case MR_BF16:
        return client_finish_bf16(value);
    default:
        return (uint32_t)value;
    }
}

static float value_of(const struct mr_finish *asked, int channel, int x)
{
    if (!asked->normalizes)
        return (float)x;
    return ((float)x / 255.0f - asked->mean[channel]) / asked->std[channel];
}

void client_finish_init(struct client_finish *finish, const struct mr_finish *asked)
{
    finish->dtype = asked->dtype;
    finish->channels_first = asked->channels_first;
    for (int channel = 0; channel < CHANNELS; channel++) {
        for (int x = 0; x < 256; x++) {
            finish->values[channel][x] = value_of(asked, channel, x);
            finish->table[channel][x] = client_finish_encode(finish->dtype, finish->values[channel][x]);
        }
    }
}

/* Channels lie `plane` values apart: 1 in NHWC, an image's pixels in NCHW. */
static size_t pixel_step(size_t plane)
{
    return plane == 1 ? CHANNELS : 1;
}

static void put_bytes(const uint32_t table[CHANNELS][256], const uint8_t *in, uint8_t *out, size_t pixels,
                      size_t plane)
{
    size_t step = pixel_step(plane);
    for (size_t i = 0; i < pixels; i++, in += CHANNELS, out += step) {
        out[0] = (uint8_t)table[0][in[0]];
        out[plane] = (uint8_t)table[1][in[1]];
        out[2 * plane] = (uint8_t)table[2][in[2]];
    }
}

static void put_halves(const uint32_t table[CHANNELS][256], const uint8_t *in, uint16_t *out, size_t pixels,
                       size_t plane)
{
    size_t step = pixel_step(plane);
    for (size_t i = 0; i < pixels; i++, in += CHANNELS, out += step) {
        out[0] = (uint16_t)table[0][in[0]];
        out[plane] = (uint16_t)table[1][in[1]];
        out[2 * plane] = (uint16_t)table[2][in[2]];
    }
}

static void put_words(const uint32_t table[CHANNELS][256], const uint8_t *in, uint32_t *out, size_t pixels,
                      size_t plane)
{
    size_t step = pixel_step(plane);
    for (size_t i = 0; i < pixels; i++, in += CHANNELS, out += step) {
        out[0] = (uint32_t)table[0][in[0]];
        out[plane] = (uint32_t)table[1][in[1]];
        out[2 * plane] = (uint32_t)table[2][in[2]];
    }
}

void client_finish_run(const struct client_finish *finish, const uint8_t *in, void *out, size_t rows,
                       size_t pixels)
{
    size_t value_bytes = mr_dtype_bytes(finish->dtype);
    size_t plane = finish->channels_first ? pixels : 1;
    uint8_t *to = out;
    for (size_t row = 0; row < rows; row++) {
        if (value_bytes == 1)
            put_bytes(finish->table, in, to, pixels, plane);
        else if (value_bytes == 2)
            put_halves(finish->table, in, (uint16_t *)(void *)to, pixels, plane);
        else
            put_words(finish->table, in, (uint32_t *)(void *)to, pixels, plane);
        in += pixels * CHANNELS;
        to += pixels * CHANNELS * value_bytes;
    }
}
