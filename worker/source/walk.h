/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks a folder of class folders in the order of torchvision's ImageFolder: classes sorted; in a class, folders sorted by their whole
 * path, then files by name; all as Python sorts text, by code points, with bytes that are not UTF-8 as it escapes them.
 */
#ifndef WORKER_SOURCE_WALK_H
#define WORKER_SOURCE_WALK_H

#include "worker/source/source.h"

struct source_found {
    const char *name; /* relative to the walked folder */
    int32_t label;    /* index of its class; -1: beside the classes */
    uint64_t size_bytes;
    int64_t mtime_ns;
    bool skipped; /* by its suffix; size and time are not known */
};

/* What the walk tells. Anything but BASE_OK ends it with that code. */
struct source_visitor {
    void *context;
    enum base_code (*begin_class)(void *context, const char *name, struct base_error *error);
    enum base_code (*found)(void *context, const struct source_found *found, struct base_error *error);
    enum base_code (*end_class)(void *context, const char *name, struct base_error *error);
    /* Something that cannot be read; `cause` names it. `name`: a file, in its turn; NULL: a folder, before the files of
     * its class. To end the walk, return cause->code with `error` filled. */
    enum base_code (*problem)(void *context, const char *name, const struct base_error *cause,
                              struct base_error *error);
};

/* `cancel` (NULL: never) is polled at each entry: CANCELLED. */
enum base_code source_walk(const struct source_roots *roots, const char *path, const _Atomic bool *cancel,
                           const struct source_visitor *visitor, struct base_error *error);

/* The order in which a walk finds two names "class/folders/file". */
int source_walk_compare_names(const char *a, const char *b);

struct stat;
int64_t source_walk_mtime_ns(const struct stat *stat);

#endif
