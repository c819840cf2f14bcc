/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/manifest/manifest.h"

#include "base/philox.h"
#include "proto/manifest/layout.h"

#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { ITEMS = 100000, CLASSES = 1000 };

static char folder[] = "/tmp/millrace-manifest-XXXXXX";
static char big[128]; /* a manifest of ITEMS items */
static uint8_t big_version[BASE_SHA256_BYTES];

static const char *at(const char *name, char out[128])
{
    snprintf(out, 128, "%s/%s", folder, name);
    return out;
}

/* What item i is; nothing is taken from the manifest. */
static void oracle(uint64_t i, struct manifest_entry *entry)
{
    uint64_t random = base_philox_word(7, 1, i);
    entry->size_bytes = random % 5000000;
    entry->mtime_ns = i % 1000 == 0 ? -(int64_t)i : (int64_t)(random >> 3);
    entry->label = (int32_t)(i / (ITEMS / CLASSES));
    int pad = i % 997 == 0 ? 3900 : (int)(random % 20);
    snprintf(entry->name, sizeof entry->name, "n%08d/%0*d_%llu.JPEG", entry->label, pad, 0,
             (unsigned long long)i);
}

static void write_big(const char *path, uint8_t version[BASE_SHA256_BYTES])
{
    struct manifest_writer *w;
    struct base_error error;
    assert_int_equal(manifest_writer_create(&w, path, &error), BASE_OK);
    for (int c = 0; c < CLASSES; c++) {
        char name[32];
        snprintf(name, sizeof name, "n%08d", c);
        assert_int_equal(manifest_writer_class(w, name, &error), BASE_OK);
    }
    static struct manifest_entry e;
    for (uint64_t i = 0; i < ITEMS; i++) {
        oracle(i, &e);
        struct manifest_item item = {e.name, e.size_bytes, e.mtime_ns, e.label, 0, 0};
        assert_int_equal(manifest_writer_item(w, &item, &error), BASE_OK);
    }
    for (int s = 0; s < 1500; s++)
        assert_int_equal(manifest_writer_skipped(w, s % 2 ? "a/README" : "b/x.txt", &error), BASE_OK);
    assert_int_equal(manifest_writer_finish(w, version, &error), BASE_OK);
    manifest_writer_destroy(w);
}

static struct manifest *open_big(void)
{
    struct manifest *m = NULL;
    struct base_error error = {0};
    if (manifest_open(&m, big, big_version, &error) != BASE_OK)
        fail_msg("%s", error.text);
    return m;
}

static void assert_is_oracle(uint64_t i, const struct manifest_entry *got)
{
    static struct manifest_entry expected;
    oracle(i, &expected);
    assert_true(got->size_bytes == expected.size_bytes);
    assert_true(got->mtime_ns == expected.mtime_ns);
    assert_int_equal(got->label, expected.label);
    assert_string_equal(got->name, expected.name);
}

static void every_item_is_what_was_written(void **state)
{
    (void)state;
    struct manifest *m = open_big();
    static struct manifest_entry e;
    struct base_error error;
    uint64_t total = 0;
    assert_true(manifest_items(m) == ITEMS);
    for (uint64_t i = 0; i < ITEMS; i++) {
        uint64_t item = (i * 7919) % ITEMS;
        oracle(item, &e);
        total += e.size_bytes;
        if (i % 7)
            continue;
        assert_int_equal(manifest_entry(m, item, &e, &error), BASE_OK);
        assert_is_oracle(item, &e);
    }
    assert_true(manifest_total_bytes(m) == total);
    assert_int_equal(manifest_entry(m, ITEMS, &e, &error), BASE_NOT_FOUND);
    assert_int_equal(manifest_classes(m), CLASSES);
    assert_string_equal(manifest_class(m, 999), "n00000999");
    assert_null(manifest_class(m, CLASSES));
    assert_true(manifest_skipped(m) == 1500);
    assert_string_equal(manifest_skipped_name(m, 999), "a/README");
    assert_null(manifest_skipped_name(m, 1000));
    manifest_close(&m);
    assert_null(m);
}

static void the_same_items_give_the_same_bytes(void **state)
{
    (void)state;
    char path[128], command[512];
    uint8_t version[BASE_SHA256_BYTES];
    write_big(at("again", path), version);
    assert_memory_equal(version, big_version, sizeof version);
    snprintf(command, sizeof command, "cmp -s %s %s", path, big);
    assert_int_equal(system(command), 0);
    unlink(path);
}

