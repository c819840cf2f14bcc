/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/source/mask.h"

#include "worker/source/walk.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A name too long for its new suffix is cut, and names no file. */
static void name_mask(const char *item, char mask[MANIFEST_NAME_MAX_BYTES])
{
    const char *slash = strrchr(item, '/'), *dot = strrchr(slash ? slash : item, '.');
    int stem = dot ? (int)(dot - item) : (int)strlen(item);
    snprintf(mask, MANIFEST_NAME_MAX_BYTES, "%.*s.png", stem, item);
}

void source_mask_entry(const struct manifest_entry *item, struct manifest_entry *mask)
{
    mask->size_bytes = item->mask_size_bytes;
    mask->mtime_ns = item->mask_mtime_ns;
    mask->label = item->label;
    name_mask(item->name, mask->name);
}

enum base_code source_mask_stat(const struct source_roots *roots, const char *masks,
                                struct manifest_item *item, struct base_error *error)
{
    char name[MANIFEST_NAME_MAX_BYTES], full[PATH_MAX + MANIFEST_NAME_MAX_BYTES];
    struct stat stat;
    int fd;
    name_mask(item->name, name);
    snprintf(full, sizeof full, "%s/%s", masks, name);
    struct base_error cause;
    enum base_code code = source_roots_open_file(roots, full, &fd, &cause);
    if (code != BASE_OK)
        return base_error_set(error, code, "%s has no mask: %s", item->name, cause.text);
    code = fstat(fd, &stat) == 0 ? BASE_OK : base_error_errno(error, errno, "%s", full);
    close(fd);
    if (code != BASE_OK)
        return code;
    item->mask_size_bytes = (uint64_t)stat.st_size;
    item->mask_mtime_ns = source_walk_mtime_ns(&stat);
    return BASE_OK;
}
