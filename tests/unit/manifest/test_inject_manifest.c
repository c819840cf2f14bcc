/* SPDX-License-Identifier: Apache-2.0 */
/* Manifests while memory runs out and disks fill up: whole, or told; what was at the path before stays there. */
#include "proto/manifest/manifest.h"
#include "tests/support/inject.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { ITEMS = 600 };

static char folder[] = "/tmp/millrace-inject-manifest-XXXXXX";
static char path[128];
static uint8_t version[BASE_SHA256_BYTES];

static void name_of(uint64_t i, char name[64])
{
    snprintf(name, 64, "%s/%05llu.jpg", i < ITEMS / 2 ? "cat" : "dog", (unsigned long long)i);
}

static enum base_code put_all(struct manifest_writer *writer, uint64_t items, struct base_error *error)
{
    enum base_code code = manifest_writer_class(writer, "cat", error);
    if (code == BASE_OK)
        code = manifest_writer_class(writer, "dog", error);
    for (uint64_t i = 0; i < items && code == BASE_OK; i++) {
        char name[64];
        name_of(i, name);
        struct manifest_item item = {name, i, (int64_t)i * 7, i >= ITEMS / 2, 0, 0};
        code = manifest_writer_item(writer, &item, error);
    }
    return code == BASE_OK ? manifest_writer_skipped(writer, "README", error) : code;
}

static enum base_code write_manifest(uint64_t items, uint8_t out[BASE_SHA256_BYTES], struct base_error *error)
{
    struct manifest_writer *writer = NULL;
    enum base_code code = manifest_writer_create(&writer, path, error);
    if (code == BASE_OK)
        code = put_all(writer, items, error);
    if (code == BASE_OK)
        code = manifest_writer_finish(writer, out, error);
    manifest_writer_destroy(writer);
    return code;
}

