/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX2. A 22-bit weight is upper * 2048 + lower, both within 16 bits, so that pmaddwd multiplies two taps at once exactly;
 * the two sums meet as (upper << 11) + lower.
 */
#include "worker/transform/kernel.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2")))

enum { HALF = 1 << (TRANSFORM_WEIGHT_BITS - 1), ROWS = 4, VECTOR = 32 };

static bool available(void)
{
    return __builtin_cpu_supports("avx2");
}

AVX2 static inline __m256i join(__m256i upper, __m256i lower)
{
    return _mm256_add_epi32(_mm256_slli_epi32(upper, 11), lower);
}

/* Four 16-bit weights: the low half gets the first pair four times, the high half the second. */
AVX2 static inline __m256i spread(const int16_t *weights)
{
    const __m256i order = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    return _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(_mm_loadl_epi64((const void *)weights)), order);
}

/* Four RGB pixels to 16 bits: low half r0 r1 g0 g1 b0 b1 - -, high half the same of pixels 2 and 3. */
AVX2 static inline __m256i pair_pixels(const uint8_t *pixels)
{
    const __m256i order = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, /* */
                                           6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)pixels)), order);
}

AVX2 static inline __m128i fold(__m256i upper, __m256i lower)
{
    __m256i sum = join(upper, lower);
    __m128i both = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    return _mm_srai_epi32(_mm_add_epi32(both, _mm_set1_epi32(HALF)), TRANSFORM_WEIGHT_BITS);
}

/* Output pixel i of four rows: one 32-bit RGB- a row. */
AVX2 static inline __m128i four_pixels(const struct transform_axis *axis, int32_t i,
                                       const uint8_t *const from[ROWS])
{
    const int16_t *upper = axis->upper + (size_t)i * axis->stride,
                  *lower = axis->lower + (size_t)i * axis->stride;
    size_t at = 3 * (size_t)axis->start[i];
    __m256i u0 = _mm256_setzero_si256(), u1 = u0, u2 = u0, u3 = u0, l0 = u0, l1 = u0, l2 = u0, l3 = u0;
    for (int32_t t = 0; t < axis->taps[i]; t += TRANSFORM_TAP_GROUP, at += 3 * TRANSFORM_TAP_GROUP) {
        __m256i ku = spread(upper + t), kl = spread(lower + t);
        __m256i p0 = pair_pixels(from[0] + at), p1 = pair_pixels(from[1] + at);
        __m256i p2 = pair_pixels(from[2] + at), p3 = pair_pixels(from[3] + at);
        u0 = _mm256_add_epi32(u0, _mm256_madd_epi16(p0, ku));
        l0 = _mm256_add_epi32(l0, _mm256_madd_epi16(p0, kl));
        u1 = _mm256_add_epi32(u1, _mm256_madd_epi16(p1, ku));
        l1 = _mm256_add_epi32(l1, _mm256_madd_epi16(p1, kl));
        u2 = _mm256_add_epi32(u2, _mm256_madd_epi16(p2, ku));
        l2 = _mm256_add_epi32(l2, _mm256_madd_epi16(p2, kl));
        u3 = _mm256_add_epi32(u3, _mm256_madd_epi16(p3, ku));
        l3 = _mm256_add_epi32(l3, _mm256_madd_epi16(p3, kl));
    }
    __m128i low = _mm_packs_epi32(fold(u0, l0), fold(u1, l1)),
            high = _mm_packs_epi32(fold(u2, l2), fold(u3, l3));
    return _mm_packus_epi16(low, high);
}

AVX2 static void horizontal_four(const struct transform_axis *axis, const uint8_t *const from[ROWS],
                                 uint8_t *const to[ROWS])
{
    uint32_t pixel[ROWS];
    int32_t i = 0;
    for (; i + 1 < axis->count; i++) { /* the fourth byte is the next pixel's first, written after it */
        _mm_storeu_si128((void *)pixel, four_pixels(axis, i, from));
        for (int row = 0; row < ROWS; row++)
            memcpy(to[row] + 3 * (size_t)i, &pixel[row], 4);
    }
    _mm_storeu_si128((void *)pixel, four_pixels(axis, i, from));
    for (int row = 0; row < ROWS; row++)
        memcpy(to[row] + 3 * (size_t)i, &pixel[row], 3);
}

