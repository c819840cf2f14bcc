/* SPDX-License-Identifier: Apache-2.0 */
/* The finish section against double precision, and rounding against a search for the nearest number. `--dump FILE`: what numpy is
 * to judge (finish_numpy.py). */
#include "client/src/finish.h"

#include "client/src/draw.h"
#include "base/philox.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define PIXELS 37
#define ROWS 5
#define FLOATS 200000

static const double means[3] = {0.485, 0.456, 0.406}, stds[3] = {0.229, 0.224, 0.225};

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void make(const char *section, struct client_finish *finish)
{
    char text[512];
    struct scheduler_pipeline pipeline;
    struct mr_finish asked;
    struct base_error error;
    snprintf(text, sizeof text, "sample: Decode CenterCrop(size=8) | finish: %s", section);
    if (scheduler_pipeline_parse(text, NULL, 0, &pipeline, &error) != BASE_OK ||
        client_draw_finish(&asked, &pipeline, 0, 0, &error) != BASE_OK)
        fail_msg("%s: %s", section, error.text);
    client_finish_init(finish, &asked);
}

static void fill(uint8_t image[ROWS * PIXELS * 3])
{
    for (uint32_t i = 0; i < ROWS * PIXELS * 3; i++)
        image[i] = (uint8_t)(i < 768 ? i / 3 : base_philox_word(3, 1, i));
}

/* Index of pixel and channel in the output. */
static size_t place(bool first, size_t row, size_t pixel, size_t channel)
{
    return row * PIXELS * 3 + (first ? channel * PIXELS + pixel : pixel * 3 + channel);
}

static void test_normalize(void **state)
{
    static const struct {
        const char *section;
        enum mr_dtype dtype;
        bool first;
    } cases[] = {
        {"ToDtype(dtype=float32) Normalize Layout(order=NCHW)", MR_F32, true},
        {"ToDtype(dtype=float32) Normalize Layout(order=NHWC)", MR_F32, false},
        {"ToDtype(dtype=float32) Normalize", MR_F32, false},
        {"ToDtype(dtype=float16) Normalize Layout(order=NCHW)", MR_F16, true},
        {"ToDtype(dtype=bfloat16) Normalize", MR_BF16, false},
    };
    uint8_t image[ROWS * PIXELS * 3];
    uint32_t out[ROWS * PIXELS * 3];
    (void)state;
    fill(image);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct client_finish finish;
        make(cases[c].section, &finish);
        assert_int_equal(finish.dtype, cases[c].dtype);
        client_finish_run(&finish, image, out, ROWS, PIXELS);
        for (size_t i = 0; i < ROWS * PIXELS * 3; i++) {
            size_t channel = i % 3, at = place(cases[c].first, i / 3 / PIXELS, i / 3 % PIXELS, channel);
            float exact = ((float)image[i] / 255.0f - (float)means[channel]) / (float)stds[channel];
            double wide = (image[i] / 255.0 - means[channel]) / stds[channel];
            assert_true(fabs(exact - wide) < 1e-6);
            if (cases[c].dtype == MR_F32)
                assert_true(float_of(out[at]) == exact);
            else if (cases[c].dtype == MR_F16)
                assert_int_equal(((uint16_t *)out)[at], client_finish_f16(exact));
            else
                assert_int_equal(((uint16_t *)out)[at], client_finish_bf16(exact));
        }
    }
}

static void test_casts_and_layout(void **state)
{
    uint8_t image[ROWS * PIXELS * 3], moved[ROWS * PIXELS * 3];
    float cast[ROWS * PIXELS * 3];
    struct client_finish finish;
    (void)state;
    fill(image);
    make("Layout(order=NCHW)", &finish);
    assert_int_equal(finish.dtype, MR_U8);
    client_finish_run(&finish, image, moved, ROWS, PIXELS);
    for (size_t i = 0; i < ROWS * PIXELS * 3; i++)
        assert_int_equal(moved[place(true, i / 3 / PIXELS, i / 3 % PIXELS, i % 3)], image[i]);
    make("ToDtype(dtype=float32)", &finish);
    client_finish_run(&finish, image, cast, ROWS, PIXELS);
    for (size_t i = 0; i < ROWS * PIXELS * 3; i++)
        assert_true(cast[i] == image[i]);
}

