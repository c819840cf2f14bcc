/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/manifest/pages.h"

#include "proto/manifest/names.h"

#include <stdlib.h>
#include <string.h>

enum base_code manifest_pages_copy(const struct manifest_pages *pages, uint64_t at, size_t size, uint8_t *out,
                                   struct base_error *error)
{
    if (at > pages->head.end || size > pages->head.end - at)
        return base_error_set(error, BASE_CORRUPT, "manifest: bytes %llu + %zu lie behind its end",
                              (unsigned long long)at, size);
    while (size > 0) {
        const uint8_t *page;
        enum base_code code = pages->get(pages->context, at / MANIFEST_PAGE_BYTES, &page, error);
        if (code != BASE_OK)
            return code;
        size_t offset = (size_t)(at % MANIFEST_PAGE_BYTES), part = MANIFEST_PAGE_BYTES - offset;
        part = part < size ? part : size;
        memcpy(out, page + offset, part);
        out += part;
        at += part;
        size -= part;
    }
    return BASE_OK;
}

static enum base_code unpack(const struct manifest_pages *pages, uint64_t names_at, size_t packed_bytes,
                             uint8_t *raw, size_t raw_bytes, struct base_error *error)
{
    uint8_t *packed = malloc(packed_bytes);
    if (!packed)
        return base_error_set(error, BASE_NO_MEMORY, "no memory");
    enum base_code code =
        manifest_pages_copy(pages, pages->head.names_at + names_at, packed_bytes, packed, error);
    if (code == BASE_OK)
        code = manifest_names_unpack(packed, packed_bytes, raw, raw_bytes, error);
    free(packed);
    return code;
}

/* The raw names of a frame; *raw is the caller's. */
static enum base_code read_frame(const struct manifest_pages *pages, uint64_t frame, uint8_t **raw,
                                 size_t *raw_size, struct base_error *error)
{
    const struct manifest_head *head = &pages->head;
    uint8_t index[MANIFEST_INDEX_BYTES];
    if (frame >= head->frames)
        return base_error_set(error, BASE_CORRUPT, "no such frame");
    enum base_code code =
        manifest_pages_copy(pages, head->index_at + frame * MANIFEST_INDEX_BYTES, sizeof index, index, error);
    if (code != BASE_OK)
        return code;
    uint64_t at = base_get_u64(index);
    size_t packed = base_get_u32(index + 8), size = base_get_u32(index + 12);
    if (size == 0 || size > MANIFEST_FRAME_MAX_BYTES || packed == 0 || packed > manifest_names_bound(size) ||
        at > head->names_bytes || packed > head->names_bytes - at)
        return base_error_set(error, BASE_CORRUPT, "impossible sizes");
    if (!(*raw = malloc(size)))
        return base_error_set(error, BASE_NO_MEMORY, "no memory");
    *raw_size = size;
    code = unpack(pages, at, packed, *raw, size, error);
    if (code != BASE_OK) {
        free(*raw);
        *raw = NULL;
    }
    return code;
}

static enum base_code take_name(const uint8_t *raw, size_t raw_size, size_t at,
                                char name[MANIFEST_NAME_MAX_BYTES], struct base_error *error)
{
    if (at >= raw_size)
        return base_error_set(error, BASE_CORRUPT, "a name lies behind its end");
    size_t length = strnlen((const char *)raw + at, raw_size - at);
    if (at + length == raw_size || length >= MANIFEST_NAME_MAX_BYTES)
        return base_error_set(error, BASE_CORRUPT, "a name without an end");
    memcpy(name, raw + at, length + 1);
    return manifest_layout_name_ok(name)
               ? BASE_OK
               : base_error_set(error, BASE_CORRUPT, "\"%.200s\" is not an item's name", name);
}

enum base_code manifest_pages_entry(const struct manifest_pages *pages, uint64_t index,
                                    struct manifest_entry *entry, struct base_error *error)
{
    uint8_t bytes[MANIFEST_ROW_BYTES + MANIFEST_MASK_BYTES], *raw = NULL;
    size_t raw_size = 0;
    if (index >= pages->head.items)
        return base_error_set(error, BASE_NOT_FOUND, "item %llu: the manifest has %llu",
                              (unsigned long long)index, (unsigned long long)pages->head.items);
    uint64_t row_bytes = pages->head.row_bytes;
    enum base_code code =
        manifest_pages_copy(pages, pages->head.rows_at + index * row_bytes, row_bytes, bytes, error);
    if (code != BASE_OK)
        return code;
    struct manifest_row row;
    manifest_layout_read_row(&pages->head, bytes, &row);
    if (row.flags != 0 || row.label < -1 || row.label >= (int32_t)pages->head.classes ||
        row.size_bytes > INT64_MAX || row.mask_size_bytes > INT64_MAX)
        return base_error_set(error, BASE_CORRUPT, "manifest: item %llu has an impossible row",
                              (unsigned long long)index);
    code = read_frame(pages, row.frame, &raw, &raw_size, error);
    if (code == BASE_OK)
        code = take_name(raw, raw_size, row.name_at, entry->name, error);
    free(raw);
    if (code == BASE_CORRUPT)
        return base_error_prefix(error, code, "manifest: names of frame %llu (item %llu)",
                                 (unsigned long long)row.frame, (unsigned long long)index);
    entry->size_bytes = row.size_bytes;
    entry->mtime_ns = row.mtime_ns;
    entry->label = row.label;
    entry->mask_size_bytes = row.mask_size_bytes;
    entry->mask_mtime_ns = row.mask_mtime_ns;
    return code;
}

enum base_code manifest_pages_check_table(const uint8_t *table, size_t size, const uint8_t *version,
                                          struct base_error *error)
{
    uint8_t hash[BASE_SHA256_BYTES];
    if (size == 0 || size % BASE_SHA256_BYTES != 0 || size / BASE_SHA256_BYTES > MANIFEST_PAGES_MAX)
        return base_error_set(error, BASE_CORRUPT, "manifest: a page table of %zu bytes", size);
    base_hash_sha256(table, size, hash);
    return base_hash_equal(hash, version)
               ? BASE_OK
               : base_error_set(error, BASE_CORRUPT, "manifest: the page table is not this version's");
}

enum base_code manifest_pages_check(const uint8_t *table, uint64_t index, const uint8_t *bytes, size_t size,
                                    struct base_error *error)
{
    uint8_t hash[BASE_SHA256_BYTES];
    base_hash_sha256(bytes, size, hash);
    return base_hash_equal(hash, table + index * BASE_SHA256_BYTES)
               ? BASE_OK
               : base_error_set(error, BASE_CORRUPT, "manifest: page %llu does not match its hash",
                                (unsigned long long)index);
}