AVX2 static void horizontal(const struct transform_axis *axis, const struct transform_kernel_rows *rows)
{
    for (int row = 0; row < rows->rows; row += ROWS) {
        const uint8_t *from[ROWS];
        uint8_t *to[ROWS];
        for (int i = 0; i < ROWS; i++) { /* of fewer than four, the last is done again */
            int at = row + i < rows->rows ? row + i : rows->rows - 1;
            from[i] = rows->from + at * rows->from_pitch;
            to[i] = rows->to + at * rows->to_pitch;
        }
        horizontal_four(axis, from, to);
    }
}

struct taps {
    const int16_t *upper, *lower;
    int32_t count;
};

AVX2 static inline __m256i shift(__m256i upper, __m256i lower)
{
    return _mm256_srai_epi32(_mm256_add_epi32(join(upper, lower), _mm256_set1_epi32(HALF)),
                             TRANSFORM_WEIGHT_BITS);
}

AVX2 static inline __m256i two_weights(const int16_t *weights)
{
    int32_t pair;
    memcpy(&pair, weights, sizeof pair);
    return _mm256_set1_epi32(pair);
}

/* 32 bytes of an output row; two source rows a step, bytes of both interleaved so that pmaddwd takes a pair. */
AVX2 static inline __m256i vertical_vector(const struct taps *taps, const uint8_t *from, size_t pitch)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i u0 = zero, u1 = zero, u2 = zero, u3 = zero, l0 = zero, l1 = zero, l2 = zero, l3 = zero;
    for (int32_t t = 0; t < taps->count; t += 2, from += 2 * pitch) {
        __m256i ku = two_weights(taps->upper + t), kl = two_weights(taps->lower + t);
        __m256i a = _mm256_loadu_si256((const void *)from),
                b = _mm256_loadu_si256((const void *)(from + pitch));
        __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
        __m256i p0 = _mm256_unpacklo_epi8(low, zero), p1 = _mm256_unpackhi_epi8(low, zero);
        __m256i p2 = _mm256_unpacklo_epi8(high, zero), p3 = _mm256_unpackhi_epi8(high, zero);
        u0 = _mm256_add_epi32(u0, _mm256_madd_epi16(p0, ku));
        l0 = _mm256_add_epi32(l0, _mm256_madd_epi16(p0, kl));
        u1 = _mm256_add_epi32(u1, _mm256_madd_epi16(p1, ku));
        l1 = _mm256_add_epi32(l1, _mm256_madd_epi16(p1, kl));
        u2 = _mm256_add_epi32(u2, _mm256_madd_epi16(p2, ku));
        l2 = _mm256_add_epi32(l2, _mm256_madd_epi16(p2, kl));
        u3 = _mm256_add_epi32(u3, _mm256_madd_epi16(p3, ku));
        l3 = _mm256_add_epi32(l3, _mm256_madd_epi16(p3, kl));
    }
    return _mm256_packus_epi16(_mm256_packs_epi32(shift(u0, l0), shift(u1, l1)),
                               _mm256_packs_epi32(shift(u2, l2), shift(u3, l3)));
}

AVX2 static void vertical(const struct transform_axis *axis, int32_t i,
                          const struct transform_kernel_rows *rows, size_t bytes)
{
    struct taps taps = {axis->upper + (size_t)i * axis->stride, axis->lower + (size_t)i * axis->stride,
                        axis->taps[i]};
    const uint8_t *from = rows->from + (size_t)axis->start[i] * rows->from_pitch;
    size_t x = 0;
    for (; x + VECTOR <= bytes; x += VECTOR)
        _mm256_storeu_si256((void *)(rows->to + x), vertical_vector(&taps, from + x, rows->from_pitch));
    if (x < bytes) {
        uint8_t last[VECTOR];
        _mm256_storeu_si256((void *)last, vertical_vector(&taps, from + x, rows->from_pitch));
        memcpy(rows->to + x, last, bytes - x);
    }
}

const struct transform_kernel transform_kernel_avx2 = {"avx2", available, NULL, horizontal, vertical};

#endif
