/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/source/source.h"

#include "worker/source/walk.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const char *imagefolder_py, *default_data;
static char top[PATH_MAX];       /* a folder of this run */
static char base[PATH_MAX + 16]; /* top/root: the data root */
static struct source_roots *roots;

static char *made_paths[8192];
static size_t path_count;

/* ---- making trees ---- */

/* Lives until the end of the run. */
static char *under(const char *folder, const char *name)
{
    assert_true(path_count < sizeof made_paths / sizeof *made_paths);
    char **path = &made_paths[path_count++];
    assert_true(asprintf(path, "%s/%s", folder, name) > 0);
    return *path;
}

static void make_folders(const char *path)
{
    char part[PATH_MAX * 2];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(part, 0755);
        *slash = '/';
    }
}

static void put(const char *folder, const char *name, const char *text)
{
    char *path = under(folder, name);
    make_folders(path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void put_link(const char *folder, const char *name, const char *target)
{
    char *path = under(folder, name);
    make_folders(path);
    assert_int_equal(symlink(target, path), 0);
}

static void run(const char *format, const char *argument)
{
    char command[PATH_MAX * 3];
    snprintf(command, sizeof command, "%s %s", format, argument);
    assert_int_equal(system(command), 0);
}

/* ---- indexing ---- */

static char *manifest_path(void)
{
    static char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/manifest", top);
    return path;
}

static enum base_code index_folder(const char *folder, struct base_error *error)
{
    uint8_t version[BASE_SHA256_BYTES];
    *error = (struct base_error){0};
    unlink(manifest_path());
    enum base_code code = source_folder_index(roots, &(struct source_place){.path = folder}, manifest_path(),
                                              NULL, version, error);
    assert_int_equal(code, error->code);
    assert_int_equal(access(manifest_path(), F_OK), code == BASE_OK ? 0 : -1);
    return code;
}

/* Until the next call. */
static const struct source_folder *of(const char *folder, const struct manifest *manifest)
{
    static struct source_folder made;
    made = (struct source_folder){roots, folder, manifest};
    return &made;
}

static struct manifest *index_and_open(const char *folder)
{
    struct manifest *manifest;
    struct base_error error;
    if (index_folder(folder, &error) != BASE_OK)
        fail_msg("%s", error.text);
    assert_int_equal(manifest_open(&manifest, manifest_path(), NULL, &error), BASE_OK);
    return manifest;
}

static void assert_index_fails(const char *folder, enum base_code code, const char *part, const char *other)
{
    struct base_error error;
    assert_int_equal(index_folder(folder, &error), code);
    if (!strstr(error.text, part) || !strstr(error.text, other))
        fail_msg("\"%s\" does not name \"%s\" and \"%s\"", error.text, part, other);
}

/* Ours against Python's: the same files with the same labels in the same order. */
static uint64_t assert_as_torchvision(const char *folder)
{
    char command[PATH_MAX * 3];
    struct manifest *manifest = index_and_open(folder);
    snprintf(command, sizeof command, "/usr/bin/python3 %s %s", imagefolder_py, folder);
    FILE *python = popen(command, "r");
    assert_non_null(python);
    char *record = NULL;
    size_t room = 0;
    uint64_t count = 0, items = manifest_items(manifest);
    static struct manifest_entry entry;
    struct base_error error;
    while (getdelim(&record, &room, 0, python) > 0) {
        char *name = strchr(record, ' ') + 1;
        assert_int_equal(manifest_entry(manifest, count++, &entry, &error), BASE_OK);
        assert_string_equal(entry.name, name);
        assert_int_equal(entry.label, atoi(record));
        assert_true(count < 2 || source_walk_compare_names(entry.name, name) == 0);
    }
    assert_int_equal(pclose(python), 0);
    assert_true(count == items);
    free(record);
    manifest_close(&manifest);
    return items;
}

static void real_photographs_are_found_as_torchvision_does(void **state)
{
    (void)state;
    const char *data = getenv("MILLRACE_TEST_DATA");
    char folder[PATH_MAX], real[PATH_MAX];
    if (!data)
        data = default_data;
    snprintf(folder, sizeof folder, "%s/imagenet-mini", data);
    if (access(folder, F_OK) != 0) {
        print_message("skipped: no %s\n", folder);
        skip();
    }
    struct source_roots *kept = roots;
    if (data[0] != '/' || !realpath(data, real))
        fail_msg("%s is not an absolute path", data);
    const char *paths[] = {real};
    assert_int_equal(source_roots_open(&roots, paths, 1, NULL, 0, NULL), BASE_OK);
    assert_true(assert_as_torchvision(folder) == 400);
    struct manifest *manifest = index_and_open(folder);
    assert_string_equal(manifest_skipped_name(manifest, 0), "MANIFEST.tsv");
    struct base_error error;
    assert_int_equal(source_folder_probe(of(folder, manifest), 1000, &error), BASE_OK);
    manifest_close(&manifest);
    source_roots_close(&roots);
    roots = kept;
}

static void odd_trees_are_found_as_torchvision_does(void **state)
{
    (void)state;
    char *folder = under(base, "odd"), letters[256];
    static const char *const names[] = {
        "b/z.jpg",
        "b/a.JPG",
        "b/m.jPeG",
        "b/n.Webp",
        "b/t.TIFF",
        "b/u.tif",
        "b/v.Pgm",
        "b/w.pPm",
        "b/x.bmp",
        "b/.png",
        "b/.hidden.png",
        "b/no.gif",
        "b/jpg",
        "b/x.jpg.txt",
        "b/x.jpgx",
        "b/ .jpg",
        /* folders sort by their whole path: "a-b" before "a/b" */
        "a/b/1.png",
        "a/b/0.png",
        "a/b-c/1.png",
        "a/b c/1.png",
        "a/9.png",
        "a/b/c/d/e/1.png",
        "a/B/1.png",
        "a-b/1.jpg",
        "a b/1.jpg",
        "A/1.jpg",
        ".hid/1.jpg",
        "\n/new\nline.jpg",
        /* by code points, not bytes: U+E000 sorts behind an escaped \xff, U+10000 behind both */
        "\xc3\xa9/1.jpg",
        "\xff/1.jpg",
        "\xee\x80\x80/1.jpg",
        "\xf0\x90\x80\x80/1.jpg",
        "\x80/1.jpg",
        "\xed\xa0\x80/1.jpg",
        "\xc0\xaf/1.jpg",
        "\xe2\x82/1.jpg",
        "\xe2\x82z/1.jpg",
        "\xf4\x90\x80\x80/1.jpg",
        "u/\xff.jpg",
        "u/\xee\x80\x80.jpg",
        "u/\xf0\x90\x80\x80.jpg",
        "u/\xe2\x84\xaa.jpg",
        "u/\xed\x9f\xbf.jpg",
        "u/k.\xca\xb2pg",
        "u/t.t\xc4\xb0\x66",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        put(folder, names[i], names[i]);
    memset(letters, 'n', 255);
    memcpy(letters + 251, ".jpg", 5);
    put(under(folder, "long"), letters, "x");
    memset(letters, 'c', 255);
    put(under(folder, letters), "1.jpg", "x");
    put(folder, "top-level.jpg", "x");
    put(folder, "README", "x");
    make_folders(under(folder, "b/empty-inside/"));
    make_folders(under(folder, "b/folder.jpg/"));
    put(folder, "b/folder.jpg/in.jpg", "x");
    /* links: to a file, to a folder, the same folder twice, to a class, absolute, and dangling where it does not matter */
    put_link(folder, "b/link.jpg", "z.jpg");
    put_link(folder, "b/absolute.jpg", under(folder, "a/9.png"));
    put_link(folder, "b/twice", "../a/b");
    put_link(folder, "b/thrice", under(folder, "a/b"));
    put_link(folder, "linked-class", "u");
    put_link(folder, "b/dangling.txt", "nowhere");
    assert_true(assert_as_torchvision(folder) > 50);
    struct manifest *manifest = index_and_open(folder);
    bool top_level = false, gif = false;
    for (uint32_t i = 0; manifest_skipped_name(manifest, i); i++) {
        top_level |= strcmp(manifest_skipped_name(manifest, i), "top-level.jpg") == 0;
        gif |= strcmp(manifest_skipped_name(manifest, i), "b/no.gif") == 0;
    }
    assert_true(top_level && gif);
    assert_int_equal(manifest_skipped(manifest), 11);
    manifest_close(&manifest);
}

static void each_item_has_its_mask(void **state)
{
    (void)state;
    char *photos = strdup(under(base, "photos")), *folder = strdup(under(base, "masks"));
    struct source_place place = {.path = photos, .masks = folder};
    uint8_t version[BASE_SHA256_BYTES], bytes[64];
    uint64_t size = 0;
    struct base_error error = {0};
    struct manifest *m = NULL;
    struct source_difference difference;
    put(photos, "a/one.jpg", "1");
    put(photos, "a/in.two.JPEG", "22");
    put(photos, "b/c/three", "333");
    put(photos, "b/c/three.PNG", "333");
    put(folder, "a/one.png", "mask 1");
    put(folder, "b/c/three.png", "mask three");
    assert_int_equal(source_folder_index(roots, &place, manifest_path(), NULL, version, &error),
                     BASE_NOT_FOUND);
    assert_non_null(strstr(error.text, "a/in.two.JPEG has no mask"));
    assert_non_null(strstr(error.text, "masks/a/in.two.png"));
    put_link(folder, "a/in.two.png", "/etc/passwd"); /* masks may not lead out of the data roots, either */
    assert_int_equal(source_folder_index(roots, &place, manifest_path(), NULL, version, &error),
                     BASE_REFUSED);
    assert_non_null(strstr(error.text, "outside the data roots"));
    struct source_place outside = {.path = photos, .masks = "/etc"};
    assert_int_equal(source_folder_index(roots, &outside, manifest_path(), NULL, version, &error),
                     BASE_REFUSED);
    assert_int_equal(unlink(under(folder, "a/in.two.png")), 0);
    put(folder, "a/in.two.png", "");
    assert_int_equal(source_folder_index(roots, &place, manifest_path(), NULL, version, &error), BASE_OK);
    assert_int_equal(manifest_open(&m, manifest_path(), version, &error), BASE_OK);
    assert_string_equal(manifest_masks(m), folder);
    assert_int_equal(
        source_folder_read_mask(&(struct source_folder){roots, photos, m}, 2, bytes, &size, &error), BASE_OK);
    assert_int_equal(size, 10);
    assert_memory_equal(bytes, "mask three", 10);
    assert_int_equal(
        source_folder_read_mask(&(struct source_folder){roots, photos, m}, 0, bytes, &size, &error), BASE_OK);
    assert_int_equal(size, 0);
    assert_int_equal(source_folder_probe(&(struct source_folder){roots, photos, m}, 3, &error), BASE_OK);
    assert_int_equal(unlink(under(folder, "a/one.png")), 0);
    put_link(folder, "a/one.png", "/etc/passwd");
    assert_int_equal(
        source_folder_read_mask(&(struct source_folder){roots, photos, m}, 1, bytes, &size, &error),
        BASE_UNAVAILABLE);
    assert_non_null(strstr(error.text, "outside the data roots"));
    put(folder, "b/c/three.png", "another");
    assert_int_equal(
        source_folder_read_mask(&(struct source_folder){roots, photos, m}, 2, bytes, &size, &error),
        BASE_UNAVAILABLE);
    assert_non_null(strstr(error.text, "mask: b/c/three.png: changed"));
    assert_int_equal(source_folder_probe(&(struct source_folder){roots, photos, m}, 3, &error),
                     BASE_UNAVAILABLE);
    assert_int_equal(source_folder_compare(&(struct source_folder){roots, photos, m}, &difference, &error),
                     BASE_OK);
    assert_int_equal(difference.changed, 2);
    assert_non_null(strstr(base_buffer_text(&difference.names), "mask: b/c/three.png: changed"));
    base_buffer_fini(&difference.names);
    manifest_close(&m);
    free(photos);
    free(folder);
}

static void the_same_folder_gives_the_same_version(void **state)
{
    (void)state;
    char *folder = under(base, "same");
    uint8_t first[BASE_SHA256_BYTES], again[BASE_SHA256_BYTES];
    for (int i = 0; i < 600; i++) {
        char name[64];
        snprintf(name, sizeof name, "c%d/%d.jpg", i % 7, i);
        put(folder, name, "x");
    }
    struct base_error error;
    assert_int_equal(source_folder_index(roots, &(struct source_place){.path = folder}, manifest_path(), NULL,
                                         first, &error),
                     BASE_OK);
    assert_int_equal(source_folder_index(roots, &(struct source_place){.path = folder}, manifest_path(), NULL,
                                         again, &error),
                     BASE_OK);
    assert_memory_equal(first, again, sizeof first);
    put(folder, "c0/new.jpg", "x");
    assert_int_equal(source_folder_index(roots, &(struct source_place){.path = folder}, manifest_path(), NULL,
                                         again, &error),
                     BASE_OK);
    assert_memory_not_equal(first, again, sizeof first);
}

static void folders_without_what_is_needed_are_refused(void **state)
{
    (void)state;
    char *folder = under(base, "needed");
    put(folder, "just-a-file.jpg", "x");
    assert_index_fails(folder, BASE_INVALID, "no classes", folder);
    put(folder, "cats/1.jpg", "x");
    put(folder, "dogs/readme.txt", "x");
    assert_index_fails(folder, BASE_INVALID, "class \"dogs\" is empty", folder);
    put(folder, "dogs/1.png", "x");
    put_link(folder, "cats/gone.jpg", "nowhere");
    assert_index_fails(folder, BASE_NOT_FOUND, "cats/gone.jpg", "No such file");
    unlink(under(folder, "cats/gone.jpg"));
    assert_int_equal(mkfifo(under(folder, "cats/pipe.jpg"), 0644), 0);
    assert_index_fails(folder, BASE_INVALID, "cats/pipe.jpg", "not a regular file");
    unlink(under(folder, "cats/pipe.jpg"));
    struct base_error error;
    assert_int_equal(index_folder(folder, &error), BASE_OK);
    assert_index_fails(under(folder, "cats/1.jpg"), BASE_NOT_FOUND, "cats/1.jpg", "Not a directory");
    assert_index_fails(under(base, "nowhere"), BASE_NOT_FOUND, "nowhere", "No such file");
    assert_index_fails("relative/path", BASE_INVALID, "relative/path", "absolute");
}

static void loops_of_links_are_refused(void **state)
{
    (void)state;
    static const char *const targets[] = {".", "..", "../..", "../../c"};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        char *folder = under(base, "loop");
        put(folder, "c/d/1.jpg", "x");
        put_link(folder, "c/d/back", targets[i]);
        assert_index_fails(folder, BASE_INVALID, "c/d/back", "loop");
        run("rm -rf", folder);
    }
    char *folder = under(base, "loop");
    put(folder, "c/1.jpg", "x");
    put_link(folder, "c/self.jpg", "self.jpg");
    assert_index_fails(folder, BASE_IO, "c/self.jpg", "symbolic links");
    run("rm -rf", folder);
}

static void indexing_can_be_cancelled(void **state)
{
    (void)state;
    char *folder = under(base, "cancelled");
    put(folder, "c/1.jpg", "x");
    const _Atomic bool cancel = true;
    uint8_t version[BASE_SHA256_BYTES];
    struct base_error error;
    assert_int_equal(source_folder_index(roots, &(struct source_place){.path = folder}, manifest_path(),
                                         &cancel, version, &error),
                     BASE_CANCELLED);
}

/* ---- roots ---- */

static enum base_code open_and_close(const struct source_roots *of, const char *path,
                                     struct base_error *error)
{
    int fd;
    *error = (struct base_error){0};
    enum base_code code = source_roots_open_file(of, path, &fd, error);
    if (code == BASE_OK) {
        assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
        close(fd);
    }
    return code;
}

static void links_work_inside_the_roots_and_not_out_of_them(void **state)
{
    (void)state;
    char *folder = under(base, "links"), *second = under(top, "second");
    put(folder, "c/1.jpg", "inside");
    put(second, "s.jpg", "in the other root");
    put(top, "outside/secret.jpg", "x");
    put_link(folder, "c/relative.jpg", "1.jpg");
    put_link(folder, "c/up.jpg", "../../links/c/1.jpg");
    put_link(folder, "c/absolute.jpg", under(folder, "c/1.jpg"));
    put_link(folder, "c/chain.jpg", "absolute.jpg");
    put_link(folder, "c/other-root.jpg", under(second, "s.jpg"));
    put_link(folder, "c/other-root-relative.jpg", "../../../second/s.jpg");
    put_link(folder, "c/out.jpg", under(top, "outside/secret.jpg"));
    put_link(folder, "c/out-relative.jpg", "../../../outside/secret.jpg");
    put_link(folder, "c/out-folder", under(top, "outside"));
    put_link(folder, "c/proc.jpg", "/proc/self/exe");
    put_link(folder, "c/outlink.jpg", "out.jpg");
    put_link(top, "into.jpg", under(folder, "c/1.jpg"));
    put_link(top, "rootlink", base);
    static const struct {
        const char *name;
        enum base_code code;
    } rows[] = {
        {"root/links/c/1.jpg", BASE_OK},
        {"root/links/c/relative.jpg", BASE_OK},
        {"root/links/c/up.jpg", BASE_OK},
        {"root/links/c/absolute.jpg", BASE_OK},
        {"root/links/c/chain.jpg", BASE_OK},
        {"root/links/c/other-root.jpg", BASE_OK},
        {"root/links/c/other-root-relative.jpg", BASE_OK},
        {"root/../root/links/c/1.jpg", BASE_OK},
        {"root//links/./c/1.jpg", BASE_OK},
        {"into.jpg", BASE_OK}, /* it leads beneath a root: what is read is what counts */
        {"rootlink/links/c/1.jpg", BASE_OK},
        {"root/links/c/out.jpg", BASE_REFUSED},
        {"root/links/c/out-relative.jpg", BASE_REFUSED},
        {"root/links/c/outlink.jpg", BASE_REFUSED},
        {"root/links/c/out-folder/secret.jpg", BASE_REFUSED},
        {"root/links/c/proc.jpg", BASE_REFUSED},
        {"root/../outside/secret.jpg", BASE_REFUSED},
        {"root/links/../../outside/secret.jpg", BASE_REFUSED},
        {"root-and-more/x.jpg", BASE_REFUSED},
        {"outside/secret.jpg", BASE_REFUSED},
        {"outside/not-there.jpg", BASE_REFUSED}, /* says nothing about what is there */
        {"root/links/c/none.jpg", BASE_NOT_FOUND},
        {"root/links/c", BASE_INVALID},
    };
    const char *paths[] = {base, second};
    struct source_roots *two;
    struct base_error error;
    put(top, "root-and-more/x.jpg", "x");
    assert_int_equal(source_roots_open(&two, paths, 2, NULL, 0, &error), BASE_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum base_code code = open_and_close(two, under(top, rows[i].name), &error);
        if (code != rows[i].code)
            fail_msg("%s: %s (%s)", rows[i].name, base_error_name(code), error.text);
        assert_true(code == BASE_OK || strstr(error.text, strrchr(rows[i].name, '/') + 1));
    }
    assert_int_equal(open_and_close(two, under(folder, "c/out.jpg"), &error), BASE_REFUSED);
    assert_non_null(strstr(error.text, under(top, "outside/secret.jpg")));
    assert_non_null(strstr(error.text, base));
    source_roots_close(&two);
    static const char *const out[] = {"c/other-root-relative.jpg", "c/other-root.jpg", "c/out-folder",
                                      "c/out-relative.jpg",        "c/out.jpg",        "c/proc.jpg"};
    unlink(under(folder, "c/outlink.jpg"));
    for (size_t i = 0; i < sizeof out / sizeof *out; i++) { /* the roots of the index have no second */
        assert_index_fails(folder, BASE_REFUSED, out[i], "outside the data roots");
        unlink(under(folder, out[i]));
    }
    assert_int_equal(index_folder(folder, &error), BASE_OK);
}

static void roots_must_be_there(void **state)
{
    (void)state;
    struct source_roots *none = NULL;
    struct base_error error;
    put(top, "a-file", "x");
    const char *missing[] = {base, under(top, "missing")}, *file[] = {under(top, "a-file")},
               *relative[] = {"tmp"};
    assert_int_equal(source_roots_open(&none, missing, 2, NULL, 0, &error), BASE_NOT_FOUND);
    assert_non_null(strstr(error.text, "missing"));
    assert_int_equal(source_roots_open(&none, file, 1, NULL, 0, &error), BASE_NOT_FOUND);
    assert_int_equal(source_roots_open(&none, relative, 1, NULL, 0, &error), BASE_INVALID);
    assert_null(none);
    assert_int_equal(source_roots_open(&none, NULL, 0, NULL, 0, &error), BASE_OK);
    assert_int_equal(open_and_close(none, "/etc/passwd", &error), BASE_REFUSED);
    source_roots_close(&none);
    const char *all[] = {"/"};
    assert_int_equal(source_roots_open(&none, all, 1, NULL, 0, &error), BASE_OK);
    assert_int_equal(open_and_close(none, "/etc/passwd", &error), BASE_OK);
    source_roots_close(&none);
    source_roots_close(&none);
}

static void paths_are_mapped_by_whole_components(void **state)
{
    (void)state;
    put(base, "mapped/deep/1.jpg", "x");
    put(base, "special/1.jpg", "x");
    char *deep = under(base, "mapped"), *special = under(base, "special");
    const struct source_map maps[] = {
        {"/mnt/data", deep}, {"/mnt/data/special/", special}, {"/mnt/out", "/etc"}};
    const char *paths[] = {base};
    struct source_roots *mapped;
    struct base_error error;
    assert_int_equal(source_roots_open(&mapped, paths, 1, maps, 3, &error), BASE_OK);
    assert_int_equal(open_and_close(mapped, "/mnt/data/deep/1.jpg", &error), BASE_OK);
    assert_int_equal(open_and_close(mapped, "/mnt/data//special/1.jpg", &error), BASE_NOT_FOUND);
    assert_int_equal(open_and_close(mapped, "/mnt/data/special/1.jpg", &error), BASE_OK);
    assert_int_equal(open_and_close(mapped, "/mnt/database/deep/1.jpg", &error), BASE_REFUSED);
    assert_int_equal(open_and_close(mapped, "/mnt/out/passwd", &error), BASE_REFUSED);
    assert_int_equal(open_and_close(mapped, "/mnt/data/../../etc/passwd", &error), BASE_REFUSED);
    source_roots_close(&mapped);
    const struct source_map bad = {"mnt", "/x"};
    assert_int_equal(source_roots_open(&mapped, paths, 1, &bad, 1, &error), BASE_INVALID);
}

/* ---- reading ---- */

static struct manifest *make_three(const char *folder)
{
    put(folder, "c/1.jpg", "one");
    put(folder, "c/2.jpg", "");
    put(folder, "d/3.jpg", "three");
    return index_and_open(folder);
}

static void assert_unavailable(const char *folder, const struct manifest *manifest, const char *name,
                               const char *cause)
{
    struct base_error error = {0};
    uint8_t bytes[64];
    uint64_t size = 77;
    assert_int_equal(source_folder_read(of(folder, manifest), 2, bytes, &size, &error), BASE_UNAVAILABLE);
    assert_int_equal(error.code, BASE_UNAVAILABLE);
    if (!strstr(error.text, name) || !strstr(error.text, cause))
        fail_msg("\"%s\" does not name \"%s\" and \"%s\"", error.text, name, cause);
    assert_true(size == 77);
    assert_int_equal(source_folder_probe(of(folder, manifest), 3, &error), BASE_UNAVAILABLE);
    struct source_difference difference;
    assert_int_equal(source_folder_compare(of(folder, manifest), &difference, &error), BASE_OK);
    assert_int_equal(difference.changed, 1);
    const char *text = base_buffer_text(&difference.names);
    if (!strstr(text, name))
        fail_msg("\"%s\" does not name \"%s\"", text, name);
    base_buffer_fini(&difference.names);
}

static void an_item_is_read_whole(void **state)
{
    (void)state;
    char *folder = under(base, "read");
    struct manifest *manifest = make_three(folder);
    struct base_error error;
    uint8_t bytes[64];
    uint64_t size;
    assert_int_equal(source_folder_read(of(folder, manifest), 0, bytes, &size, &error), BASE_OK);
    assert_true(size == 3 && memcmp(bytes, "one", 3) == 0);
    assert_int_equal(source_folder_read(of(folder, manifest), 1, bytes, &size, &error), BASE_OK);
    assert_true(size == 0);
    assert_int_equal(source_folder_read(of(folder, manifest), 3, bytes, &size, &error), BASE_NOT_FOUND);
    assert_int_equal(source_folder_probe(of(folder, manifest), 2, &error), BASE_OK);
    struct source_difference difference;
    assert_int_equal(source_folder_compare(of(folder, manifest), &difference, &error), BASE_OK);
    assert_int_equal(difference.changed, 0);
    base_buffer_fini(&difference.names);
    manifest_close(&manifest);
}

static void what_vanished_or_changed_is_unavailable(void **state)
{
    (void)state;
    char *folder = under(base, "changed");
    struct manifest *manifest = make_three(folder);
    char *path = under(folder, "d/3.jpg");
    struct stat before;
    assert_int_equal(stat(path, &before), 0);
    const struct timespec same[] = {before.st_atim, before.st_mtim}, later[] = {before.st_atim, {1, 2}};

    unlink(path);
    assert_unavailable(folder, manifest, "d/3.jpg", "No such file");
    put(folder, "d/3.jpg", "longer");
    assert_int_equal(utimensat(AT_FDCWD, path, same, 0), 0);
    assert_unavailable(folder, manifest, "d/3.jpg", "6 bytes instead of 5");
    put(folder, "d/3.jpg", "three");
    assert_int_equal(utimensat(AT_FDCWD, path, later, 0), 0);
    assert_unavailable(folder, manifest, "d/3.jpg", "modification time");
    unlink(path);
    put_link(folder, "d/3.jpg", "/etc/passwd");
    assert_unavailable(folder, manifest, "d/3.jpg", "outside the data roots");
    unlink(path);
    assert_int_equal(mkfifo(path, 0644), 0);
    assert_unavailable(folder, manifest, "d/3.jpg", "not a regular file");
    unlink(path);
    make_folders(under(folder, "d/3.jpg/"));
    assert_unavailable(folder, manifest, "d/3.jpg", "not a regular file");
    rmdir(path);
    put(folder, "d/3.jpg", "three");
    assert_int_equal(utimensat(AT_FDCWD, path, same, 0), 0);
    struct base_error error;
    assert_int_equal(source_folder_probe(of(folder, manifest), 3, &error), BASE_OK);
    manifest_close(&manifest);
}

static void what_may_not_be_read_is_unavailable(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("skipped: needs root to become someone else\n");
        skip();
    }
    char *folder = under(base, "forbidden");
    struct manifest *manifest = make_three(folder);
    assert_int_equal(chmod(under(folder, "d/3.jpg"), 0600), 0);
    assert_int_equal(seteuid(65534), 0);
    assert_unavailable(folder, manifest, "d/3.jpg", "Permission denied");
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(under(folder, "d/3.jpg"), 0644), 0);
    assert_int_equal(chmod(under(folder, "d"), 0700), 0);
    struct base_error error;
    uint8_t version[BASE_SHA256_BYTES];
    assert_int_equal(seteuid(65534), 0);
    enum base_code code = source_folder_index(roots, &(struct source_place){.path = folder},
                                              "/tmp/millrace-test-never", NULL, version, &error);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(code, BASE_REFUSED);
    assert_non_null(strstr(error.text, "forbidden/d"));
    assert_int_equal(access("/tmp/millrace-test-never", F_OK), -1);
    manifest_close(&manifest);
}

