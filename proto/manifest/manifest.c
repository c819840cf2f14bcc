/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/manifest/manifest.h"

#include "proto/manifest/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A list of terminated strings, one behind the other. */
struct list {
    char *text;
    const char **names;
};

struct manifest {
    const uint8_t *map;
    size_t map_bytes;
    const uint8_t *table;
    uint8_t version[BASE_SHA256_BYTES];
    struct manifest_pages pages;
    _Atomic uint8_t *verified; /* one a page */
    struct list classes, skipped;
    char *masks; /* owned */
};

static enum base_code get_page(void *context, uint64_t index, const uint8_t **bytes, struct base_error *error)
{
    struct manifest *m = context;
    *bytes = m->map + index * MANIFEST_PAGE_BYTES;
    if (atomic_load_explicit(&m->verified[index], memory_order_relaxed))
        return BASE_OK;
    size_t size = (size_t)manifest_layout_page_bytes(&m->pages.head, index);
    enum base_code code = manifest_pages_check(m->table, index, *bytes, size, error);
    if (code == BASE_OK)
        atomic_store_explicit(&m->verified[index], 1, memory_order_relaxed);
    return code;
}

static enum base_code map_file(struct manifest *m, const char *path, struct base_error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat stat;
    if (fd < 0 || fstat(fd, &stat) != 0) {
        int cause = errno;
        if (fd >= 0)
            close(fd);
        return base_error_errno(error, cause, "%s", path);
    }
    size_t size = stat.st_size > 0 ? (size_t)stat.st_size : 0;
    void *map = size ? mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    int cause = errno;
    close(fd);
    if (size == 0)
        return base_error_set(error, BASE_CORRUPT, "%s: empty", path);
    if (map == MAP_FAILED)
        return base_error_errno(error, cause, "%s: cannot be mapped", path);
    m->map = map;
    m->map_bytes = size;
    return BASE_OK;
}

/* The head is believed only as far as the file's size agrees, until page 0 is verified. */
static enum base_code check_head(struct manifest *m, const uint8_t *version, struct base_error *error)
{
    struct manifest_head *head = &m->pages.head;
    enum base_code code = manifest_layout_read(m->map, m->map_bytes, head, error);
    if (code != BASE_OK)
        return code;
    size_t table_bytes = (size_t)head->pages * BASE_SHA256_BYTES;
    if (m->map_bytes != head->end + table_bytes)
        return base_error_set(error, BASE_CORRUPT, "manifest: %zu bytes, its head says %llu", m->map_bytes,
                              (unsigned long long)(head->end + table_bytes));
    m->table = m->map + head->end;
    base_hash_sha256(m->table, table_bytes, m->version);
    if (version && !base_hash_equal(m->version, version))
        return base_error_set(error, BASE_CORRUPT, "manifest: not the version that was asked for");
    if (!(m->verified = calloc(head->pages, 1)))
        return base_error_set(error, BASE_NO_MEMORY, "manifest: no memory");
    m->pages.get = get_page;
    m->pages.context = m;
    const uint8_t *page;
    return get_page(m, 0, &page, error);
}

static enum base_code load_list(struct manifest *m, struct list *list, uint64_t at, uint64_t bytes,
                                uint32_t count, struct base_error *error)
{
    list->text = malloc(bytes + 1);
    list->names = calloc(count + 1, sizeof *list->names);
    if (!list->text || !list->names)
        return base_error_set(error, BASE_NO_MEMORY, "manifest: no memory for names");
    enum base_code code = manifest_pages_copy(&m->pages, at, bytes, (uint8_t *)list->text, error);
    if (code != BASE_OK)
        return code;
    list->text[bytes] = 0;
    char *next = list->text, *end = list->text + bytes;
    for (uint32_t i = 0; i < count && next < end; i++) {
        list->names[i] = manifest_layout_name_ok(next) ? next : NULL;
        next += strlen(next) + 1;
        if (!list->names[i])
            break;
    }
    if (next != end || (count > 0 && !list->names[count - 1]))
        return base_error_set(error, BASE_CORRUPT, "manifest: a list of names is damaged");
    return BASE_OK;
}

