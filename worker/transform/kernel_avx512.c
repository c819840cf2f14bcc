/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512 with VNNI and VBMI. A 22-bit weight is three signed bytes, high * 2^16 + middle * 2^8 + low, so that vpdpbusd
 * multiplies four taps at once exactly; the three sums meet by shifts.
 *
 * Horizontal: five output pixels are fifteen 32-bit lanes. One 64-byte window of the row, permuted, gives each lane its four
 * taps of its colour; the permutation and the weights are tables made once for an axis. Where five outputs reach beyond a window
 * (shrinking more than about four times) the AVX2 pass runs instead.
 * Vertical: four rows interleaved give each lane its four taps.
 */
#include "worker/transform/kernel.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")))

enum { HALF = 1 << (TRANSFORM_WEIGHT_BITS - 1), VECTOR = 64, GROUP = 5, LANES = 16, DIGITS = 3 };

/* One group of five outputs; `weights` of them follow, DIGITS vectors for each step of four taps. */
struct group {
    uint32_t permutation[LANES];
    uint32_t offset; /* of the window in the row, in bytes */
    uint32_t weights_at, steps;
};

struct table {
    int32_t groups; /* 0: windows are too narrow for this axis */
    struct group *group;
    uint32_t (*weights)[LANES];
};

static bool available(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512vnni");
}

/* Four weights as three words of four signed bytes, lowest digits first. */
AVX512 static inline void split(const int32_t *weights, uint32_t digits[DIGITS])
{
    __m128i rest = _mm_loadu_si128((const void *)weights);
    for (int i = 0; i < DIGITS; i++) {
        __m128i digit = _mm_srai_epi32(_mm_slli_epi32(rest, 24), 24);
        digits[i] = (uint32_t)_mm_cvtsi128_si32(_mm_cvtepi32_epi8(digit));
        rest = _mm_srai_epi32(_mm_sub_epi32(rest, digit), 8);
    }
}

/* The table lies in axis->table: a header, the groups, the weights. */
static bool reserve(struct transform_axis *axis, struct table *table)
{
    int32_t groups = (axis->count + GROUP - 1) / GROUP;
    size_t group_bytes = ((size_t)groups * sizeof(struct group) + VECTOR - 1) & ~(size_t)(VECTOR - 1);
    size_t weight_bytes = (size_t)groups * (size_t)(axis->stride / TRANSFORM_TAP_GROUP) * DIGITS * VECTOR;
    size_t need = VECTOR + group_bytes + weight_bytes;
    if (need > axis->table_capacity) {
        free(axis->table);
        axis->table = aligned_alloc(VECTOR, need);
        axis->table_capacity = axis->table ? need : 0;
        if (!axis->table)
            return false;
    }
    char *at = axis->table;
    table->groups = groups;
    table->group = (struct group *)(at + VECTOR);
    table->weights = (uint32_t(*)[LANES])(at + VECTOR + group_bytes);
    return true;
}

/* False when the outputs first .. first + count - 1 do not share a window. */
AVX512 static bool fill_group(const struct transform_axis *axis, int32_t first, int32_t count,
                              struct group *group, uint32_t (*weights)[LANES])
{
    int32_t least = INT32_MAX, most = 0, taps = 0;
    for (int32_t i = first; i < first + count; i++) {
        least = axis->start[i] < least ? axis->start[i] : least;
        most = axis->start[i] > most ? axis->start[i] : most;
        taps = axis->taps[i] > taps ? axis->taps[i] : taps;
    }
    if (3 * (most - least + TRANSFORM_TAP_GROUP) > VECTOR)
        return false;
    group->offset = 3 * (uint32_t)least;
    group->steps = ((uint32_t)taps + TRANSFORM_TAP_GROUP - 1) / TRANSFORM_TAP_GROUP;
    memset(group->permutation, 0, sizeof group->permutation);
    memset(weights, 0, group->steps * DIGITS * sizeof *weights);
    for (int32_t k = 0; k < count; k++) {
        const int32_t *from = axis->weight + (size_t)(first + k) * axis->stride;
        uint32_t base = 3 * (uint32_t)(axis->start[first + k] - least);
        for (uint32_t color = 0; color < 3; color++)
            group->permutation[3 * k + color] = (base + color) * 0x01010101u + 0x09060300u;
        for (uint32_t step = 0; step < group->steps; step++) {
            uint32_t digits[DIGITS];
            split(from + step * TRANSFORM_TAP_GROUP, digits);
            for (int d = 0; d < DIGITS; d++)
                for (int color = 0; color < 3; color++)
                    weights[step * DIGITS + d][3 * k + color] = digits[d];
        }
    }
    return true;
}

static bool prepare(struct transform_axis *axis)
{
    struct table table;
    if (!reserve(axis, &table))
        return false;
    uint32_t at = 0;
    for (int32_t i = 0; i < table.groups; i++) {
        int32_t first = i * GROUP, left = axis->count - first;
        struct group *group = &table.group[i];
        group->weights_at = at;
        if (!fill_group(axis, first, left < GROUP ? left : GROUP, group, table.weights + at)) {
            table.groups = 0;
            break;
        }
        at += group->steps * DIGITS;
    }
    memcpy(axis->table, &table, sizeof table);
    return true;
}

AVX512 static inline __m512i join(__m512i low, __m512i middle, __m512i high)
{
    __m512i sum =
        _mm512_add_epi32(low, _mm512_slli_epi32(_mm512_add_epi32(middle, _mm512_slli_epi32(high, 8)), 8));
    return _mm512_srai_epi32(_mm512_add_epi32(sum, _mm512_set1_epi32(HALF)), TRANSFORM_WEIGHT_BITS);
}

