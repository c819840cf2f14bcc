/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quality of the order. The seeds are fixed, so a test passes always or never; a threshold is the chi-square
 * value that a truly random order would pass in all but 1 of 1000 seeds (Wilson-Hilferty), or 4 standard
 * deviations of a correlation.
 */
#include "scheduler/order.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { EPOCHS = 120000 };
#define SEED UINT64_C(0x6d696c6c72616365)

static struct scheduler_order *make(bool shuffle, uint64_t seed, uint32_t epoch, uint64_t items)
{
    struct scheduler_order *order = NULL;
    struct base_error error = {0};
    if (scheduler_order_create(&order, shuffle, seed, epoch, items, &error))
        fail_msg("%s", error.text);
    return order;
}

static double chi_square(const uint32_t *counts, size_t cells, double expected)
{
    double sum = 0;
    for (size_t i = 0; i < cells; i++)
        sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    return sum;
}

static void assert_chi_square(double value, double freedom, const char *what, uint64_t items)
{
    double z = 3.0902; /* p = 0.001, one side */
    double limit = freedom * pow(1 - 2 / (9 * freedom) + z * sqrt(2 / (9 * freedom)), 3);
    if (value > limit)
        fail_msg("%s of %llu items: chi-square %.1f is over %.1f", what, (unsigned long long)items, value,
                 limit);
}

static size_t rank_of_order(const uint64_t *items, int count)
{
    size_t rank = 0;
    for (int i = 0; i < count; i++) {
        size_t smaller = 0;
        for (int j = i + 1; j < count; j++)
            smaller += items[j] < items[i];
        rank = rank * (size_t)(count - i) + smaller;
    }
    return rank;
}

static void every_order_of_few_items_is_equally_likely(void **state)
{
    (void)state;
    size_t orders = 1;
    for (int n = 1; n <= 9; n++) {
        orders *= (size_t)n;
        uint32_t cells[81] = {0}, ranks[720] = {0};
        for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
            struct scheduler_order *order = make(true, SEED, epoch, (uint64_t)n);
            uint64_t items[9], met = 0;
            for (int p = 0; p < n; p++) {
                items[p] = scheduler_order_item(order, (uint64_t)p);
                met |= UINT64_C(1) << items[p];
                cells[p * n + (int)items[p]]++;
                assert_int_equal(scheduler_order_position(order, items[p]), p);
            }
            assert_int_equal(met, (1u << n) - 1);
            if (n <= 6)
                ranks[rank_of_order(items, n)]++;
            scheduler_order_destroy(order);
        }
        if (n > 1)
            assert_chi_square(chi_square(cells, (size_t)(n * n), (double)EPOCHS / n), (n - 1) * (n - 1),
                              "places", (uint64_t)n);
        if (n > 1 && n <= 6)
            assert_chi_square(chi_square(ranks, orders, (double)EPOCHS / (double)orders), (double)orders - 1,
                              "orders", (uint64_t)n);
    }
}

static void whole_epochs_are_bijections(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 397, 65535, 65536, 65537, 100003, 131072, 131073, 262145};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct scheduler_order *order = make(true, SEED + i, (uint32_t)i, sizes[i]);
        uint8_t *met = calloc(sizes[i], 1);
        assert_non_null(met);
        for (uint64_t p = 0; p < sizes[i]; p++) {
            uint64_t item = scheduler_order_item(order, p);
            assert_true(item < sizes[i] && !met[item]);
            met[item] = 1;
            assert_int_equal(scheduler_order_position(order, item), p);
        }
        free(met);
        scheduler_order_destroy(order);
    }
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void ranges_of_large_epochs_are_distinct_and_invertible(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {10000000, UINT64_C(1) << 32, (UINT64_C(1) << 40) + 1,
                                     (UINT64_C(1) << 47) - 1, SCHEDULER_ORDER_ITEMS_MAX};
    enum { RANGE = 4000 };
    static uint64_t items[3 * RANGE];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct scheduler_order *order = make(true, SEED, 7, sizes[i]);
        uint64_t begins[] = {0, sizes[i] / 3, sizes[i] - RANGE};
        for (int j = 0; j < 3 * RANGE; j++) {
            uint64_t p = begins[j / RANGE] + (uint64_t)(j % RANGE);
            items[j] = scheduler_order_item(order, p);
            assert_true(items[j] < sizes[i]);
            assert_int_equal(scheduler_order_position(order, items[j]), p);
            assert_int_equal(scheduler_order_item(order, scheduler_order_position(order, p)), p);
        }
        qsort(items, 3 * RANGE, sizeof items[0], compare);
        for (int j = 1; j < 3 * RANGE; j++)
            assert_true(items[j - 1] < items[j]);
        scheduler_order_destroy(order);
    }
}

