/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/manifest/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum base_code manifest_file_open(struct manifest_file *file, const char *path, struct base_error *error)
{
    *file = (struct manifest_file){.fd = -1, .path = strdup(path)};
    if (!file->path || asprintf(&file->part, "%s.XXXXXX", path) < 0) {
        file->part = NULL;
        manifest_file_close(file);
        return base_error_set(error, BASE_NO_MEMORY, "%s: no memory", path);
    }
    file->fd = mkostemp(file->part, O_CLOEXEC);
    if (file->fd < 0) {
        int cause = errno;
        manifest_file_close(file);
        return base_error_errno(error, cause, "%s: cannot be written", path);
    }
    return BASE_OK;
}

enum base_code manifest_file_open_nameless(struct manifest_file *file, const char *path,
                                           struct base_error *error)
{
    enum base_code code = manifest_file_open(file, path, error);
    if (code != BASE_OK)
        return code;
    unlink(file->part);
    free(file->part);
    file->part = NULL;
    return BASE_OK;
}

enum base_code manifest_file_write(struct manifest_file *file, const void *bytes, size_t size, uint64_t at,
                                   struct base_error *error)
{
    for (const uint8_t *left = bytes; size > 0;) {
        ssize_t done = pwrite(file->fd, left, size, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return base_error_errno(error, errno, "%s: cannot be written", file->path);
        left += done;
        at += (uint64_t)done;
        size -= (size_t)done;
    }
    return BASE_OK;
}

enum base_code manifest_file_read(struct manifest_file *file, void *bytes, size_t size, uint64_t at,
                                  struct base_error *error)
{
    for (uint8_t *left = bytes; size > 0;) {
        ssize_t done = pread(file->fd, left, size, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return base_error_errno(error, errno, "%s: cannot be read", file->path);
        if (done == 0)
            return base_error_set(error, BASE_CORRUPT, "%s: ends at byte %llu", file->path,
                                  (unsigned long long)at);
        left += done;
        at += (uint64_t)done;
        size -= (size_t)done;
    }
    return BASE_OK;
}

/* The rename itself must survive a power cut, too. */
static enum base_code sync_folder(const char *path, struct base_error *error)
{
    char *copy = strdup(path);
    if (!copy)
        return base_error_set(error, BASE_NO_MEMORY, "%s: no memory", path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || fsync(fd) != 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    free(copy);
    return failed ? base_error_errno(error, failed, "%s: its folder cannot be synced", path) : BASE_OK;
}

enum base_code manifest_file_commit(struct manifest_file *file, struct base_error *error)
{
    if (fsync(file->fd) != 0)
        return base_error_errno(error, errno, "%s", file->part);
    if (rename(file->part, file->path) != 0)
        return base_error_errno(error, errno, "%s: cannot be renamed to %s", file->part, file->path);
    free(file->part);
    file->part = NULL;
    return sync_folder(file->path, error);
}

void manifest_file_close(struct manifest_file *file)
{
    if (file->fd >= 0) {
        close(file->fd);
        if (file->part)
            unlink(file->part);
    }
    free(file->path);
    free(file->part);
    *file = (struct manifest_file){.fd = -1};
}
