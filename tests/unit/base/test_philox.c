/* SPDX-License-Identifier: Apache-2.0 */
#include "base/philox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* From Random123's kat_vectors, philox 4x32 with 10 rounds. */
static void known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], word[4];
    } rows[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t key = (uint64_t)rows[i].key[1] << 32 | rows[i].key[0];
        struct base_philox block = base_philox_block(key, rows[i].counter);
        assert_memory_equal(block.word, rows[i].word, sizeof block.word);
    }
}

/* The packing that the header fixes for ever, made here from blocks alone. */
static void packing_is_the_documented_one(void **state)
{
    (void)state;
    uint64_t seed = UINT64_C(0x0123456789abcdef), item = UINT64_C(0xfedcba9876543210),
             occurrence = UINT64_C(5) << 32 | 9;
    struct base_philox first = base_philox_block(seed, (uint32_t[4]){0x76543210, 0xfedcba98, 7, 1});
    uint64_t first_key = (uint64_t)first.word[1] << 32 | first.word[0];
    struct base_philox second =
        base_philox_block(first_key, (uint32_t[4]){9, 5, first.word[2], first.word[3]});
    uint64_t sample = (uint64_t)second.word[1] << 32 | second.word[0];
    assert_true(base_philox_sample_key(seed, item, 7, occurrence) == sample);

    struct base_philox draw = base_philox_draw(sample, 3, 4, 5);
    struct base_philox expected = base_philox_block(sample, (uint32_t[4]){3, 4, 5, 2});
    assert_memory_equal(&draw, &expected, sizeof draw);
}

static void every_part_of_the_key_counts(void **state)
{
    (void)state;
    uint64_t base = base_philox_sample_key(1, 2, 3, 0);
    assert_true(base != base_philox_sample_key(2, 2, 3, 0));
    assert_true(base != base_philox_sample_key(1, 3, 3, 0));
    assert_true(base != base_philox_sample_key(1, 2, 4, 0));
    assert_true(base != base_philox_sample_key(1, 2, 3, 1));
    assert_true(base != base_philox_sample_key(1, 2 + (UINT64_C(1) << 32), 3, 0));
}

static void below_is_uniform(void **state)
{
    (void)state;
    enum { BOUND = 7, DRAWS = 70000 };
    int count[BOUND] = {0};
    for (uint64_t i = 0; i < DRAWS; i++) {
        uint64_t value = base_philox_below(42, 1, i, BOUND);
        assert_true(value < BOUND);
        count[value]++;
    }
    double chi = 0;
    for (int i = 0; i < BOUND; i++)
        chi += (count[i] - DRAWS / BOUND) * (double)(count[i] - DRAWS / BOUND) / (DRAWS / BOUND);
    assert_true(chi < 22.5); /* 6 degrees of freedom: 0.1% */
}

/* With a bound over 2^63 nearly half of all words must be drawn again. */
static void below_redraws(void **state)
{
    (void)state;
    uint64_t bound = (UINT64_C(1) << 63) + 1;
    int redrawn = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t value = base_philox_below(9, 2, i, bound);
        assert_true(value < bound);
        uint64_t direct = (uint64_t)((unsigned __int128)base_philox_word(9, 2, i) * bound >> 64);
        redrawn += value != direct;
    }
    assert_in_range(redrawn, 430, 570);
    assert_int_equal(base_philox_below(9, 2, 0, 1), 0);
}

static void doubles_are_from_53_bits(void **state)
{
    (void)state;
    struct base_philox ones = {{0xffffffff, 0xffffffff, 0, 0}}, low = {{0x800, 0, 0, 0x80000000}};
    assert_true(base_philox_double(ones, 0) == 1 - 0x1p-53);
    assert_true(base_philox_double(ones, 1) == 0);
    assert_true(base_philox_double(low, 0) == 0x1p-53);
    assert_true(base_philox_double(low, 1) == 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(packing_is_the_documented_one),
        cmocka_unit_test(every_part_of_the_key_counts),
        cmocka_unit_test(below_is_uniform),
        cmocka_unit_test(below_redraws),
        cmocka_unit_test(doubles_are_from_53_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
