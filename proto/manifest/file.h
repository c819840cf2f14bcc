/* SPDX-License-Identifier: Apache-2.0 */
/* A file that appears whole or not at all: written beside its path, renamed when it is complete. */
#ifndef PROTO_MANIFEST_FILE_H
#define PROTO_MANIFEST_FILE_H

#include "base/error.h"

#include <stddef.h>

struct manifest_file {
    int fd;     /* -1: none */
    char *path; /* owned */
    char *part; /* owned; what it is called until commit */
};

enum base_code manifest_file_open(struct manifest_file *file, const char *path, struct base_error *error);
/* A scratch file in the same folder, without a name. */
enum base_code manifest_file_open_nameless(struct manifest_file *file, const char *path,
                                           struct base_error *error);
/* Writes all of it at `at`. */
enum base_code manifest_file_write(struct manifest_file *file, const void *bytes, size_t size, uint64_t at,
                                   struct base_error *error);
/* Reads exactly `size` bytes; CORRUPT when the file is shorter. */
enum base_code manifest_file_read(struct manifest_file *file, void *bytes, size_t size, uint64_t at,
                                  struct base_error *error);
enum base_code manifest_file_commit(struct manifest_file *file,
                                    struct base_error *error); /* syncs, renames */
void manifest_file_close(struct manifest_file *file);          /* without commit: removes what was written */

#endif
