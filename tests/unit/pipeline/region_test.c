/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A region decoded by itself is the same pixels as that part of the whole image: over the built-in samples, and over the
 * photographs and the trouble files when the data is there.
 */
#include "base/philox.h"
#include "worker/decode/image.h"
#include "worker/pipeline/samples.h"

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_PIXELS = 20000000 };

struct file {
    uint8_t *bytes;
    size_t size;
};

static struct file read_file(const char *path)
{
    struct file file = {0};
    FILE *from = fopen(path, "rb");
    if (!from)
        return file;
    fseek(from, 0, SEEK_END);
    file.size = (size_t)ftell(from);
    rewind(from);
    file.bytes = malloc(file.size + !file.size);
    if (fread(file.bytes, 1, file.size, from) != file.size)
        file.size = 0;
    fclose(from);
    return file;
}

/* Rows of the region, one after the other; NULL when the image is bad or warned. */
static uint8_t *decode(struct decode_image *image, const struct file *file, struct decode_region *region)
{
    struct base_error error = {0};
    struct decode_info info;
    struct decode_band band = {.rows = 1};
    bool warned = false;
    uint8_t *pixels = NULL;
    enum base_code code = decode_image_open(image, file->bytes, file->size, MAX_PIXELS, &info, &error);
    if (code != BASE_OK)
        return NULL;
    if (region->whole)
        *region = (struct decode_region){.right = info.width, .bottom = info.height, .whole = true};
    size_t pitch = 3 * (size_t)(region->right - region->left);
    pixels = malloc(pitch * (region->bottom - region->top));
    code = decode_image_begin(image, region, &error);
    while (code == BASE_OK && band.rows > 0) {
        code = decode_image_read(image, &band, &error);
        for (uint32_t i = 0; code == BASE_OK && i < band.rows; i++)
            memcpy(pixels + (band.top + i - region->top) * pitch, band.pixels + i * band.pitch, pitch);
    }
    if (code == BASE_OK)
        code = decode_image_end(image, &warned, &error);
    decode_image_close(image);
    if (code == BASE_OK && !warned)
        return pixels;
    free(pixels);
    return NULL;
}

static struct decode_region draw_region(uint64_t key, const struct decode_region *whole)
{
    uint32_t side[4], length[2] = {whole->right, whole->bottom};
    for (uint32_t i = 0; i < 4; i++) /* the corners and edges often: that is where decoders err */
        side[i] = base_philox_word(key, 1, i) % 4 == 0
                      ? (i < 2 ? 0 : length[i % 2] - 1)
                      : (uint32_t)base_philox_below(key, 2, i, length[i % 2]);
    return (struct decode_region){.left = side[0] < side[2] ? side[0] : side[2],
                                  .right = (side[0] < side[2] ? side[2] : side[0]) + 1,
                                  .top = side[1] < side[3] ? side[1] : side[3],
                                  .bottom = (side[1] < side[3] ? side[3] : side[1]) + 1};
}

static void check_file(const char *name, const struct file *file, int boxes)
{
    struct decode_image *image;
    struct decode_region whole = {.whole = true};
    assert_int_equal(decode_image_create(&image, NULL), BASE_OK);
    uint8_t *all = decode(image, file, &whole);
    for (int i = 0; all && i < boxes; i++) {
        struct decode_region region = draw_region(base_philox_word(file->size, 3, (uint64_t)i), &whole);
        uint8_t *part = decode(image, file, &region);
        if (!part)
            fail_msg("%s: bad as a region only", name);
        size_t pitch = 3 * (size_t)(region.right - region.left);
        for (uint32_t y = region.top; y < region.bottom; y++) {
            const uint8_t *want = all + 3 * ((size_t)y * whole.right + region.left);
            if (memcmp(part + (y - region.top) * pitch, want, pitch) != 0)
                fail_msg("%s: columns %u-%u rows %u-%u differ at row %u", name, region.left, region.right,
                         region.top, region.bottom, y);
        }
        free(part);
    }
    free(all);
    decode_image_destroy(image);
}

static void check_files(const char *pattern, int boxes)
{
    const char *data = getenv("MILLRACE_TEST_DATA");
    char path[4096];
    glob_t found;
    snprintf(path, sizeof path, "%s/%s", data ? data : MILLRACE_DATA, pattern);
    if (glob(path, 0, NULL, &found) != 0) {
        print_message("skipped: no %s\n", path);
        skip();
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct file file = read_file(found.gl_pathv[i]);
        if (file.bytes)
            check_file(found.gl_pathv[i], &file, boxes);
        free(file.bytes);
    }
    print_message("%zu files, %d boxes each\n", found.gl_pathc, boxes);
    globfree(&found);
}

static void samples_by_region(void **state)
{
    (void)state;
    for (int i = 0; i < pipeline_sample_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "sample %d", i);
        struct file file = {malloc(pipeline_samples[i].size), pipeline_samples[i].size};
        memcpy(file.bytes, pipeline_samples[i].bytes, file.size);
        check_file(name, &file, 400);
        free(file.bytes);
    }
}

static void photographs_by_region(void **state)
{
    (void)state;
    check_files("imagenet-mini/*/*.JPEG", 4);
}

static void trouble_by_region(void **state)
{
    (void)state;
    check_files("trouble/images/*/*", 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_by_region),
        cmocka_unit_test(photographs_by_region),
        cmocka_unit_test(trouble_by_region),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