/* Their sizes and times travel with the items, and make another version; a manifest without them is read as ever. */
static void masks_are_part_of_the_version(void **state)
{
    (void)state;
    static const char *const folders[] = {NULL, "/data/masks", "/data/masks", "/data/other"};
    uint8_t versions[4][BASE_SHA256_BYTES];
    for (int i = 0; i < 4; i++) {
        struct manifest_writer *w;
        struct manifest *m = NULL;
        struct base_error error = {0};
        struct manifest_entry e;
        char path[128];
        assert_int_equal(manifest_writer_create(&w, at("masks", path), &error), BASE_OK);
        assert_int_equal(manifest_writer_masks(w, "relative", &error), BASE_INVALID);
        if (folders[i])
            assert_int_equal(manifest_writer_masks(w, folders[i], &error), BASE_OK);
        for (uint64_t n = 0; n < 3000; n++) {
            struct manifest_item item = {"a/b.jpg", n, 2, -1, folders[i] ? n + 5 : 0, folders[i] ? -7 : 0};
            assert_int_equal(manifest_writer_item(w, &item, &error), BASE_OK);
        }
        assert_int_equal(manifest_writer_finish(w, versions[i], &error), BASE_OK);
        manifest_writer_destroy(w);
        assert_int_equal(manifest_open(&m, path, versions[i], &error), BASE_OK);
        assert_int_equal(manifest_entry(m, 2999, &e, &error), BASE_OK);
        assert_true(e.size_bytes == 2999 && e.mtime_ns == 2 && e.label == -1);
        assert_true(e.mask_size_bytes == (folders[i] ? 3004 : 0) && e.mask_mtime_ns == (folders[i] ? -7 : 0));
        assert_true(manifest_total_bytes(m) == 2999 * 1500 + (folders[i] ? 2999 * 1500 + 3000 * 5 : 0));
        if (folders[i])
            assert_string_equal(manifest_masks(m), folders[i]);
        else
            assert_null(manifest_masks(m));
        manifest_close(&m);
        unlink(path);
    }
    assert_memory_equal(versions[1], versions[2], sizeof versions[1]);
    assert_memory_not_equal(versions[0], versions[1], sizeof versions[1]);
    assert_memory_not_equal(versions[1], versions[3], sizeof versions[1]);
}

static void the_file_of_another_version_is_refused(void **state)
{
    (void)state;
    struct manifest *m = NULL;
    struct base_error error;
    uint8_t other[BASE_SHA256_BYTES];
    memcpy(other, big_version, sizeof other);
    other[31] ^= 1;
    assert_int_equal(manifest_open(&m, big, other, &error), BASE_CORRUPT);
    assert_non_null(strstr(error.text, "version"));
    assert_int_equal(manifest_open(&m, "/nonexistent/manifest", NULL, &error), BASE_NOT_FOUND);
    assert_null(m);
    assert_int_equal(manifest_open(&m, big, NULL, &error), BASE_OK);
    assert_memory_equal(manifest_version(m), big_version, sizeof other);
    manifest_close(&m);
}

static void a_writer_that_does_not_finish_leaves_nothing(void **state)
{
    (void)state;
    char path[128], command[512];
    struct manifest_writer *w;
    assert_int_equal(manifest_writer_create(&w, at("half", path), NULL), BASE_OK);
    struct manifest_item item = {"a/b.jpg", 1, 2, 0, 0, 0};
    assert_int_equal(manifest_writer_item(w, &item, NULL), BASE_OK);
    manifest_writer_destroy(w);
    manifest_writer_destroy(NULL);
    snprintf(command, sizeof command, "! ls %s | grep -q half", folder);
    assert_int_equal(system(command), 0);
    struct base_error error;
    assert_int_equal(manifest_writer_create(&w, "/nonexistent/x", &error), BASE_NOT_FOUND);
    assert_non_null(strstr(error.text, "/nonexistent/x"));
}

static void names_that_could_leave_the_folder_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool ok;
    } rows[] = {
        {"a/b.jpg", true},   {"a", true},         {"..a/b..", true}, {"a/...", true},
        {".hidden/x", true}, {"a\nb/\xff", true}, {"", false},       {"/a", false},
        {"a/", false},       {"a//b", false},     {"..", false},     {"a/../b", false},
        {"../a", false},     {"a/..", false},     {".", false},      {"a/./b", false},
    };
    char path[128], *long_name = malloc(MANIFEST_NAME_MAX_BYTES + 1);
    struct manifest_writer *w;
    struct base_error error;
    assert_int_equal(manifest_writer_create(&w, at("names", path), NULL), BASE_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct manifest_item item = {rows[i].name, 1, 2, 0, 0, 0};
        assert_int_equal(manifest_writer_item(w, &item, &error), rows[i].ok ? BASE_OK : BASE_INVALID);
        assert_int_equal(manifest_writer_skipped(w, rows[i].name, &error),
                         rows[i].ok ? BASE_OK : BASE_INVALID);
    }
    memset(long_name, 'x', MANIFEST_NAME_MAX_BYTES);
    long_name[MANIFEST_NAME_MAX_BYTES] = 0;
    struct manifest_item item = {long_name, 1, 2, 0, 0, 0};
    assert_int_equal(manifest_writer_item(w, &item, &error), BASE_INVALID);
    item.name = long_name + 1;
    assert_int_equal(manifest_writer_item(w, &item, &error), BASE_OK);
    manifest_writer_destroy(w);
    free(long_name);
}

