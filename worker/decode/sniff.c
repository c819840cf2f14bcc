/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/decode/sniff.h"

#include <stdbool.h>
#include <string.h>

struct magic {
    const char *name;
    size_t offset, size;
    const char *bytes;
};

static const struct magic magics[] = {
    {"JPEG", 0, 3, "\xff\xd8\xff"},
    {"PNG", 0, 8, "\x89PNG\r\n\x1a\n"},
    {"GIF", 0, 4, "GIF8"},
    {"WebP", 8, 4, "WEBP"},
    {"TIFF", 0, 4, "II*\0"},
    {"TIFF", 0, 4, "MM\0*"},
    {"BigTIFF", 0, 4, "II+\0"},
    {"BigTIFF", 0, 4, "MM\0+"},
    {"JPEG 2000", 0, 8, "\0\0\0\x0cjP  "},
    {"JPEG 2000", 0, 4, "\xff\x4f\xff\x51"},
    {"JPEG XL", 0, 8, "\0\0\0\x0cJXL "},
    {"JPEG XL", 0, 2, "\xff\x0a"},
    {"AVIF", 4, 8, "ftypavif"},
    {"AVIF", 4, 8, "ftypavis"},
    {"HEIF", 4, 7, "ftyphei"},
    {"HEIF", 4, 8, "ftypmif1"},
    {"PSD", 0, 4, "8BPS"},
    {"OpenEXR", 0, 4, "\x76\x2f\x31\x01"},
    {"DDS", 0, 4, "DDS "},
    {"QOI", 0, 4, "qoif"},
    {"ICO", 0, 4, "\0\0\1\0"},
    {"JNG", 0, 8, "\x8bJNG\r\n\x1a\n"},
    {"MNG", 0, 8, "\x8aMNG\r\n\x1a\n"},
    {"BMP", 0, 2, "BM"},
};

static bool is_netpbm(const uint8_t *bytes, size_t size)
{
    return size > 2 && bytes[0] == 'P' && bytes[1] >= '1' && bytes[1] <= '7' &&
           memchr(" \t\r\n", bytes[2], 4);
}

const char *decode_sniff_name(const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < sizeof magics / sizeof magics[0]; i++) {
        const struct magic *m = &magics[i];
        if (size >= m->offset + m->size && memcmp(bytes + m->offset, m->bytes, m->size) == 0)
            return m->name;
    }
    return is_netpbm(bytes, size) ? "Netpbm" : NULL;
}
