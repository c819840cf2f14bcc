/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/manifest/layout.h"

#include <string.h>

static const uint8_t MAGIC[8] = {'M', 'I', 'L', 'L', 'M', 'A', 'N', '\n'};
enum { FORMAT = 1, FORMAT_MASKS = 2 }; /* without masks the bytes are those of the first builds */

enum base_code manifest_layout_compute(struct manifest_head *head, struct base_error *error)
{
    uint64_t most = MANIFEST_DATA_MAX_BYTES;
    head->row_bytes = MANIFEST_ROW_BYTES + (head->masks_bytes > 0 ? MANIFEST_MASK_BYTES : 0);
    if (head->items > most / head->row_bytes || head->classes_bytes > most || head->skipped_bytes > most ||
        head->names_bytes > most)
        return base_error_set(error, BASE_TOO_LARGE, "manifest: %llu items are more than %u pages hold",
                              (unsigned long long)head->items, MANIFEST_PAGES_MAX);
    head->frames = (head->items + MANIFEST_FRAME_NAMES - 1) / MANIFEST_FRAME_NAMES;
    head->rows_at = MANIFEST_HEAD_BYTES;
    head->classes_at = head->rows_at + head->items * head->row_bytes;
    head->skipped_at = head->classes_at + head->classes_bytes;
    head->masks_at = head->skipped_at + head->skipped_bytes;
    head->names_at = head->masks_at + head->masks_bytes;
    head->index_at = head->names_at + head->names_bytes;
    head->end = head->index_at + head->frames * MANIFEST_INDEX_BYTES;
    head->pages = (head->end + MANIFEST_PAGE_BYTES - 1) / MANIFEST_PAGE_BYTES;
    if (head->pages > MANIFEST_PAGES_MAX)
        return base_error_set(error, BASE_TOO_LARGE, "manifest: %llu pages, at most %u are supported",
                              (unsigned long long)head->pages, MANIFEST_PAGES_MAX);
    return BASE_OK;
}

void manifest_layout_write(const struct manifest_head *head, uint8_t bytes[MANIFEST_HEAD_BYTES])
{
    memset(bytes, 0, MANIFEST_HEAD_BYTES);
    memcpy(bytes, MAGIC, sizeof MAGIC);
    base_set_u32(bytes + 8, head->masks_bytes > 0 ? FORMAT_MASKS : FORMAT);
    base_set_u64(bytes + 16, head->items);
    base_set_u64(bytes + 24, head->total_bytes);
    base_set_u64(bytes + 32, head->skipped);
    base_set_u32(bytes + 40, head->classes);
    base_set_u32(bytes + 44, head->skipped_listed);
    base_set_u64(bytes + 48, head->classes_bytes);
    base_set_u64(bytes + 56, head->skipped_bytes);
    base_set_u64(bytes + 64, head->names_bytes);
    base_set_u32(bytes + 72, head->masks_bytes);
}

enum base_code manifest_layout_read(const uint8_t *bytes, size_t size, struct manifest_head *head,
                                    struct base_error *error)
{
    if (size < MANIFEST_HEAD_BYTES || memcmp(bytes, MAGIC, sizeof MAGIC) != 0)
        return base_error_set(error, BASE_CORRUPT, "not a manifest: no magic in its first bytes");
    uint32_t format = base_get_u32(bytes + 8);
    if (format != FORMAT && format != FORMAT_MASKS)
        return base_error_set(error, BASE_UNSUPPORTED, "manifest format %u, this program reads %u and %u",
                              format, FORMAT, FORMAT_MASKS);
    head->items = base_get_u64(bytes + 16);
    head->total_bytes = base_get_u64(bytes + 24);
    head->skipped = base_get_u64(bytes + 32);
    head->classes = base_get_u32(bytes + 40);
    head->skipped_listed = base_get_u32(bytes + 44);
    head->classes_bytes = base_get_u64(bytes + 48);
    head->skipped_bytes = base_get_u64(bytes + 56);
    head->names_bytes = base_get_u64(bytes + 64);
    head->masks_bytes = base_get_u32(bytes + 72);
    if ((head->masks_bytes > 0) != (format == FORMAT_MASKS) || head->masks_bytes > MANIFEST_NAME_MAX_BYTES ||
        head->classes > MANIFEST_CLASSES_MAX || head->skipped_listed > MANIFEST_SKIPPED_LISTED ||
        head->skipped_listed > head->skipped || head->classes_bytes < head->classes ||
        head->skipped_bytes < head->skipped_listed || manifest_layout_compute(head, NULL) != BASE_OK)
        return base_error_set(error, BASE_CORRUPT, "manifest: impossible counts in its head");
    return BASE_OK;
}

void manifest_layout_write_row(const struct manifest_head *head, const struct manifest_row *row,
                               uint8_t *bytes)
{
    base_set_u64(bytes, row->size_bytes);
    base_set_u64(bytes + 8, (uint64_t)row->mtime_ns);
    base_set_u32(bytes + 16, (uint32_t)row->label);
    base_set_u32(bytes + 20, row->flags);
    base_set_u64(bytes + 24, row->frame << 24 | row->name_at);
    if (head->masks_bytes == 0)
        return;
    base_set_u64(bytes + 32, row->mask_size_bytes);
    base_set_u64(bytes + 40, (uint64_t)row->mask_mtime_ns);
}

void manifest_layout_read_row(const struct manifest_head *head, const uint8_t *bytes,
                              struct manifest_row *row)
{
    row->size_bytes = base_get_u64(bytes);
    row->mtime_ns = (int64_t)base_get_u64(bytes + 8);
    row->label = (int32_t)base_get_u32(bytes + 16);
    row->flags = base_get_u32(bytes + 20);
    row->frame = base_get_u64(bytes + 24) >> 24;
    row->name_at = base_get_u64(bytes + 24) & 0xFFFFFF;
    row->mask_size_bytes = head->masks_bytes > 0 ? base_get_u64(bytes + 32) : 0;
    row->mask_mtime_ns = head->masks_bytes > 0 ? (int64_t)base_get_u64(bytes + 40) : 0;
}

bool manifest_layout_name_ok(const char *name)
{
    if (strlen(name) >= MANIFEST_NAME_MAX_BYTES)
        return false;
    for (const char *part = name;; part++) {
        size_t length = strcspn(part, "/");
        bool dots = (length == 1 && part[0] == '.') || (length == 2 && part[0] == '.' && part[1] == '.');
        if (length == 0 || dots)
            return false;
        part += length;
        if (!*part)
            return true;
    }
}

uint64_t manifest_layout_page_bytes(const struct manifest_head *head, uint64_t index)
{
    uint64_t left = head->end - index * MANIFEST_PAGE_BYTES;
    return left < MANIFEST_PAGE_BYTES ? left : MANIFEST_PAGE_BYTES;
}