static enum base_code load_masks(struct manifest *m, struct base_error *error)
{
    const struct manifest_head *head = &m->pages.head;
    if (head->masks_bytes == 0)
        return BASE_OK;
    if (!(m->masks = malloc(head->masks_bytes)))
        return base_error_set(error, BASE_NO_MEMORY, "manifest: no memory for names");
    enum base_code code =
        manifest_pages_copy(&m->pages, head->masks_at, head->masks_bytes, (uint8_t *)m->masks, error);
    if (code == BASE_OK &&
        (m->masks[0] != '/' || strnlen(m->masks, head->masks_bytes) + 1 != head->masks_bytes))
        code = base_error_set(error, BASE_CORRUPT, "manifest: the folder of the masks is damaged");
    return code;
}

enum base_code manifest_open(struct manifest **manifest, const char *path, const uint8_t *version,
                             struct base_error *error)
{
    struct manifest *m = calloc(1, sizeof *m);
    if (!m)
        return base_error_set(error, BASE_NO_MEMORY, "%s: no memory", path);
    enum base_code code = map_file(m, path, error);
    if (code != BASE_OK)
        goto cleanup;
    const struct manifest_head *head = &m->pages.head;
    code = check_head(m, version, error);
    if (code == BASE_OK)
        code = load_list(m, &m->classes, head->classes_at, head->classes_bytes, head->classes, error);
    if (code == BASE_OK)
        code = load_list(m, &m->skipped, head->skipped_at, head->skipped_bytes, head->skipped_listed, error);
    if (code == BASE_OK)
        code = load_masks(m, error);
    if (code != BASE_OK)
        base_error_prefix(error, code, "%s", path);
cleanup:
    if (code != BASE_OK)
        manifest_close(&m);
    else
        *manifest = m;
    return code;
}

void manifest_close(struct manifest **manifest)
{
    struct manifest *m = *manifest;
    *manifest = NULL;
    if (!m)
        return;
    if (m->map)
        munmap((void *)(uintptr_t)m->map, m->map_bytes);
    free(m->classes.text);
    free(m->classes.names);
    free(m->skipped.text);
    free(m->skipped.names);
    free(m->masks);
    free((void *)(uintptr_t)m->verified);
    free(m);
}

const uint8_t *manifest_version(const struct manifest *manifest)
{
    return manifest->version;
}

uint64_t manifest_items(const struct manifest *manifest)
{
    return manifest->pages.head.items;
}

uint64_t manifest_total_bytes(const struct manifest *manifest)
{
    return manifest->pages.head.total_bytes;
}

uint32_t manifest_classes(const struct manifest *manifest)
{
    return manifest->pages.head.classes;
}

const char *manifest_class(const struct manifest *manifest, uint32_t label)
{
    return label < manifest->pages.head.classes ? manifest->classes.names[label] : NULL;
}

uint64_t manifest_skipped(const struct manifest *manifest)
{
    return manifest->pages.head.skipped;
}

const char *manifest_skipped_name(const struct manifest *manifest, uint32_t index)
{
    return index < manifest->pages.head.skipped_listed ? manifest->skipped.names[index] : NULL;
}

const char *manifest_masks(const struct manifest *manifest)
{
    return manifest->masks;
}

enum base_code manifest_entry(const struct manifest *manifest, uint64_t index, struct manifest_entry *entry,
                              struct base_error *error)
{
    return manifest_pages_entry(&manifest->pages, index, entry, error);
}

uint64_t manifest_pages(const struct manifest *manifest)
{
    return manifest->pages.head.pages;
}

enum base_code manifest_page(const struct manifest *manifest, uint64_t index, const uint8_t **bytes,
                             size_t *size, struct base_error *error)
{
    const struct manifest_head *head = &manifest->pages.head;
    if (index == MANIFEST_PAGE_TABLE) {
        *bytes = manifest->table;
        *size = (size_t)head->pages * BASE_SHA256_BYTES;
        return BASE_OK;
    }
    if (index >= head->pages)
        return base_error_set(error, BASE_NOT_FOUND, "manifest: page %llu of %llu", (unsigned long long)index,
                              (unsigned long long)head->pages);
    *size = (size_t)manifest_layout_page_bytes(head, index);
    return get_page(manifest->pages.context, index, bytes, error);
}
