/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a manifest, shared by its writer and its readers. The sections follow the head without gaps,
 * in the order rows, classes, skipped, masks, names, index; their offsets are computed, never read, so that none can
 * be wrong.
 */
#ifndef PROTO_MANIFEST_LAYOUT_H
#define PROTO_MANIFEST_LAYOUT_H

#include "proto/manifest/manifest.h"

#define MANIFEST_HEAD_BYTES 128
#define MANIFEST_ROW_BYTES 32
#define MANIFEST_MASK_BYTES 16  /* behind a row, where there are masks */
#define MANIFEST_INDEX_BYTES 16 /* of one frame: offset8 in the names section, compressed4, raw4 */
#define MANIFEST_FRAME_NAMES 256
#define MANIFEST_FRAME_MAX_BYTES (MANIFEST_FRAME_NAMES * MANIFEST_NAME_MAX_BYTES)
#define MANIFEST_DATA_MAX_BYTES ((uint64_t)MANIFEST_PAGES_MAX * MANIFEST_PAGE_BYTES)

struct manifest_head {
    uint64_t items, total_bytes, skipped;
    uint32_t classes, skipped_listed;
    uint64_t classes_bytes, skipped_bytes, names_bytes;
    uint32_t masks_bytes; /* of the folder's path, terminated; 0: no masks */
    /* computed */
    uint64_t frames, pages, row_bytes;
    uint64_t rows_at, classes_at, skipped_at, masks_at, names_at, index_at, end; /* end: bytes of all pages */
};

/* Fills the computed members. TOO_LARGE: over MANIFEST_PAGES_MAX. */
enum base_code manifest_layout_compute(struct manifest_head *head, struct base_error *error);
void manifest_layout_write(const struct manifest_head *head, uint8_t bytes[MANIFEST_HEAD_BYTES]);
/* Reads outside bytes: every count is checked. */
enum base_code manifest_layout_read(const uint8_t *bytes, size_t size, struct manifest_head *head,
                                    struct base_error *error);

struct manifest_row {
    uint64_t size_bytes;
    int64_t mtime_ns;
    int32_t label;
    uint32_t flags;   /* 0 */
    uint64_t frame;   /* of its name, 40 bits */
    uint32_t name_at; /* in the frame's raw bytes, 24 bits */
    uint64_t mask_size_bytes;
    int64_t mask_mtime_ns;
};
/* row_bytes of them. */
void manifest_layout_write_row(const struct manifest_head *head, const struct manifest_row *row,
                               uint8_t *bytes);
void manifest_layout_read_row(const struct manifest_head *head, const uint8_t *bytes,
                              struct manifest_row *row);

/* 1..4095 bytes, relative, no empty, "." or ".." component: safe to open beneath a folder. */
bool manifest_layout_name_ok(const char *name);
uint64_t manifest_layout_page_bytes(const struct manifest_head *head, uint64_t index);

#endif
