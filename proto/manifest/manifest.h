/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A dataset version's manifest: one file, immutable, mapped for reading, verified and pulled by pages.
 *
 *   page 0..P-1 of 65,536 bytes each (the last may be shorter):
 *     head     magic, format version, counts, section sizes; the sections follow without gaps
 *     rows     32 bytes an item: size8 mtime_ns8 label4 flags4 name_ref8 (uncompressed, mapped); 48 where items have masks: then
 *              the mask's size8 mtime_ns8 follow
 *     classes  sorted names; skipped: the first 1000 names left out; masks: the folder that they lie in
 *     names    zstd frames of 256 names each, and an index of frames
 *   page table   SHA-256 of every page
 *   version      SHA-256 over the page table (its root hash): the dataset version
 * A reader that has the version and the page table can verify any page alone. Content verdicts live in a side
 * table of the worker and change no version. A name is the path relative to the dataset's folder, bytes as
 * the file system gives them, without empty, "." and ".." components. The same items give the same bytes
 * (with the same libzstd).
 */
#ifndef PROTO_MANIFEST_MANIFEST_H
#define PROTO_MANIFEST_MANIFEST_H

#include "base/buffer.h"
#include "base/error.h"
#include "base/hash.h"

#define MANIFEST_PAGE_BYTES 65536
#define MANIFEST_NAME_MAX_BYTES 4096
#define MANIFEST_CLASSES_MAX 65536
#define MANIFEST_PAGES_MAX 32768 /* 2 GiB, about 50 million items: the page table is one PAGE frame */
#define MANIFEST_SKIPPED_LISTED 1000

/* ---- making ---- */

struct manifest_item {
    const char *name; /* relative; terminated */
    uint64_t size_bytes;
    int64_t mtime_ns;
    int32_t label;
    uint64_t mask_size_bytes; /* where items have masks; else 0 */
    int64_t mask_mtime_ns;
};

struct manifest_writer;
/* Writes beside `path` and renames at finish: never half a file there. */
enum base_code manifest_writer_create(struct manifest_writer **writer, const char *path,
                                      struct base_error *error);
void manifest_writer_destroy(struct manifest_writer *writer); /* without finish: removes what it wrote */
enum base_code manifest_writer_class(struct manifest_writer *writer, const char *name,
                                     struct base_error *error);
/* Before the first item: each has a mask beneath this folder, an absolute path. */
enum base_code manifest_writer_masks(struct manifest_writer *writer, const char *folder,
                                     struct base_error *error);
enum base_code manifest_writer_item(struct manifest_writer *writer, const struct manifest_item *item,
                                    struct base_error *error);
enum base_code manifest_writer_skipped(struct manifest_writer *writer, const char *name,
                                       struct base_error *error);
enum base_code manifest_writer_finish(struct manifest_writer *writer, uint8_t version[BASE_SHA256_BYTES],
                                      struct base_error *error);

/* ---- reading ---- */

struct manifest; /* immutable: any thread */

/* Maps the file, checks the page table against `version` (NULL: trust and report it) and the head. Pages are
 * verified on first use. */
enum base_code manifest_open(struct manifest **manifest, const char *path, const uint8_t *version,
                             struct base_error *error);
void manifest_close(struct manifest **manifest);

const uint8_t *manifest_version(const struct manifest *manifest);
uint64_t manifest_items(const struct manifest *manifest);
uint64_t manifest_total_bytes(const struct manifest *manifest);
uint32_t manifest_classes(const struct manifest *manifest);
const char *manifest_class(const struct manifest *manifest, uint32_t label); /* NULL: no such */
uint64_t manifest_skipped(const struct manifest *manifest);
const char *manifest_skipped_name(const struct manifest *manifest, uint32_t index); /* NULL: not listed */

const char *manifest_masks(const struct manifest *manifest); /* the folder; NULL: no masks */

/* Item `index`; `name` gets the relative path. CORRUPT names the page. */
struct manifest_entry {
    uint64_t size_bytes;
    int64_t mtime_ns;
    int32_t label;
    uint64_t mask_size_bytes; /* 0 without masks */
    int64_t mask_mtime_ns;
    char name[MANIFEST_NAME_MAX_BYTES];
};
enum base_code manifest_entry(const struct manifest *manifest, uint64_t index, struct manifest_entry *entry,
                              struct base_error *error);

/* ---- pages, for peers and clients ---- */

uint64_t manifest_pages(const struct manifest *manifest);
/* Page `index`, or MANIFEST_PAGE_TABLE. A view that lives as long as the manifest. */
enum base_code manifest_page(const struct manifest *manifest, uint64_t index, const uint8_t **bytes,
                             size_t *size, struct base_error *error);

/* Assembles a manifest from pages got in any order: first the page table (its index is MANIFEST_PAGE_TABLE),
 * then the pages. */
#define MANIFEST_PAGE_TABLE UINT64_MAX
struct manifest_pull;
enum base_code manifest_pull_create(struct manifest_pull **pull, const char *path,
                                    const uint8_t version[BASE_SHA256_BYTES], struct base_error *error);
void manifest_pull_destroy(struct manifest_pull *pull);
/* The next page to ask for; false: all are here, call finish. */
bool manifest_pull_next(const struct manifest_pull *pull, uint64_t *index);
/* Verifies and writes. CORRUPT: ask again, elsewhere. */
enum base_code manifest_pull_page(struct manifest_pull *pull, uint64_t index, const uint8_t *bytes,
                                  size_t size, struct base_error *error);
enum base_code manifest_pull_finish(struct manifest_pull *pull,
                                    struct base_error *error); /* syncs and renames */

/* ---- a reader that gets pages as it needs them ---- */

/* Gets page `index` (or MANIFEST_PAGE_TABLE) from a holder into the empty `out`. Called on the thread that
 * called manifest_remote_entry; may block, until a deadline of its own. The bytes need not be
 * checked. */
typedef enum base_code (*manifest_remote_fetch)(void *context, uint64_t index, struct base_buffer *out,
                                                struct base_error *error);

struct manifest_remote; /* one thread at a time; keeps at most 64 pages */
/* Fetches nothing. `context` must outlive it. */
enum base_code manifest_remote_create(struct manifest_remote **remote,
                                      const uint8_t version[BASE_SHA256_BYTES], manifest_remote_fetch fetch,
                                      void *context, struct base_error *error);
void manifest_remote_destroy(struct manifest_remote **remote);
/* Errors: fetch's own, CORRUPT, NOT_FOUND. What it has fetched and verified stays for the next call, whatever came of this one. */
enum base_code manifest_remote_entry(struct manifest_remote *remote, uint64_t index,
                                     struct manifest_entry *entry, struct base_error *error);

#endif
