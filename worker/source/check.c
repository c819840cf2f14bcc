/* SPDX-License-Identifier: Apache-2.0 */
/* A manifest against what the folder holds now: one item read, some probed, all compared. */
#include "worker/source/source.h"

#include "worker/source/mask.h"
#include "worker/source/walk.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- one item ---- */

static enum base_code check_unchanged(int fd, const struct manifest_entry *entry, struct base_error *error)
{
    struct stat stat;
    if (fstat(fd, &stat) != 0)
        return base_error_set(error, BASE_UNAVAILABLE, "%s: cannot be read: %s", entry->name,
                              strerror(errno));
    if ((uint64_t)stat.st_size != entry->size_bytes)
        return base_error_set(error, BASE_UNAVAILABLE,
                              "%s: changed since it was indexed: %lld bytes instead of %llu", entry->name,
                              (long long)stat.st_size, (unsigned long long)entry->size_bytes);
    if (source_walk_mtime_ns(&stat) != entry->mtime_ns)
        return base_error_set(error, BASE_UNAVAILABLE,
                              "%s: changed since it was indexed: another modification time", entry->name);
    return BASE_OK;
}

/* Whatever the reason is, it is the place that fails, not the sample. */
static enum base_code open_unchanged(const struct source_folder *folder, const struct manifest_entry *entry,
                                     int *fd, struct base_error *error)
{
    char full[PATH_MAX + MANIFEST_NAME_MAX_BYTES];
    struct base_error cause;
    snprintf(full, sizeof full, "%s/%s", folder->path, entry->name);
    enum base_code code = source_roots_open_file(folder->roots, full, fd, &cause);
    if (code != BASE_OK)
        return base_error_set(error, code == BASE_NO_MEMORY ? code : BASE_UNAVAILABLE,
                              "%s: cannot be read: %s", entry->name, cause.text);
    code = check_unchanged(*fd, entry, error);
    if (code != BASE_OK)
        close(*fd);
    return code;
}

