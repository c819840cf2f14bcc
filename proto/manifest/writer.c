/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows go straight to the file; names, whose place is behind all rows, are spooled in frames to a second,
 * nameless file. Memory holds one frame, the classes, the list of the skipped and 16 bytes for each 256
 * items.
 */
#include "proto/manifest/file.h"
#include "proto/manifest/layout.h"
#include "proto/manifest/names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FLUSH_BYTES = 1 << 20 };

/* Bytes on their way to a file, from `at` on. */
struct sink {
    struct manifest_file file;
    struct base_buffer buffer;
    uint64_t at;
};

struct manifest_writer {
    struct sink rows, names;
    struct manifest_head head;
    struct base_buffer frame, classes, skipped, masks, index;
    uint32_t in_frame; /* names */
};

enum base_code manifest_writer_create(struct manifest_writer **writer, const char *path,
                                      struct base_error *error)
{
    struct manifest_writer *w = calloc(1, sizeof *w);
    if (!w)
        return base_error_set(error, BASE_NO_MEMORY, "%s: no memory for a manifest's writer", path);
    w->rows.file.fd = w->names.file.fd = -1;
    w->rows.at = MANIFEST_HEAD_BYTES;
    enum base_code code = manifest_file_open(&w->rows.file, path, error);
    if (code == BASE_OK)
        code = manifest_file_open_nameless(&w->names.file, path, error);
    if (code != BASE_OK) {
        manifest_writer_destroy(w);
        return code;
    }
    *writer = w;
    return BASE_OK;
}

void manifest_writer_destroy(struct manifest_writer *w)
{
    if (!w)
        return;
    manifest_file_close(&w->rows.file);
    manifest_file_close(&w->names.file);
    struct base_buffer *buffers[] = {&w->rows.buffer, &w->names.buffer, &w->frame, &w->classes,
                                     &w->skipped,     &w->masks,        &w->index};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        base_buffer_fini(buffers[i]);
    free(w);
}

static enum base_code sink_flush(struct sink *sink, size_t at_least_bytes, struct base_error *error)
{
    if (sink->buffer.failed)
        return base_error_set(error, BASE_NO_MEMORY, "%s: no memory", sink->file.path);
    if (sink->buffer.size < at_least_bytes)
        return BASE_OK;
    enum base_code code =
        manifest_file_write(&sink->file, sink->buffer.bytes, sink->buffer.size, sink->at, error);
    sink->at += sink->buffer.size;
    base_buffer_clear(&sink->buffer);
    return code;
}

static enum base_code put_name(struct base_buffer *list, const char *name, struct base_error *error)
{
    base_buffer_put(list, name, strlen(name) + 1);
    return list->failed ? base_error_set(error, BASE_NO_MEMORY, "manifest: no memory for names") : BASE_OK;
}

enum base_code manifest_writer_class(struct manifest_writer *w, const char *name, struct base_error *error)
{
    if (w->head.classes >= MANIFEST_CLASSES_MAX)
        return base_error_set(error, BASE_TOO_LARGE, "class \"%s\": at most %d classes are supported", name,
                              MANIFEST_CLASSES_MAX);
    if (!manifest_layout_name_ok(name))
        return base_error_set(error, BASE_INVALID, "\"%s\" is not a class's name", name);
    w->head.classes++;
    return put_name(&w->classes, name, error);
}

enum base_code manifest_writer_skipped(struct manifest_writer *w, const char *name, struct base_error *error)
{
    if (!manifest_layout_name_ok(name))
        return base_error_set(error, BASE_INVALID, "\"%s\" is not an item's name", name);
    if (w->head.skipped++ >= MANIFEST_SKIPPED_LISTED)
        return BASE_OK;
    w->head.skipped_listed++;
    return put_name(&w->skipped, name, error);
}

enum base_code manifest_writer_masks(struct manifest_writer *w, const char *folder, struct base_error *error)
{
    if (folder[0] != '/' || strlen(folder) >= MANIFEST_NAME_MAX_BYTES)
        return base_error_set(error, BASE_INVALID, "\"%.200s\" is not an absolute path", folder);
    w->head.masks_bytes = (uint32_t)strlen(folder) + 1;
    return put_name(&w->masks, folder, error);
}

static enum base_code finish_frame(struct manifest_writer *w, struct base_error *error)
{
    if (w->in_frame == 0)
        return BASE_OK;
    size_t before = w->names.buffer.size;
    enum base_code code = manifest_names_pack(w->frame.bytes, w->frame.size, &w->names.buffer, error);
    if (code != BASE_OK)
        return code;
    base_buffer_put_u64(&w->index, w->names.at + before);
    base_buffer_put_u32(&w->index, (uint32_t)(w->names.buffer.size - before));
    base_buffer_put_u32(&w->index, (uint32_t)w->frame.size);
    base_buffer_clear(&w->frame);
    w->in_frame = 0;
    return sink_flush(&w->names, FLUSH_BYTES, error);
}