static void a_comparison_lists_what_is_new_and_missing(void **state)
{
    (void)state;
    char *folder = under(base, "compared");
    for (int i = 0; i < 300; i++) {
        char name[64];
        snprintf(name, sizeof name, "c%d/s%d/%d.jpg", i % 3, i % 5, i);
        put(folder, name, "x");
    }
    struct manifest *manifest = index_and_open(folder);
    run("rm -r", under(folder, "c1/s3"));
    put(folder, "c1/s9/new\nline.png", "x");
    put(folder, "b-new-class/1.png", "x");
    put(folder, "c2/0.png", "x");
    make_folders(under(folder, "empty-class/"));
    struct source_difference difference;
    struct base_error error;
    assert_int_equal(source_folder_compare(of(folder, manifest), &difference, &error), BASE_OK);
    assert_int_equal(difference.changed, 20 + 3);
    const char *text = base_buffer_text(&difference.names);
    static const char *const lines[] = {"b-new-class/1.png: new\n", "c1/s9/new?line.png: new",
                                        "c2/0.png: new", "c1/s3/13.jpg: missing"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_non_null(strstr(text, lines[i]));
    base_buffer_fini(&difference.names);
    run("rm -r", under(folder, "c0"));
    run("rm -r", under(folder, "c2"));
    assert_int_equal(source_folder_compare(of(folder, manifest), &difference, &error), BASE_OK);
    assert_int_equal(difference.changed, 20 + 2 + 200);
    int listed = 1;
    for (size_t i = 0; i < difference.names.size; i++)
        listed += difference.names.bytes[i] == '\n';
    assert_int_equal(listed, 100);
    base_buffer_fini(&difference.names);
    run("rm -r", folder);
    assert_int_equal(source_folder_compare(of(folder, manifest), &difference, &error), BASE_NOT_FOUND);
    manifest_close(&manifest);
}

static int make_roots(void **state)
{
    (void)state;
    char made[] = "/tmp/millrace-source-XXXXXX";
    if (!mkdtemp(made) || !realpath(made, top) || chmod(top, 0755) != 0)
        return -1;
    snprintf(base, sizeof base, "%s/root", top);
    const char *paths[] = {base};
    return mkdir(base, 0755) || source_roots_open(&roots, paths, 1, NULL, 0, NULL) != BASE_OK;
}

static int remove_all(void **state)
{
    (void)state;
    source_roots_close(&roots);
    run("rm -rf", top);
    while (path_count > 0)
        free(made_paths[--path_count]);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_photographs_are_found_as_torchvision_does),
        cmocka_unit_test(odd_trees_are_found_as_torchvision_does),
        cmocka_unit_test(each_item_has_its_mask),
        cmocka_unit_test(the_same_folder_gives_the_same_version),
        cmocka_unit_test(folders_without_what_is_needed_are_refused),
        cmocka_unit_test(loops_of_links_are_refused),
        cmocka_unit_test(indexing_can_be_cancelled),
        cmocka_unit_test(links_work_inside_the_roots_and_not_out_of_them),
        cmocka_unit_test(roots_must_be_there),
        cmocka_unit_test(paths_are_mapped_by_whole_components),
        cmocka_unit_test(an_item_is_read_whole),
        cmocka_unit_test(what_vanished_or_changed_is_unavailable),
        cmocka_unit_test(what_may_not_be_read_is_unavailable),
        cmocka_unit_test(a_comparison_lists_what_is_new_and_missing),
    };
    if (argc != 3)
        return 2;
    imagefolder_py = argv[1];
    default_data = argv[2];
    return cmocka_run_group_tests(tests, make_roots, remove_all);
}