static enum base_code read_all(int fd, const struct manifest_entry *entry, uint8_t *bytes,
                               struct base_error *error)
{
    for (uint64_t at = 0; at < entry->size_bytes;) {
        ssize_t done = pread(fd, bytes + at, entry->size_bytes - at, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return base_error_set(error, BASE_UNAVAILABLE, "%s: cannot be read at byte %llu: %s", entry->name,
                                  (unsigned long long)at, strerror(errno));
        if (done == 0)
            return base_error_set(error, BASE_UNAVAILABLE, "%s: ends at byte %llu of %llu", entry->name,
                                  (unsigned long long)at, (unsigned long long)entry->size_bytes);
        at += (uint64_t)done;
    }
    return BASE_OK;
}

static enum base_code read_entry(const struct source_folder *folder, const struct manifest_entry *entry,
                                 uint8_t *bytes, struct base_error *error)
{
    int fd;
    enum base_code code = open_unchanged(folder, entry, &fd, error);
    if (code != BASE_OK)
        return code;
    code = read_all(fd, entry, bytes, error);
    if (code == BASE_OK) /* it may have been rewritten meanwhile */
        code = check_unchanged(fd, entry, error);
    close(fd);
    return code;
}

enum base_code source_folder_read(const struct source_folder *folder, uint64_t index, uint8_t *bytes,
                                  uint64_t *size, struct base_error *error)
{
    struct manifest_entry entry;
    enum base_code code = manifest_entry(folder->manifest, index, &entry, error);
    if (code == BASE_OK)
        code = read_entry(folder, &entry, bytes, error);
    if (code == BASE_OK)
        *size = entry.size_bytes;
    return code;
}

/* Where the masks lie. */
static struct source_folder masks_of(const struct source_folder *folder)
{
    return (struct source_folder){folder->roots, manifest_masks(folder->manifest), folder->manifest};
}

enum base_code source_folder_read_mask(const struct source_folder *folder, uint64_t index, uint8_t *bytes,
                                       uint64_t *size, struct base_error *error)
{
    struct source_folder masks = masks_of(folder);
    struct manifest_entry entry, mask;
    enum base_code code = manifest_entry(folder->manifest, index, &entry, error);
    if (code != BASE_OK)
        return code;
    source_mask_entry(&entry, &mask);
    code = read_entry(&masks, &mask, bytes, error);
    if (code == BASE_OK)
        *size = mask.size_bytes;
    return code == BASE_OK ? code : base_error_prefix(error, code, "mask");
}

static enum base_code check_entry(const struct source_folder *folder, const struct manifest_entry *entry,
                                  struct base_error *error)
{
    int fd;
    enum base_code code = open_unchanged(folder, entry, &fd, error);
    if (code == BASE_OK)
        close(fd);
    return code;
}

/* The item is there and unchanged, and so is its mask, if there are masks. */
static enum base_code check_item(const struct source_folder *folder, const struct manifest_entry *entry,
                                 struct base_error *error)
{
    struct source_folder masks = masks_of(folder);
    struct manifest_entry mask;
    enum base_code code = check_entry(folder, entry, error);
    if (code != BASE_OK || !masks.path)
        return code;
    source_mask_entry(entry, &mask);
    code = check_entry(&masks, &mask, error);
    return code == BASE_OK ? code : base_error_prefix(error, code, "mask");
}

enum base_code source_folder_probe(const struct source_folder *folder, int samples, struct base_error *error)
{
    struct manifest_entry entry;
    uint64_t items = manifest_items(folder->manifest), count = samples < 0 ? 0 : (uint64_t)samples;
    enum base_code code = BASE_OK;
    if (count > items)
        count = items;
    for (uint64_t i = 0; code == BASE_OK && i < count; i++) {
        code = manifest_entry(folder->manifest, items / count * i, &entry, error);
        if (code == BASE_OK)
            code = check_item(folder, &entry, error);
    }
    return code;
}

/* ---- all of them ---- */

enum { LISTED = 100 };

/* The manifest's items and the walk's files come in one order: they are merged. */
struct comparison {
    const struct source_folder *folder;
    struct source_difference *difference;
    uint64_t next;               /* item not yet met */
    struct manifest_entry entry; /* of it */
};

/* One line for each, whatever is in its name. */
static void note(struct comparison *c, const char *name, const char *what)
{
    if (c->difference->changed++ >= LISTED)
        return;
    struct base_buffer *names = &c->difference->names;
    if (names->size > 0)
        base_buffer_put_u8(names, '\n');
    size_t start = names->size;
    base_buffer_printf(names, "%s%s", name, what);
    for (size_t i = start; !names->failed && i < names->size; i++)
        if (names->bytes[i] < ' ')
            names->bytes[i] = '?';
}

/* Loads the entry of `next`; an item past the end has the empty name. */
static enum base_code load_next(struct comparison *c, struct base_error *error)
{
    c->entry.name[0] = 0;
    return c->next < manifest_items(c->folder->manifest)
               ? manifest_entry(c->folder->manifest, c->next, &c->entry, error)
               : BASE_OK;
}

static enum base_code pass_next(struct comparison *c, struct base_error *error)
{
    c->next++;
    return load_next(c, error);
}

/* Items that sort before `name` (NULL: all that are left) were not found by the walk. */
static enum base_code pass_until(struct comparison *c, const char *name, struct base_error *error)
{
    enum base_code code = BASE_OK;
    while (code == BASE_OK && c->entry.name[0] &&
           (!name || source_walk_compare_names(c->entry.name, name) < 0)) {
        note(c, c->entry.name, ": missing");
        code = pass_next(c, error);
    }
    return code;
}

static enum base_code compare_found(void *context, const struct source_found *found, struct base_error *error)
{
    struct comparison *c = context;
    if (found->skipped)
        return BASE_OK;
    enum base_code code = pass_until(c, found->name, error);
    if (code != BASE_OK)
        return code;
    if (strcmp(c->entry.name, found->name) != 0) {
        note(c, found->name, ": new");
        return BASE_OK;
    }
    struct base_error cause;
    code = check_item(c->folder, &c->entry, &cause);
    if (code == BASE_NO_MEMORY) /* says nothing about the file */
        return base_error_set(error, code, "%s", cause.text);
    if (code != BASE_OK)
        note(c, cause.text, "");
    return pass_next(c, error);
}

static enum base_code compare_class(void *context, const char *name, struct base_error *error)
{
    (void)context;
    (void)name;
    (void)error;
    return BASE_OK;
}

static enum base_code compare_problem(void *context, const char *name, const struct base_error *cause,
                                      struct base_error *error)
{
    struct comparison *c = context;
    enum base_code code = name ? pass_until(c, name, error) : BASE_OK;
    note(c, cause->text, "");
    return code == BASE_OK && name && strcmp(c->entry.name, name) == 0 ? pass_next(c, error) : code;
}

enum base_code source_folder_compare(const struct source_folder *folder, struct source_difference *difference,
                                     struct base_error *error)
{
    struct comparison c = {.folder = folder, .difference = difference};
    const struct source_visitor visitor = {.context = &c,
                                           .begin_class = compare_class,
                                           .found = compare_found,
                                           .end_class = compare_class,
                                           .problem = compare_problem};
    *difference = (struct source_difference){0};
    base_buffer_init(&difference->names);
    enum base_code code = load_next(&c, error);
    if (code == BASE_OK)
        code = source_walk(folder->roots, folder->path, NULL, &visitor, error);
    if (code == BASE_OK)
        code = pass_until(&c, NULL, error);
    if (code == BASE_OK && difference->names.failed)
        code = base_error_set(error, BASE_NO_MEMORY, "%s: no memory for the list of changes", folder->path);
    if (code != BASE_OK)
        base_buffer_fini(&difference->names);
    return code;
}