/* ---- damaged files ---- */

static void a_truncated_file_is_corrupt(void **state)
{
    (void)state;
    char path[128], command[512];
    struct stat whole;
    assert_int_equal(stat(big, &whole), 0);
    const off_t sizes[] = {
        0, 1, 127, 128, 65535, 65536, whole.st_size / 2, whole.st_size - 32, whole.st_size - 1};
    snprintf(command, sizeof command, "cp %s %s", big, at("cut", path));
    for (size_t i = sizeof sizes / sizeof *sizes; i-- > 0;) {
        struct manifest *m = NULL;
        struct base_error error;
        assert_int_equal(system(command), 0);
        assert_int_equal(truncate(path, sizes[i]), 0);
        assert_int_equal(manifest_open(&m, path, NULL, &error), BASE_CORRUPT);
        assert_non_null(strstr(error.text, path));
        assert_null(m);
    }
    unlink(path);
}

/* Flips a bit in each page: it is noticed when the page is used, and names the page. */
static void a_flipped_bit_names_its_page(void **state)
{
    (void)state;
    char path[128], command[512];
    snprintf(command, sizeof command, "cp %s %s", big, at("flip", path));
    assert_int_equal(system(command), 0);
    int fd = open(path, O_RDWR);
    struct manifest *m = NULL;
    struct base_error error;
    const off_t where = 3 * MANIFEST_PAGE_BYTES + 77;
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, where), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, where), 1);
    close(fd);
    assert_int_equal(manifest_open(&m, path, big_version, &error), BASE_OK);
    static struct manifest_entry e;
    uint64_t item = (3 * MANIFEST_PAGE_BYTES + 1000 - MANIFEST_HEAD_BYTES) / MANIFEST_ROW_BYTES;
    assert_int_equal(manifest_entry(m, item, &e, &error), BASE_CORRUPT);
    assert_non_null(strstr(error.text, "page 3"));
    assert_int_equal(manifest_entry(m, 5, &e, &error), BASE_OK);
    const uint8_t *bytes;
    size_t size;
    assert_int_equal(manifest_page(m, 3, &bytes, &size, &error), BASE_CORRUPT);
    manifest_close(&m);
    unlink(path);
}

/* ---- pulls ---- */

static void pull_one(struct manifest_pull *p, const struct manifest *m, uint64_t index, bool spoil)
{
    const uint8_t *bytes;
    size_t size;
    struct base_error error;
    assert_int_equal(manifest_page(m, index, &bytes, &size, &error), BASE_OK);
    if (spoil) {
        uint8_t *copy = malloc(size + 1);
        memcpy(copy, bytes, size);
        copy[size / 2] ^= 1;
        assert_int_equal(manifest_pull_page(p, index, copy, size, &error), BASE_CORRUPT);
        copy[size / 2] ^= 1;
        copy[size] = 0;
        assert_int_equal(manifest_pull_page(p, index, copy, size + 1, &error), BASE_CORRUPT);
        assert_int_equal(manifest_pull_page(p, index, copy, size - 1, &error), BASE_CORRUPT);
        assert_int_equal(manifest_pull_page(p, index, copy, 0, &error), BASE_CORRUPT);
        free(copy);
    }
    assert_int_equal(manifest_pull_page(p, index, bytes, size, &error), BASE_OK);
}

