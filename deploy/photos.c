/* SPDX-License-Identifier: Apache-2.0 */
/*
 * millrace-photos DIR COUNT [SEED]: makes photograph-like JPEG files for the quick start, in ten class folders.
 *   1. the i-th file's class, size, sampling, quality and content follow from (seed, i);
 *   2. it is drawn (scene.c), compressed in memory and written as DIR/CLASS/photo_IIIII.jpg.
 * The same seed makes the same files. Limits: 1 to 100000 files.
 */
#include "deploy/scene.h"

#include <errno.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <jpeglib.h>

#define COUNT_MAX 100000
#define PATH_MAX_CHARS 4096

struct photo {
    int scene_class, width, height, quality;
    bool is_gray, is_progressive;
    int sampling_x, sampling_y; /* of luma beside chroma */
};

/* ---- compression ---- */

struct escape {
    struct jpeg_error_mgr manager;
    jmp_buf jump;
};

static void on_jpeg_error(j_common_ptr info)
{
    struct escape *escape = (struct escape *)(void *)info->err;
    longjmp(escape->jump, 1);
}

static void set_options(struct jpeg_compress_struct *info, const struct photo *photo)
{
    info->image_width = (JDIMENSION)photo->width;
    info->image_height = (JDIMENSION)photo->height;
    info->input_components = 3;
    info->in_color_space = JCS_RGB;
    jpeg_set_defaults(info);
    jpeg_set_quality(info, photo->quality, TRUE);
    if (photo->is_gray)
        jpeg_set_colorspace(info, JCS_GRAYSCALE);
    info->comp_info[0].h_samp_factor = photo->is_gray ? 1 : photo->sampling_x;
    info->comp_info[0].v_samp_factor = photo->is_gray ? 1 : photo->sampling_y;
    if (photo->is_progressive)
        jpeg_simple_progression(info);
}

/* *bytes is malloc'ed; false without memory. */
static bool compress(const struct photo *photo, uint8_t *pixels, unsigned char **bytes, unsigned long *size)
{
    struct jpeg_compress_struct info;
    struct escape escape;
    info.err = jpeg_std_error(&escape.manager);
    escape.manager.error_exit = on_jpeg_error;
    jpeg_create_compress(&info);
    if (setjmp(escape.jump)) {
        jpeg_destroy_compress(&info);
        return false;
    }
    jpeg_mem_dest(&info, bytes, size);
    set_options(&info, photo);
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {
        JSAMPROW row = pixels + (size_t)info.next_scanline * (size_t)photo->width * 3;
        jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
    jpeg_destroy_compress(&info);
    return true;
}

/* ---- files ---- */

static int complain(const char *what, const char *path)
{
    fprintf(stderr, "millrace-photos: %s %s: %s\n", what, path, strerror(errno));
    return 1;
}

static int make_folder(const char *path)
{
    struct stat stat_;
    if (!mkdir(path, 0777) || (errno == EEXIST && !stat(path, &stat_) && S_ISDIR(stat_.st_mode)))
        return 0;
    return complain("cannot make folder", path);
}

static int write_file(const char *path, const unsigned char *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return complain("cannot write", path);
    bool written = fwrite(bytes, 1, size, file) == size;
    if (fclose(file) || !written)
        return complain("cannot write", path);
    return 0;
}

/* ---- choices ---- */

static struct photo choose(int scene_class, struct scene_random *random)
{
    static const int samplings[4][2] = {
        {1, 1}, {2, 2}, {2, 2}, {2, 1}}; /* 4:4:4, 4:2:0 twice as often, 4:2:2 */
    const int *sampling = samplings[scene_random_range(random, 0, 3)];
    struct photo photo = {.scene_class = scene_class, .sampling_x = sampling[0], .sampling_y = sampling[1]};
    int longer = scene_random_range(random, 0, 5) ? scene_random_range(random, 480, 640)
                                                  : scene_random_range(random, 200, 480);
    int shorter = longer * scene_random_range(random, 65, 100) / 100;
    bool tall = scene_random_range(random, 0, 3) == 0;
    photo.width = tall ? (shorter < 200 ? 200 : shorter) : longer;
    photo.height = tall ? longer : (shorter < 200 ? 200 : shorter);
    photo.quality = scene_random_range(random, 75, 95);
    photo.is_gray = scene_random_range(random, 0, 24) == 0;
    photo.is_progressive = scene_random_range(random, 0, 9) == 0;
    return photo;
}

/* Makes the index-th file; adds its size. */
static int make_photo(const char *folder, int index, uint64_t seed, size_t *total_bytes)
{
    struct scene_random random = {.state = seed * UINT64_C(0x2545f4914f6cdd1d) +
                                           (uint64_t)index * UINT64_C(0x5851f42d4c957f2d)};
    struct photo photo = choose(index % SCENE_CLASSES, &random);
    char path[PATH_MAX_CHARS];
    int chars = snprintf(path, sizeof path, "%s/%s/photo_%05d.jpg", folder,
                         scene_class_names[photo.scene_class], index);
    if (chars < 0 || (size_t)chars >= sizeof path) {
        errno = ENAMETOOLONG;
        return complain("cannot write beneath", folder);
    }
    unsigned char *bytes = NULL;
    unsigned long size = 0;
    uint8_t *pixels = scene_draw(photo.scene_class, photo.width, photo.height, &random);
    int result = 1;
    if (pixels && compress(&photo, pixels, &bytes, &size)) {
        result = write_file(path, bytes, size);
        *total_bytes += size;
    } else {
        fprintf(stderr, "millrace-photos: no memory for %s\n", path);
    }
    free(bytes);
    free(pixels);
    return result;
}

static int make_folders(const char *folder)
{
    char path[PATH_MAX_CHARS];
    int failed = make_folder(folder);
    for (int i = 0; i < SCENE_CLASSES && !failed; i++) {
        int chars = snprintf(path, sizeof path, "%s/%s", folder, scene_class_names[i]);
        errno = ENAMETOOLONG;
        failed = chars < 0 || (size_t)chars >= sizeof path ? complain("cannot make folder", folder)
                                                           : make_folder(path);
    }
    return failed;
}

/* A decimal number in [low, high]; false for all else. */
static bool parse_number(const char *text, uint64_t low, uint64_t high, uint64_t *value)
{
    char *end;
    errno = 0;
    if (!*text || strspn(text, "0123456789") != strlen(text))
        return false;
    *value = strtoull(text, &end, 10);
    return !errno && !*end && *value >= low && *value <= high;
}

int main(int argc, char **argv)
{
    uint64_t count, seed = 1;
    if (argc < 3 || argc > 4 || argv[1][0] == '-' || !parse_number(argv[2], 1, COUNT_MAX, &count) ||
        (argc == 4 && !parse_number(argv[3], 0, UINT64_MAX, &seed))) {
        fprintf(stderr,
                "usage: millrace-photos DIR COUNT [SEED]\n"
                "makes COUNT (1 to %d) photograph-like JPEG files in ten class folders of DIR\n",
                COUNT_MAX);
        return 2;
    }
    size_t total_bytes = 0;
    int failed = make_folders(argv[1]);
    for (int i = 0; i < (int)count && !failed; i++)
        failed = make_photo(argv[1], i, seed, &total_bytes);
    if (!failed)
        printf("made %d photographs, %.1f MB, in %s\n", (int)count, (double)total_bytes / 1e6, argv[1]);
    return failed;
}