/* Five pixels of one row, in the low 15 bytes. */
AVX512 static inline __m128i five_pixels(const struct group *group, const uint32_t (*weights)[LANES],
                                         const uint8_t *from)
{
    const __m512i permutation = _mm512_loadu_si512(group->permutation);
    __m512i low = _mm512_setzero_si512(), middle = low, high = low;
    for (uint32_t step = 0; step < group->steps; step++, weights += DIGITS, from += 3 * TRANSFORM_TAP_GROUP) {
        __m512i taps = _mm512_permutexvar_epi8(permutation, _mm512_loadu_si512(from));
        low = _mm512_dpbusd_epi32(low, taps, _mm512_load_si512(weights[0]));
        middle = _mm512_dpbusd_epi32(middle, taps, _mm512_load_si512(weights[1]));
        high = _mm512_dpbusd_epi32(high, taps, _mm512_load_si512(weights[2]));
    }
    __m512i value = _mm512_max_epi32(join(low, middle, high), _mm512_setzero_si512());
    return _mm512_cvtusepi32_epi8(value);
}

AVX512 static void horizontal(const struct transform_axis *axis, const struct transform_kernel_rows *rows)
{
    struct table table;
    memcpy(&table, axis->table, sizeof table);
    if (table.groups == 0) {
        transform_kernel_avx2.horizontal(axis, rows);
        return;
    }
    int32_t tail = axis->count - (table.groups - 1) * GROUP;
    const __mmask16 whole = 0x7fff, last = (__mmask16)((1u << (3 * tail)) - 1);
    for (int32_t i = 0; i < table.groups; i++) {
        const struct group *group = &table.group[i];
        const uint32_t(*weights)[LANES] = (const uint32_t(*)[LANES])table.weights + group->weights_at;
        __mmask16 mask = i + 1 < table.groups ? whole : last;
        for (int row = 0; row < rows->rows; row++)
            _mm_mask_storeu_epi8(
                rows->to + row * rows->to_pitch + (size_t)i * 3 * GROUP, mask,
                five_pixels(group, weights, rows->from + row * rows->from_pitch + group->offset));
    }
}

/* 64 bytes of an output row. */
AVX512 static inline __m512i vertical_vector(const uint32_t (*digits)[DIGITS], int32_t steps,
                                             const uint8_t *from, size_t pitch)
{
    __m512i sum[4][DIGITS];
    for (int q = 0; q < 4; q++)
        for (int d = 0; d < DIGITS; d++)
            sum[q][d] = _mm512_setzero_si512();
    for (int32_t step = 0; step < steps; step++, from += TRANSFORM_TAP_GROUP * pitch) {
        __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + pitch);
        __m512i c = _mm512_loadu_si512(from + 2 * pitch), e = _mm512_loadu_si512(from + 3 * pitch);
        __m512i ab_low = _mm512_unpacklo_epi8(a, b), ab_high = _mm512_unpackhi_epi8(a, b);
        __m512i ce_low = _mm512_unpacklo_epi8(c, e), ce_high = _mm512_unpackhi_epi8(c, e);
        __m512i taps[4] = {_mm512_unpacklo_epi16(ab_low, ce_low), _mm512_unpackhi_epi16(ab_low, ce_low),
                           _mm512_unpacklo_epi16(ab_high, ce_high), _mm512_unpackhi_epi16(ab_high, ce_high)};
        for (int d = 0; d < DIGITS; d++) {
            __m512i weights = _mm512_set1_epi32((int32_t)digits[step][d]);
            for (int q = 0; q < 4; q++)
                sum[q][d] = _mm512_dpbusd_epi32(sum[q][d], taps[q], weights);
        }
    }
    __m512i value[4];
    for (int q = 0; q < 4; q++)
        value[q] = join(sum[q][0], sum[q][1], sum[q][2]);
    return _mm512_packus_epi16(_mm512_packs_epi32(value[0], value[1]),
                               _mm512_packs_epi32(value[2], value[3]));
}

enum { STEPS_MOST = 64 };

AVX512 static void vertical(const struct transform_axis *axis, int32_t i,
                            const struct transform_kernel_rows *rows, size_t bytes)
{
    int32_t steps = (axis->taps[i] + TRANSFORM_TAP_GROUP - 1) / TRANSFORM_TAP_GROUP;
    if (steps > STEPS_MOST) {
        transform_kernel_avx2.vertical(axis, i, rows, bytes);
        return;
    }
    uint32_t digits[STEPS_MOST][DIGITS];
    for (int32_t step = 0; step < steps; step++)
        split(axis->weight + (size_t)i * axis->stride + step * TRANSFORM_TAP_GROUP, digits[step]);
    const uint8_t *from = rows->from + (size_t)axis->start[i] * rows->from_pitch;
    const uint32_t(*weights)[DIGITS] = (const uint32_t(*)[DIGITS])digits;
    for (size_t x = 0; x < bytes; x += VECTOR) {
        __mmask64 mask = bytes - x >= VECTOR ? ~(__mmask64)0 : ((__mmask64)1 << (bytes - x)) - 1;
        _mm512_mask_storeu_epi8(rows->to + x, mask,
                                vertical_vector(weights, steps, from + x, rows->from_pitch));
    }
}

const struct transform_kernel transform_kernel_avx512 = {"avx512", available, prepare, horizontal, vertical};

#endif
