/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reader does with verified pages, wherever they come from: copy ranges out of them and read an item's
 * entry. Their content is still checked, because a hash only says that it is what somebody wrote.
 */
#ifndef PROTO_MANIFEST_PAGES_H
#define PROTO_MANIFEST_PAGES_H

#include "proto/manifest/layout.h"

struct manifest_pages {
    struct manifest_head head;
    /* A verified page, valid until the next call of get. */
    enum base_code (*get)(void *context, uint64_t index, const uint8_t **bytes, struct base_error *error);
    void *context;
};

/* Copies [at, at + size) of the sections. */
enum base_code manifest_pages_copy(const struct manifest_pages *pages, uint64_t at, size_t size, uint8_t *out,
                                   struct base_error *error);
enum base_code manifest_pages_entry(const struct manifest_pages *pages, uint64_t index,
                                    struct manifest_entry *entry, struct base_error *error);

/* BASE_OK when `table` is a page table of `version`. */
enum base_code manifest_pages_check_table(const uint8_t *table, size_t size, const uint8_t *version,
                                          struct base_error *error);
enum base_code manifest_pages_check(const uint8_t *table, uint64_t index, const uint8_t *bytes, size_t size,
                                    struct base_error *error);

#endif