static void pages_are_pulled_in_any_order(void **state)
{
    (void)state;
    struct manifest *m = open_big(), *copy = NULL;
    struct manifest_pull *p;
    struct base_error error;
    char path[128], command[512];
    uint64_t next, pages = manifest_pages(m), left = pages, seen = 0;
    assert_true(pages > 50);
    assert_int_equal(manifest_pull_create(&p, at("pulled", path), big_version, &error), BASE_OK);
    assert_true(manifest_pull_next(p, &next));
    assert_true(next == MANIFEST_PAGE_TABLE);
    assert_int_equal(manifest_pull_page(p, 0, (const uint8_t *)"x", 1, &error), BASE_INVALID);
    pull_one(p, m, MANIFEST_PAGE_TABLE, true);
    pull_one(p, m, MANIFEST_PAGE_TABLE, false);
    assert_int_equal(manifest_pull_page(p, pages, (const uint8_t *)"x", 1, &error), BASE_INVALID);
    assert_int_equal(manifest_pull_finish(p, &error), BASE_INVALID);
    bool *done = calloc(pages, sizeof *done);
    for (uint64_t i = 0; left > 0; i++) {
        uint64_t page = base_philox_below(99, 2, i, pages);
        left -= !done[page];
        seen += done[page];
        pull_one(p, m, page, i % 3 == 0);
        done[page] = true;
        assert_true(manifest_pull_next(p, &next) == (left > 0));
        assert_true(left == 0 || !done[next]);
    }
    assert_true(seen > 0);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(manifest_pull_finish(p, &error), BASE_OK);
    manifest_pull_destroy(p);
    assert_int_equal(manifest_open(&copy, path, big_version, &error), BASE_OK);
    manifest_close(&copy);
    snprintf(command, sizeof command, "cmp -s %s %s", path, big);
    assert_int_equal(system(command), 0);
    free(done);
    unlink(path);
    manifest_close(&m);
}

static void a_pull_given_up_leaves_nothing(void **state)
{
    (void)state;
    struct manifest *m = open_big();
    struct manifest_pull *p;
    char path[128], command[512];
    assert_int_equal(manifest_pull_create(&p, at("given-up", path), big_version, NULL), BASE_OK);
    pull_one(p, m, MANIFEST_PAGE_TABLE, false);
    pull_one(p, m, 5, false);
    manifest_pull_destroy(p);
    manifest_pull_destroy(NULL);
    snprintf(command, sizeof command, "! ls %s | grep -q given-up", folder);
    assert_int_equal(system(command), 0);
    manifest_close(&m);
}

/* ---- remote ---- */

struct holder {
    const struct manifest *manifest;
    int fetched, spoil_at, lose_at; /* the n-th fetch; 0: never */
    size_t cut;                     /* bytes missing from each page */
};

static enum base_code fetch(void *context, uint64_t index, struct base_buffer *out, struct base_error *error)
{
    struct holder *h = context;
    const uint8_t *bytes;
    size_t size;
    if (++h->fetched == h->lose_at)
        return base_error_set(error, BASE_UNAVAILABLE, "holder gone");
    enum base_code code = manifest_page(h->manifest, index, &bytes, &size, error);
    if (code != BASE_OK)
        return code;
    base_buffer_put(out, bytes, size - h->cut);
    if (h->fetched == h->spoil_at)
        out->bytes[out->size - 1] ^= 0x80;
    return BASE_OK;
}

static void a_remote_reader_gets_only_what_it_needs(void **state)
{
    (void)state;
    struct manifest *m = open_big();
    struct holder h = {.manifest = m};
    struct manifest_remote *r;
    struct base_error error;
    static struct manifest_entry e;
    assert_int_equal(manifest_remote_create(&r, big_version, fetch, &h, &error), BASE_OK);
    assert_int_equal(h.fetched, 0);
    assert_int_equal(manifest_remote_entry(r, ITEMS - 1, &e, &error), BASE_OK);
    assert_is_oracle(ITEMS - 1, &e);
    assert_true(h.fetched <= 6);
    int before = h.fetched;
    assert_int_equal(manifest_remote_entry(r, ITEMS - 2, &e, &error), BASE_OK);
    assert_int_equal(h.fetched, before);
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t item = base_philox_below(5, 3, i, ITEMS);
        assert_int_equal(manifest_remote_entry(r, item, &e, &error), BASE_OK);
        assert_is_oracle(item, &e);
    }
    assert_int_equal(manifest_remote_entry(r, ITEMS, &e, &error), BASE_NOT_FOUND);
    manifest_remote_destroy(&r);
    manifest_close(&m);
}

