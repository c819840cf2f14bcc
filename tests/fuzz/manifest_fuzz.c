/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages whose hashes are right and whose content is not: the input is a manifest's sections, the page table and the version are
 * made to fit. Read as a mapped file and as a remote one.
 */
#include "proto/manifest/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *bytes;
    size_t size;
    struct base_buffer table;
};

static enum base_code fetch(void *context, uint64_t index, struct base_buffer *out, struct base_error *error)
{
    struct input *input = context;
    if (index == MANIFEST_PAGE_TABLE) {
        base_buffer_put(out, input->table.bytes, input->table.size);
        return BASE_OK;
    }
    uint64_t at = index * MANIFEST_PAGE_BYTES;
    if (at >= input->size)
        return base_error_set(error, BASE_NOT_FOUND, "no such page");
    size_t left = input->size - at;
    base_buffer_put(out, input->bytes + at, left < MANIFEST_PAGE_BYTES ? left : MANIFEST_PAGE_BYTES);
    return BASE_OK;
}

static void read_remote(struct input *input, const uint8_t *version)
{
    static struct manifest_entry entry;
    struct manifest_remote *remote;
    if (manifest_remote_create(&remote, version, fetch, input, NULL) != BASE_OK)
        return;
    for (uint64_t i = 0; i < 600; i++)
        manifest_remote_entry(remote, i, &entry, NULL);
    manifest_remote_entry(remote, UINT64_MAX, &entry, NULL);
    manifest_remote_destroy(&remote);
}

static void read_mapped(const struct input *input)
{
    static struct manifest_entry entry;
    char path[64];
    struct manifest *manifest;
    int fd = memfd_create("manifest", MFD_CLOEXEC);
    if (fd < 0 || write(fd, input->bytes, input->size) != (ssize_t)input->size ||
        write(fd, input->table.bytes, input->table.size) != (ssize_t)input->table.size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (manifest_open(&manifest, path, NULL, NULL) == BASE_OK) {
        size_t total = manifest_masks(manifest) ? strlen(manifest_masks(manifest)) : 0;
        for (uint32_t c = 0; manifest_class(manifest, c); c++)
            total += strlen(manifest_class(manifest, c));
        for (uint32_t s = 0; manifest_skipped_name(manifest, s); s++)
            total += strlen(manifest_skipped_name(manifest, s));
        for (uint64_t i = 0; i < manifest_items(manifest) && i < 600; i++)
            total += manifest_entry(manifest, i, &entry, NULL) == BASE_OK;
        if (total == SIZE_MAX)
            abort();
        manifest_close(&manifest);
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {.bytes = data, .size = size};
    uint8_t version[BASE_SHA256_BYTES];
    if (size == 0)
        return 0;
    for (size_t at = 0; at < size; at += MANIFEST_PAGE_BYTES) {
        size_t part = size - at < MANIFEST_PAGE_BYTES ? size - at : MANIFEST_PAGE_BYTES;
        uint8_t *hash = base_buffer_extend(&input.table, BASE_SHA256_BYTES);
        if (!hash)
            abort();
        base_hash_sha256(data + at, part, hash);
    }
    base_hash_sha256(input.table.bytes, input.table.size, version);
    read_remote(&input, version);
    read_mapped(&input);
    base_buffer_fini(&input.table);
    return 0;
}
