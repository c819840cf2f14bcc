/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where raw items come from: a folder beneath the worker's data roots. Blocking calls: for I/O threads only.
 * A path is resolved first, then its target is opened beneath whichever root holds it (openat2
 * RESOLVE_BENEATH): absolute links inside a root work, links out of all roots are refused.
 */
#ifndef WORKER_SOURCE_SOURCE_H
#define WORKER_SOURCE_SOURCE_H

#include "base/error.h"
#include "proto/manifest/manifest.h"

/* ---- roots ---- */

struct source_roots; /* immutable: any thread */
struct source_map {
    const char *from, *to; /* a path that begins with `from` (whole components) is read at `to` */
};
enum base_code source_roots_open(struct source_roots **roots, const char *const *paths, int count,
                                 const struct source_map *maps, int map_count, struct base_error *error);
void source_roots_close(struct source_roots **roots);
/* O_RDONLY | O_CLOEXEC descriptor. REFUSED: outside all roots (names the path and where a link led);
 * NOT_FOUND; ... */
enum base_code source_roots_open_file(const struct source_roots *roots, const char *path, int *fd,
                                      struct base_error *error);

/* ---- ImageFolder ---- */

struct source_place {
    const char *path;
    const char *masks; /* NULL: none */
};

/* Walks `path`: classes are the sorted names of the subfolders, files sorted, symlinks followed (loops
 * refused), suffix test ignores case; an empty class is an error that names it; other files are counted and
 * listed as skipped. With masks each item must have one: the same name beneath `masks`, with the suffix .png; else NOT_FOUND, or
 * another code, names the first without. `cancel` is polled. */
enum base_code source_folder_index(const struct source_roots *roots, const struct source_place *place,
                                   const char *manifest_path, const _Atomic bool *cancel,
                                   uint8_t version[BASE_SHA256_BYTES], struct base_error *error);

/* A folder that was indexed; nothing is owned. */
struct source_folder {
    const struct source_roots *roots;
    const char *path;
    const struct manifest *manifest;
};

/* Compares a manifest with the folder now: missing, changed, unreadable files, masks, too (names with what changed, '\n'
 * between, the first 100). Files that are new are counted, too. */
struct source_difference {
    uint64_t changed;
    struct base_buffer names;
};
enum base_code source_folder_compare(const struct source_folder *folder, struct source_difference *difference,
                                     struct base_error *error);

/* Stats up to `samples` items, and their masks, spread over the manifest (all, if fewer): BASE_OK when each is there, readable
 * and unchanged. */
enum base_code source_folder_probe(const struct source_folder *folder, int samples, struct base_error *error);

/* Reads item `index` whole into the caller's memory (capacity >= its manifest size). UNAVAILABLE, with the
 * file and the cause, when it is missing, unreadable, or its size or mtime is not the manifest's; never
 * anything that could be taken for a bad sample. */
enum base_code source_folder_read(const struct source_folder *folder, uint64_t index, uint8_t *bytes,
                                  uint64_t *size, struct base_error *error);
/* The same of its mask; the manifest must have masks. */
enum base_code source_folder_read_mask(const struct source_folder *folder, uint64_t index, uint8_t *bytes,
                                       uint64_t *size, struct base_error *error);

#endif