static double correlation(const double *x, const double *y, int n)
{
    double sx = 0, sy = 0, sxx = 0, syy = 0, sxy = 0;
    for (int i = 0; i < n; i++) {
        sx += x[i], sy += y[i];
        sxx += x[i] * x[i], syy += y[i] * y[i], sxy += x[i] * y[i];
    }
    return (n * sxy - sx * sy) / sqrt((n * sxx - sx * sx) * (n * syy - sy * sy));
}

/* Positions spread over the epoch and neighbouring ones; this epoch's items and the next's. */
static void position_item_and_consecutive_epochs_are_uncorrelated(void **state)
{
    (void)state;
    enum { SAMPLES = 20000 };
    static const uint64_t sizes[] = {
        20000, 65536, 65537, 1281167, UINT64_C(1) << 33, SCHEDULER_ORDER_ITEMS_MAX};
    static double at[SAMPLES], here[SAMPLES], after[SAMPLES], next[SAMPLES];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t n = sizes[i], stride = n / SAMPLES;
        uint32_t pairs[256] = {0};
        struct scheduler_order *order = make(true, SEED, 11, n), *other = make(true, SEED, 12, n);
        for (int j = 0; j < SAMPLES; j++) {
            uint64_t p = (uint64_t)j * stride, q = (p + 1) % n;
            at[j] = (double)p / (double)n;
            here[j] = (double)scheduler_order_item(order, p) / (double)n;
            after[j] = (double)scheduler_order_item(order, q) / (double)n;
            next[j] = (double)scheduler_order_item(other, p) / (double)n;
            pairs[(int)(here[j] * 16) * 16 + (int)(after[j] * 16)]++;
        }
        double limit = 4 / sqrt(SAMPLES);
        assert_true(fabs(correlation(at, here, SAMPLES)) < limit);
        assert_true(fabs(correlation(here, after, SAMPLES)) < limit);
        assert_true(fabs(correlation(here, next, SAMPLES)) < limit);
        assert_chi_square(chi_square(pairs, 256, SAMPLES / 256.), 255, "neighbours", n);
        scheduler_order_destroy(order);
        scheduler_order_destroy(other);
    }
}

/* Between two random orders a position keeps its item about once an epoch. */
static void epochs_and_seeds_share_no_more_than_chance(void **state)
{
    (void)state;
    enum { PAIRS = 12 };
    uint64_t same = 0;
    for (uint32_t e = 0; e < PAIRS; e++) {
        struct scheduler_order *a = make(true, SEED, e, 65537), *b = make(true, SEED, e + 1, 65537);
        struct scheduler_order *c = make(true, SEED + 1, e, 65537);
        for (uint64_t p = 0; p < 65537; p++) {
            uint64_t item = scheduler_order_item(a, p);
            same += item == scheduler_order_item(b, p);
            same += item == scheduler_order_item(c, p);
        }
        scheduler_order_destroy(a);
        scheduler_order_destroy(b);
        scheduler_order_destroy(c);
    }
    assert_true(same < 2 * PAIRS + 4 * 5); /* Poisson(24): 4 standard deviations */
}

