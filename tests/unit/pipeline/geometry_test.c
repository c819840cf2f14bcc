/* SPDX-License-Identifier: Apache-2.0 */
#include "base/math.h"
#include "base/philox.h"
#include "worker/transform/crop.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double ulps(double got, double want)
{
    return fabs(got - want) / (nextafter(fabs(want), INFINITY) - fabs(want));
}

/* The oracle is the host's libm, which need not be exact itself. */
static void functions_are_close_to_libm(void **state)
{
    (void)state;
    double worst_exp = 0, worst_log = 0, worst_sin = 0;
    for (uint64_t i = 0; i < 200000; i++) {
        struct base_philox block = base_philox_draw(1, 0, (uint32_t)i, 0);
        double u = base_philox_double(block, 0), v = base_philox_double(block, 1);
        double x = (u - 0.5) * (i % 2 ? 1400 : 4), positive = exp((v - 0.5) * (i % 2 ? 1400 : 4)),
               angle = (u - 0.5) * 200;
        worst_exp = fmax(worst_exp, ulps(base_math_exp(x), exp(x)));
        worst_log = fmax(worst_log, ulps(base_math_log(positive), log(positive)));
        worst_sin = fmax(worst_sin, ulps(base_math_sin(angle), sin(angle)));
    }
    print_message("worst: exp %.2f, log %.2f, sin %.2f ulp\n", worst_exp, worst_log, worst_sin);
    assert_true(worst_exp < 3 && worst_log < 3 && worst_sin < 3);
    assert_true(base_math_exp(0) == 1 && base_math_log(1) == 0 && base_math_sin(0) == 0);
}

static void rounding_is_half_to_even(void **state)
{
    (void)state;
    static const struct {
        double x;
        int64_t want;
    } rows[] = {{0.5, 0},
                {1.5, 2},
                {2.5, 2},
                {-0.5, 0},
                {-1.5, -2},
                {-2.5, -2},
                {0.49999999999999994, 0},
                {2.51, 3},
                {-2.51, -3},
                {-2.49, -2},
                {7, 7},
                {-7, -7},
                {4503599627370495.5, 4503599627370496}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(base_math_round(rows[i].x), rows[i].want);
}

static const struct transform_crop_range standard = {
    .scale_min = 0.08, .scale_max = 1, .ratio_min = 3.0 / 4, .ratio_max = 4.0 / 3};

static struct transform_crop_range with_logs(struct transform_crop_range range)
{
    range.log_ratio_min = base_math_log(range.ratio_min);
    range.log_ratio_max = base_math_log(range.ratio_max);
    return range;
}

static void boxes_lie_inside_and_fill_their_range(void **state)
{
    (void)state;
    struct transform_crop_range range = with_logs(standard);
    double area = 0;
    int at_top = 0, at_end = 0;
    enum { BOXES = 20000, WIDTH = 40, HEIGHT = 30 };
    for (uint64_t key = 0; key < BOXES; key++) {
        struct transform_box box = transform_crop_random(&range, WIDTH, HEIGHT, key, 1, 0);
        assert_true(box.top >= 0 && box.left >= 0 && box.height > 0 && box.width > 0);
        assert_true(box.top + box.height <= HEIGHT && box.left + box.width <= WIDTH);
        double ratio = (double)box.width / box.height;
        assert_true(ratio > 0.6 && ratio < 1.7); /* rounded sides of small boxes */
        area += (double)box.width * box.height / (WIDTH * HEIGHT);
        at_top += box.top == 0;
        at_end += box.top + box.height == HEIGHT; /* the last place is drawn, too */
    }
    print_message("mean area %.3f, at the top %d, at the end %d\n", area / BOXES, at_top, at_end);
    assert_true(area / BOXES > 0.40 && area / BOXES < 0.52);
    assert_true(abs(at_top - at_end) < BOXES / 50);
}

static void the_fallback_is_torchvisions(void **state)
{
    (void)state;
    /* scale beyond the image: ten tries fail */
    static const struct {
        int32_t width, height;
        struct transform_box want; /* top, left, height, width */
    } rows[] = {
        {100, 100, {0, 0, 100, 100}}, {300, 100, {0, 83, 100, 133}}, {100, 300, {83, 0, 133, 100}},
        {1, 1000, {499, 0, 1, 1}},    {1000, 1, {0, 499, 1, 1}},     {1, 1, {0, 0, 1, 1}},
        {4, 3, {0, 0, 3, 4}},         {3, 4, {0, 0, 4, 3}},
    };
    struct transform_crop_range range = with_logs((struct transform_crop_range){
        .scale_min = 5, .scale_max = 6, .ratio_min = 3.0 / 4, .ratio_max = 4.0 / 3});
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct transform_box box = transform_crop_random(&range, rows[i].width, rows[i].height, i, 1, 0);
        assert_memory_equal(&box, &rows[i].want, sizeof box);
    }
}

static void a_mad_range_still_gives_a_box(void **state)
{
    (void)state;
    struct transform_crop_range range = with_logs((struct transform_crop_range){
        .scale_min = 1e-9, .scale_max = 1e9, .ratio_min = 1e-3, .ratio_max = 1e3});
    for (uint64_t key = 0; key < 1000; key++) {
        struct transform_box box = transform_crop_random(&range, 65500, 2, key, 1, 0);
        assert_true(box.top >= 0 && box.left >= 0 && box.height >= 1 && box.width >= 1);
        assert_true(box.top + box.height <= 2 && box.left + box.width <= 65500);
    }
}

static void windows_and_sides_are_torchvisions(void **state)
{
    (void)state;
    static const int32_t windows[][3] = {{256, 224, 16}, {257, 224, 16}, {259, 224, 18},
                                         {224, 224, 0},  {225, 224, 0},  {227, 224, 2},
                                         {223, 224, 0},  {222, 224, -1}, {1, 224, -111}};
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++)
        assert_int_equal(transform_crop_center(windows[i][0], windows[i][1]), windows[i][2]);
    assert_int_equal(transform_crop_longer(256, 500, 375), 341);
    assert_int_equal(transform_crop_longer(256, 500, 500), 256);
    assert_int_equal(transform_crop_longer(256, 1000000, 1), 256000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_close_to_libm),
        cmocka_unit_test(rounding_is_half_to_even),
        cmocka_unit_test(boxes_lie_inside_and_fill_their_range),
        cmocka_unit_test(the_fallback_is_torchvisions),
        cmocka_unit_test(a_mad_range_still_gives_a_box),
        cmocka_unit_test(windows_and_sides_are_torchvisions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