/* ---- rounding: the nearest of all numbers of the format, ties to the even one ---- */

static double f16_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    double value = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -value : value; /* 31: what would come next, 65536 on */
}

static double bf16_value(uint16_t bits)
{
    int exponent = bits >> 7 & 255, fraction = bits & 0x7f;
    double value = exponent == 0 ? ldexp(fraction, -133) : ldexp(128 + fraction, exponent - 134);
    return bits & 0x8000 ? -value : value;
}

/* `infinity`: bits of positive infinity, which stands for the first number that is too large. */
static uint16_t nearest(double value, double (*value_of)(uint16_t), uint16_t infinity)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0, low = 0, high = infinity;
    double size = fabs(value);
    if (size >= value_of(infinity))
        return sign | infinity;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        *(value_of(middle) <= size ? &low : &high) = middle;
    }
    double below = size - value_of(low), above = value_of(high) - size;
    bool up = above < below || (above == below && (low & 1));
    return (uint16_t)(sign | (up ? high : low));
}

static void test_rounding(void **state)
{
    static const uint32_t special[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7f7fffff,
                                       0x33000000, 0x33000001, 0x32ffffff, 0x33800000, 0x387fc000,
                                       0x387fe000, 0x387fffff, 0x477fe000, 0x477fefff, 0x477ff000,
                                       0x38800000, 1,          0x007fffff, 0x00008000, 0x00018000};
    size_t specials = sizeof special / sizeof special[0];
    (void)state;
    for (size_t i = 0; i < specials + 300000; i++) {
        uint32_t bits = i < specials ? special[i] : (uint32_t)base_philox_word(5, 2, i);
        if (i >= specials && i % 2) /* where half precision has its numbers */
            bits = (bits & 0x80007fff) | (100 + (bits >> 16) % 45) << 23 | (bits & 0x7f8000);
        float value = float_of(bits);
        if (isnan(value)) {
            assert_true((client_finish_f16(value) & 0x7fff) > 0x7c00);
            assert_true((client_finish_bf16(value) & 0x7fff) > 0x7f80);
            continue;
        }
        assert_int_equal(client_finish_f16(value), nearest(value, f16_value, 0x7c00));
        assert_int_equal(client_finish_bf16(value), nearest(value, bf16_value, 0x7f80));
    }
}

static int dump(const char *path)
{
    uint8_t image[ROWS * PIXELS * 3];
    float normalized[ROWS * PIXELS * 3];
    struct client_finish finish;
    FILE *file = fopen(path, "wb");
    if (!file)
        return 2;
    fill(image);
    make("ToDtype(dtype=float32) Normalize Layout(order=NCHW)", &finish);
    client_finish_run(&finish, image, normalized, ROWS, PIXELS);
    fwrite(image, 1, sizeof image, file);
    fwrite(normalized, 1, sizeof normalized, file);
    for (uint32_t i = 0; i < FLOATS; i++) {
        uint32_t bits = (uint32_t)base_philox_word(7, 2, i);
        uint16_t halves[2] = {client_finish_f16(float_of(bits)), client_finish_bf16(float_of(bits))};
        fwrite(&bits, sizeof bits, 1, file);
        fwrite(halves, sizeof halves, 1, file);
    }
    return fclose(file) == 0 ? 0 : 2;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normalize),
        cmocka_unit_test(test_casts_and_layout),
        cmocka_unit_test(test_rounding),
    };
    if (argc == 3 && strcmp(argv[1], "--dump") == 0)
        return dump(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
