/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/mix.h"

enum { CHANNELS = CLIENT_FINISH_CHANNELS };

static bool within(struct mr_box box, int32_t y, int32_t x)
{
    return y >= box.top && y - box.top < box.height && x >= box.left && x - box.left < box.width;
}

static void put(void *out, enum mr_dtype dtype, size_t at, float value)
{
    if (dtype == MR_F32)
        ((float *)out)[at] = value;
    else
        ((uint16_t *)out)[at] = (uint16_t)client_finish_encode(dtype, value);
}

/* One image, and what its pixels are made of. */
struct row {
    const struct client_finish *finish;
    const uint8_t *own, *other; /* bytes of the row and of its partner */
    struct mr_box erased, other_erased;
    struct mr_batch_draw draw; /* mix: of this row */
    int32_t height, width;
    void *out;
    size_t begin, pixel, channel; /* in `out`: of the row, and from one to the next */
};

static float value(const struct row *row, const uint8_t *bytes, bool erased, size_t at, int c)
{
    return erased ? 0 : row->finish->values[c][bytes[at + (size_t)c]];
}

/* The value of a pixel that changes. */
static float make(const struct row *row, bool erased, bool other_erased, bool cut, size_t at, int c)
{
    if (cut)
        return value(row, row->other, other_erased, at, c);
    float own = value(row, row->own, erased, at, c);
    if (row->draw.mix != MR_MIX_UP)
        return own;
    own = own * row->draw.share;
    return own + value(row, row->other, other_erased, at, c) * row->draw.partner_share;
}

/* MixUp of two rows of which nothing is erased: the usual case, and every pixel changes. */
static inline __attribute__((always_inline)) void mix_up(const struct row *row, enum mr_dtype dtype)
{
    size_t bytes = (size_t)row->height * (size_t)row->width * CHANNELS, begin = row->begin;
    for (size_t from = 0; from < bytes; from += CHANNELS, begin += row->pixel)
        for (int c = 0; c < CHANNELS; c++)
            put(row->out, dtype, begin + (size_t)c * row->channel, make(row, false, false, false, from, c));
}

/* On a copy, which no store can change, and with the dtype as a constant. */
static inline __attribute__((always_inline)) void mix_pixels(const struct row *given, enum mr_dtype dtype)
{
    const struct row row = *given;
    size_t pixel = 0;
    if (row.draw.mix == MR_MIX_UP && row.erased.height == 0 && row.other_erased.height == 0) {
        mix_up(&row, dtype);
        return;
    }
    for (int32_t y = 0; y < row.height; y++) {
        for (int32_t x = 0; x < row.width; x++, pixel++) {
            bool erased = within(row.erased, y, x), other_erased = within(row.other_erased, y, x);
            bool cut = row.draw.mix == MR_MIX_CUT && within(row.draw.cut, y, x);
            if (!erased && !cut && row.draw.mix != MR_MIX_UP)
                continue;
            size_t at = row.begin + pixel * row.pixel;
            for (int c = 0; c < CHANNELS; c++, at += row.channel)
                put(row.out, dtype, at, make(&row, erased, other_erased, cut, pixel * CHANNELS, c));
        }
    }
}

static void mix_row(const struct client_mix *mix, const struct client_finish *finish, uint32_t index,
                    const uint8_t *in, void *out)
{
    const struct mr_row_draw *own = &mix->rows[index];
    size_t plane = (size_t)mix->height * (size_t)mix->width, bytes = plane * CHANNELS;
    struct row row = {.finish = finish,
                      .own = in + index * bytes,
                      .other = in + (size_t)own->partner * bytes,
                      .erased = own->erased,
                      .other_erased = mix->rows[own->partner].erased,
                      .draw = mix->draw,
                      .height = mix->height,
                      .width = mix->width,
                      .out = out,
                      .begin = index * bytes,
                      .pixel = finish->channels_first ? 1 : CHANNELS,
                      .channel = finish->channels_first ? plane : 1};
    if (own->partner == (int32_t)index)
        row.draw.mix = MR_MIX_NONE;
    if (finish->dtype == MR_F32)
        mix_pixels(&row, MR_F32);
    else if (finish->dtype == MR_F16)
        mix_pixels(&row, MR_F16);
    else
        mix_pixels(&row, MR_BF16);
}

void client_mix_images(const struct client_mix *mix, const struct client_finish *finish, const uint8_t *in,
                       void *out)
{
    for (uint32_t i = 0; i < mix->count * mix->views; i++)
        if (mix->rows[i].erased.height > 0 || mix->draw.mix != MR_MIX_NONE)
            mix_row(mix, finish, i, in, out);
}

static float one_hot(int64_t label, uint32_t class)
{
    return label == (int64_t) class ? 1.0f : 0.0f;
}

void client_mix_labels(const struct client_mix *mix, const int64_t *labels, uint32_t classes, float *out)
{
    uint32_t views = mix->views;
    for (uint32_t row = 0; row < mix->count; row++) {
        uint32_t partner = (uint32_t)mix->rows[row * views].partner / views;
        bool mixed = mix->draw.mix != MR_MIX_NONE && partner != row;
        for (uint32_t class = 0; class < classes; class ++, out++) {
            *out = one_hot(labels[row], class);
            if (mixed)
                *out = *out * mix->draw.share + one_hot(labels[partner], class) * mix->draw.partner_share;
        }
    }
}
