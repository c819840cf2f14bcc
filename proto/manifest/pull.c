/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/manifest/file.h"
#include "proto/manifest/pages.h"

#include <stdlib.h>
#include <string.h>

struct manifest_pull {
    struct manifest_file file;
    uint8_t version[BASE_SHA256_BYTES];
    uint8_t *table; /* NULL: not here yet */
    bool *have;     /* one a page */
    uint64_t pages, first_missing;
    size_t last_bytes; /* size of the last page */
};

enum base_code manifest_pull_create(struct manifest_pull **pull, const char *path,
                                    const uint8_t version[BASE_SHA256_BYTES], struct base_error *error)
{
    struct manifest_pull *p = calloc(1, sizeof *p);
    if (!p)
        return base_error_set(error, BASE_NO_MEMORY, "%s: no memory", path);
    memcpy(p->version, version, sizeof p->version);
    enum base_code code = manifest_file_open(&p->file, path, error);
    if (code != BASE_OK)
        free(p);
    else
        *pull = p;
    return code;
}

void manifest_pull_destroy(struct manifest_pull *p)
{
    if (!p)
        return;
    manifest_file_close(&p->file);
    free(p->table);
    free(p->have);
    free(p);
}

bool manifest_pull_next(const struct manifest_pull *p, uint64_t *index)
{
    *index = p->table ? p->first_missing : MANIFEST_PAGE_TABLE;
    return !p->table || p->first_missing < p->pages;
}

static enum base_code take_table(struct manifest_pull *p, const uint8_t *bytes, size_t size,
                                 struct base_error *error)
{
    enum base_code code = manifest_pages_check_table(bytes, size, p->version, error);
    if (code != BASE_OK || p->table)
        return code;
    uint64_t pages = size / BASE_SHA256_BYTES;
    bool *have = calloc(pages, sizeof *have);
    uint8_t *table = malloc(size);
    if (!have || !table) {
        free(have);
        free(table);
        return base_error_set(error, BASE_NO_MEMORY, "%s: no memory", p->file.path);
    }
    memcpy(table, bytes, size);
    p->have = have;
    p->table = table;
    p->pages = pages;
    return BASE_OK;
}

enum base_code manifest_pull_page(struct manifest_pull *p, uint64_t index, const uint8_t *bytes, size_t size,
                                  struct base_error *error)
{
    if (index == MANIFEST_PAGE_TABLE)
        return take_table(p, bytes, size, error);
    if (!p->table || index >= p->pages)
        return base_error_set(error, BASE_INVALID, "manifest: page %llu was not asked for",
                              (unsigned long long)index);
    bool last = index == p->pages - 1;
    if (size == 0 || size > MANIFEST_PAGE_BYTES || (!last && size != MANIFEST_PAGE_BYTES))
        return base_error_set(error, BASE_CORRUPT, "manifest: page %llu has %zu bytes",
                              (unsigned long long)index, size);
    enum base_code code = manifest_pages_check(p->table, index, bytes, size, error);
    if (code == BASE_OK)
        code = manifest_file_write(&p->file, bytes, size, index * MANIFEST_PAGE_BYTES, error);
    if (code != BASE_OK)
        return code;
    if (last)
        p->last_bytes = size;
    p->have[index] = true;
    while (p->first_missing < p->pages && p->have[p->first_missing])
        p->first_missing++;
    return BASE_OK;
}

enum base_code manifest_pull_finish(struct manifest_pull *p, struct base_error *error)
{
    uint64_t missing;
    if (manifest_pull_next(p, &missing))
        return base_error_set(error, BASE_INVALID, "manifest: page %llu is missing",
                              (unsigned long long)missing);
    struct manifest_head head;
    uint8_t bytes[MANIFEST_HEAD_BYTES];
    uint64_t end = (p->pages - 1) * MANIFEST_PAGE_BYTES + p->last_bytes;
    enum base_code code = manifest_file_read(&p->file, bytes, sizeof bytes, 0, error);
    if (code == BASE_OK)
        code = manifest_layout_read(bytes, sizeof bytes, &head, error);
    if (code == BASE_OK && head.end != end)
        code = base_error_set(error, BASE_CORRUPT, "manifest: %llu bytes, its head says %llu",
                              (unsigned long long)end, (unsigned long long)head.end);
    if (code == BASE_OK)
        code = manifest_file_write(&p->file, p->table, (size_t)p->pages * BASE_SHA256_BYTES, end, error);
    if (code == BASE_OK)
        code = manifest_file_commit(&p->file, error);
    return code;
}