static void sequential_is_the_identity(void **state)
{
    (void)state;
    struct scheduler_order *order = make(false, 3, 4, SCHEDULER_ORDER_ITEMS_MAX);
    for (uint64_t p = 0; p < 1000; p++) {
        uint64_t at = p * UINT64_C(281474976710) % SCHEDULER_ORDER_ITEMS_MAX;
        assert_int_equal(scheduler_order_item(order, at), at);
        assert_int_equal(scheduler_order_position(order, at), at);
    }
    scheduler_order_destroy(order);
}

static void sizes_out_of_range_are_refused(void **state)
{
    (void)state;
    struct scheduler_order *order = NULL;
    struct base_error error = {0};
    assert_int_equal(scheduler_order_create(&order, true, 1, 0, 0, &error), BASE_INVALID);
    assert_null(order);
    assert_int_equal(scheduler_order_create(&order, false, 1, 0, SCHEDULER_ORDER_ITEMS_MAX + 1, &error),
                     BASE_INVALID);
    assert_non_null(strstr(error.text, "281474976710657"));
    scheduler_order_destroy(NULL);
}

static void substitutes_are_uniform_and_differ_by_try(void **state)
{
    (void)state;
    uint32_t counts[397] = {0};
    int same = 0;
    for (uint64_t p = 0; p < 3970; p++) {
        for (int t = 0; t < 16; t++) {
            uint64_t item = scheduler_order_substitute(SEED, 3, p, t, 397);
            assert_true(item < 397);
            counts[item]++;
            same += item == scheduler_order_substitute(SEED, 3, p, (t + 1) % 16, 397);
        }
    }
    assert_chi_square(chi_square(counts, 397, 160), 396, "substitutes", 397);
    assert_true(same > 80 && same < 240); /* 160 expected */
    assert_int_equal(scheduler_order_substitute(SEED, 3, 5, 0, 1), 0);
}

/* The packing is fixed for ever: cursors and caches outlive builds. Values from an implementation in Python.
 */
static void the_packing_does_not_change(void **state)
{
    (void)state;
    static const uint64_t few[10] = {5, 0, 8, 1, 2, 7, 9, 4, 3, 6};
    static const uint64_t many[5] = {196941, 101168, 573332, 779792, 525918};
    static const uint64_t huge[5] = {UINT64_C(250365215919443), UINT64_C(2033226623467),
                                     UINT64_C(102723067085874), UINT64_C(148748187620887),
                                     UINT64_C(197049419513766)};
    struct scheduler_order *order = make(true, SEED, 5, 10);
    for (uint64_t p = 0; p < 10; p++)
        assert_int_equal(scheduler_order_item(order, p), few[p]);
    scheduler_order_destroy(order);
    order = make(true, SEED, 5, 1281167);
    for (uint64_t p = 0; p < 5; p++)
        assert_int_equal(scheduler_order_item(order, p), many[p]);
    scheduler_order_destroy(order);
    order = make(true, SEED, 5, SCHEDULER_ORDER_ITEMS_MAX - 1);
    for (uint64_t p = 0; p < 5; p++)
        assert_int_equal(scheduler_order_item(order, p), huge[p]);
    scheduler_order_destroy(order);
    assert_int_equal(scheduler_order_substitute(SEED, 5, 1000, 2, 1281167), 360793);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_of_few_items_is_equally_likely),
        cmocka_unit_test(whole_epochs_are_bijections),
        cmocka_unit_test(ranges_of_large_epochs_are_distinct_and_invertible),
        cmocka_unit_test(position_item_and_consecutive_epochs_are_uncorrelated),
        cmocka_unit_test(epochs_and_seeds_share_no_more_than_chance),
        cmocka_unit_test(sequential_is_the_identity),
        cmocka_unit_test(sizes_out_of_range_are_refused),
        cmocka_unit_test(substitutes_are_uniform_and_differ_by_try),
        cmocka_unit_test(the_packing_does_not_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
