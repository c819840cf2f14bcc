/* SPDX-License-Identifier: Apache-2.0 */
/* Every level of vector units gives the bits of plain C, and writes nothing beside its output. */
#include "base/philox.h"
#include "worker/transform/resize.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD = 64, CASES = 400 };

struct image {
    int32_t width, height;
    size_t pitch;
    uint8_t *pixels;
};

static struct image noise(int32_t width, int32_t height, uint64_t key)
{
    struct image image = {.width = width, .height = height, .pitch = 3 * (size_t)width};
    size_t bytes = image.pitch * (size_t)height;
    image.pixels = calloc(1, bytes + GUARD);
    for (size_t i = 0; i < bytes; i++) { /* with runs of the extremes, where sums are largest */
        uint64_t word = base_philox_word(key, 1, i);
        image.pixels[i] = (word >> 16) % 4 ? (uint8_t)word : (uint8_t)(word & 256 ? 255 : 0);
    }
    return image;
}

/* Resizes in uneven bands; the guard bytes around `out` must live. */
static void resize_with(const struct transform_kernel *kernel, const struct image *image,
                        const struct transform_resize_plan *plan, uint8_t *out)
{
    struct transform_resize *resize;
    struct transform_resize_needs needs;
    struct base_error error = {0};
    assert_int_equal(transform_resize_create(&resize, kernel, &error), BASE_OK);
    assert_int_equal(transform_resize_begin(resize, plan, out, &needs, &error), BASE_OK);
    int band = 1;
    for (int32_t y = needs.top; y < needs.bottom; y += band) {
        band = band % 16 + 3;
        band = band < needs.bottom - y ? band : needs.bottom - y;
        transform_resize_feed(resize, image->pixels + y * image->pitch + 3 * (size_t)needs.left, image->pitch,
                              band);
    }
    transform_resize_destroy(resize);
}

static int32_t draw(uint64_t key, uint64_t index, int32_t least, int32_t most)
{
    return least + (int32_t)base_philox_below(key, 2, index, (uint64_t)(most - least) + 1);
}

static struct transform_resize_plan random_plan(uint64_t key, const struct image *image)
{
    struct transform_resize_plan plan = {.filter = (enum transform_filter)draw(key, 10, 0, 2),
                                         .order = (enum transform_order)draw(key, 11, 0, 1),
                                         .input_width = image->width,
                                         .input_height = image->height,
                                         .output_width = draw(key, 12, 1, 90),
                                         .output_height = draw(key, 13, 1, 90),
                                         .flip = draw(key, 14, 0, 1)};
    plan.window.width = draw(key, 15, 1, plan.output_width + 9);
    plan.window.height = draw(key, 16, 1, plan.output_height + 9);
    plan.window.left = transform_crop_center(plan.output_width, plan.window.width);
    plan.window.top = transform_crop_center(plan.output_height, plan.window.height);
    return plan;
}

static void every_kernel_gives_the_bits_of_plain_c(void **state)
{
    (void)state;
    for (uint64_t key = 0; key < CASES; key++) {
        struct image image =
            noise(draw(key, 1, 1, key % 10 ? 200 : 3000), draw(key, 2, 1, key % 7 ? 150 : 2000), key);
        struct transform_resize_plan plan = random_plan(key, &image);
        size_t bytes = 3 * (size_t)plan.window.width * (size_t)plan.window.height;
        uint8_t *want = malloc(bytes + 2 * GUARD), *got = malloc(bytes + 2 * GUARD);
        memset(want, 0xa5, bytes + 2 * GUARD);
        resize_with(&transform_kernel_plain, &image, &plan, want + GUARD);
        for (int i = 0; i < transform_kernel_count; i++) {
            if (!transform_kernels[i]->available())
                continue;
            memset(got, 0xa5, bytes + 2 * GUARD);
            resize_with(transform_kernels[i], &image, &plan, got + GUARD);
            if (memcmp(want, got, bytes + 2 * GUARD) != 0)
                fail_msg("%s differs from plain: case %d, %d x %d to %d x %d", transform_kernels[i]->name,
                         (int)key, image.width, image.height, plan.output_width, plan.output_height);
        }
        free(image.pixels);
        free(want);
        free(got);
    }
}

static void the_levels_here_are_named(void **state)
{
    (void)state;
    for (int i = 0; i < transform_kernel_count; i++)
        print_message("kernel %s: %s\n", transform_kernels[i]->name,
                      transform_kernels[i]->available() ? "tested" : "not on this processor");
    assert_true(transform_kernels[transform_kernel_count - 1]->available());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_levels_here_are_named),
        cmocka_unit_test(every_kernel_gives_the_bits_of_plain_c),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