static int files_in_folder(void)
{
    DIR *all = opendir(folder);
    assert_non_null(all);
    int count = -2; /* . and .. */
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

/* Page by page against its hash, and the items. */
static void assert_whole(const uint8_t wanted[BASE_SHA256_BYTES], uint64_t items)
{
    struct manifest *manifest = NULL;
    struct base_error error;
    struct manifest_entry *entry = malloc(sizeof *entry);
    if (manifest_open(&manifest, path, wanted, &error) != BASE_OK)
        fail_msg("%s", error.text);
    assert_true(manifest_items(manifest) == items);
    for (uint64_t i = 0; i < items; i++) {
        char name[64];
        name_of(i, name);
        assert_int_equal(manifest_entry(manifest, i, entry, &error), BASE_OK);
        assert_string_equal(entry->name, name);
        assert_true(entry->size_bytes == i);
    }
    manifest_close(&manifest);
    free(entry);
}

/* Over a manifest of one item less. */
static enum base_code overwrite(void *context, struct base_error *error)
{
    (void)context;
    uint8_t before[BASE_SHA256_BYTES], after[BASE_SHA256_BYTES];
    struct base_error first;
    struct inject_plan plan = inject_pause();
    unlink(path);
    if (write_manifest(ITEMS - 1, before, &first) != BASE_OK)
        fail_msg("%s", first.text);
    inject_start(&plan);
    enum base_code code = write_manifest(ITEMS, after, error);
    inject_stop();
    assert_int_equal(files_in_folder(), 1); /* no part of a file is left lying about */
    struct manifest *manifest = NULL;
    assert_int_equal(manifest_open(&manifest, path, NULL, &first), BASE_OK);
    uint64_t items = manifest_items(manifest);
    manifest_close(&manifest);
    if (code == BASE_OK || items == ITEMS) /* renamed, but its folder would not sync: told, and whole */
        assert_whole(version, ITEMS);
    else
        assert_whole(before, ITEMS - 1);
    if (code == BASE_OK)
        assert_memory_equal(after, version, sizeof after);
    return code;
}

static enum base_code read_manifest(void *context, struct base_error *error)
{
    (void)context;
    struct manifest *manifest = NULL;
    static struct manifest_entry entry;
    enum base_code code = manifest_open(&manifest, path, version, error);
    bool opened = code == BASE_OK;
    if (opened)
        code = manifest_entry(manifest, 400, &entry, error);
    inject_stop();
    if (code == BASE_OK)
        assert_string_equal(entry.name, "dog/00400.jpg");
    if (opened) /* a failure is over when it is over */
        assert_int_equal(manifest_entry(manifest, 400, &entry, NULL), BASE_OK);
    manifest_close(&manifest);
    return code;
}

/* The pages of `context`, a manifest. */
static enum base_code fetch(void *context, uint64_t index, struct base_buffer *out, struct base_error *error)
{
    const uint8_t *bytes;
    size_t size;
    enum base_code code = manifest_page(context, index, &bytes, &size, error);
    if (code == BASE_OK)
        base_buffer_put(out, bytes, size);
    return code;
}

static enum base_code read_remote(void *context, struct base_error *error)
{
    struct manifest_remote *remote = NULL;
    static struct manifest_entry entry;
    enum base_code code = manifest_remote_create(&remote, version, fetch, context, error);
    bool created = code == BASE_OK;
    if (created)
        code = manifest_remote_entry(remote, 400, &entry, error);
    inject_stop();
    if (code == BASE_OK)
        assert_string_equal(entry.name, "dog/00400.jpg");
    if (created) {
        assert_int_equal(manifest_remote_entry(remote, 400, &entry, NULL), BASE_OK);
        manifest_remote_destroy(&remote);
    }
    return code;
}

static enum base_code pull_pages(struct manifest_pull *pull, const struct manifest *from,
                                 struct base_error *error)
{
    enum base_code code = BASE_OK;
    for (uint64_t index; code == BASE_OK && manifest_pull_next(pull, &index);) {
        const uint8_t *bytes;
        size_t size;
        code = manifest_page(from, index, &bytes, &size, error);
        if (code == BASE_OK)
            code = manifest_pull_page(pull, index, bytes, size, error);
    }
    return code == BASE_OK ? manifest_pull_finish(pull, error) : code;
}

static enum base_code pull_manifest(void *context, struct base_error *error)
{
    struct manifest_pull *pull = NULL;
    char original[128];
    strcpy(original, path);
    snprintf(path, sizeof path, "%s/pulled", folder);
    enum base_code code = manifest_pull_create(&pull, path, version, error);
    if (code == BASE_OK)
        code = pull_pages(pull, context, error);
    inject_stop();
    manifest_pull_destroy(pull);
    bool there = access(path, F_OK) == 0;
    assert_int_equal(files_in_folder(), there ? 2 : 1);
    if (there)
        assert_whole(version, ITEMS);
    assert_true(there || code != BASE_OK);
    unlink(path);
    strcpy(path, original);
    return code;
}

static const unsigned file_kinds = INJECT_MEMORY | INJECT_CALL | INJECT_SHORT;

static void writing(void **state)
{
    (void)state;
    inject_each("manifest: write", file_kinds, overwrite, NULL);
}

static void reading(void **state)
{
    (void)state;
    inject_each("manifest: read", INJECT_MEMORY | INJECT_CALL, read_manifest, NULL);
}

static void pages(void **state)
{
    (void)state;
    struct manifest *manifest = NULL;
    assert_int_equal(manifest_open(&manifest, path, version, NULL), BASE_OK);
    inject_each("manifest: remote", INJECT_MEMORY, read_remote, manifest);
    inject_each("manifest: pull", file_kinds, pull_manifest, manifest);
    manifest_close(&manifest);
}

static int make_manifest(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/photos", folder);
    return write_manifest(ITEMS, version, NULL) == BASE_OK ? 0 : -1;
}

static int remove_manifest(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(writing), cmocka_unit_test(reading),
                                       cmocka_unit_test(pages)};
    return cmocka_run_group_tests(tests, make_manifest, remove_manifest);
}