static void a_remote_reader_believes_nothing(void **state)
{
    (void)state;
    struct manifest *m = open_big();
    struct base_error error;
    static struct manifest_entry e;
    for (int bad = 1; bad <= 4; bad++) {
        struct manifest_remote *r = NULL;
        struct holder spoiled = {.manifest = m, .spoil_at = bad}, lost = {.manifest = m, .lose_at = bad};
        assert_int_equal(manifest_remote_create(&r, big_version, fetch, &spoiled, &error), BASE_OK);
        assert_int_equal(manifest_remote_entry(r, 70000, &e, &error), BASE_CORRUPT);
        assert_int_equal(spoiled.fetched, bad); /* asked again, it is right, and goes on there */
        assert_int_equal(manifest_remote_entry(r, 70000, &e, &error), BASE_OK);
        assert_is_oracle(70000, &e);
        manifest_remote_destroy(&r);
        assert_int_equal(manifest_remote_create(&r, big_version, fetch, &lost, &error), BASE_OK);
        assert_int_equal(manifest_remote_entry(r, 70000, &e, &error), BASE_UNAVAILABLE);
        assert_string_equal(error.text, "holder gone");
        int before = lost.fetched;
        assert_int_equal(manifest_remote_entry(r, 70000, &e, &error), BASE_OK);
        assert_is_oracle(70000, &e);
        assert_true(before == bad && lost.fetched == spoiled.fetched);
        manifest_remote_destroy(&r);
    }
    struct holder cut = {.manifest = m, .cut = 32};
    struct manifest_remote *r = NULL;
    assert_int_equal(manifest_remote_create(&r, big_version, fetch, &cut, &error), BASE_OK);
    assert_int_equal(manifest_remote_entry(r, 0, &e, &error), BASE_CORRUPT);
    manifest_remote_destroy(&r);
    manifest_close(&m);
}

/* ---- heads ---- */

static void impossible_heads_are_corrupt(void **state)
{
    (void)state;
    struct manifest_head good = {.items = 10,
                                 .skipped = 3,
                                 .classes = 2,
                                 .skipped_listed = 3,
                                 .classes_bytes = 8,
                                 .skipped_bytes = 9,
                                 .names_bytes = 100},
                         got;
    uint8_t bytes[MANIFEST_HEAD_BYTES];
    manifest_layout_write(&good, bytes);
    assert_int_equal(manifest_layout_read(bytes, sizeof bytes, &got, NULL), BASE_OK);
    assert_true(got.end == 128 + 320 + 8 + 9 + 100 + 16 && got.pages == 1 && got.frames == 1);
    assert_int_equal(manifest_layout_read(bytes, sizeof bytes - 1, &got, NULL), BASE_CORRUPT);
    static const struct {
        int at;
        uint64_t value;
        enum base_code code;
    } rows[] = {
        {0, 1, BASE_CORRUPT},
        {8, 3, BASE_UNSUPPORTED},
        {8, 2, BASE_CORRUPT},  /* with masks, but without their folder */
        {72, 1, BASE_CORRUPT}, /* and the other way round */
        {16, UINT64_MAX, BASE_CORRUPT},
        {16, 1ULL << 59, BASE_CORRUPT},
        {48, UINT64_MAX, BASE_CORRUPT},
        {56, UINT64_MAX - 5, BASE_CORRUPT},
        {64, UINT64_MAX, BASE_CORRUPT},
        {64, 1ULL << 31, BASE_CORRUPT},
        {48, 1, BASE_CORRUPT},
        {40, 0x7fffffff, BASE_CORRUPT},
        {32, 2, BASE_CORRUPT},
        {16, 1ULL << 26, BASE_CORRUPT},
        {64, (1ULL << 31) - 65536 - 128, BASE_OK},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        manifest_layout_write(&good, bytes);
        base_set_u64(bytes + rows[i].at, rows[i].value);
        assert_int_equal(manifest_layout_read(bytes, sizeof bytes, &got, NULL), rows[i].code);
    }
}

static int make_big(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    write_big(at("big", big), big_version);
    return 0;
}

static int remove_all(void **state)
{
    (void)state;
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_is_what_was_written),
        cmocka_unit_test(the_same_items_give_the_same_bytes),
        cmocka_unit_test(masks_are_part_of_the_version),
        cmocka_unit_test(the_file_of_another_version_is_refused),
        cmocka_unit_test(a_writer_that_does_not_finish_leaves_nothing),
        cmocka_unit_test(names_that_could_leave_the_folder_are_refused),
        cmocka_unit_test(a_truncated_file_is_corrupt),
        cmocka_unit_test(a_flipped_bit_names_its_page),
        cmocka_unit_test(pages_are_pulled_in_any_order),
        cmocka_unit_test(a_pull_given_up_leaves_nothing),
        cmocka_unit_test(a_remote_reader_gets_only_what_it_needs),
        cmocka_unit_test(a_remote_reader_believes_nothing),
        cmocka_unit_test(impossible_heads_are_corrupt),
    };
    return cmocka_run_group_tests(tests, make_big, remove_all);
}
