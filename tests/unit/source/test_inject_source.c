/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A folder read while memory runs out and the file system says no: an index is whole or there is none, a file that cannot be read
 * is unavailable and never short, and what failed for want of memory is not told of the files.
 */
#include "tests/support/inject.h"
#include "worker/source/source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { FILES = 6, BYTES = 10000 };

static char folder[] = "/tmp/millrace-inject-source-XXXXXX";
static char data[64], manifest_path[64];
static uint8_t version[BASE_SHA256_BYTES];
static struct source_roots *roots;
static struct manifest *manifest;

static void put(const char *name, char fill)
{
    char path[160], bytes[BYTES];
    snprintf(path, sizeof path, "%s/%s", data, name);
    memset(bytes, fill, sizeof bytes);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, sizeof bytes, file), sizeof bytes);
    fclose(file);
}

static enum base_code open_roots(void *context, struct base_error *error)
{
    (void)context;
    const char *const paths[] = {folder};
    const struct source_map map = {"/elsewhere", "/here"};
    struct source_roots *opened = NULL;
    enum base_code code = source_roots_open(&opened, paths, 1, &map, 1, error);
    inject_stop();
    if (code == BASE_OK)
        source_roots_close(&opened);
    return code;
}

static enum base_code index_folder(void *context, struct base_error *error)
{
    (void)context;
    char path[80];
    uint8_t got[BASE_SHA256_BYTES];
    snprintf(path, sizeof path, "%s/again", folder);
    enum base_code code =
        source_folder_index(roots, &(struct source_place){.path = data}, path, NULL, got, error);
    inject_stop();
    if (code == BASE_OK)
        assert_memory_equal(got, version, sizeof got);
    else if (access(path, F_OK) == 0) { /* renamed before its folder would not sync */
        struct manifest *whole = NULL;
        assert_int_equal(manifest_open(&whole, path, version, NULL), BASE_OK);
        manifest_close(&whole);
    }
    unlink(path);
    return code;
}

static enum base_code read_item(void *context, struct base_error *error)
{
    (void)context;
    static uint8_t bytes[BYTES];
    uint64_t size = 0;
    enum base_code code =
        source_folder_read(&(struct source_folder){roots, data, manifest}, 4, bytes, &size, error);
    inject_stop();
    if (code == BASE_OK) {
        assert_int_equal(size, BYTES);
        for (size_t i = 0; i < BYTES; i++)
            assert_int_equal(bytes[i], 'd');
    } else { /* never what could be taken for a bad sample */
        assert_int_equal(base_error_class(code), BASE_CLASS_RETRYABLE);
    }
    return code;
}

static enum base_code probe(void *context, struct base_error *error)
{
    (void)context;
    enum base_code code = source_folder_probe(&(struct source_folder){roots, data, manifest}, FILES, error);
    inject_stop();
    return code;
}

/* Files that a call could not look at are told; that memory was out is no change. */
static enum base_code compare(void *context, struct base_error *error)
{
    (void)context;
    struct source_difference difference;
    enum base_code code =
        source_folder_compare(&(struct source_folder){roots, data, manifest}, &difference, error);
    bool failed = inject_stop();
    if (code != BASE_OK)
        return code;
    assert_true(difference.changed == 0 || failed);
    assert_int_equal(difference.changed > 0, difference.names.size > 0);
    enum base_code told = BASE_OK;
    if (difference.changed > 0)
        told = base_error_set(error, BASE_IO, "%.*s", (int)difference.names.size,
                              (const char *)difference.names.bytes);
    base_buffer_fini(&difference.names);
    return told;
}

static void every_call(void **state)
{
    (void)state;
    const unsigned kinds = INJECT_MEMORY | INJECT_CALL | INJECT_SHORT;
    inject_each("source: roots", INJECT_MEMORY | INJECT_CALL, open_roots, NULL);
    inject_each("source: index", kinds, index_folder, NULL);
    inject_each("source: read", kinds, read_item, NULL);
    inject_each("source: probe", INJECT_MEMORY | INJECT_CALL, probe, NULL);
    inject_each("source: compare", INJECT_MEMORY | INJECT_CALL, compare, NULL);
}

static int make_folder(void **state)
{
    (void)state;
    char path[160];
    const char *const paths[] = {folder};
    if (!mkdtemp(folder))
        return -1;
    snprintf(data, sizeof data, "%s/data", folder);
    snprintf(manifest_path, sizeof manifest_path, "%s/manifest", folder);
    mkdir(data, 0755);
    snprintf(path, sizeof path, "%s/cat", data);
    mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/dog", data);
    mkdir(path, 0755);
    for (int i = 0; i < FILES; i++) {
        snprintf(path, sizeof path, "%s/%d.jpg", i < FILES / 2 ? "cat" : "dog", i);
        put(path, i < FILES / 2 ? 'c' : 'd');
    }
    put("README", 'r');
    snprintf(path, sizeof path, "%s/dog/link.jpg", data); /* a link, absolute, inside the root */
    char target[160];
    snprintf(target, sizeof target, "%s/cat/0.jpg", data);
    if (symlink(target, path) != 0 || source_roots_open(&roots, paths, 1, NULL, 0, NULL) != BASE_OK ||
        source_folder_index(roots, &(struct source_place){.path = data}, manifest_path, NULL, version,
                            NULL) != BASE_OK)
        return -1;
    return manifest_open(&manifest, manifest_path, version, NULL) == BASE_OK ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    manifest_close(&manifest);
    source_roots_close(&roots);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_call)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