enum base_code manifest_writer_item(struct manifest_writer *w, const struct manifest_item *item,
                                    struct base_error *error)
{
    if (!manifest_layout_name_ok(item->name))
        return base_error_set(error, BASE_INVALID, "\"%s\" is not an item's name", item->name);
    uint64_t bytes_most = INT64_MAX - w->head.total_bytes;
    if (item->size_bytes > bytes_most || item->mask_size_bytes > bytes_most - item->size_bytes)
        return base_error_set(error, BASE_TOO_LARGE, "%s: %llu bytes", item->name,
                              (unsigned long long)item->size_bytes);
    struct manifest_row row = {.size_bytes = item->size_bytes,
                               .mtime_ns = item->mtime_ns,
                               .label = item->label,
                               .frame = w->head.items / MANIFEST_FRAME_NAMES,
                               .name_at = (uint32_t)w->frame.size,
                               .mask_size_bytes = item->mask_size_bytes,
                               .mask_mtime_ns = item->mask_mtime_ns};
    size_t row_bytes = MANIFEST_ROW_BYTES + (w->head.masks_bytes > 0 ? MANIFEST_MASK_BYTES : 0);
    uint8_t *bytes = base_buffer_extend(&w->rows.buffer, row_bytes);
    if (bytes)
        manifest_layout_write_row(&w->head, &row, bytes);
    enum base_code code = put_name(&w->frame, item->name, error);
    w->head.items++;
    w->head.total_bytes += item->size_bytes + item->mask_size_bytes;
    if (code == BASE_OK)
        code = sink_flush(&w->rows, FLUSH_BYTES, error);
    if (code == BASE_OK && ++w->in_frame == MANIFEST_FRAME_NAMES)
        code = finish_frame(w, error);
    return code;
}

/* Appends the spooled names to the rows' file. */
static enum base_code move_names(struct manifest_writer *w, struct base_error *error)
{
    for (uint64_t at = 0; at < w->names.at;) {
        uint64_t left = w->names.at - at;
        size_t size = left < FLUSH_BYTES ? (size_t)left : FLUSH_BYTES;
        uint8_t *room = base_buffer_extend(&w->rows.buffer, size);
        if (!room)
            return base_error_set(error, BASE_NO_MEMORY, "%s: no memory", w->rows.file.path);
        enum base_code code = manifest_file_read(&w->names.file, room, size, at, error);
        if (code == BASE_OK)
            code = sink_flush(&w->rows, 1, error);
        if (code != BASE_OK)
            return code;
        at += size;
    }
    return BASE_OK;
}

static enum base_code put_section(struct manifest_writer *w, const struct base_buffer *section,
                                  struct base_error *error)
{
    base_buffer_put(&w->rows.buffer, section->bytes, section->size);
    return sink_flush(&w->rows, 1, error);
}

static enum base_code write_sections(struct manifest_writer *w, struct base_error *error)
{
    w->head.classes_bytes = w->classes.size;
    w->head.skipped_bytes = w->skipped.size;
    w->head.names_bytes = w->names.at;
    enum base_code code = manifest_layout_compute(&w->head, error);
    if (code == BASE_OK && w->index.failed)
        code = base_error_set(error, BASE_NO_MEMORY, "%s: no memory", w->rows.file.path);
    if (code == BASE_OK)
        code = put_section(w, &w->classes, error);
    if (code == BASE_OK)
        code = put_section(w, &w->skipped, error);
    if (code == BASE_OK)
        code = put_section(w, &w->masks, error);
    if (code == BASE_OK)
        code = move_names(w, error);
    if (code == BASE_OK)
        code = put_section(w, &w->index, error);
    if (code != BASE_OK)
        return code;
    uint8_t head[MANIFEST_HEAD_BYTES];
    manifest_layout_write(&w->head, head);
    return manifest_file_write(&w->rows.file, head, sizeof head, 0, error);
}

/* Reads back what was written, page by page, and puts the table behind it. */
static enum base_code write_table(struct manifest_writer *w, uint8_t version[BASE_SHA256_BYTES],
                                  struct base_error *error)
{
    enum base_code code = BASE_OK;
    size_t table_bytes = (size_t)w->head.pages * BASE_SHA256_BYTES;
    uint8_t *table = malloc(table_bytes), *page = malloc(MANIFEST_PAGE_BYTES);
    if (!table || !page)
        code = base_error_set(error, BASE_NO_MEMORY, "%s: no memory", w->rows.file.path);
    for (uint64_t i = 0; code == BASE_OK && i < w->head.pages; i++) {
        size_t size = (size_t)manifest_layout_page_bytes(&w->head, i);
        code = manifest_file_read(&w->rows.file, page, size, i * MANIFEST_PAGE_BYTES, error);
        if (code == BASE_OK)
            base_hash_sha256(page, size, table + i * BASE_SHA256_BYTES);
    }
    if (code == BASE_OK)
        code = manifest_file_write(&w->rows.file, table, table_bytes, w->head.end, error);
    if (code == BASE_OK)
        base_hash_sha256(table, table_bytes, version);
    free(table);
    free(page);
    return code;
}

enum base_code manifest_writer_finish(struct manifest_writer *w, uint8_t version[BASE_SHA256_BYTES],
                                      struct base_error *error)
{
    enum base_code code = finish_frame(w, error);
    if (code == BASE_OK)
        code = sink_flush(&w->names, 0, error);
    if (code == BASE_OK)
        code = sink_flush(&w->rows, 0, error);
    if (code == BASE_OK)
        code = write_sections(w, error);
    if (code == BASE_OK)
        code = write_table(w, version, error);
    if (code == BASE_OK)
        code = manifest_file_commit(&w->rows.file, error);
    return code;
}
