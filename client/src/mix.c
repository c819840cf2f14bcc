/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/mix.h"

enum { CHANNELS = CLIENT_FINISH_CHANNELS };

static bool within(const struct mr_box *box, int32_t y, int32_t x)
{
    return y >= box->top && y - box->top < box->height && x >= box->left && x - box->left < box->width;
}

static void put(void *out, enum mr_dtype dtype, size_t at, uint32_t bits)
{
    if (dtype == MR_F32)
        ((uint32_t *)out)[at] = bits;
    else
        ((uint16_t *)out)[at] = (uint16_t)bits;
}

static float value(const struct client_finish *finish, const uint8_t *pixel, bool erased, int channel)
{
    return erased ? 0 : finish->values[channel][pixel[channel]];
}

static void mix_row(const struct client_mix *mix, const struct client_finish *finish, uint32_t row,
                    const uint8_t *in, void *out)
{
    const struct mr_row_draw *own = &mix->rows[row], *other = &mix->rows[own->partner];
    size_t plane = (size_t)mix->height * (size_t)mix->width, pixel = 0;
    bool mixed = own->partner != (int32_t)row;
    for (int32_t y = 0; y < mix->height; y++) {
        for (int32_t x = 0; x < mix->width; x++, pixel++) {
            const uint8_t *mine = in + (row * plane + pixel) * CHANNELS;
            const uint8_t *theirs = in + ((size_t)own->partner * plane + pixel) * CHANNELS;
            bool erased = within(&own->erased, y, x), other_erased = within(&other->erased, y, x);
            bool cut = mixed && mix->draw.mix == MR_MIX_CUT && within(&mix->draw.cut, y, x);
            bool both = mixed && mix->draw.mix == MR_MIX_UP;
            for (int c = 0; c < CHANNELS && (erased || cut || both); c++) {
                float made = cut ? value(finish, theirs, other_erased, c) : value(finish, mine, erased, c);
                if (both)
                    made = made * mix->draw.share +
                           value(finish, theirs, other_erased, c) * mix->draw.partner_share;
                size_t at = finish->channels_first ? (row * CHANNELS + (size_t)c) * plane + pixel
                                                   : (row * plane + pixel) * CHANNELS + (size_t)c;
                put(out, finish->dtype, at, client_finish_encode(finish->dtype, made));
            }
        }
    }
}

void client_mix_images(const struct client_mix *mix, const struct client_finish *finish, const uint8_t *in,
                       void *out)
{
    for (uint32_t row = 0; row < mix->count; row++)
        if (mix->rows[row].erased.height > 0 || mix->draw.mix != MR_MIX_NONE)
            mix_row(mix, finish, row, in, out);
}

static float one_hot(int64_t label, uint32_t class)
{
    return label == (int64_t) class ? 1.0f : 0.0f;
}

void client_mix_labels(const struct client_mix *mix, const int64_t *labels, uint32_t classes, float *out)
{
    for (uint32_t row = 0; row < mix->count; row++) {
        int32_t partner = mix->rows[row].partner;
        bool mixed = mix->draw.mix != MR_MIX_NONE && partner != (int32_t)row;
        for (uint32_t class = 0; class < classes; class ++, out++) {
            *out = one_hot(labels[row], class);
            if (mixed)
                *out = *out * mix->draw.share + one_hot(labels[partner], class) * mix->draw.partner_share;
        }
    }
}
